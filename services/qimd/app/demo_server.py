"""The servers that the demonstration starts, kills and starts again."""

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from qimd.app import secret_file
from qimd.app.credentials import load_or_create
from qimd.app.roles import ALL
from qimd.telemetry.metrics import ZEROS

START_TIMEOUT_S: Final = 60.0


class Server(ABC):
    """`qimd` in processes of its own, on the ports of their first start; `folder` is scratch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ready_s: list[float] = []
        self._log = folder / "demo-server.log"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[str, tuple[str, str]] = {}
        """(gRPC, metrics) of each process, as host:port."""

    @property
    @abstractmethod
    def admin_token(self) -> str:
        """What lets the demonstration administrate; known once it was started."""

    @abstractmethod
    def commands(self) -> Mapping[str, Sequence[str]]:
        """Each process's command and settings, ports and files apart."""

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self._grpc("connection")

    @property
    def mailbox_address(self) -> str:
        """Where mailboxes are administrated."""
        return self._grpc("mailbox")

    def _grpc(self, role: str) -> str:
        """A role's address: that of its process, or of the one that runs all."""
        name = role if role in self._ports else next(iter(self._ports))
        return self._ports[name][0]

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises RuntimeError with the end of its log."""
        began_s = time.monotonic()
        waiting = {name: self.folder / f"demo-{name}.json" for name in self.commands()}
        for name, arguments in self.commands().items():
            waiting[name].unlink(missing_ok=True)
            self._processes[name] = self._started(name, arguments, waiting[name])
        while not all(ready.exists() for ready in waiting.values()):
            ended = any(process.poll() is not None for process in self._processes.values())
            if ended or time.monotonic() - began_s > START_TIMEOUT_S:
                raise RuntimeError(f"qimd did not start:\n{self._log.read_text()[-2000:]}")
            await asyncio.sleep(0.01)
        for name, ready in waiting.items():
            told = json.loads(ready.read_text())
            self._ports[name] = (told["grpc"], told["metrics"])
        self.ready_s.append(time.monotonic() - began_s)

    def _started(
        self, name: str, arguments: Sequence[str], ready: Path
    ) -> "subprocess.Popen[bytes]":
        grpc, metrics = self._ports.get(name, (":0", ":0"))
        command = [sys.executable, "-m", "qimd.app.main", *arguments]
        command += ["--grpc-port", grpc.rpartition(":")[2]]
        command += ["--metrics-port", metrics.rpartition(":")[2]]
        command += ["--ready-file", str(ready), "--log-level", "warning"]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more, nothing is flushed."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if it takes too long."""
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        try:
            for process in self._processes.values():
                process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.kill()

    async def zeros(self) -> dict[str, float]:
        """The five counters that must stay zero, as these processes have them now."""
        found = dict.fromkeys(ZEROS, 0.0)
        for _, metrics in self._ports.values():
            for name, value in (await asyncio.to_thread(_zeros_of, metrics)).items():
                found[name] += value
        return found


class DevServer(Server):
    """`qimd dev`, durable in the folder."""

    @property
    def admin_token(self) -> str:
        """See Server."""
        return load_or_create(self.folder).admin_token

    def commands(self) -> Mapping[str, Sequence[str]]:
        """See Server."""
        return {"dev": ["dev", "--data", str(self.folder)]}


class DeploymentServer(Server):
    """A deployment of its own, a process a role, on the engines that QIM_* variables name.

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

    def commands(self) -> Mapping[str, Sequence[str]]:
        """See Server."""
        return {role: ["run", "--role", role, *self._settings()] for role in sorted(ALL)}

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


def _zeros_of(metrics: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in ZEROS
    }
    if set(found) != set(ZEROS):
        raise RuntimeError(f"counters are missing from /metrics: {set(ZEROS) - set(found)}")
    return found
