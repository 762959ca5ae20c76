"""A deployment of a test's own on the shared engines: processes that a test kills in many ways.

Its name is the prefix of every key, and its topic is its own, so tests share the engines and never
meet. Leases are short, since deaths are waited out.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests import engines as shared
from tests.contract.cassandra_engine import cassandra_settings
from tests.support.wire import Wire

from qimd.adapters.kafka import KafkaLog
from qimd.app import secret_file
from qimd.app.demo_server import DeploymentServer
from qimd.app.profiles import make_topic, open_dispatch_log
from qimd.app.run_settings import RunSettings
from qimd.app.runtime import AsyncioRuntime
from qimd.client import AdminClient, ErrorCode, QimError
from qimd.telemetry.metrics import ZEROS, Metrics

R = TypeVar("R")

TENANT: Final = "acme"
SHARDS: Final = 2
"""Of writers, and of mailboxes unless a test wants more: enough to have another one."""

PATIENCE_S: Final = 240.0
"""How long a machine that is busy with other things may take. No test waits for it."""

SHORT_LEASE: Final = DeploymentServer.LEASE
"""6 s of lease, 5 s to the self-fence, 7 s to a takeover."""

STEADY_LEASE: Final = (
    *("--shard-lease-ttl-s", "12", "--writer-self-fence-deadline-s", "10"),
    *("--writer-failover-wait-s", "13", "--lease-renew-interval-s", "2"),
    *("--lease-renew-retry-s", "0.5"),
)
"""For tests that go by who owns what: a busy machine takes no shard from its owner."""

SEED_LEASE: Final = (
    *("--shard-lease-ttl-s", "15", "--writer-self-fence-deadline-s", "12"),
    *("--writer-failover-wait-s", "25", "--lease-renew-interval-s", "5"),
)
"""The values of the seed's section 1.3."""

_WINDOW_MS: Final = 24 * 3600 * 1000
_LOOK_S: Final = 0.05
_KEY_ID: Final = "test-1"
_TOP: Final = Path(__file__).parents[3]


async def until(holds: Callable[[], bool], what: str) -> None:
    """Look, off the event loop, until it holds. A test that waits for ever says for what."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline_s, f"it never came: {what}"
        await asyncio.sleep(_LOOK_S)


class Process:
    """`qimd run` of one role, or of all. `build` names changes to it (`builds`); none: as it is."""

    def __init__(
        self, name: str, folder: Path, arguments: Sequence[str], build: Sequence[str]
    ) -> None:
        self.name = name
        self.grpc = ""
        self.metrics = ""
        self.exit_status: int | None = None
        self._folder = folder
        self._arguments = arguments
        self._build = build
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    # --- its life ---

    def spawn(self) -> None:
        """Start it, and wait for nothing."""
        entry = [str(Path(__file__).with_name("builds.py"))] if self._build else ["-m", _QIMD]
        command = [sys.executable, *entry, "run", *self._arguments]
        command += ["--ready-file", str(self._ready_file), "--log-level", "info"]
        self._ready_file.unlink(missing_ok=True)
        environment = {name: text for name, text in os.environ.items() if name[:4] != "QIM_"}
        paths = (str(_TOP), os.environ.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if self._build:
            environment["QIM_TEST_BUILD"] = ",".join(self._build)
            environment["QIM_TEST_SCENE"] = str(self._folder)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.exit_status = None
        self._stopped = False

    async def start(self) -> None:
        """Start it, and return once it is ready."""
        self.spawn()
        await self.ready()

    async def ready(self) -> None:
        """Return once it, which was spawned, is ready."""
        await until(self._is_up, f"{self.name} is ready")
        told = json.loads(self._ready_file.read_text())
        self.grpc, self.metrics = told["grpc"], told["metrics"]

    async def refuses(self) -> str:
        """Start it where it must not become ready; what it says as it ends."""
        self.spawn()
        await until(lambda: not self.alive, f"{self.name} has ended")
        return self.told()

    def _is_up(self) -> bool:
        assert self.alive, f"{self.name} ended by itself:\n{self.told()[-3000:]}"
        return self._ready_file.exists()

    def pause(self) -> None:
        """SIGSTOP: it lives, holds its connections, and does nothing."""
        self._signal(signal.SIGSTOP)
        self._stopped = True

    def resume(self) -> None:
        """SIGCONT: to it, no time has passed but on its clocks."""
        self._signal(signal.SIGCONT)
        self._stopped = False

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more, nothing is flushed."""
        self._signal(signal.SIGKILL)
        self._reap()

    async def stop(self) -> int:
        """SIGTERM, and see it end in order; the exit status."""
        self._signal(signal.SIGTERM)
        await until(lambda: not self.alive, f"{self.name} has stopped")
        assert self.exit_status is not None
        return self.exit_status

    async def ended(self) -> None:
        """Return once it is dead, by whatever hand."""
        await until(lambda: not self.alive, f"{self.name} is dead")

    @property
    def alive(self) -> bool:
        """Whether it runs, or is stopped."""
        if self._process is not None and self._process.poll() is not None:
            self._reap()
        return self._process is not None

    @property
    def answers(self) -> bool:
        """Whether it can be asked something."""
        return self.alive and not self._stopped and bool(self.grpc)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, f"{self.name} does not run"
        self._process.send_signal(number)

    def _reap(self) -> None:
        assert self._process is not None
        self.exit_status = self._process.wait()
        self._process = None

    # --- what it tells ---

    @property
    def _ready_file(self) -> Path:
        return self._folder / f"{self.name}.ready"

    @property
    def _log(self) -> Path:
        return self._folder / f"{self.name}.log"

    def told(self) -> str:
        """Its log, over all its starts."""
        return self._log.read_text(errors="replace")

    def samples(self) -> dict[str, float]:
        """Every sample of its /metrics by its text, labels included."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def total(self, metric: str) -> float:
        """A metric, summed over its labels."""
        found = self.samples()
        return sum(value for name, value in found.items() if name.partition("{")[0] == metric)

    def owns(self, kind: str) -> bool:
        """Whether every shard of the kind is this process's now."""
        found = self.samples()
        names = (f'epoch{{kind="{kind}",shard="{shard}"}}' for shard in range(SHARDS))
        return all(found.get(name, 0) > 0 for name in names)


