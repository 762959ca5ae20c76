"""The progress of dispatches is dropped under three conditions together, and else never; nor while
the log could bring it again.
"""

from collections.abc import Callable

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.mailbox.test_faults import rebased, runs
from tests.unit.mailbox.world import WINDOW_MS, World, user_in_lane

from qimd.core.records import Event
from qimd.mailbox.logic import DAY_MS
from qimd.ports.log import LogSettings

WINDOW_DAYS = 60
EXPIRED_DAYS = 32
"""A day's bucket is 30 days old then, whatever the hour."""

COLLECTED = "dispatch_progress_collected_total"


async def pass_days(world: World, days: int, *, trimmed: bool = True) -> None:
    """Time passes, retention has its turn or is late, and housekeeping has its turns."""
    world.runtime.step_wall(days * DAY_MS)
    if trimmed:
        world.cluster.topic.enforce_retention(world.runtime.wall_ms())
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
            await pass_days(world, 2 * WINDOW_DAYS, trimmed=False)
            assert world.zero(COLLECTED) == 0
            fault.stop()
            await runtime.until(lambda: not serving.state.lagging)
            await pass_days(world, 0)
            assert world.zero(COLLECTED) == 4


def blocks_of_lane(lane: int, event: Event) -> Callable[[object], bool]:
    """Whether a step holds the event's block of a lane."""
    return lambda step: any(
        record.ref.event_id == event.event_id and any(one.lane == lane for one in record.blocks)
        for record in step.records  # type: ignore[attr-defined]
    )


async def test_a_duplicate_that_a_lagging_lane_has_yet_to_read_is_one() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime, replay_safety_window_ms=WINDOW_DAYS * DAY_MS)
        slow = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, events = await world.chat("c", [slow], 2)
            await serving.reads()
            late = await world.send(key, "late", slow)
            fault = world.cluster.faults.reject("apply", blocks_of_lane(3, late))
            await world.dispatch(late)
            await serving.reads()
            await world.inject(events[0], epoch=world.epoch)
            await serving.reads()
            await pass_days(world, WINDOW_DAYS + 2, trimmed=False)
            fault.stop()
            await runtime.until(lambda: not serving.state.lagging)
            assert await world.seqs_of(slow) == [late.conversation_seq]


async def test_what_the_log_still_holds_is_not_forgotten() -> None:
    """Retention may be late by a segment, and a rebase reads from the log's beginning."""
    async with ManualRuntime() as runtime:
        world = World(runtime, replay_safety_window_ms=WINDOW_DAYS * DAY_MS)
        member, slow = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member, slow], 3)
            await serving.reads()
            await world.backends.conversations.set_audited(key, 4)
            await pass_days(world, WINDOW_DAYS + 2, trimmed=False)
            assert world.zero(COLLECTED) == 0
            other = await world.send(key, "another", member)
            fault = world.cluster.faults.reject("apply", blocks_of_lane(7, other))
            await world.dispatch(other)
            await serving.reads()
            fault.stop()
            await rebased(world)
            await runs(serving)
            assert await world.seqs_of(member) == [other.conversation_seq]
            await pass_days(world, WINDOW_DAYS + 2)
            assert world.zero(COLLECTED) == 5


async def test_a_shard_that_is_behind_its_log_goes_by_the_time_it_has_reached() -> None:
    """What it has yet to read may hold a duplicate, from when the window was not over."""
    async with ManualRuntime() as runtime:
        world = World(runtime, replay_safety_window_ms=WINDOW_DAYS * DAY_MS)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            _, events = await world.chat("c", [member], 3)
            await serving.reads()
        runtime.step_wall((WINDOW_DAYS - 2) * DAY_MS)
        await world.inject(events[0], epoch=world.epoch)
        world.cluster.topic.enforce_retention(runtime.wall_ms())
        runtime.step_wall(4 * DAY_MS)
        async with world.serving() as serving:
            await serving.reads()
            await runtime.advance(150)
            assert world.zero(COLLECTED) == 3
            assert await world.seqs_of(member) == []
