"""From the log into mailboxes: order, duplicates, epochs, refusals, watermarks."""

from dataclasses import replace

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.mailbox.world import ACME, World, user_in_lane

from qimd.core.errors import ErrorCode, QimError
from qimd.core.outcome import Applied, Outcome, Refusal
from qimd.core.parameters import LANE_STALL_FAILOVER_S
from qimd.core.records import EventKind, UserKey
from qimd.core.seq import mailbox_seq
from qimd.ports.log import ProduceRecord
from qimd.ports.mailbox import ApplyStep, EpochBoundary, ShardState


def rejects(world: World, event_id: bytes, lane: int | None = None):
    """Refuse a content: every step that holds this event (for this lane)."""

    def holds(step: object) -> bool:
        return isinstance(step, ApplyStep) and any(
            record.ref.event_id == event_id
            and any(lane is None or block.lane == lane for block in record.blocks)
            for record in step.records
        )

    return world.cluster.faults.reject("apply", holds)


async def test_every_member_gets_every_event_once_and_in_order() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        members = [user_in_lane(world.table, lane) for lane in (3, 7)]
        async with world.serving() as serving:
            _, events = await world.chat("c", members, 5)
            await serving.reads()
            for member in members:
                assert await world.seqs_of(member) == [1, 2, 3, 4, 5, 6]
                bodies = await world.pull_all(member)
                assert bodies[1:] == [event.encoded for event in events]


async def test_a_dispatch_that_comes_twice_never_doubles() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        members = [user_in_lane(world.table, lane) for lane in (3, 7)]
        async with world.serving() as serving:
            _, events = await world.chat("c", members, 3)
            await world.dispatch(*events)
            await serving.reads()
            assert await world.seqs_of(members[0]) == [1, 2, 3, 4]
            assert world.counted("duplicates_total", shard="0") == 6
            assert world.zero("event_id_nondeterminism_total") == 0


async def test_a_lost_reply_is_resolved_by_the_same_step_and_doubles_nothing() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        lost = world.cluster.faults.lose_reply("apply", times=3)
        async with world.serving() as serving:
            await world.chat("c", [member], 3)
            await serving.reads()
            assert lost.hits == 3
            assert await world.seqs_of(member) == [1, 2, 3, 4]
            assert world.counted("stage_entries_total", stage="mailbox") == 4


async def test_a_step_that_lands_late_doubles_nothing_and_lowers_nothing() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        late = world.cluster.faults.land_late("apply")
        async with world.serving() as serving:
            await world.chat("c", [member], 3)
            await serving.reads()
            before = await world.stored()
            assert late.land() == 1
            assert await world.stored() == before
            assert await world.seqs_of(member) == [1, 2, 3, 4]


@pytest.mark.parametrize("refusal", [Refusal.NO_SPACE, Refusal.UNREACHABLE])
async def test_an_engine_without_room_holds_w_and_goes_on_by_itself(refusal: Refusal) -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        full = world.cluster.faults.refuse("apply", refusal=refusal, times=None)
        async with world.serving() as serving:
            await world.chat("c", [member], 2)
            await runtime.advance(30.0)
            assert full.hits > 1
            assert serving.state.next_offset == 0
            full.stop()
            await serving.reads()
            assert await world.seqs_of(member) == [1, 2, 3]
            assert serving.shard.fault is None


# --- the epoch filter -------------------------------------------------------------------------


