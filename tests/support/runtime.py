"""A Runtime whose clock the test moves: no test waits for real time, and each run is the same.

`await runtime.advance(seconds)` wakes sleepers one deadline after the other and lets everything
that is ready run in between, so a test sees the state exactly as of an instant. Work that other
threads do (SQLite, gRPC) is outside of it: await its result instead.
"""

import asyncio
import heapq
import random
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

WALL_START_MS = 1_750_000_000_000
MONOTONIC_START_S = 1_000.0
_TURNS_MAX = 100_000


class _Timer:
    """A callback at an instant. Timers of one instant fire in the order they were set."""

    __slots__ = ("callback", "cancelled", "deadline_s", "order")

    def __init__(self, deadline_s: float, order: int, callback: Callable[[], None]) -> None:
        self.deadline_s = deadline_s
        self.order = order
        self.callback = callback
        self.cancelled = False

    def __lt__(self, other: "_Timer") -> bool:
        return (self.deadline_s, self.order) < (other.deadline_s, other.order)


class ManualRuntime:
    """One process's time, chance and tasks, all in the test's hand.

    Used as an async context manager it cancels what it spawned at the end and raises whatever
    escaped a task; `failures` holds that before. `fork()` gives another process the same clock.
    """

    def __init__(self, seed: int = 0) -> None:
        self._clock = _Clock()
        self._random = random.Random(seed)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.failures: list[BaseException] = []

    def fork(self, seed: int) -> "ManualRuntime":
        """Another process on the same clock, with chance and tasks of its own."""
        other = ManualRuntime(seed)
        other._clock = self._clock
        return other

    # --- what rooms see ---

    def wall_ms(self) -> int:
        return self._clock.wall_ms

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s

    def random_bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def random(self) -> float:
        return self._random.random()

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_after(seconds, lambda: _resolve(woken))
        try:
            await woken
        finally:
            timer.cancelled = True

    async def wait_for(self, coro: Coroutine[Any, Any, T], timeout_s: float) -> T:
        task = asyncio.ensure_future(coro)
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = task.cancel()

        if timeout_s <= 0:
            expire()
        timer = self._clock.call_after(timeout_s, expire)
        try:
            return await task
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            # Only our own deadline is a timeout: a caller that is cancelled must see that instead.
            if expired and waiter is not None and not waiter.cancelling():
                raise TimeoutError(f"nothing after {timeout_s} s") from None
            raise
        finally:
            timer.cancelled = True

    def spawn(self, coro: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    # --- what tests do ---

    async def settle(self) -> None:
        """Let everything that is ready run, until all wait for the clock or for one another."""
        ready: Any = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        for _ in range(_TURNS_MAX):
            await asyncio.sleep(0)
            if not ready:
                return
        raise RuntimeError("the tasks never come to rest: one of them spins")

    async def advance(self, seconds: float) -> None:
        """Move both clocks, waking each sleeper at its own instant."""
        target_s = self._clock.monotonic_s + seconds
        await self.settle()
        while (timer := self._clock.pop_due(target_s)) is not None:
            self._clock.move_to(max(self._clock.monotonic_s, timer.deadline_s))
            timer.callback()
            await self.settle()
        self._clock.move_to(target_s)

    async def until(self, condition: Callable[[], bool], within_s: float = 3_600.0) -> None:
        """Go from deadline to deadline until the condition holds; TimeoutError after `within_s`."""
        limit_s = self._clock.monotonic_s + within_s
        await self.settle()
        while not condition():
            timer = self._clock.pop_due(limit_s)
            if timer is None:
                raise TimeoutError(f"the condition does not hold within {within_s} s")
            self._clock.move_to(max(self._clock.monotonic_s, timer.deadline_s))
            timer.callback()
            await self.settle()

    def step_wall(self, milliseconds: int) -> None:
        """Set the wall clock forward or back; the monotonic one never notices."""
        self._clock.wall_offset_ms += milliseconds

    def sleepers(self) -> int:
        """Timers that are set."""
        return self._clock.pending()

    async def cancel_all(self) -> None:
        """Cancel what was spawned and see it end."""
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> "ManualRuntime":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.cancel_all()
        if error is None and self.failures:
            raise BaseExceptionGroup("escaped from spawned tasks", self.failures)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)


class _Clock:
    """The clocks and the timers on them, shared by the processes of a test."""

    def __init__(self) -> None:
        self.monotonic_s = MONOTONIC_START_S
        self.wall_offset_ms = 0
        self._timers: list[_Timer] = []
        self._order = 0

    @property
    def wall_ms(self) -> int:
        passed_ms = round((self.monotonic_s - MONOTONIC_START_S) * 1000)
        return WALL_START_MS + passed_ms + self.wall_offset_ms

    def call_after(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        self._order += 1
        timer = _Timer(self.monotonic_s + seconds, self._order, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def pop_due(self, until_s: float) -> _Timer | None:
        while self._timers and (self._timers[0].cancelled or self._timers[0].deadline_s <= until_s):
            timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                return timer
        return None

    def move_to(self, monotonic_s: float) -> None:
        self.monotonic_s = monotonic_s

    def pending(self) -> int:
        return sum(not timer.cancelled for timer in self._timers)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
