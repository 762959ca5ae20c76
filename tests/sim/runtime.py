"""A process's time, chance and tasks (`ports.runtime.Runtime`) on the simulator's loop."""

import asyncio
import hashlib
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from tests.sim.loop import Process, SimLoop

T = TypeVar("T")

WALL_START_MS: Final = 1_750_000_000_000
"""Where every world's wall clock begins; `Clock.step_ms` moves one process's."""


def stream(seed: int, *names: object) -> random.Random:
    """A generator of its own for a named purpose.

    So that what is drawn for one thing never shifts what is drawn for another: a shrunk plan stays
    as close to its original as it can. Not made by `hash`, which differs from run to run.
    """
    text = repr((seed, *names)).encode()
    return random.Random(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big"))


class Clock:
    """A machine's clocks: the monotonic one has an origin of its own, the wall clock may step."""

    def __init__(self, loop: SimLoop, origin_s: float) -> None:
        self._loop = loop
        self._origin_s = origin_s
        self.step_ms = 0

    def wall_ms(self) -> int:
        return WALL_START_MS + round(self._loop.now_s * 1000) + self.step_ms

    def monotonic_s(self) -> float:
        return self._origin_s + self._loop.now_s


class SimRuntime:
    """Implements `ports.runtime.Runtime`. What escapes a task is given to `on_defect`."""

    def __init__(
        self,
        process: Process,
        clock: Clock,
        chance: random.Random,
        on_defect: Callable[[str, BaseException], None],
    ) -> None:
        self._process = process
        self._clock = clock
        self._chance = chance
        self._on_defect = on_defect

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def random_bytes(self, size: int) -> bytes:
        return self._chance.randbytes(size)

    def random(self) -> float:
        return self._chance.random()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    async def wait_for(self, coro: Coroutine[Any, Any, T], timeout_s: float) -> T:
        # As the real runtime does it, in the caller's own task.
        async with asyncio.timeout(timeout_s):
            return await coro

    def spawn(self, coro: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = self._process.spawn(coro, name)
        task.add_done_callback(self._ended, context=self._process.context)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_defect(task.get_name(), error)