_QIMD: Final = "qimd.app.main"


async def owned_by(process: Process, *kinds: str) -> None:
    """Return once every shard of the kinds is that process's."""
    await until(lambda: all(map(process.owns, kinds)), f"{process.name} owns {kinds}")


@dataclass
class Deployment:
    """Its processes, its door for clients, its tenant, and the five zeros of all its dead."""

    folder: Path
    lease: tuple[str, ...] = SHORT_LEASE
    store: str = "redis"
    engines: Mapping[str, str] = field(default_factory=dict)
    """Addresses that replace those of the shared engines."""
    mailbox_shards: int = SHARDS

    def __post_init__(self) -> None:
        self.name = f"t-{uuid.uuid4().hex[:12]}"
        self.topic = f"qim.dispatch.{self.name}"
        self.door = Wire()
        self.processes: list[Process] = []
        self.counted: Counter[str] = Counter()
        self._secrets = self.folder / "secrets.json"
        self._key = Ed25519PrivateKey.generate()
        secret_file.make(self._secrets)

    def at(self, engine: str) -> str:
        """Where its processes reach an engine."""
        found = self.engines.get(engine) or shared.address(engine)
        assert found is not None, "conftest leaves these tests out where the engines do not run"
        return found

    # --- its log ---

    @property
    def log_settings(self) -> RunSettings:
        """What says which topic, where, and of how many partitions."""
        return RunSettings(
            redpanda_brokers=(self.at("kafka"),),
            dispatch_topic=self.topic,
            mailbox_shards=self.mailbox_shards,
            dispatch_recovery_window_ms=_WINDOW_MS,
        )

    async def make_topic(self) -> None:
        """What `qimd topic` does, without a process."""
        await make_topic(self.log_settings, replicas=1)

    @asynccontextmanager
    async def log(self) -> AsyncIterator[KafkaLog]:
        """The topic, for a test that does to it what no process of the deployment does."""
        async with open_dispatch_log(self.log_settings, AsyncioRuntime(Metrics())) as opened:
            yield opened

    # --- its processes ---

    def process(self, name: str, role: str, *extra: str, build: tuple[str, ...] = ()) -> Process:
        """A process of it, not started. `extra` overrules, as the last of a flag does."""
        arguments = (
            *("--role", role, "--secrets", str(self._secrets), "--deployment", self.name),
            *("--redpanda-brokers", self.at("kafka"), "--dispatch-topic", self.topic),
            *("--redis", self.at("redis"), "--etcd", self.at("etcd"), "--single-node-log"),
            *("--mailbox-shards", str(self.mailbox_shards), "--writer-shards", str(SHARDS)),
            *("--dispatch-recovery-window-ms", str(_WINDOW_MS), "--audit-interval-s", "1"),
            *("--grpc-port", "0", "--metrics-port", "0", "--hop-port", "0"),
            *(*self._store(), *self.lease, *extra),
        )
        made = Process(name, self.folder, arguments, build)
        self.processes.append(made)
        return made

    def _store(self) -> tuple[str, ...]:
        if self.store == "redis":
            return ()
        place = cassandra_settings()
        return (
            *("--store-backend", "scylla", "--scylla-hosts", ",".join(place.hosts)),
            *("--scylla-port", str(place.port), "--scylla-keyspace", place.keyspace),
            *("--scylla-dc", place.datacenter, "--scylla-rf", "1"),
        )

    def lead_to(self, process: Process) -> None:
        """Let the door open to this process: clients that are there already stay where they are."""
        self.door.target = process.grpc

    async def kill(self, process: Process) -> None:
        """SIGKILL. What it has counted until a moment before is kept."""
        await self.count(process)
        process.kill()

    async def stop(self, process: Process) -> None:
        """SIGTERM, likewise."""
        await self.count(process)
        assert await process.stop() == 0, process.told()[-3000:]

    async def count(self, process: Process) -> None:
        """Keep the process's five zeros, since it is about to die."""
        found = await asyncio.to_thread(process.samples)
        self.counted.update({name: found[name] for name in ZEROS})

    async def zeros(self) -> dict[str, float]:
        """The five zeros, summed over all processes and their dead predecessors."""
        total = Counter(self.counted)
        for process in self.processes:
            if process.answers:
                found = await asyncio.to_thread(process.samples)
                total.update({name: found[name] for name in ZEROS})
        return {name: total[name] for name in ZEROS}

    # --- its tenant ---

    def token(self, user: str, device: str) -> str:
        """An access token of the tenant."""
        now_s = int(time.time())
        claims = {
            "sub": user,
            "tenant": TENANT,
            "device": device,
            "jti": uuid.uuid4().hex,
            "iat": now_s,
            "exp": now_s + 3600,
        }
        return jwt.encode(claims, self._key, algorithm="EdDSA", headers={"kid": _KEY_ID})

    async def create_tenant(self) -> None:
        """Register the tenant and its key."""
        key = self._key.public_key().public_bytes_raw()
        await self.administrate(lambda admin: admin.create_tenant(TENANT, {_KEY_ID: key}))

    def admin_of(self, process: Process) -> AdminClient:
        """Administration calls to this very process."""
        return AdminClient(process.grpc, self.admin_token)

    @property
    def admin_token(self) -> str:
        """What administration calls carry."""
        return secret_file.read(self._secrets).admin_token

    @property
    def admin_metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of an administration call."""
        return (("authorization", f"Bearer {self.admin_token}"),)

    async def administrate(self, call: Callable[[AdminClient], R]) -> R:
        """An administration call that may be made twice, to whichever process can answer it now."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            refusals = []
            for process in self.processes:
                if not process.answers:
                    continue
                try:
                    return await asyncio.to_thread(self._ask, process, call)
                except QimError as error:
                    if error.code not in _ASK_ANOTHER:
                        raise
                    refusals.append(f"{process.name}: {error}")
            assert time.monotonic() < deadline_s, refusals
            await asyncio.sleep(_LOOK_S)

    def _ask(self, process: Process, call: Callable[[AdminClient], R]) -> R:
        with self.admin_of(process) as admin:
            return call(admin)


_ASK_ANOTHER: Final = {ErrorCode.UNIMPLEMENTED, ErrorCode.NOT_OWNER, ErrorCode.UNAVAILABLE}


@asynccontextmanager
async def deployed(
    folder: Path,
    *,
    lease: tuple[str, ...] = SHORT_LEASE,
    store: str = "redis",
    at: Mapping[str, str] | None = None,
    mailbox_shards: int = SHARDS,
) -> AsyncIterator[Deployment]:
    """A deployment with its topic and its door, and no process yet; at the end none is left."""
    deployment = Deployment(folder, lease, store, at or {}, mailbox_shards)
    await deployment.make_topic()
    async with deployment.door:
        try:
            yield deployment
        finally:
            for process in deployment.processes:
                if process.alive:
                    process.kill()
