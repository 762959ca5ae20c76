"""The server that the demonstration starts, kills and starts again."""

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from qimd.telemetry.metrics import ZEROS

START_TIMEOUT_S: Final = 30.0


class Server:
    """`qimd dev` as a process of its own: one data folder, and the ports of its first start."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.address = ""
        self.metrics = ""
        self.ready_s: list[float] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._log = data / "demo-server.log"

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises RuntimeError with the end of its log."""
        ready = self.data / "demo-ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "qimd.app.main", "dev", "--data", str(self.data)]
        command += ["--grpc-port", self.address.rpartition(":")[2] or "0"]
        command += ["--metrics-port", self.metrics.rpartition(":")[2] or "0"]
        command += ["--ready-file", str(ready), "--log-level", "warning"]
        began_s = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603, ASYNC220
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() - began_s > START_TIMEOUT_S:
                raise RuntimeError(f"qimd dev did not start:\n{self._log.read_text()[-2000:]}")
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


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own server
        text: str = answer.read().decode()
        return text
