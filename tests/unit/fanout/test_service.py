"""The fanout on engines in memory: order, progress behind the log, takeover, faults of the log."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.writer.world import (
    ANN,
    BOB,
    CID,
    KEY,
    ROOM,
    SELF_FENCE_S,
    TABLE,
    TENANT,
    Node,
    World,
    seqs,
    text,
)

from qimd.adapters.memory import FaultPlan
from qimd.contract.dispatch import decode_dispatch
from qimd.core.errors import ErrorCode, QimError
from qimd.core.outcome import Refusal
from qimd.core.parameters import (
    FANOUT_BATCH_RECORDS_MAX,
    GROUP_DISPATCH_BYTES_MAX,
    OUTBOX_BACKLOG_MAX,
)
from qimd.core.records import ConversationKey
from qimd.core.routing import RoutingTable
from qimd.fanout.line import LogUnfitError
from qimd.fanout.logic import ACKNOWLEDGED_WITHIN_S, STREAM_PAUSE_S
from qimd.fanout.service import RESCAN_INTERVAL_S
from qimd.ports.log import ProduceRecord
from qimd.ports.quarantine import unproduced_offset


@pytest.fixture
async def runtime() -> AsyncIterator[ManualRuntime]:
    async with ManualRuntime() as made:
        yield made


@pytest.fixture
def world(runtime: ManualRuntime) -> World:
    return World(runtime)


@pytest.fixture
async def node(world: World) -> Node:
    """An owner that writes and dispatches, with a conversation of ann and bob (seq 1)."""
    made = await world.node()
    await made.serve()
    await world.room(made)
    await made.until_dispatched()
    return made


def seq_is(*wanted: int):  # type: ignore[no-untyped-def]
    """Whether a record of the log is of one of these events."""

    def matches(content: object) -> bool:
        assert isinstance(content, ProduceRecord)
        return decode_dispatch(content.value).ref.conversation_seq in wanted

    return matches


# --- the ordinary way --------------------------------------------------------------------------


async def test_what_is_committed_reaches_every_member_in_order(world: World, node: Node) -> None:
    for i in range(20):
        await node.send(text(f"m{i}"), sender=(ANN, BOB)[i % 2])
    await node.until_dispatched()
    assert await world.delivered(ANN) == list(range(1, 22))
    assert await world.delivered(BOB) == list(range(1, 22))
    assert (await node.state()).dispatched_through == 21
    assert node.fanout.backlog(0) == 0


async def test_the_records_of_an_event_name_their_count_and_are_cut_by_the_chunk_size(
    world: World,
) -> None:
    node = await world.node(chunk_recipients=3)
    await node.serve()
    users = [f"user-{i}" for i in range(20)]
    await world.tenant(node)
    await node.writer.create_conversation(TENANT, ROOM, users)
    await node.until_dispatched()
    records = await world.records()
    assert {record.chunk_count for record in records} == {len(records)}
    assert max(record.recipients for record in records) == 3
    assert sorted(user for record in records for b in record.blocks for user in b.users) == sorted(
        users
    )


async def test_a_batch_spans_conversations(world: World, node: Node) -> None:
    for i in range(5):
        await node.writer.create_conversation(TENANT, KEY.conversation.__class__(f"c{i}"), [ANN])
    await node.until_dispatched()
    records = await world.records()
    assert {record.ref.key.conversation for record in records} == {
        ROOM,
        *(f"c{i}" for i in range(5)),
    }


async def test_a_message_by_itself_goes_out_once_its_acknowledgement_has_left(
    world: World, node: Node
) -> None:
    await node.send(text("m1"))
    await world.runtime.settle()
    assert await world.delivered(ANN) == [1]
    await world.runtime.advance(ACKNOWLEDGED_WITHIN_S)
    assert await world.delivered(ANN) == [1, 2]


async def test_the_messages_of_a_stream_go_out_together(world: World, node: Node) -> None:
    await node.send(text("first"))
    await world.runtime.advance(ACKNOWLEDGED_WITHIN_S)
    for i in range(4):
        await node.send(text(f"m{i}"))
        await world.runtime.advance(STREAM_PAUSE_S / 5)
    assert await world.delivered(ANN) == [1, 2]
    await world.runtime.advance(STREAM_PAUSE_S / 5)
    assert await world.delivered(ANN) == [1, 2, 3, 4, 5, 6]


async def test_what_fills_a_batch_waits_for_nothing(world: World, node: Node) -> None:
    node.term.end()
    await world.runtime.advance(5)
    after = await world.node()
    await after.serve(dispatching=False)
    for i in range(0, FANOUT_BATCH_RECORDS_MAX, 64):
        await after.send(*(text(f"m{i + j}") for j in range(64)))
    await after.dispatch()
    assert len(await world.delivered(ANN)) == 1 + FANOUT_BATCH_RECORDS_MAX


async def test_the_backlog_counts_exactly(world: World, node: Node) -> None:
    away = world.faults.refuse("produce", times=None)
    await node.send(text("m1"), text("m2"))
    await node.send(text("m3"))
    await world.runtime.advance(5)
    assert node.fanout.backlog(0) == 3
    away.stop()
    node.renew()
    await node.until_dispatched()
    assert node.fanout.backlog(0) == 0


async def test_a_full_backlog_refuses_before_anything_is_written(world: World, node: Node) -> None:
    away = world.faults.refuse("produce", times=None)
    for i in range(OUTBOX_BACKLOG_MAX // 100):
        await node.send(*(text(f"m{i}-{j}") for j in range(100)))
    assert node.fanout.backlog(0) == OUTBOX_BACKLOG_MAX
    with pytest.raises(QimError) as refused:
        await node.send(text("one more"))
    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert (await node.state()).head_version == OUTBOX_BACKLOG_MAX + 1
    away.stop()
    await node.until_dispatched()
    assert seqs(await node.send(text("one more"))) == [OUTBOX_BACKLOG_MAX + 2]


# --- durability before progress ----------------------------------------------------------------


async def test_a_partial_failure_moves_progress_zero_times(world: World, node: Node) -> None:
    """F05: several lanes; one delivery fails while others pend → progress stays."""
    advanced = world.faults.delay(0.0, "advance", times=None)
    torn = world.faults.refuse("produce", times=None, skip=1, where=seq_is(2, 3, 4))
    await node.send(text("m1"), text("m2"), text("m3"))
    await world.runtime.advance(8)
    assert torn.hits > 1, "it tried more than once"
    assert await world.records() != [], "a part of it did land"
    assert (await node.state()).dispatched_through == 1
    assert advanced.hits == 0
    torn.stop()
    node.renew()
    await node.until_dispatched()
    assert await world.delivered(ANN) == [1, 2, 3, 4]
    assert await world.delivered(BOB) == [1, 2, 3, 4]


async def test_after_a_failure_the_whole_run_is_sent_again_in_order(
    world: World, node: Node
) -> None:
    world.faults.refuse("produce", times=1, where=seq_is(3))
    await node.send(*(text(f"m{i}") for i in range(4)))  # seqs 2 to 5
    await node.until_dispatched()
    by_shard: dict[int, list[int]] = {}
    for record in await world.records():
        by_shard.setdefault(record.mailbox_shard, []).append(record.ref.conversation_seq)
    # Behind the failed record nothing of its shard landed, and what came then began anew.
    assert [1, 2, 2, 3, 4, 5] in by_shard.values()
    assert await world.delivered(ANN) == [1, 2, 3, 4, 5]
    assert await world.delivered(BOB) == [1, 2, 3, 4, 5]


async def test_a_dropped_ack_with_a_new_producer_is_one_triple_a_dispatch(
    world: World, node: Node
) -> None:
    """F03: produce ack dropped; producer recreated → one triple per dispatch_id."""
    opened = world.faults.delay(0.0, "open_producer", times=None)
    lost = world.faults.lose_reply("produce", times=2)
    await node.send(text("m1"))
    await node.until_dispatched()
    assert lost.hits == 2
    assert opened.hits >= 1, "the spent producer was replaced"
    records = [record for record in await world.records() if record.ref.conversation_seq == 2]
    assert len(records) > len({record.dispatch_id for record in records}), "it was produced twice"
    assert await world.delivered(ANN) == [1, 2]


async def test_progress_that_is_unknown_is_stored_again(world: World, node: Node) -> None:
    lost = world.faults.lose_reply("advance", times=3)
    await node.send(text("m1"))
    await node.until_dispatched()
    assert lost.hits == 3
    assert node.fanout.backlog(0) == 0


async def test_an_open_earlier_commit_is_never_passed_over(world: World, node: Node) -> None:
    """FAN-01: 10 is still published; per-conversation order 10, 11 holds in the log."""
    await node.send(*(text(f"m{i}") for i in range(8)))  # up to seq 9
    late = world.faults.land_late("commit", after_s=0.5)
    ten = asyncio.ensure_future(node.send(text("ten")))
    await world.runtime.settle()
    eleven = asyncio.ensure_future(node.send(text("eleven")))
    await world.runtime.advance(2)
    assert late.hits == 1
    assert (seqs(ten.result()), seqs(eleven.result())) == ([10], [11])
    await node.until_dispatched()
    assert await world.delivered(BOB) == list(range(1, 12))


async def test_a_failing_event_is_retried_in_place(world: World, node: Node) -> None:
    """FAN-04: n is retried in place before progress passes it; never silently skipped."""
    fails = world.faults.refuse("produce", times=None, where=seq_is(2))
    await node.send(text("n"), text("n+1"))
    await world.runtime.advance(5)
    assert (await node.state()).dispatched_through == 1
    fails.stop()
    successor = await world.node()
    await successor.serve()
    await successor.until_dispatched()
    assert await world.delivered(ANN) == [1, 2, 3]


async def test_what_can_never_be_produced_is_quarantined_and_holds_nobody(
    world: World, node: Node
) -> None:
    """FAN-04: … or written to a durable dead-letter row before the progress passes it."""
    world.faults.reject("produce", seq_is(2))
    slow = world.faults.refuse("quarantine", times=2)
    other = ConversationKey(TENANT, ROOM.__class__("other"))
    await node.writer.create_conversation(TENANT, other.conversation, [ANN])
    await node.send(text("poison"), text("fine"))
    await node.until_dispatched()
    assert slow.hits == 2
    assert await world.delivered(BOB) == [1, 3]
    kept = await node.backends.quarantine.quarantined(10)
    identity = (await node.backends.log.identity()).text
    poisoned = [decode_dispatch(record.value) for record in kept]
    assert {dispatch.ref.conversation_seq for dispatch in poisoned} == {2}
    assert {(record.log_identity, record.partition, record.offset) for record in kept} == {
        (identity, dispatch.mailbox_shard, unproduced_offset(dispatch.dispatch_id))
        for dispatch in poisoned
    }
    counted = node.metrics.quarantined_total.labels("dispatch")._value.get()
    assert counted == len(kept)


async def test_progress_waits_for_the_quarantine_to_be_durable(world: World, node: Node) -> None:
    world.faults.reject("produce", seq_is(2))
    away = world.faults.refuse("quarantine", times=None)
    await node.send(text("poison"))
    await world.runtime.advance(5)
    assert (await node.state()).dispatched_through == 1
    assert node.metrics.quarantined_total.labels("dispatch")._value.get() == 0
    away.stop()
    node.renew()
    await node.until_dispatched()
    assert (await node.state()).dispatched_through == 2


# --- takeover ----------------------------------------------------------------------------------


async def test_the_successor_dispatches_what_it_inherited_before_its_own(world: World) -> None:
    """F17: writer dies between head CAS and dispatch; the successor gets new traffic first → the
    old message is delivered, in order.
    """
    old = await world.node()
    await old.serve(dispatching=False)
    await world.room(old)
    await old.send(text("old"))
    old.backends.kill()
    new = await world.node()
    await new.serve(dispatching=False)
    assert seqs(await new.send(text("new"))) == [3]
    assert await world.records() == []
    await new.dispatch()
    await new.until_dispatched()
    records = await world.records()
    assert {record.fencing_epoch for record in records} == {new.term.epoch}
    assert await world.delivered(ANN) == [1, 2, 3]


async def test_a_replay_builds_the_same_records_but_for_the_epoch(world: World) -> None:
    old = await world.node(chunk_recipients=2)
    await old.serve()
    away = world.faults.refuse("advance", times=None)
    await world.room(old, ANN, BOB, CID)
    await old.send(text("m1"))
    await old.writer.remove_members(TENANT, ROOM, [CID])
    await old.send(text("m2"))
    await world.runtime.advance(3)
    first = await world.values()
    assert (await old.state()).dispatched_through == 0
    old.backends.kill()
    away.stop()
    # Its own chunk size is another one: what the events pin decides.
    new = await world.node(chunk_recipients=512)
    await new.serve()
    await new.until_dispatched()
    again = [value for value in await world.values() if value not in first]

    def without_epoch(values: list[bytes], epoch: int) -> list[bytes]:
        head = b"\x08" + _varint(epoch)
        assert all(value.startswith(head) for value in values)
        return sorted(value[len(head) :] for value in values)

    assert len(again) == len(first) > 4
    assert without_epoch(again, new.term.epoch) == without_epoch(first, old.term.epoch)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


async def test_a_stale_fanout_can_not_mark_an_event_done(world: World) -> None:
    old = await world.node()
    await old.serve()
    world.faults.delay(5.0, "produce", times=1)
    await world.room(old)
    new = await world.node()
    await world.runtime.advance(6)
    assert (await new.state()).dispatched_through == 0
    assert old.term.ended, "the store told it"
    await new.serve()
    await new.until_dispatched()
    assert await world.delivered(ANN) == [1]


async def test_a_late_write_that_nobody_told_is_found_and_dispatched(world: World) -> None:
    slow = FaultPlan(world.runtime)
    old = await world.node(faults=slow)
    await old.serve()
    await world.room(old)
    await old.until_dispatched()
    late = slow.land_late("commit")
    slow.refuse("commit", times=None)
    asyncio.ensure_future(old.send(text("late"))).add_done_callback(lambda call: call.exception())
    await world.runtime.settle()
    new = await world.node()
    await new.serve()
    await world.runtime.advance(1)
    assert late.land() == 1
    assert (await new.state()).head_version == 2
    for _ in range(int(RESCAN_INTERVAL_S) + 2):
        await world.runtime.advance(1)
        new.renew()
    assert (await new.state()).dispatched_through == 2
    assert await world.delivered(BOB) == [1, 2]


async def test_progress_that_the_store_has_lost_is_stored_again(world: World, node: Node) -> None:
    await node.send(text("m1"))
    world.cluster.sync_store()
    await node.until_dispatched()
    world.cluster.lose_store_tail()
    assert (await node.state()).dispatched_through == 1
    for _ in range(int(RESCAN_INTERVAL_S) + 2):
        await world.runtime.advance(1)
        node.renew()
    assert (await node.state()).dispatched_through == 2
    assert await world.delivered(BOB) == [1, 2]
    assert len(await world.records()) > 2, "it is sent again, for the mailbox to absorb"


async def test_a_late_write_is_dispatched_before_what_is_committed_behind_it(
    world: World,
) -> None:
    slow = FaultPlan(world.runtime)
    old = await world.node(faults=slow)
    await old.serve()
    await world.room(old)
    await old.until_dispatched()
    late = slow.land_late("commit")
    slow.refuse("commit", times=None)
    asyncio.ensure_future(old.send(text("late"))).add_done_callback(lambda call: call.exception())
    await world.runtime.settle()
    new = await world.node()
    await new.serve()
    assert late.land() == 1
    assert seqs(await new.send(text("new"))) == [3]
    await new.until_dispatched()
    assert await world.delivered(BOB) == [1, 2, 3]


async def test_an_inherited_head_is_claimed_so_that_no_late_write_lands_on_it(
    world: World,
) -> None:
    slow = FaultPlan(world.runtime)
    old = await world.node(faults=slow)
    await old.serve(dispatching=False)
    await world.room(old)  # seq 1 is not dispatched
    late = slow.land_late("commit")
    slow.refuse("commit", times=None)
    asyncio.ensure_future(old.send(text("late"))).add_done_callback(lambda call: call.exception())
    await world.runtime.settle()
    new = await world.node()
    await new.serve()
    await new.until_dispatched()
    assert late.land() == 1
    state = await new.state()
    assert (state.fencing_epoch, state.head_version) == (new.term.epoch, 1)


async def test_past_the_self_fence_nothing_is_produced(world: World, node: Node) -> None:
    await node.send(text("m1"))
    await node.until_dispatched()
    before = await world.values()
    away = world.faults.refuse("produce", times=None)
    await node.send(text("m2"))
    await world.runtime.advance(SELF_FENCE_S + 1)
    away.stop()
    await world.runtime.advance(30)
    assert await world.values() == before


async def test_serving_ends_with_the_term(world: World) -> None:
    node = await world.node()
    served = asyncio.ensure_future(node.fanout.serve(node.term))
    await world.runtime.advance(2)
    assert not served.done()
    node.term.end()
    await world.runtime.advance(2)
    assert served.done()
    assert served.exception() is None


# --- members -----------------------------------------------------------------------------------


async def test_a_removed_member_gets_nothing_from_the_removal_on_but_the_removal(
    world: World, node: Node
) -> None:
    """FAN-05: u gets nothing with seq ≥ the removal point; after the re-add u can send and receives
    from the re-add point on.
    """
    away = world.faults.refuse("produce", times=None)
    await node.send(text("before"))  # 2
    await node.writer.remove_members(TENANT, ROOM, [BOB])  # 3
    await node.send(text("between"))  # 4
    await node.writer.add_members(TENANT, ROOM, [BOB])  # 5
    await node.send(text("after"), sender=BOB)  # 6
    away.stop()
    await node.until_dispatched()
    assert await world.delivered(BOB) == [1, 2, 3, 5, 6]
    assert await world.delivered(ANN) == [1, 2, 3, 4, 5, 6]


async def test_a_successor_reads_the_members_of_then_not_those_of_now(world: World) -> None:
    """FAN-05: the recipient list is read at the version stamped on the event."""
    old = await world.node()
    await old.serve()
    await world.room(old)
    await old.until_dispatched()
    away = world.faults.refuse("produce", times=None)
    await old.send(text("before"))  # 2
    await old.writer.remove_members(TENANT, ROOM, [BOB])  # 3
    await old.send(text("between"))  # 4
    await old.writer.add_members(TENANT, ROOM, [CID])  # 5
    old.backends.kill()
    away.stop()
    new = await world.node()
    await new.serve()
    await new.until_dispatched()
    assert await world.delivered(ANN) == [1, 2, 3, 4, 5]
    assert await world.delivered(BOB) == [1, 2, 3]
    assert await world.delivered(CID) == [5]


async def test_members_that_are_cached_are_not_taken_for_those_of_another_version(
    world: World, node: Node
) -> None:
    """FAN-05: the removal commits while this worker has the version before it cached; what is sent
    behind it goes by the version stamped on it, not by the one that is at hand.
    """
    await node.send(text("m"))  # 2
    await node.until_dispatched()
    node.term.end()
    await world.runtime.advance(2)
    between = await world.node()
    await between.serve()
    await between.writer.remove_members(TENANT, ROOM, [BOB])  # 3
    await between.writer.add_members(TENANT, ROOM, [CID])  # 4
    await between.until_dispatched()
    between.term.end()
    await world.runtime.advance(2)
    node.term = await world.term(node.backends)
    await node.serve()
    await node.send(text("not for bob"))  # 5
    await node.writer.add_members(TENANT, ROOM, [BOB])  # 6
    await node.send(text("for all"), sender=BOB)  # 7
    await node.until_dispatched()
    assert await world.delivered(ANN) == [1, 2, 3, 4, 5, 6, 7]
    assert await world.delivered(BOB) == [1, 2, 3, 6, 7]
    assert await world.delivered(CID) == [4, 5, 6, 7]


async def test_a_change_that_another_owner_made_is_not_missed_by_a_delta(
    world: World, node: Node
) -> None:
    await node.send(text("m"))
    await node.until_dispatched()
    node.term.end()
    await world.runtime.advance(2)
    between = await world.node()
    await between.serve()
    await between.writer.add_members(TENANT, ROOM, [CID])  # 3
    await between.until_dispatched()
    between.term.end()
    await world.runtime.advance(2)
    node.term = await world.term(node.backends)
    await node.serve()
    await node.writer.remove_members(TENANT, ROOM, [BOB])  # 4
    await node.until_dispatched()
    assert await world.delivered(CID) == [3, 4]


async def test_members_come_by_deltas_as_the_store_has_them(world: World, node: Node) -> None:
    reads = world.faults.delay(0.0, "members_at", times=None)
    users = [f"user-{i}" for i in range(40)]
    for start in range(0, 40, 10):
        await node.writer.add_members(TENANT, ROOM, users[start : start + 10])
        await node.send(text(f"m{start}"))
        await node.writer.remove_members(TENANT, ROOM, users[start : start + 3])
    await node.until_dispatched()
    assert reads.hits == 0, "an owner that saw every change reads none"
    for record in await world.records():
        seq = record.ref.conversation_seq
        members = set(await node.backends.conversations.members_at(KEY, seq))
        before = set(await node.backends.conversations.members_at(KEY, seq - 1))
        known = {user for block in record.blocks for user in block.users}
        wanted = members | before if record.ref.kind == 3 else members
        assert known <= wanted
    for user in (*users, ANN):
        got = set(await world.delivered(user))
        intervals = await node.backends.conversations.intervals(KEY, user)
        head = (await node.state()).head_version
        assert got == {
            seq for seq in range(1, head + 1) if any(interval.sees(seq) for interval in intervals)
        }


# --- the log's identity ------------------------------------------------------------------------


async def test_a_recreated_topic_stops_the_shard_until_a_restart(world: World, node: Node) -> None:
    world.cluster.topic.recreate(silently=True)
    await world.runtime.advance(11)
    node.renew()
    await node.send(text("m1"))
    await world.runtime.advance(11)
    assert await world.values() == []
    assert (await node.state()).dispatched_through == 1
    assert not node.term.ended
    assert node.metrics.shard_halted.labels("writer", "0")._value.get() == 1
    restarted = await world.node()
    await restarted.serve()
    await restarted.until_dispatched()
    assert await world.delivered(ANN) == [2]


async def test_a_topic_that_is_away_and_comes_back_is_gone_on_with(
    world: World, node: Node
) -> None:
    away = world.faults.refuse("identity", times=None)
    await world.runtime.advance(11)
    node.renew()
    await node.send(text("m1"))
    await world.runtime.advance(3)
    assert (await node.state()).dispatched_through == 1
    away.stop()
    await node.until_dispatched()
    assert await world.delivered(ANN) == [1, 2]


async def test_a_bare_partition_increase_is_refused(world: World, node: Node) -> None:
    """FAN-03: the lane map is versioned and a change drains first; a bare partition increase on
    the topic is refused.
    """
    world.cluster.topic.recreate(partitions=4, silently=True)
    await node.send(text("m1"))
    await world.runtime.advance(11)
    node.renew()
    await world.runtime.advance(2)
    assert node.metrics.shard_halted.labels("writer", "0")._value.get() == 1
    with pytest.raises(LogUnfitError) as refused:
        await (await world.node()).fanout.check_log()
    assert refused.value.field == "mailbox_shards"


async def test_an_event_of_another_routing_version_is_not_dispatched_by_this_table(
    world: World,
) -> None:
    """FAN-03: no mailbox receives a new event before the old ones: what was committed under one
    routing table is never dispatched under another.
    """
    old = await world.node()
    await old.serve(dispatching=False)
    await world.room(old)
    old.backends.kill()
    moved = RoutingTable(version=2, mailbox_shards=2, writer_shards=1)
    new = await world.node(table=moved)
    await new.serve()
    await world.runtime.advance(5)
    assert await world.values() == []
    assert new.metrics.shard_halted.labels("writer", "0")._value.get() == 1
    same = await world.node(table=TABLE)
    await same.serve()
    await same.until_dispatched()
    assert await world.delivered(ANN) == [1]


async def test_a_log_that_can_not_hold_a_largest_record_is_refused(runtime: ManualRuntime) -> None:
    small = World(runtime, max_record_bytes=GROUP_DISPATCH_BYTES_MAX)
    node = await small.node()
    with pytest.raises(LogUnfitError) as refused:
        await node.fanout.check_log()
    assert refused.value.field == "max_record_bytes"
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    enough = World(runtime, max_record_bytes=GROUP_DISPATCH_BYTES_MAX + 1)
    await (await enough.node()).fanout.check_log()


async def test_a_log_without_room_goes_on_by_itself(world: World, node: Node) -> None:
    full = world.faults.refuse("produce", refusal=Refusal.NO_SPACE, times=None)
    await node.send(text("m1"))
    await world.runtime.advance(8)
    full.stop()
    node.renew()
    await node.until_dispatched()
    assert await world.delivered(ANN) == [1, 2]
