"""Starting the peers of `bench.peers`."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.harness import Wrong

_STOP_S: Final = 30.0
_TOP: Final = Path(__file__).resolve().parent.parent


class Peer:
    """One of them. `words` is what it said first, its port before all else."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.peers", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_TOP,
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise Wrong("a peer without pipes")
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.words = self._stdout.readline().split()
        if not self.words:
            raise Wrong(f"the peer {name} did not start")
        self.address = f"127.0.0.1:{self.words[0]}"

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def order(self, number: int) -> None:
        """Have it do something so many times."""
        self._stdin.write(f"{number}\n")
        self._stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()
