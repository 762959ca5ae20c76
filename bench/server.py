"""`qimd dev` as a process of its own, and what a bench does as its operator."""

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.harness import Wrong
from qimd.app.credentials import FILE_NAME
from qimd.client import AdminClient

LAST_LINE: Final = "Ctrl-C ends it."
TENANT: Final = "dev"
_STOP_S: Final = 60.0
_LOOK_S: Final = 0.02
_PATIENCE_S: Final = 600.0


class DevServer:
    """A server on a data folder, from `start` to `stop`. `flags` are those of `qimd dev`."""

    def __init__(self, data: Path, **flags: object) -> None:
        self.data = data
        self.address = ""
        self._flags = flags
        self._process: subprocess.Popen[str] | None = None
        self._log = data.with_name(data.name + ".log")

    def start(self) -> Self:
        """Start it; returns once it is ready, which its banner says."""
        options = {"data": self.data, "grpc-port": 0, "metrics-port": 0, "log-level": "warning"}
        options |= {name.replace("_", "-"): value for name, value in self._flags.items()}
        command = [sys.executable, "-m", "qimd.app.main", "dev"]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        if self._process.stdout is None or not any(
            line.strip() == LAST_LINE for line in self._process.stdout
        ):
            raise Wrong(f"the server did not start:\n{self._log.read_text()[-2000:]}")
        self.address = str(self._credentials["address"])
        return self

    def stop(self) -> None:
        """End it in order, and see it end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once: nothing of it runs any more, nothing is flushed."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.wait(_STOP_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    # --- what one asks it ---

    @property
    def pid(self) -> int:
        """Its process."""
        if self._process is None:
            raise Wrong("the server does not run")
        return self._process.pid

    @property
    def _credentials(self) -> Mapping[str, object]:
        return _credentials_in(self.data)

    def admin(self) -> AdminClient:
        """The operator's client. Use it as a context manager."""
        return AdminClient(self.address, str(self._credentials["admin_token"]), timeout_s=60.0)

    def tokens(self) -> "Tokens":
        """What signs its users' tokens."""
        return tokens_of(self.data)

    def samples(self) -> Mapping[str, float]:
        """Every sample of /metrics, by its text."""
        return metrics_of(str(self._credentials["metrics_address"]))


def metrics_of(address: str) -> Mapping[str, float]:
    """Every sample of a /metrics, by its text."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def _credentials_in(data: Path) -> Mapping[str, object]:
    document: dict[str, object] = json.loads((data / FILE_NAME).read_text())
    return document


def tokens_of(data: Path) -> "Tokens":
    """What signs the tokens of a data folder's tenant."""
    document = _credentials_in(data)
    return Tokens(str(document["private_key"]), str(document["key_id"]))


class Tokens:
    """Access tokens of the server's tenant. Crosses to a client's process as its two texts."""

    def __init__(self, private_key: str, key_id: str) -> None:
        self.private_key = private_key
        self.key_id = key_id
        self._key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(private_key))

    def token(self, user: str, device: str = "bench") -> str:
        """A token that is good for an hour."""
        now_s = int(time.time())
        claims = {"sub": user, "tenant": TENANT, "device": device, "jti": secrets.token_hex(8)}
        times = {"iat": now_s, "exp": now_s + 3600}
        headers = {"kid": self.key_id}
        return jwt.encode({**claims, **times}, self._key, algorithm="EdDSA", headers=headers)


def wait_until(holds: Callable[[], bool], what: str, patience_s: float = _PATIENCE_S) -> None:
    """Look until something holds. Raises Wrong after `patience_s`."""
    ends = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > ends:
            raise Wrong(f"{what} did not happen within {patience_s:.0f} s")
        time.sleep(_LOOK_S)


def caught_up(admin: AdminClient) -> bool:
    """Whether every mailbox shard has durably finished its partition of the log."""
    return all(shard.next_offset >= shard.high_watermark for shard in admin.mailbox_shards())


def dispatched(admin: AdminClient, conversation: str) -> bool:
    """Whether the log has every event of a conversation: a SEND is acknowledged before that."""
    found = admin.get_conversation(TENANT, conversation)
    return found.dispatched_through == found.head_version


def projected(admin: AdminClient) -> bool:
    """Whether the session projection has, too."""
    partitions = admin.projection_partitions()
    return all(each.next_offset >= each.high_watermark for each in partitions)


def drop_from_cache(path: Path) -> None:
    """Have the kernel forget a file's pages, so that reading it is reading the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
