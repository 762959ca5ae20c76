"""The writer on engines in memory: numbering, idempotency, fencing, faults of the store."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.writer.world import (
    ANN,
    BOB,
    CID,
    KEY,
    PHONE,
    ROOM,
    SELF_FENCE_S,
    TENANT,
    Node,
    Silent,
    World,
    reaction,
    seqs,
    text,
)

from qimd.adapters.memory import FaultPlan
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import ConversationId
from qimd.core.outcome import Applied, Refusal
from qimd.core.parameters import (
    BODY_BYTES_MAX,
    CLOCK_REGRESSION_REJECT_MS,
    COMMIT_EVENTS_MAX,
    OUTBOX_BACKLOG_MAX,
    SEND_EVENTS_MAX,
)
from qimd.core.records import Accepted, Draft, EventKind
from qimd.ports.services import Commit
from qimd.ports.store import CommitStep, IdempotencyKey, NewEvent
from qimd.writer.steps import Content, Pins, place_event


@pytest.fixture
async def runtime() -> AsyncIterator[ManualRuntime]:
    async with ManualRuntime() as made:
        yield made


@pytest.fixture
def world(runtime: ManualRuntime) -> World:
    return World(runtime)


@pytest.fixture
async def node(world: World) -> Node:
    """An owner whose fanout only counts, with a conversation of ann and bob (seq 1)."""
    made = await world.node(fanout=Silent())
    await made.serve()
    await world.room(made)
    return made


def code(result: Accepted | QimError) -> ErrorCode:
    assert isinstance(result, QimError), result
    return result.code


# --- numbering ---------------------------------------------------------------------------------


async def test_events_are_numbered_without_gaps_in_the_order_of_the_calls(node: Node) -> None:
    calls = [
        asyncio.ensure_future(node.send(text(f"m{i}a"), text(f"m{i}b"), sender=(ANN, BOB)[i % 2]))
        for i in range(300)
    ]
    results = await asyncio.gather(*calls)
    given = [seq for result in results for seq in seqs(result)]
    assert given == list(range(2, 602))
    stored = await node.backends.conversations.outbox(KEY, 0, 10_000)
    assert [event.conversation_seq for event in stored] == list(range(1, 602))


async def test_what_waits_for_a_step_goes_into_the_next_one(world: World, node: Node) -> None:
    steps = world.faults.delay(1.0, "commit", times=None)
    calls = [asyncio.ensure_future(node.send(text(f"m{i}"))) for i in range(COMMIT_EVENTS_MAX + 2)]
    await world.runtime.advance(3.5)
    assert all(call.done() for call in calls)
    assert [seq for call in calls for seq in seqs(call.result())] == list(
        range(2, COMMIT_EVENTS_MAX + 4)
    )
    # All were called before the first step was formed; one step holds COMMIT_EVENTS_MAX of them.
    assert steps.hits == 2


async def test_ten_events_of_a_send_are_one_step_with_one_time(world: World, node: Node) -> None:
    steps = world.faults.delay(0.1, "commit", times=None)
    call = asyncio.ensure_future(node.send(*(text(f"m{i}") for i in range(10))))
    await world.runtime.advance(0.2)
    assert seqs(call.result()) == list(range(2, 12))
    assert steps.hits == 1


async def test_a_caller_that_gave_up_before_its_step_leaves_nothing(
    world: World, node: Node
) -> None:
    world.faults.delay(1.0, "commit")
    first = asyncio.ensure_future(node.send(text("first")))
    await world.runtime.settle()
    given_up = asyncio.ensure_future(node.send(text("given-up")))
    last = asyncio.ensure_future(node.send(text("last")))
    await world.runtime.settle()
    given_up.cancel()
    await world.runtime.advance(2)
    assert seqs(first.result()) == [2]
    assert seqs(last.result()) == [3]


async def test_an_administrator_that_gave_up_before_its_turn_leaves_nothing(
    world: World, node: Node
) -> None:
    """Callers that time out ask again: who does the work of those that left never catches up."""
    world.faults.delay(1.0, "commit")
    first = asyncio.ensure_future(node.send(text("first")))
    await world.runtime.settle()
    given_up = asyncio.ensure_future(node.writer.add_members(TENANT, ROOM, [CID]))
    await world.runtime.settle()
    given_up.cancel()
    await world.runtime.advance(2)
    assert seqs(first.result()) == [2]
    assert seqs(await node.send(text("last"))) == [3]


async def test_a_send_holds_1_to_100_events(node: Node) -> None:
    assert len(await node.send(*(text(f"m{i}") for i in range(SEND_EVENTS_MAX)))) == 100
    for drafts in ((), tuple(text(f"n{i}") for i in range(SEND_EVENTS_MAX + 1))):
        with pytest.raises(QimError) as refused:
            await node.send(*drafts)
        assert refused.value.code is ErrorCode.INVALID_ARGUMENT
        assert refused.value.field == "events"


async def test_an_invalid_draft_refuses_no_other(node: Node) -> None:
    results = await node.send(
        text("good"),
        Draft("long", EventKind.MESSAGE, b"x" * (BODY_BYTES_MAX + 1)),
        text("with\x00nul"),
        text("also-good"),
    )
    assert [isinstance(result, Accepted) for result in results] == [True, False, False, True]
    assert code(results[1]) is code(results[2]) is ErrorCode.INVALID_ARGUMENT
    assert seqs([results[0], results[3]]) == [2, 3]


async def test_a_reaction_needs_a_target_that_its_sender_can_see(node: Node) -> None:
    await node.send(text("m"))
    await node.writer.add_members(TENANT, ROOM, [CID])  # seq 3
    assert seqs(await node.send(reaction("r1", 2))) == [4]
    assert code((await node.send(reaction("r2", 2), sender=CID))[0]) is ErrorCode.INVALID_ARGUMENT
    assert seqs(await node.send(reaction("r3", 3), sender=CID)) == [5]
    assert code((await node.send(reaction("r4", 6)))[0]) is ErrorCode.INVALID_ARGUMENT
    await node.writer.remove_members(TENANT, ROOM, [CID])  # seq 6
    await node.send(text("unseen"))  # seq 7
    await node.writer.add_members(TENANT, ROOM, [CID])  # seq 8
    assert seqs(await node.send(reaction("r5", 5), sender=CID)) == [9], "seen in its first time"
    assert code((await node.send(reaction("r6", 7), sender=CID))[0]) is ErrorCode.INVALID_ARGUMENT


# --- who may send ------------------------------------------------------------------------------


async def test_a_stranger_and_no_conversation_get_the_same_answer(node: Node) -> None:
    with pytest.raises(QimError) as stranger:
        await node.send(text("m"), sender=CID)
    nowhere = KEY.__class__(TENANT, ConversationId("nowhere"))
    with pytest.raises(QimError) as none:
        await node.writer.commit(Commit(nowhere, ANN, PHONE, [text("m")]))
    assert stranger.value.code is none.value.code is ErrorCode.NOT_MEMBER
    assert stranger.value.message == none.value.message
    assert (await node.state()).head_version == 1


async def test_a_removed_member_can_send_no_more_and_a_member_again_can(node: Node) -> None:
    assert seqs(await node.send(text("m1"), sender=BOB)) == [2]
    await node.writer.remove_members(TENANT, ROOM, [BOB])
    with pytest.raises(QimError) as refused:
        await node.send(text("m2"), sender=BOB)
    assert refused.value.code is ErrorCode.NOT_MEMBER
    await node.writer.add_members(TENANT, ROOM, [BOB])
    assert seqs(await node.send(text("m2"), sender=BOB)) == [5]


async def test_a_shard_that_is_not_served_here_is_refused_retryably(world: World) -> None:
    node = await world.node(fanout=Silent())
    with pytest.raises(QimError) as refused:
        await node.send(text("m"))
    assert refused.value.code is ErrorCode.NOT_OWNER
    assert refused.value.retryable


# --- idempotency -------------------------------------------------------------------------------


async def test_the_same_client_msg_id_gives_the_first_result(world: World, node: Node) -> None:
    """WR-03: both calls return seq 12 and the same server id; one row; another body: conflict."""
    await node.send(*(text(f"before{i}") for i in range(10)))
    (first,) = await node.send(text("M", "body"))
    assert isinstance(first, Accepted)
    assert first.conversation_seq == 12
    await world.runtime.advance(3600)
    node.renew()
    (again,) = await node.send(text("M", "body"))
    assert isinstance(again, Accepted)
    assert (again.event_id, again.conversation_seq) == (first.event_id, 12)
    assert again.created_at_ms == first.created_at_ms
    assert again.duplicate
    assert not first.duplicate
    (other,) = await node.send(text("M", "another body"))
    assert code(other) is ErrorCode.IDEMPOTENCY_CONFLICT
    assert (await node.state()).head_version == 12


async def test_who_was_removed_after_a_lost_reply_still_gets_the_first_result(node: Node) -> None:
    """WR-03, with a removal in between: the message is in the mailboxes, so the answer says so."""
    (first,) = await node.send(text("M", "body"), sender=BOB)
    await node.writer.remove_members(TENANT, ROOM, [BOB])
    results = await node.send(text("M", "body"), text("N"), text("M", "other"), sender=BOB)
    assert isinstance(first, Accepted)
    assert isinstance(results[0], Accepted)
    assert results[0].conversation_seq == first.conversation_seq
    assert [code(result) for result in results[1:]] == [
        ErrorCode.NOT_MEMBER,
        ErrorCode.IDEMPOTENCY_CONFLICT,
    ]
    with pytest.raises(QimError, match="NOT_MEMBER"):
        await node.send(text("N"), sender=BOB)


async def test_two_gateways_at_once_get_one_row(node: Node) -> None:
    """WR-03, from two gateways at once: one of them is the first."""
    results = await asyncio.gather(node.send(text("M")), node.send(text("M")))
    assert [seqs(result) for result in results] == [[2], [2]]
    assert (await node.state()).head_version == 2


async def test_another_body_under_an_id_of_the_same_step_is_a_conflict(node: Node) -> None:
    results = await node.send(text("M", "one"), text("M", "one"), text("M", "two"), text("N"))
    assert seqs([results[0], results[1], results[3]]) == [2, 2, 3]
    assert code(results[2]) is ErrorCode.IDEMPOTENCY_CONFLICT


async def test_the_rest_of_a_send_with_an_old_id_commits(node: Node) -> None:
    await node.send(text("old"))
    results = await node.send(text("new1"), text("old"), text("new2"))
    assert seqs(results) == [3, 2, 4]


async def test_an_id_is_its_senders_own(node: Node) -> None:
    assert seqs(await node.send(text("M"), sender=ANN)) == [2]
    assert seqs(await node.send(text("M"), sender=BOB)) == [3]


# --- unknown outcomes --------------------------------------------------------------------------


async def test_a_lost_reply_is_one_version_step_and_a_success(world: World, node: Node) -> None:
    """F19: head CAS reply lost → one version step; the caller sees success via the request id."""
    lost = world.faults.lose_reply("commit")
    call = asyncio.ensure_future(node.send(text("M")))
    await world.runtime.advance(1)
    assert lost.hits == 1
    (result,) = call.result()
    assert isinstance(result, Accepted)
    assert (result.conversation_seq, result.duplicate) == (2, False)
    assert (await node.state()).head_version == 2


async def test_a_step_that_lands_late_is_acknowledged_once(world: World, node: Node) -> None:
    """WR-04: UNKNOWN until the same step answers; never 13 and 14 with the same content."""
    await node.send(*(text(f"before{i}") for i in range(11)))
    late = world.faults.land_late("commit")
    call = asyncio.ensure_future(node.send(text("M")))
    await world.runtime.advance(1)
    assert seqs(call.result()) == [13]
    assert late.land() == 1, "the first try arrives after its repetition"
    assert seqs(await node.send(text("next"))) == [14]
    assert (await node.state()).head_version == 14


async def test_an_ack_never_lacks_its_row(world: World, node: Node) -> None:
    """WR-04: never an ack without a row."""
    world.faults.refuse("commit")
    with pytest.raises(QimError) as refused:
        await node.send(text("M"))
    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert (await node.state()).head_version == 1
    assert seqs(await node.send(text("M"))) == [2]


async def test_a_refusal_after_a_lost_reply_proves_nothing(world: World, node: Node) -> None:
    world.faults.lose_reply("commit")
    world.faults.refuse("commit", times=3)
    call = asyncio.ensure_future(node.send(text("M")))
    await world.runtime.advance(5)
    assert seqs(call.result()) == [2]
    assert (await node.state()).head_version == 2


async def test_an_outcome_open_at_the_deadline_is_unavailable_and_final_for_the_term(
    world: World, node: Node
) -> None:
    world.faults.land_late("commit", times=None)
    call = asyncio.ensure_future(node.send(text("M")))
    queued = asyncio.ensure_future(node.send(text("N")))
    await world.runtime.advance(SELF_FENCE_S + 2)
    world.faults.heal()
    node.renew()
    for refused in (call, queued, asyncio.ensure_future(node.send(text("O")))):
        await world.runtime.settle()
        error = refused.exception()
        assert isinstance(error, QimError)
        assert error.code is ErrorCode.UNAVAILABLE
    assert (await node.state()).head_version == 1


# --- fencing -----------------------------------------------------------------------------------


async def test_the_writer_that_slept_through_its_lease_writes_nothing(
    world: World, runtime: ManualRuntime
) -> None:
    """WR-01: the store rejects A's append; exactly one seq 101; A steps down; one message."""
    old = await world.node(fanout=Silent())
    await old.serve()
    await world.room(old)
    await old.send(*(text(f"m{i}") for i in range(99)))  # up to seq 100
    new = await world.node(fanout=Silent())
    await new.serve()
    assert seqs(await new.send(text("from-b"))) == [101]
    # Its clock stood still with it: it believes in its term, and only the store knows better.
    old.renew()
    with pytest.raises(QimError) as refused:
        await old.send(text("from-a"))
    assert refused.value.code is ErrorCode.STALE_EPOCH
    assert refused.value.retryable
    assert old.term.ended
    assert seqs(await new.send(text("from-a"))) == [102], "its client sends it again"
    assert (await new.state()).head_version == 102
    with pytest.raises(QimError) as after:
        await old.send(text("later"))
    assert after.value.code is ErrorCode.NOT_OWNER


