"""The progress of dispatches is dropped under three conditions together, and else never."""

from collections.abc import Callable

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.mailbox.world import WINDOW_MS, World, user_in_lane

from qimd.core.records import Event
from qimd.mailbox.logic import DAY_MS
from qimd.ports.log import LogSettings

WINDOW_DAYS = 60
EXPIRED_DAYS = 32
"""A day's bucket is 30 days old then, whatever the hour."""

COLLECTED = "dispatch_progress_collected_total"


async def pass_days(world: World, days: int) -> None:
    """Time passes, and housekeeping has its turns."""
    world.runtime.step_wall(days * DAY_MS)
    await world.runtime.advance(150)


async def test_without_a_window_nothing_is_forgotten_however_old() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            _, events = await world.chat("c", [member], 3)
            await serving.reads()
            await pass_days(world, 10 * WINDOW_DAYS)
            await world.inject(events[0], epoch=world.epoch)
            await serving.reads()
            assert await world.seqs_of(member) == []
            assert world.zero(COLLECTED) == 0


@pytest.mark.parametrize("torn", [False, True])
async def test_a_dispatch_is_forgotten_a_window_after_it_was_last_seen(torn: bool) -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime, torn=torn, replay_safety_window_ms=WINDOW_DAYS * DAY_MS)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            _, events = await world.chat("c", [member], 3)
            await serving.reads()
            await pass_days(world, EXPIRED_DAYS)
            assert await world.seqs_of(member) == []
            # Every lane's floor is past it, and the window is not over: a duplicate is one.
            await world.inject(events[0], epoch=world.epoch)
            await serving.reads()
            assert await world.seqs_of(member) == []
            await pass_days(world, WINDOW_DAYS + 2 - EXPIRED_DAYS)
            # The first event of the conversation, and two messages; not the one that came again.
            assert world.zero(COLLECTED) == 3
            await pass_days(world, EXPIRED_DAYS)
            assert world.zero(COLLECTED) == 4
            await world.inject(events[0], epoch=world.epoch)
            await serving.reads()
            assert await world.seqs_of(member) == [events[0].conversation_seq]


async def test_a_window_below_the_expiry_waits_for_the_floor() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime, replay_safety_window_ms=WINDOW_MS)
        world.cluster.topic.settings = LogSettings(WINDOW_MS, 1 << 20)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            _, events = await world.chat("c", [member], 3)
            await serving.reads()
            await pass_days(world, 20)
            await world.inject(events[0], epoch=world.epoch)
            await serving.reads()
            assert world.zero(COLLECTED) == 0
            assert await world.seqs_of(member) == [1, *(one.conversation_seq for one in events)]
            await pass_days(world, EXPIRED_DAYS)
            assert world.zero(COLLECTED) == 4


async def test_a_lane_that_lags_behind_a_dispatch_keeps_it() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime, replay_safety_window_ms=WINDOW_DAYS * DAY_MS)
        slow, other = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        async with world.serving() as serving:
            _, events = await world.chat("c", [slow, other], 3)
            fault = world.cluster.faults.reject("apply", blocks_of_lane(3, events[0]))
            await serving.reads()
            await pass_days(world, 2 * WINDOW_DAYS)
            # What lies before the lane's watermark alone.
            assert world.zero(COLLECTED) == 1
            fault.stop()
            await runtime.until(lambda: not serving.state.lagging)
            await runtime.advance(150)
            assert world.zero(COLLECTED) == 4


def blocks_of_lane(lane: int, event: Event) -> Callable[[object], bool]:
    """Whether a step holds the event's block of a lane."""
    return lambda step: any(
        record.ref.event_id == event.event_id and any(one.lane == lane for one in record.blocks)
        for record in step.records  # type: ignore[attr-defined]
    )


async def test_a_log_that_remembers_for_longer_than_the_window_collects_nothing() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime, replay_safety_window_ms=WINDOW_DAYS * DAY_MS)
        member = user_in_lane(world.table, 3)
        world.cluster.topic.settings = LogSettings(WINDOW_DAYS * DAY_MS + 1, 1 << 20)
        async with world.serving() as serving:
            await world.chat("c", [member], 3)
            await serving.reads()
            await pass_days(world, 2 * WINDOW_DAYS)
            assert world.zero(COLLECTED) == 0
            world.cluster.topic.settings = LogSettings(WINDOW_DAYS * DAY_MS, 1 << 20)
            await pass_days(world, 0)
            assert world.zero(COLLECTED) == 4
