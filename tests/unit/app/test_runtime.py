"""The real runtime, and what becomes of a task's failure."""

import asyncio
import gc

import pytest
from tests.support.runtime import ManualRuntime

from qimd.app.housekeeping import Chore, Housekeeping
from qimd.app.runtime import AsyncioRuntime
from qimd.core.errors import unavailable
from qimd.telemetry.metrics import Metrics


def defects(metrics: Metrics, task: str) -> float:
    return metrics.registry.get_sample_value("defects_total", {"task": task}) or 0.0


async def test_an_exception_that_escapes_a_task_is_counted_under_its_kind() -> None:
    metrics = Metrics()
    runtime = AsyncioRuntime(metrics)

    async def fail() -> None:
        raise RuntimeError("broken")

    tasks = [runtime.spawn(fail(), f"reader:{number}") for number in range(2)]
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    assert defects(metrics, "reader") == 2


async def test_a_spawned_task_is_held_until_it_ends() -> None:
    runtime = AsyncioRuntime(Metrics())
    ended = asyncio.Event()

    async def wait() -> None:
        # Nothing else refers to this future, nor to the task that waits on it.
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.01, future.set_result, None)
        await future
        ended.set()

    runtime.spawn(wait(), "waiter")
    gc.collect()
    async with asyncio.timeout(10):
        await ended.wait()


async def test_wait_for_gives_up_at_its_deadline_and_cancels_what_it_waited_for() -> None:
    runtime = AsyncioRuntime(Metrics())
    cancelled = False

    async def never() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise

    with pytest.raises(TimeoutError):
        await runtime.wait_for(never(), 0.001)
    assert cancelled


async def test_cancel_all_ends_what_was_spawned_without_a_defect() -> None:
    metrics = Metrics()
    runtime = AsyncioRuntime(metrics)
    task = runtime.spawn(runtime.sleep(3600), "sleeper")
    await runtime.cancel_all()
    assert task.cancelled()
    assert defects(metrics, "sleeper") == 0


async def test_a_chore_that_fails_has_its_next_turn_all_the_same() -> None:
    metrics = Metrics()
    turns: list[int] = []

    async def run() -> None:
        turns.append(len(turns))
        if len(turns) == 1:
            raise RuntimeError("broken")
        if len(turns) == 2:
            raise unavailable("the engine is away")

    async with ManualRuntime() as runtime:
        housekeeping = Housekeeping([Chore("audit", 10.0, run)], runtime, metrics)
        housekeeping.start()
        await runtime.advance(35.0)
        assert turns == [0, 1, 2]
        assert defects(metrics, "chore-audit") == 1
        housekeeping.stop()
        await runtime.advance(100.0)
        assert turns == [0, 1, 2]