async def test_a_late_write_of_an_old_owner_never_takes_a_claimed_number(world: World) -> None:
    """WR-01, in flight: what A sent before it slept lands after B took the head."""
    slow = FaultPlan(world.runtime)
    old = await world.node(faults=slow, fanout=Silent())
    await old.serve()
    await world.room(old)
    late = slow.land_late("commit")
    slow.refuse("commit", times=None)
    call = asyncio.ensure_future(old.send(text("from-a")))
    await world.runtime.settle()
    new = await world.node(fanout=Silent())
    await new.serve()
    assert seqs(await new.send(text("from-b"))) == [2]
    assert late.land() == 1
    assert [event.sender_device for event in new.silent.told] == [PHONE]  # type: ignore[union-attr]
    assert (await new.state()).head_version == 2
    await world.runtime.advance(SELF_FENCE_S + 2)
    assert isinstance(call.exception(), QimError)


async def test_past_the_self_fence_nothing_is_issued(world: World, node: Node) -> None:
    issued = world.faults.delay(0.0, "commit", times=None)
    await world.runtime.advance(SELF_FENCE_S)
    with pytest.raises(QimError) as refused:
        await node.send(text("M"))
    assert refused.value.code is ErrorCode.NOT_OWNER
    assert issued.hits == 0


