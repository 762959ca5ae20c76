"""Time, randomness and task spawning. Rooms take them from here alone, so that the same code runs
under a simulated clock.

asyncio's own primitives (locks, queues, events, futures) may be used: they take neither time nor
randomness. `asyncio.sleep`, `loop.time`, `time`, `random`, `os.urandom`, `uuid` and
`asyncio.create_task` may not.
"""

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Task(Protocol):
    """A spawned task."""

    def cancel(self) -> bool:
        """Ask it to end."""

    def done(self) -> bool:
        """Whether it has ended."""


class Runtime(Protocol):
    """What one process has of time, chance and concurrency."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch. It may step back."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never steps."""

    def random_bytes(self, size: int) -> bytes:
        """Unpredictable bytes: nonces and request ids."""

    def random(self) -> float:
        """In [0, 1): jitter."""

    async def sleep(self, seconds: float) -> None:
        """Wait on the monotonic clock."""

    async def wait_for(self, coro: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """The coroutine's result. Raises TimeoutError and cancels it at the deadline."""

    def spawn(self, coro: Coroutine[Any, Any, None], name: str) -> Task:
        """Run it beside the caller.

        An exception that escapes it is logged and counted as a defect.
        """