async def test_a_stale_epoch_never_adds_an_entry_and_counts_exactly() -> None:
    """R-1: injected old-epoch dispatches are dropped whole, however many lanes they touch."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        members = [user_in_lane(world.table, lane) for lane in (3, 7, 9)]
        async with world.serving() as serving:
            key, _ = await world.chat("c", members, 1)
            old = world.epoch
            await world.take_over()
            claimed = await world.backends.conversations.claim(0, world.epoch, key)
            assert isinstance(claimed, Applied)
            late = await world.send(key, "of the new owner", members[0])
            await world.dispatch(late)
            injected = [await world.send(key, f"never {n}", members[0]) for n in range(4)]
            for event in injected:
                await world.inject(event, epoch=old)
            await serving.reads()
            for member in members:
                assert await world.seqs_of(member) == [1, 2, 3]
            assert world.counted("stale_epoch_dispatch_dropped_total", shard="0") == 4
            # The successor's own copies of the same dispatches are taken.
            await world.dispatch(*injected)
            await serving.reads()
            assert await world.seqs_of(members[0]) == [1, 2, 3, 4, 5, 6, 7]


async def test_stale_records_count_once_over_retries_of_their_step() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 1)
            await serving.reads()
            await world.inject(await world.send(key, "x", member), epoch=world.epoch + 1)
            await serving.reads()
            world.cluster.faults.lose_reply("apply", times=2)
            world.cluster.faults.refuse("apply", times=2)
            await world.inject(await world.send(key, "y", member), epoch=world.epoch)
            await serving.reads()
            assert world.counted("stale_epoch_dispatch_dropped_total", shard="0") == 1


async def test_a_duplicate_raises_the_mark() -> None:
    """A new owner that only repeats a dispatch has shown its epoch all the same."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, [event] = await world.chat("c", [member], 1)
            await world.inject(event, epoch=world.epoch + 1)
            await world.inject(await world.send(key, "stale", member), epoch=world.epoch)
            await serving.reads()
            assert await world.seqs_of(member) == [1, 2]
            assert world.counted("stale_epoch_dispatch_dropped_total", shard="0") == 1


async def test_a_block_that_is_retried_after_a_newer_epoch_arrived_is_not_lost() -> None:
    """The verdict is a function of the log: the old owner's event came before the new epoch."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        members = [user_in_lane(world.table, lane) for lane in (3, 7)]
        async with world.serving() as serving:
            key, [event] = await world.chat("c", members, 1)
            fault = rejects(world, event.event_id, lane=3)
            await serving.reads()
            await world.take_over()
            assert isinstance(
                await world.backends.conversations.claim(0, world.epoch, key), Applied
            )
            await world.dispatch(await world.send(key, "of the new owner", members[0]))
            await serving.reads()
            assert await world.seqs_of(members[1]) == [1, 2, 3]
            assert await world.seqs_of(members[0]) == [1]
            fault.stop()
            await runtime.until(lambda: not serving.state.lagging)
            assert await world.seqs_of(members[0]) == [1, 2, 3]
            assert world.counted("stale_epoch_dispatch_dropped_total", shard="0") == 0


async def test_a_restart_judges_a_lagging_lanes_block_by_its_place_too() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        members = [user_in_lane(world.table, lane) for lane in (3, 7)]
        async with world.serving() as serving:
            key, [event] = await world.chat("c", members, 1)
            fault = rejects(world, event.event_id, lane=3)
            await world.take_over()
            assert isinstance(
                await world.backends.conversations.claim(0, world.epoch, key), Applied
            )
            await world.dispatch(await world.send(key, "of the new owner", members[0]))
            await serving.reads()
        fault.stop()
        async with world.serving() as serving:
            await runtime.until(lambda: not serving.state.lagging)
            assert await world.seqs_of(members[0]) == [1, 2, 3]


# --- lanes ------------------------------------------------------------------------------------


async def test_w_stands_before_a_block_that_fails_and_nothing_overtakes() -> None:
    """MBX-04: W = 2 until 3 is applied, then 5; W never decreases; a PULL can never miss 3."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow, other = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [slow, other], 1)
            three = await world.send(key, "three", slow)
            fault = rejects(world, three.event_id, lane=3)
            rest = [await world.send(key, text, slow) for text in ("four", "five")]
            await world.dispatch(three, *rest)
            await serving.reads()
            # Event n is at offset n - 1.
            assert serving.w(slow) == mailbox_seq(1, 1)
            assert serving.w(other) == mailbox_seq(1, 4)
            assert len(await world.pull_all(slow)) == 2
            assert await world.seqs_of(other) == [1, 2, 3, 4, 5]
            seen = [serving.w(slow)]
            fault.stop()
            for _ in range(600):
                await runtime.advance(0.1)
                seen.append(serving.w(slow))
            assert not serving.state.lagging
            assert seen == sorted(seen)
            assert serving.w(slow) == mailbox_seq(1, 4)
            assert await world.seqs_of(slow) == [1, 2, 3, 4, 5]