async def test_serving_ends_with_the_term_after_its_last_step_settled(world: World) -> None:
    node = await world.node(fanout=Silent())
    served = asyncio.ensure_future(node.writer.serve(node.term))
    await world.runtime.settle()
    await world.room(node)
    world.faults.delay(3.0, "commit")
    call = asyncio.ensure_future(node.send(text("M")))
    await world.runtime.settle()
    node.term.end()
    await world.runtime.advance(2)
    assert not served.done()
    await world.runtime.advance(2)
    assert served.done()
    assert seqs(call.result()) == [2]


# --- refusals of the store ---------------------------------------------------------------------


async def test_a_full_disk_refuses_and_goes_on_by_itself(world: World, node: Node) -> None:
    full = world.faults.refuse("commit", refusal=Refusal.NO_SPACE, times=None)
    with pytest.raises(QimError) as refused:
        await node.send(text("M"))
    assert refused.value.code is ErrorCode.UNAVAILABLE
    full.stop()
    assert seqs(await node.send(text("M"))) == [2]


async def test_one_event_that_the_store_refuses_refuses_no_other(world: World, node: Node) -> None:
    def bad(step: object) -> bool:
        assert isinstance(step, CommitStep)
        return any(new.client_msg_id == "bad" for new in step.events)

    world.faults.reject("commit", bad)
    results = await node.send(text("m1"), text("bad"), text("m2"))
    assert seqs([results[0], results[2]]) == [2, 3]
    assert code(results[1]) is ErrorCode.INVALID_ARGUMENT


