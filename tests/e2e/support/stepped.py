"""`qimd` with a wall clock that a test steps. The whole server is the real one, its clock apart.

As a script it is `qimd` itself; the file that QIM_TEST_CLOCK names holds the offset in ms.
"""

import os
import sys
from pathlib import Path

from tests.e2e.support.dev import DevServer

import qimd.app.main
import qimd.app.server
from qimd.app.runtime import AsyncioRuntime

_VARIABLE = "QIM_TEST_CLOCK"


class SteppedServer(DevServer):
    """A DevServer on such a clock."""

    @property
    def _clock(self) -> Path:
        return self.data.parent / f"{self.data.name}.clock"

    def step_to(self, offset_ms: int) -> None:
        """How far from the system's clock the server's is from now on."""
        scratch = self._clock.with_suffix(".new")
        scratch.write_text(str(offset_ms))
        scratch.replace(self._clock)

    def command(self) -> list[str]:
        if not self._clock.exists():
            self.step_to(0)
        _, _, _, *arguments = super().command()
        top = Path(__file__).parents[3]
        return [
            *("env", f"{_VARIABLE}={self._clock}", f"PYTHONPATH={top}", sys.executable),
            *(__file__, *arguments),
        ]


class SteppedRuntime(AsyncioRuntime):
    """Wall time is the system's and the offset; time that passes is real."""

    def wall_ms(self) -> int:
        return super().wall_ms() + int(Path(os.environ[_VARIABLE]).read_text())


if __name__ == "__main__":
    qimd.app.server.AsyncioRuntime = SteppedRuntime  # type: ignore[misc]
    sys.exit(qimd.app.main.main())