async def test_a_lane_that_lags_survives_a_restart_and_catches_up_from_its_own_w() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow, other = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        async with world.serving() as serving:
            _, events = await world.chat("c", [slow, other], 600)
            fault = rejects(world, events[0].event_id, lane=3)
            await serving.reads()
        async with world.serving() as serving:
            await serving.reads()
            assert await world.seqs_of(slow) == [1]
            fault.stop()
            await runtime.until(lambda: not serving.state.lagging)
            assert await world.seqs_of(slow) == list(range(1, 602))
            assert await world.seqs_of(other) == list(range(1, 602))
            assert world.zero("mailbox_seq_regression_count") == 0


async def test_a_lane_that_catches_up_under_load_never_runs_ahead_of_its_shard() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow, other = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        async with world.serving() as serving:
            key, [event] = await world.chat("c", [slow, other], 1)
            fault = rejects(world, event.event_id, lane=3)
            await serving.reads()
            fault.stop()
            events = [await world.send(key, str(n), slow) for n in range(400)]
            records = [record for one in events for record in await world.records(one)]
            # The lane's retry falls due while the shard writes the first of many records.
            world.cluster.faults.delay(1.0, "apply")
            await world.produce(records)
            await runtime.until(lambda: not serving.state.lagging)
            await serving.reads()
            assert await world.seqs_of(slow) == list(range(1, 403))
            assert serving.shard.fault is None
            assert world.zero("mailbox_seq_regression_count") == 0


async def test_a_lane_that_stands_is_alerted_and_handed_over_once() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            _, [event] = await world.chat("c", [slow], 1)
            fault = rejects(world, event.event_id)
            await serving.reads()
            await runtime.advance(LANE_STALL_FAILOVER_S - 5)
            stalled = world.counted("lane_watermark_stall_ms", shard="0", lane="3")
            assert 100_000 < stalled < 120_000
            assert world.failovers == []
            await runtime.advance(60)
            assert world.failovers == [0]
            fault.stop()
            await runtime.until(lambda: not serving.state.lagging)
            assert world.counted("lane_watermark_stall_ms", shard="0", lane="3") == 0


async def test_a_lane_that_leaves_a_stall_hints_again() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow, other = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        world.presence.users = [slow, other]
        async with world.serving() as serving:
            _, [event] = await world.chat("c", [slow, other], 1)
            fault = rejects(world, event.event_id, lane=3)
            await serving.reads()
            assert [list(hint.users) for hint in world.presence.hints[-1:]] == [[other]]
            fault.stop()
            await runtime.until(lambda: not serving.state.lagging)
            assert list(world.presence.hints[-1].users) == [slow]


# --- hints ------------------------------------------------------------------------------------


async def test_hints_follow_the_durable_w_and_reach_those_online_alone() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        here, away = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        world.presence.users = [here]
        full = world.cluster.faults.refuse("apply", refusal=Refusal.NO_SPACE, times=None)
        async with world.serving() as serving:
            await world.chat("c", [here, away], 2)
            await runtime.advance(5)
            assert world.presence.hints == []
            full.stop()
            await serving.reads()
            assert [list(hint.users) for hint in world.presence.hints] == [[here]] * 3


async def test_a_hint_whose_body_cannot_be_read_is_lost_and_nothing_else_is() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        here = user_in_lane(world.table, 3)
        world.presence.users = [here]
        async with world.serving() as serving:
            world.cluster.faults.refuse("events", times=None)
            await world.chat("c", [here], 2)
            await serving.reads()
            assert world.presence.hints == []
            assert await world.seqs_of(here) == [1, 2, 3]


# --- what may not be passed -------------------------------------------------------------------


