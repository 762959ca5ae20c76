"""`qimd run` on engines of the bench's own, a process a role, and what its operator does.

The engines are those that the tests install (`tests.engines`): each on loopback, its data in the
bench's folder, on the disk that this is on.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.engines.etcd import Etcd
from tests.engines.kafka import Kafka
from tests.engines.process import Server
from tests.engines.redis import Redis

from bench import machine
from bench.harness import Wrong
from bench.server import TENANT, Tokens, metrics_of, wait_until
from qimd.app import secret_file
from qimd.app.secret_file import key_text
from qimd.client import AdminClient

ROLES: Final = ("writer", "mailbox", "session", "connection")
SHARDS: Final = 2
"""Of writers and of mailboxes: a partition of the log, and a busy core, for each of the latter."""

ALWAYS: Final = "always"
EVERYSEC: Final = "everysec"
"""When Redis syncs its append-only file."""

KEY_ID: Final = "bench"
_STOP_S: Final = 60.0
_WINDOW_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True)
class Engines:
    """Where they listen. `redis` has one for each policy, `raw` another one of the same policy."""

    kafka: str
    etcd: str
    redis: Mapping[str, str]
    raw: Mapping[str, str]


@contextmanager
def engines(folder: Path) -> Iterator[Engines]:
    """All of them, up; gone at the end."""
    with ExitStack() as stack:

        def up(server: Server) -> str:
            stack.enter_context(server)
            return server.address

        def redis(name: str, policy: str) -> str:
            return up(Redis(folder / f"{name}-{policy}", "--appendfsync", policy))

        yield Engines(
            kafka=up(Kafka(folder / "kafka")),
            etcd=up(Etcd(folder / "etcd")),
            redis={policy: redis("redis", policy) for policy in (EVERYSEC, ALWAYS)},
            raw={policy: redis("raw", policy) for policy in (EVERYSEC, ALWAYS)},
        )


class Deployment:
    """One deployment with a topic and a tenant of its own; the roles that run are the bench's to
    start and stop.
    """

    def __init__(self, folder: Path, engines: Engines, policy: str, chunk_recipients: int) -> None:
        self.folder = folder
        self.chunk_recipients = chunk_recipients
        folder.mkdir()
        name = f"bench-{uuid.uuid4().hex[:12]}"
        self._secrets = folder / "secrets.json"
        secret_file.make(self._secrets)
        self._settings = {
            "secrets": self._secrets,
            "deployment": name,
            "dispatch-topic": f"qim.dispatch.{name}",
            "redpanda-brokers": engines.kafka,
            "etcd": engines.etcd,
            "redis": engines.redis[policy],
            "mailbox-shards": SHARDS,
            "writer-shards": SHARDS,
            "dispatch-recovery-window-ms": _WINDOW_MS,
            "dispatch-chunk-recipients": chunk_recipients,
        }
        self._switches = ["--single-node-log"]
        if policy == EVERYSEC:
            self._switches.append("--accept-loss-of-acknowledged-writes")
        self._key = secrets.token_bytes(32)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._told: dict[str, Mapping[str, str]] = {}
        self._run("topic", "--replicas", "1")

    # --- its processes ---

    def _command(self, verb: str, *more: str) -> list[str]:
        flags = (part for name, value in self._settings.items() for part in (f"--{name}", value))
        return [
            *(sys.executable, "-m", "qimd.app.main", verb, *map(str, flags)),
            *(*self._switches, *more),
        ]

    def _run(self, verb: str, *more: str) -> None:
        done = subprocess.run(
            self._command(verb, *more), env=_environment(), capture_output=True, check=False
        )
        if done.returncode:
            raise Wrong(f"qimd {verb}: {done.stderr.decode()[-2000:]}")

    def start(self, *roles: str) -> None:
        """Start processes of roles; returns once they are ready, and own every shard."""
        waiting = {role: self.folder / f"{role}.ready" for role in roles}
        for role, ready in waiting.items():
            ready.unlink(missing_ok=True)
            ports = ("--grpc-port", "0", "--metrics-port", "0", "--hop-port", "0")
            told = ("--ready-file", str(ready), "--log-level", "warning")
            with (self.folder / f"{role}.log").open("ab") as log:
                self._processes[role] = subprocess.Popen(
                    self._command("run", "--role", role, *ports, *told),
                    stdout=log,
                    stderr=log,
                    env=_environment(),
                )
        for role, ready in waiting.items():
            wait_until(lambda at=ready, who=role: self._is_up(who, at), f"{role} starting")  # type: ignore[misc]
            self._told[role] = json.loads(ready.read_text())
        for role in {"writer", "mailbox", "session"} & set(roles):
            wait_until(lambda kind=role: self._owns(kind), f"{role} owning its shards")  # type: ignore[misc]

    def _is_up(self, role: str, ready: Path) -> bool:
        if self._processes[role].poll() is not None:
            told = (self.folder / f"{role}.log").read_text()
            raise Wrong(f"{role} ended by itself:\n{told[-2000:]}")
        return ready.exists()

    def _owns(self, kind: str) -> bool:
        found = self.samples(kind)
        return all(found.get(f'epoch{{kind="{kind}",shard="{n}"}}', 0) > 0 for n in range(SHARDS))

    def stop(self, *roles: str) -> None:
        """End processes in order, all of them unless some are named."""
        ending = [self._processes.pop(role) for role in roles or list(self._processes)]
        for process in ending:
            process.send_signal(signal.SIGTERM)
        for process in ending:
            process.wait(_STOP_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stop()
        for process in self._processes.values():
            process.kill()
            process.wait()

    # --- what one asks it ---

    @property
    def roles(self) -> Collection[str]:
        """Those that run."""
        return self._processes.keys()

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self._told["connection"]["grpc"]

    def cpu_s(self) -> float:
        """Processor seconds that its processes have used."""
        return sum(machine.cpu_s(process.pid) for process in self._processes.values())

    def samples(self, role: str) -> Mapping[str, float]:
        """Every sample of a role's /metrics, by its text."""
        return metrics_of(self._told[role]["metrics"])

    def admin(self, role: str) -> AdminClient:
        """The operator's client of a role's process. Use it as a context manager."""
        token = secret_file.read(self._secrets).admin_token
        return AdminClient(self._told[role]["grpc"], token, timeout_s=60.0)

    def tokens(self) -> Tokens:
        """What signs its users' tokens."""
        return Tokens(key_text(self._key), KEY_ID)

    def create_tenant(self) -> None:
        """Register the tenant and its key."""
        public = Ed25519PrivateKey.from_private_bytes(self._key).public_key().public_bytes_raw()
        with self.admin("connection") as admin:
            admin.create_tenant(TENANT, {KEY_ID: public})


def _environment() -> Mapping[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("QIM_")}