async def test_the_backlog_is_bounded_to_the_event(node: Node) -> None:
    assert node.silent is not None
    node.silent.waiting = OUTBOX_BACKLOG_MAX - 2
    with pytest.raises(QimError) as refused:
        await node.send(text("a"), text("b"), text("c"))
    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert (await node.state()).head_version == 1
    assert seqs(await node.send(text("a"), text("b"))) == [2, 3]
    node.silent.waiting = OUTBOX_BACKLOG_MAX
    with pytest.raises(QimError) as full:
        await node.writer.add_members(TENANT, ROOM, [CID])
    assert full.value.code is ErrorCode.UNAVAILABLE


async def test_steps_under_way_count_against_the_backlog(world: World, node: Node) -> None:
    assert node.silent is not None
    other = KEY.__class__(TENANT, ConversationId("other"))
    await node.writer.create_conversation(TENANT, other.conversation, [ANN])
    node.silent.waiting = OUTBOX_BACKLOG_MAX - 1
    world.faults.delay(1.0, "commit")
    first = asyncio.ensure_future(node.send(text("m1")))
    await world.runtime.settle()
    with pytest.raises(QimError) as refused:
        await node.writer.commit(Commit(other, ANN, PHONE, [text("m2")]))
    assert refused.value.code is ErrorCode.UNAVAILABLE
    await world.runtime.advance(1)
    assert seqs(first.result()) == [2]


