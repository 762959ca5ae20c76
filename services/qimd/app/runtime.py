"""The real Runtime: the system's clocks, the system's randomness, asyncio's tasks."""

import asyncio
import os
import random
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics

T = TypeVar("T")

_log = logger("runtime")


class AsyncioRuntime:
    """`ports.runtime.Runtime` on the running event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        # The loop itself holds tasks weakly: without this, a task can vanish half-way. A dict keeps
        # the order of spawning, so that an ending is the same each time.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._jitter = random.SystemRandom()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def random_bytes(self, size: int) -> bytes:
        return os.urandom(size)

    def random(self) -> float:
        return self._jitter.random()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    async def wait_for(self, coro: Coroutine[Any, Any, T], timeout_s: float) -> T:
        # In the caller's own task: asyncio.wait_for of 3.11 may lose a result that races with a
        # cancellation.
        async with asyncio.timeout(timeout_s):
            return await coro

    def spawn(self, coro: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def cancel_all(self) -> None:
        """Cancel what still runs, and see it end."""
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            # One counter a kind of task: what follows a colon names one stream or shard.
            kind = task.get_name().partition(":")[0]
            self._metrics.defects_total.labels(kind).inc()
            _log.error("an exception escaped a task", task=task.get_name(), exc_info=error)
