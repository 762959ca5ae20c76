"""The manual clock keeps the promises of `ports.runtime`, or no test on it means anything."""

import asyncio

import pytest
from tests.support.runtime import ManualRuntime


async def test_sleepers_wake_at_their_own_instants_in_order() -> None:
    async with ManualRuntime() as runtime:
        start_s = runtime.monotonic_s()
        woken: list[tuple[str, float]] = []

        async def sleeper(name: str, seconds: float) -> None:
            await runtime.sleep(seconds)
            woken.append((name, runtime.monotonic_s() - start_s))

        for name, seconds in (("c", 3.0), ("a", 1.0), ("b", 1.0)):
            runtime.spawn(sleeper(name, seconds), name)
        await runtime.advance(0.999)
        assert woken == []
        await runtime.advance(9.001)
        assert woken == [("a", 1.0), ("b", 1.0), ("c", 3.0)]
        assert runtime.monotonic_s() - start_s == 10.0


async def test_a_deadline_cancels_what_it_waits_for() -> None:
    async with ManualRuntime() as runtime:
        ended: list[str] = []

        async def slow() -> None:
            try:
                await runtime.sleep(10)
            finally:
                ended.append("slow")

        async def waiter() -> None:
            with pytest.raises(TimeoutError):
                await runtime.wait_for(slow(), 2)
            ended.append("waiter")

        runtime.spawn(waiter(), "waiter")
        await runtime.advance(2)
        assert ended == ["slow", "waiter"]
        assert runtime.sleepers() == 0


async def test_a_cancelled_waiter_is_cancelled_and_not_timed_out() -> None:
    async with ManualRuntime() as runtime:
        waiter = asyncio.ensure_future(runtime.wait_for(runtime.sleep(10), 5))
        await runtime.settle()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter


async def test_the_wall_clock_steps_and_the_monotonic_one_does_not() -> None:
    runtime = ManualRuntime()
    wall_ms, monotonic_s = runtime.wall_ms(), runtime.monotonic_s()
    runtime.step_wall(-2_000)
    assert runtime.wall_ms() == wall_ms - 2_000
    assert runtime.monotonic_s() == monotonic_s
    await runtime.advance(1.5)
    assert runtime.wall_ms() == wall_ms - 500


async def test_what_escapes_a_task_fails_the_test() -> None:
    async def broken() -> None:
        raise ValueError("broken")

    async def process() -> None:
        async with ManualRuntime() as runtime:
            runtime.spawn(broken(), "broken")
            await runtime.settle()

    with pytest.raises(BaseExceptionGroup):
        await process()


async def test_equal_seeds_give_equal_chance_and_forks_share_the_clock() -> None:
    first, second = ManualRuntime(7), ManualRuntime(7)
    assert first.random_bytes(16) == second.random_bytes(16)
    assert first.random() == second.random()
    process = first.fork(8)
    await first.advance(5)
    assert process.monotonic_s() == first.monotonic_s()
