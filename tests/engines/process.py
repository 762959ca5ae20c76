"""A server of the tests: started on loopback, awaited until it really answers, ended for certain.

Servers outlive the process that started them, so what is known of one is its pid and its folder. A
pid alone may be somebody else's by now: it is ours only while its command line names our folder.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from tests.engines.debian import Tool

HOST: Final = "127.0.0.1"
UP_WITHIN_S: Final = 240.0
"""A JVM beside others on two busy cores: many times what it takes alone."""
DOWN_WITHIN_S: Final = 20.0
LOOK_EVERY_S: Final = 0.1
TAIL_LINES: Final = 30

# Below the range from which systems take the ports of outgoing connections: one of those could
# take a port in the seconds between our choice and the server's bind.
_PORTS: Final = range(20_000, 32_000)
_given: Final[set[int]] = set()


class NotUp(Exception):
    """A server did not come up. `why` is one line, `tail` the end of what the server wrote."""

    def __init__(self, why: str, tail: str) -> None:
        super().__init__(f"{why}\n{tail}")
        self.why = why
        self.tail = tail


def free_port() -> int:
    """A port of loopback that nobody listens on, and that this process was not given before."""
    while True:
        # Whatever a test seeds: two runs beside one another must not draw the same ports.
        port = secrets.choice(_PORTS)
        if port in _given:
            continue
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            _given.add(port)
            return port


@dataclass(frozen=True)
class Process:
    """A server's process, whoever started it. `folder` is on its command line."""

    pid: int
    folder: str

    def alive(self) -> bool:
        # A child that ended keeps its pid until it is reaped. Of one that has just begun `ps` may
        # not show the command line yet.
        with suppress(ChildProcessError):
            ended, _ = os.waitpid(self.pid, os.WNOHANG)
            return not ended
        shown = subprocess.run(
            ("ps", "-ww", "-o", "args=", "-p", str(self.pid)),
            capture_output=True,
            text=True,
            check=False,
        )
        return self.folder in shown.stdout

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is still there."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end(self, within_s: float = DOWN_WITHIN_S) -> None:
        """Ask it to end, and kill it if it has not after `within_s`."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        if not self._gone(within_s):
            self.kill()

    def kill(self) -> None:
        """Kill it, and see it gone."""
        self.signal(signal.SIGKILL)
        if not self._gone(DOWN_WITHIN_S):
            raise TimeoutError(f"process {self.pid} outlives SIGKILL")

    def _gone(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_EVERY_S)
        return True


class Server(ABC):
    """One server of an engine, with its data in a folder of its own.

    A context manager: up on entry, gone on exit. Between them a test may `kill`, `pause`, `resume`
    and `start` it again; address and data stay.
    """

    name: ClassVar[str]
    tools: ClassVar[Sequence[Tool]]
    """What it needs of Debian."""

    @classmethod
    def install(cls) -> None:
        """Fetch what it needs besides Debian's packages. Raises debian.NotInstalled."""
        for tool in cls.tools:
            tool.path()

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.port = free_port()
        self.process: Process | None = None

    # --- what an engine says of itself ---

    @abstractmethod
    def prepare(self) -> None:
        """Write its configuration, and what it needs before its first start."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The program and its arguments, which name the folder."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it serves clients now. Returns within a few seconds, and never raises."""

    def environment(self) -> Mapping[str, str]:
        """The environment that it runs in."""
        return os.environ

    # --- what is done with it ---

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        """What the server writes to its standard streams, over all its starts."""
        return self.folder / "server.log"

    def start(self) -> Process:
        """Start it, without waiting. It outlives this process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.process is None:
            self.prepare()
        program, *arguments = self.command()
        path = shutil.which(program) or program
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            path,
            (path, *arguments),
            self.environment(),
            file_actions=(
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ),
            # Ctrl-C in the terminal is for who started it.
            setsid=True,
        )
        self.process = Process(pid, str(self.folder))
        return self.process

    def wait(self, within_s: float = UP_WITHIN_S) -> None:
        """Return once it answers. Raises NotUp."""
        deadline = time.monotonic() + within_s
        while not self.answers():
            if not self.running().alive():
                raise NotUp("it ended by itself", self.tail())
            if time.monotonic() > deadline:
                self.kill()
                raise NotUp(f"it does not answer after {within_s:.0f} s", self.tail())
            time.sleep(LOOK_EVERY_S)

    def stop(self) -> None:
        """End it in its own way."""
        self.running().end()

    def kill(self) -> None:
        """`kill -9`."""
        self.running().kill()

    def pause(self) -> None:
        """Freeze it: its connections stay open, and nothing is answered."""
        self.running().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.running().signal(signal.SIGCONT)

    def tail(self) -> str:
        """The last lines of its log."""
        if not self.log.exists():
            return "(it wrote nothing)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])

    def running(self) -> Process:
        """Its process."""
        if self.process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self.process

    def __enter__(self) -> "Server":
        self.start()
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder)


def accepts(port: int) -> bool:
    """Whether somebody listens there: cheaper, and quieter, than a client that can't connect."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0
