"""Records of lagging lanes outlive the log's retention: kept in time, read, and let go of."""

import random
from collections.abc import Sequence

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.mailbox.world import Serving, World, user_in_lane

from qimd.adapters.memory.network import FaultRule
from qimd.core.ids import EventId, UserId, dispatch_id, event_id
from qimd.core.outcome import Applied, Refusal
from qimd.core.parameters import LANE_KEEP_INTERVAL_S, LANE_RETRY_MAX_S
from qimd.core.records import Dispatch, EventRef, LaneBlock
from qimd.core.seq import SEQ_NONE, MailboxSeq, mailbox_seq, offset_of
from qimd.mailbox import keeping
from qimd.mailbox.keeping import needed
from qimd.mailbox.logic import Arrived
from qimd.ports.log import LogRecord
from qimd.ports.mailbox import ApplyStep, EpochBoundary, KeptRecord, reach
from qimd.ports.store import key_of

DAY_MS = 24 * 3600 * 1000
RETENTION_DAYS = 7
BOUNDARY = EpochBoundary(1, 0, "cluster/topic")


def rejects(world: World, event: EventId, lane: int) -> FaultRule:
    """The store refuses the block of a lane of an event."""

    def holds(step: object) -> bool:
        return isinstance(step, ApplyStep) and any(
            record.ref.event_id == event and block.lane == lane
            for record in step.records
            for block in record.blocks
        )

    return world.cluster.faults.reject("apply", holds)


async def days_pass(world: World, days: float, *, kept: bool = True) -> None:
    """Time passes for all; the shard looks at it before retention does, or only after."""
    world.runtime.step_wall(round(days * DAY_MS))
    if kept:
        await world.runtime.advance(LANE_KEEP_INTERVAL_S + 2)
    world.cluster.topic.enforce_retention(world.runtime.wall_ms())


async def kept_by(world: World, shard: int = 0) -> Sequence[KeptRecord]:
    return await world.backends.mailbox.kept_records(shard, SEQ_NONE, 10_000)


async def low(world: World) -> int:
    return (await world.backends.log.watermarks(0)).low


async def catches_up(world: World, serving: Serving) -> None:
    await world.runtime.until(lambda: not serving.state.lagging, 4 * LANE_RETRY_MAX_S)
    await world.runtime.advance(2)


async def test_a_lane_goes_on_from_what_was_kept_of_a_log_that_has_lost_it() -> None:
    """No operator, no rebase: retention passes the lane, and nothing of it is lost."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow, other = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        async with world.serving() as serving:
            key, events = await world.chat("c", [slow, other], 5)
            fault = rejects(world, events[1].event_id, 3)
            await serving.reads()
            await days_pass(world, 5)
            await days_pass(world, 3)
            assert await low(world) == 6
            await world.dispatch(await world.send(key, "later", other))
            await serving.reads()
            assert await world.seqs_of(slow) == [1, 2]
            assert await world.seqs_of(other) == [1, 2, 3, 4, 5, 6, 7]
            fault.stop()
            await catches_up(world, serving)
            assert await world.seqs_of(slow) == [1, 2, 3, 4, 5, 6, 7]
            assert len(await world.pull_all(slow)) == 7
            assert len(serving.state.boundaries) == 1
            assert await kept_by(world) == []
            assert world.zero("mailbox_seq_regression_count") == 0


async def test_records_are_kept_in_the_last_third_of_their_life_and_not_before() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, events = await world.chat("c", [slow], 2)
            rejects(world, events[0].event_id, 3)
            await serving.reads()
            await days_pass(world, 2)
            await world.dispatch(await world.send(key, "two days younger", slow))
            await serving.reads()
            await days_pass(world, RETENTION_DAYS * 2 / 3 - 2.1)
            assert await kept_by(world) == []
            await days_pass(world, 0.2)
            assert [offset_of(one.seq) for one in await kept_by(world)] == [1, 2]
            await days_pass(world, 2)
            assert [offset_of(one.seq) for one in await kept_by(world)] == [1, 2, 3]


async def test_only_what_the_lane_still_needs_is_kept() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow, other = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        async with world.serving() as serving:
            _, events = await world.chat("c", [slow, other], 2)
            rejects(world, events[0].event_id, 3)
            await world.chat("of others", [other], 50)
            await serving.reads()
            await days_pass(world, 5)
            kept = await kept_by(world)
            assert [offset_of(one.seq) for one in kept if one.value] == [1, 2]
            assert reach(kept, serving.state.lagging[3]) == serving.state.position
            assert len(kept) == 3


async def test_the_next_owner_goes_on_with_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through restarts, portions of one record, and both halves of the way: the copy, then the
    log.
    """
    monkeypatch.setattr(keeping, "MAILBOX_BATCH_RECORDS_MAX", 1)
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow, other = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        async with world.serving() as serving:
            key, events = await world.chat("c", [slow, other], 4)
            fault = rejects(world, events[0].event_id, 3)
            await serving.reads()
            await days_pass(world, 5)
        await days_pass(world, 1, kept=False)
        async with world.serving() as serving:
            await world.dispatch(*[await world.send(key, f"more {n}", other) for n in range(4)])
            await serving.reads()
            await days_pass(world, 1.5)
            assert await low(world) == 5
            await days_pass(world, 4)
        # The first owner's records are gone, the second one's in their last third.
        async with world.serving() as serving:
            await world.dispatch(await world.send(key, "now", other))
            await days_pass(world, 2)
            assert await low(world) == 9
            fault.stop()
            await catches_up(world, serving)
            assert await world.seqs_of(slow) == list(range(1, 11))
            assert await world.seqs_of(other) == list(range(1, 11))
            assert await kept_by(world) == []