async def test_what_cannot_be_decoded_is_quarantined_before_the_position_passes_it() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        full = world.cluster.faults.refuse("quarantine", refusal=Refusal.NO_SPACE, times=None)
        async with world.serving() as serving:
            _, _ = await world.chat("c", [member], 1)
            await serving.reads()
            await world.produce([ProduceRecord(0, b"\xff not a dispatch")])
            await runtime.advance(10)
            assert serving.state.next_offset == 2
            full.stop()
            await serving.reads()
            [kept] = await world.backends.quarantine.quarantined(10)
            identity = (await world.backends.log.identity()).text
            assert (kept.log_identity, kept.partition, kept.offset) == (identity, 0, 2)
            assert kept.value == b"\xff not a dispatch"
            assert world.counted("quarantined_total", stage="mailbox") == 1


async def test_a_record_for_a_newer_reader_halts_and_is_not_set_aside() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 1)
            [record] = await world.records(await world.send(key, "next", member))
            [after] = await world.records(await world.send(key, "after", member))
            newer = record.value.replace(b"\x88\x01\x01", b"\x88\x01\x07")
            assert newer != record.value
            await world.produce([ProduceRecord(0, newer), after])
            assert await serving.halts() == "reader_too_old"
            assert (await world.stored()).next_offset == 2
            assert await world.backends.quarantine.quarantined(10) == []


async def test_a_record_of_another_log_halts_and_nothing_is_applied_from_it_on() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 1)
            foreign, after = [await world.send(key, text, member) for text in "ab"]
            await world.produce(await world.records(foreign, log_identity="other/log"))
            await world.produce(await world.records(after))
            assert await serving.halts() == "foreign_record"
            assert await world.seqs_of(member) == [1, 2]
            assert world.counted("shard_halted", kind="mailbox", shard="0") == 1
            with pytest.raises(QimError) as refused:
                await world.pull_all(member)
            assert refused.value.code is ErrorCode.UNAVAILABLE
            assert "foreign_record" in refused.value.message


async def test_a_seq_that_is_not_above_the_lanes_last_counts_and_halts() -> None:
    """mailbox_seq_regression_count: the detector, on a store that lost its position alone."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            await world.chat("c", [member], 3)
            await serving.reads()
        taken_back = world.backends.mailbox
        world.backends = replace(world.backends, mailbox=TakenBack(taken_back))
        world.service = world.new_service()
        async with world.serving() as serving:
            assert await serving.halts() == "mailbox_seq_regression"
            assert world.zero("mailbox_seq_regression_count") == 1
            assert (await taken_back.shard_state(0)).position == mailbox_seq(1, 3)  # type: ignore[union-attr]


class TakenBack:
    """A mailbox store whose position went back, and whose entries did not."""

    def __init__(self, store: object) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def open_shard(self, shard: int, term: int, first: EpochBoundary) -> Outcome[ShardState]:
        outcome = await self._store.open_shard(shard, term, first)  # type: ignore[attr-defined]
        assert isinstance(outcome, Applied)
        state = replace(outcome.value, next_offset=1, position=mailbox_seq(1, 0))
        return Applied(state)


async def test_the_same_dispatch_id_with_other_content_counts_and_adds_nothing() -> None:
    """event_id_nondeterminism_total: a replay that built another record of the same event."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member, intruder = (user_in_lane(world.table, lane) for lane in (3, 7))
        async with world.serving() as serving:
            _, [event] = await world.chat("c", [member], 1)
            await serving.reads()
            assert world.zero("event_id_nondeterminism_total") == 0
            other = replace(event, kind=EventKind.REACTION)
            await world.inject(other, epoch=world.epoch)
            await serving.reads()
            assert world.zero("event_id_nondeterminism_total") == 1
            assert await world.seqs_of(member) == [1, 2]
            entries = await world.backends.mailbox.entries(
                UserKey(ACME, intruder), 0, serving.state.position, 10
            )
            assert entries == []
            [sample] = await world.backends.quarantine.quarantined(10)
            assert sample.reason == "content_differs"


async def test_an_owner_whose_term_was_taken_writes_no_more() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        first = world.start()
        await world.chat("c", [member], 1)
        await first.reads()
        opened = await world.backends.mailbox.open_shard(
            0, world.term().epoch, EpochBoundary(1, 0, "unused")
        )
        assert isinstance(opened, Applied)
        await world.chat("d", [member], 1)
        await runtime.until(first.task.done, 60)
        assert first.term.ended
        assert (await world.stored()).next_offset == 2
        assert world.service.shards() == []
