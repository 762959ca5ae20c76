"""The loop that worlds run on: order, time, and how processes stop and die."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.sim.loop import Process, SimLoop, Stuck


def run(loop: SimLoop, coro: Coroutine[Any, Any, None]) -> None:
    loop.run_until(loop.world.spawn(coro, "test"))


def made(seed: int = 1) -> SimLoop:
    return SimLoop(seed)  # type: ignore[abstract]


def interleaving(seed: int) -> list[str]:
    """What two processes of three tasks each do, in order."""
    loop = made(seed)
    done: list[str] = []

    async def step(name: str) -> None:
        done.append(name)

    async def begin() -> None:
        tasks = [
            process.spawn(step(f"{process.name}{number}"), "step")
            for process in (Process(loop, "a"), Process(loop, "b"))
            for number in range(6)
        ]
        for task in tasks:
            await task

    run(loop, begin())
    return done


def test_a_process_runs_first_in_first_out() -> None:
    done = interleaving(1)
    for name in "ab":
        own = [one for one in done if one.startswith(name)]
        assert own == sorted(own)


def test_the_order_between_processes_is_drawn_from_the_seed() -> None:
    orders = {tuple(interleaving(seed)) for seed in range(20)}
    assert len(orders) > 10
    assert interleaving(3) == interleaving(3)


def test_time_jumps_to_the_next_timer() -> None:
    loop = made()

    async def wait() -> None:
        await asyncio.sleep(3_600.0)

    run(loop, wait())
    assert 3_600.0 <= loop.now_s < 3_600.1


def test_a_killed_process_unwinds_nothing() -> None:
    loop = made()
    victim = Process(loop, "victim")
    told: list[str] = []

    async def work() -> None:
        try:
            told.append("began")
            await asyncio.sleep(1.0)
            told.append("went on")
        finally:
            told.append("unwound")

    async def kill() -> None:
        victim.spawn(work(), "work")
        await asyncio.sleep(0.5)
        victim.kill()
        await asyncio.sleep(10.0)

    run(loop, kill())
    assert told == ["began"]


def test_a_stopped_process_finds_what_arrived_before_the_timers_that_came_due() -> None:
    loop = made()
    process = Process(loop, "stopped")
    told: list[str] = []
    frames: asyncio.Queue[str] = asyncio.Queue()

    async def listen() -> None:
        while True:
            told.append(f"{await frames.get()} at {loop.now_s:.0f}")

    async def watch() -> None:
        await asyncio.sleep(2.0)
        told.append(f"timer at {loop.now_s:.0f}")

    async def stop() -> None:
        process.spawn(watch(), "watch")
        process.spawn(listen(), "listen")
        await asyncio.sleep(1.0)
        process.stop()
        await asyncio.sleep(4.0)
        frames.put_nowait("frame")
        await asyncio.sleep(1.0)
        assert told == []
        process.resume()
        await asyncio.sleep(1.0)

    run(loop, stop())
    assert told == ["frame at 6", "timer at 6"]


def test_a_world_that_can_t_go_on_is_stuck() -> None:
    loop = made()

    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        run(loop, wait())