async def test_a_lane_that_lags_later_is_kept_for_too() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        first, second = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        async with world.serving() as serving:
            key, events = await world.chat("c", [first, second], 2)
            faults = [rejects(world, events[0].event_id, 3)]
            await serving.reads()
            await days_pass(world, 5)
            later = [await world.send(key, f"later {n}", first) for n in range(3)]
            faults.append(rejects(world, later[1].event_id, 7))
            await world.dispatch(*later)
            await serving.reads()
            await days_pass(world, 5)
            await days_pass(world, 4)
            assert await low(world) == 6
            for fault, user in zip(faults, (first, second), strict=True):
                fault.stop()
                await runtime.advance(2 * LANE_RETRY_MAX_S)
                assert await world.seqs_of(user) == [1, 2, 3, 4, 5, 6]
            assert not serving.state.lagging
            await runtime.advance(2)
            assert await kept_by(world) == []


async def test_a_lane_passes_no_gap_in_what_was_kept_and_another_lane_is_still_helped() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        lost, helped = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        async with world.serving() as serving:
            key, events = await world.chat("c", [lost, helped], 3)
            faults = [rejects(world, events[0].event_id, 3)]
            await serving.reads()
            # Nobody looked in time: the log has lost the first lane's next record.
            await days_pass(world, 8, kept=False)
            later = [await world.send(key, f"later {n}", lost) for n in range(3)]
            faults.append(rejects(world, later[0].event_id, 7))
            await world.dispatch(*later)
            await serving.reads()
            await days_pass(world, 5)
            await days_pass(world, 3)
            for fault in faults:
                fault.stop()
            await runtime.advance(3 * LANE_RETRY_MAX_S)
            assert await world.seqs_of(helped) == [1, 2, 3, 4, 5, 6, 7]
            assert await world.seqs_of(lost) == [1]
            assert list(serving.state.lagging) == [3]
            assert serving.shard.fault is None


@pytest.mark.parametrize("refusal", [Refusal.NO_SPACE, Refusal.REJECTED])
async def test_a_store_that_can_t_keep_them_now_is_asked_again(refusal: Refusal) -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            _, events = await world.chat("c", [slow], 3)
            fault = rejects(world, events[0].event_id, 3)
            await serving.reads()
            rule = world.cluster.faults.refuse("keep_records", refusal=refusal, times=2)
            lost = world.cluster.faults.lose_reply("keep_records")
            late = world.cluster.faults.land_late("keep_records")
            runtime.step_wall(5 * DAY_MS)
            await runtime.advance(5 * LANE_KEEP_INTERVAL_S)
            assert (rule.hits, lost.hits, late.hits) == (2, 1, 1)
            await days_pass(world, 3)
            fault.stop()
            await catches_up(world, serving)
            assert await world.seqs_of(slow) == [1, 2, 3, 4]
            # What lands behind the end is let go of by the next owner.
            assert late.land() == 1
        async with world.serving() as serving:
            await serving.reads()
            assert await kept_by(world) == []


