"""A `qimd dev` process of a test's own: started, watched, stopped or killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from qimd.app.credentials import FILE_NAME

LAST_LINE = "Ctrl-C ends it."
READY_S = 3.0
_START_S = 60.0
_STOP_S = 30.0


class DidNotStart(AssertionError):
    """The process ended before it was ready."""


@dataclass
class DevServer:
    """A server on a data folder; `start` returns once it is ready.

    Waiting is reading: the banner's last line, or the end of the output of a process that died.
    """

    data: Path
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.banner = ""
        self.grpc = ""
        self.metrics = ""
        self.ready_after_s = 0.0
        self.log = self.data.parent / f"{self.data.name}.log"
        self._ready_file = self.data.parent / f"{self.data.name}.ready"

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "qimd.app.main", "dev", "--data", str(self.data)),
            *("--grpc-port", "0", "--metrics-port", "0", "--ready-file", str(self._ready_file)),
            *self.arguments,
        ]

    def spawn(self) -> subprocess.Popen[str]:
        """Start the process and wait for nothing."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=subprocess.PIPE, stderr=log, text=True
            )
        return self.process

    def start(self) -> Self:
        began_s = time.monotonic()
        process = self.spawn()
        try:
            self._await_ready(process)
        except BaseException:
            self.kill()
            raise
        self.ready_after_s = time.monotonic() - began_s
        return self

    def _await_ready(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        lines: list[str] = []
        # A server that is never ready must fail its test, not hang it.
        deadline = threading.Timer(_START_S, process.kill)
        deadline.start()
        try:
            for line in process.stdout:
                lines.append(line)
                if line.strip() == LAST_LINE:
                    break
            else:
                raise DidNotStart(f"exit status {process.wait()}:\n{self.log.read_text()}")
        finally:
            deadline.cancel()
        self.banner = "".join(lines)
        told = json.loads(self._ready_file.read_text())
        self.grpc, self.metrics = told["grpc"], told["metrics"]

    def kill(self) -> None:
        """SIGKILL, and see it dead."""
        process = self._running()
        process.kill()
        process.wait(_STOP_S)
        self._close()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        status = process.wait(_STOP_S)
        self._close()
        return status

    def _running(self) -> subprocess.Popen[str]:
        assert self.process is not None
        return self.process

    def _close(self) -> None:
        process = self._running()
        if process.stdout is not None:
            process.stdout.close()
        self.process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process is not None:
            self.kill()

    # --- what a test asks it ---

    @property
    def credentials(self) -> dict[str, str]:
        return self.credentials_in(self.data)

    def credentials_in(self, folder: Path) -> dict[str, str]:
        document: dict[str, str] = json.loads((folder / FILE_NAME).read_text())
        return document

    @property
    def admin(self) -> tuple[tuple[str, str], ...]:
        """Metadata of an administration call."""
        return (("authorization", f"Bearer {self.credentials['admin_token']}"),)

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.grpc)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.metrics}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`qimd …` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "qimd.app.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def ready_limit_s() -> float:
    """How long a start may take: 3 s, or on a machine that is busy with other things, four times
    what it takes there to import the server and end. A start that waits for a lease takes 10 s.
    """
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import qimd.app.server"], check=True)
    return max(READY_S, 4 * (time.monotonic() - began_s))