async def test_an_event_that_somebody_else_committed_is_told_to_the_fanout_in_its_place(
    world: World, node: Node
) -> None:
    await node.send(text("m1"))  # seq 2
    state = await node.state()
    stranger = NewEvent(
        place_event(
            state,
            Pins(1, 512),
            3,
            state.last_created_at_ms,
            Content(EventKind.MESSAGE, ANN, PHONE, "x"),
        ),
        IdempotencyKey(ANN, "x"),
        b"d" * 16,
        "x",
    )
    step = CommitStep(b"r" * 16, 0, node.term.epoch, KEY, 2, [stranger])
    assert isinstance(await node.backends.conversations.commit(step), Applied)
    assert seqs(await node.send(text("m2"))) == [4]
    assert node.silent is not None
    assert [event.conversation_seq for event in node.silent.told] == [1, 2, 3, 4]


# --- the clock ---------------------------------------------------------------------------------


async def test_times_never_go_back_within_a_conversation(world: World, node: Node) -> None:
    """WR-05: seq strictly +1, ids unique, created_at clamped to the previous one."""
    (first,) = await node.send(text("m1"))
    world.runtime.step_wall(-CLOCK_REGRESSION_REJECT_MS)
    (second,) = await node.send(text("m2"))
    await world.runtime.advance(1.0)
    (third,) = await node.send(text("m3"))
    # The writer restarts while the clock is still behind.
    successor = await world.node(fanout=Silent())
    await successor.serve()
    (fourth,) = await successor.send(text("m4"))
    await world.runtime.advance(2.0)
    (fifth,) = await successor.send(text("m5"))
    results = [first, second, third, fourth, fifth]
    assert seqs(results) == [2, 3, 4, 5, 6]
    times = [result.created_at_ms for result in results if isinstance(result, Accepted)]
    assert times == sorted(times)
    assert times[:4] == [times[0]] * 4, "clamped"
    assert len({result.event_id for result in results if isinstance(result, Accepted)}) == 5


async def test_a_clock_too_far_back_is_refused_until_it_catches_up(
    world: World, node: Node
) -> None:
    await node.send(text("m1"))
    world.runtime.step_wall(-CLOCK_REGRESSION_REJECT_MS - 1)
    with pytest.raises(QimError) as refused:
        await node.send(text("m2"))
    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert (await node.state()).head_version == 2
    await world.runtime.advance(0.001)
    assert seqs(await node.send(text("m2"))) == [3]