async def test_a_kept_block_gets_the_verdict_of_its_place() -> None:
    """An older owner's record behind a newer epoch stays stale, and what came before it stays."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, events = await world.chat("c", [slow], 2)
            fault = rejects(world, events[0].event_id, 3)
            await serving.reads()
            old = world.epoch
            await world.take_over()
            claimed = await world.backends.conversations.claim(0, world.epoch, key)
            assert isinstance(claimed, Applied)
            newer = await world.send(key, "of the new owner", slow)
            await world.dispatch(newer)
            await world.inject(await world.send(key, "stale", slow), epoch=old)
            await serving.reads()
            await days_pass(world, 5)
            await days_pass(world, 3)
            fault.stop()
            await catches_up(world, serving)
            assert await world.seqs_of(slow) == [1, 2, 3, 4]


async def test_a_rebase_lets_go_of_what_was_kept() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            _, events = await world.chat("c", [slow], 2)
            fault = rejects(world, events[0].event_id, 3)
            await serving.reads()
            await days_pass(world, 5)
            assert await kept_by(world)
            fault.stop()
            world.cluster.topic.recreate()
            await serving.halts()
            done: list[object] = []

            async def rebase() -> None:
                done.append(await world.service.rebase(0, dry_run=False))

            runtime.spawn(rebase(), "operator")
            await runtime.until(lambda: bool(done) and serving.shard.caught_up, 60)
            await runtime.advance(2)
            assert await kept_by(world) == []
            assert await world.seqs_of(slow) == [1, 2, 3]


@pytest.mark.parametrize("seed", range(30))
def test_any_lane_finds_all_of_its_records_in_what_was_kept(seed: int) -> None:
    """Whatever the portions, the lanes that leave meanwhile, and what is looked at once more."""
    chance = random.Random(seed)
    last = 39
    arrived = [
        Arrived(mailbox_seq(1, offset), dispatch(chance.sample(range(8), 2)), 0)
        for offset in range(last + 1)
    ]
    lagging = {lane: mailbox_seq(1, chance.randrange(20)) for lane in range(4)}
    held: dict[MailboxSeq, KeptRecord] = {}
    for _ in range(3):
        # Each owner begins at the smallest W.
        reached = min(lagging.values())
        while offset_of(reached) < last:
            start = offset_of(reached) + 1
            part = arrived[start : start + chance.randint(1, 6)]
            records = [LogRecord(offset_of(one.seq), 0, b"bytes") for one in part]
            for one in needed(records, part, BOUNDARY, lagging, reached):
                held.setdefault(one.seq, one)
                reached = one.seq
            if len(lagging) > 1 and chance.random() < 0.1:
                del lagging[chance.choice(sorted(lagging))]
    chain = [held[seq] for seq in sorted(held)]
    for lane, after in lagging.items():
        behind = [one for one in chain if one.seq > after]
        assert reach(behind, after) == mailbox_seq(1, last)
        wanted = [one.seq for one in arrived if one.seq > after and has_lane(one, lane)]
        assert wanted == [seq for seq in wanted if held[seq].value]


def has_lane(one: Arrived, lane: int) -> bool:
    return any(block.lane == lane for block in one.dispatch.blocks)


def dispatch(lanes: Sequence[int]) -> Dispatch:
    key = key_of("acme", "c")
    return Dispatch(
        fencing_epoch=1,
        ref=EventRef(key, 1, event_id("acme", "c", 1), 1, None, 0),
        dispatch_id=dispatch_id(event_id("acme", "c", 1), 0, 0),
        sender_device=None,
        membership_version=1,
        routing_version=1,
        mailbox_shard=0,
        chunk_index=0,
        chunk_count=1,
        log_identity=BOUNDARY.log_identity,
        min_reader_version=1,
        trace_parent="",
        blocks=tuple(LaneBlock(lane, (UserId("u"),)) for lane in sorted(lanes)),
        content_digest=bytes(16),
    )
