"""The server that the demonstration starts, kills and starts again."""

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from qimd.app import secret_file
from qimd.app.credentials import load_or_create
from qimd.telemetry.metrics import ZEROS

START_TIMEOUT_S: Final = 60.0


class Server(ABC):
    """`qimd` as a process of its own, on the ports of its first start; `folder` is scratch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self.metrics = ""
        self.ready_s: list[float] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "demo-server.log"

    @property
    @abstractmethod
    def admin_token(self) -> str:
        """What lets the demonstration administrate; known once it was started."""

    @abstractmethod
    def arguments(self) -> list[str]:
        """The command and its settings, ports and files apart."""

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises RuntimeError with the end of its log."""
        ready = self.folder / "demo-ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "qimd.app.main", *self.arguments()]
        command += ["--grpc-port", self.address.rpartition(":")[2] or "0"]
        command += ["--metrics-port", self.metrics.rpartition(":")[2] or "0"]
        command += ["--ready-file", str(ready), "--log-level", "warning"]
        began_s = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603, ASYNC220
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() - began_s > START_TIMEOUT_S:
                raise RuntimeError(f"qimd did not start:\n{self._log.read_text()[-2000:]}")
            await asyncio.sleep(0.01)
        told = json.loads(ready.read_text())
        self.address, self.metrics = told["grpc"], told["metrics"]
        self.ready_s.append(time.monotonic() - began_s)

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more, nothing is flushed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if it takes too long."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.kill()

    async def zeros(self) -> dict[str, float]:
        """The five counters that must stay zero, as this process has them now."""
        text = await asyncio.to_thread(_get, f"http://{self.metrics}/metrics")
        found = {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in ZEROS
        }
        if set(found) != set(ZEROS):
            raise RuntimeError(f"counters are missing from /metrics: {set(ZEROS) - set(found)}")
        return found


class DevServer(Server):
    """`qimd dev`, durable in the folder."""

    @property
    def admin_token(self) -> str:
        """See Server."""
        return load_or_create(self.folder).admin_token

    def arguments(self) -> list[str]:
        """See Server."""
        return ["dev", "--data", str(self.folder)]


class DeploymentServer(Server):
    """`qimd run` on the engines that QIM_* variables name, as a deployment of its own.

    Its leases are short, since a kill is waited out: nothing proves to the next process that the
    one before is dead, as a locked folder does.
    """

    LEASE: Final = (
        *("--shard-lease-ttl-s", "6", "--writer-self-fence-deadline-s", "5"),
        *("--writer-failover-wait-s", "7", "--lease-renew-interval-s", "1.5"),
        *("--lease-renew-retry-s", "0.5"),
    )

    def __init__(self, folder: Path, store_backend: str) -> None:
        super().__init__(folder)
        self._secrets = folder / "demo-secrets.json"
        self._name = f"demo-{time.time_ns()}"
        self._store_backend = store_backend
        secret_file.make(self._secrets)

    @property
    def admin_token(self) -> str:
        """See Server."""
        return secret_file.read(self._secrets).admin_token

    def arguments(self) -> list[str]:
        """See Server."""
        return ["run", *self._settings()]

    async def make_topic(self) -> None:
        """Make the deployment's topic. Raises RuntimeError."""
        command = [sys.executable, "-m", "qimd.app.main", "topic", *self._settings()]
        process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
        _, told = await process.communicate()
        if process.returncode:
            raise RuntimeError(told.decode().strip())

    def _settings(self) -> list[str]:
        return [
            *("--secrets", str(self._secrets), "--deployment", self._name),
            *("--dispatch-topic", f"qim.dispatch.{self._name}", "--single-node-log"),
            *("--mailbox-shards", "2", "--writer-shards", "2", "--hop-port", "0"),
            *("--dispatch-recovery-window-ms", str(24 * 3600 * 1000)),
            *("--store-backend", self._store_backend, *self.LEASE),
        ]


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own server
        text: str = answer.read().decode()
        return text
