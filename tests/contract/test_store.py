"""`ports.store.ConversationStore`, sentence by sentence."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.contract.builders import (
    ACME,
    ANNA,
    BEN,
    CARL,
    DORA,
    ODD_IDS,
    RIVAL,
    START_MS,
    event,
    ids,
    key,
    membership,
    new,
    ref,
    refused,
    step,
    value,
)
from tests.contract.engines import Engine

from qimd.core.ids import UserId
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.records import ConversationKey, Event, EventKind, Interval
from qimd.ports.store import (
    AuditRange,
    ConversationState,
    IdempotencyKey,
    NewEvent,
    Pending,
    PriorResult,
    Progress,
    ShardKind,
)

ENGINES = ("memory", "sqlite", "redis", "cassandra")

EVENTS_MAX = 1_000


async def epoch_of(engine: Engine, shard: int = 0, nonce: bytes = b"n" * 16) -> int:
    """A new owner of a writer shard."""
    raised = await engine.backends.epochs.raise_epoch(
        ShardKind.WRITER, shard, nonce, START_MS // 1000
    )
    return value(raised)


async def created(
    engine: Engine, conversation: ConversationKey | None = None, *, shard: int = 0
) -> int:
    """A new conversation under a new owner's epoch."""
    epoch = await epoch_of(engine, shard)
    store = engine.backends.conversations
    value(await store.create_conversation(shard, epoch, conversation or key(), START_MS))
    return epoch


async def committed(
    engine: Engine, epoch: int, events: Sequence[Event], *, shard: int = 0
) -> ConversationState:
    """Each event by a step of its own, as one writer would."""
    store = engine.backends.conversations
    state: ConversationState | None = None
    for each in events:
        one = step(
            epoch,
            each.conversation_seq - 1,
            [new(each)],
            conversation=each.key,
            writer_shard=shard,
        )
        state = value(await store.commit(one))
    assert state is not None
    return state


async def everything(engine: Engine, conversation: ConversationKey) -> object:
    """All that a commit could touch, to show that it touched nothing."""
    store = engine.backends.conversations
    return (
        await store.conversation(conversation),
        list(await store.outbox(conversation, 0, EVENTS_MAX)),
        list(await store.member_page(conversation, "", EVENTS_MAX)),
        list(await store.pending(0)),
    )


# --- creating and claiming --------------------------------------------------------------------


async def test_a_new_conversation_has_an_empty_head(engine: Engine) -> None:
    epoch = await epoch_of(engine)
    store = engine.backends.conversations
    assert await store.conversation(key()) is None
    state = value(await store.create_conversation(0, epoch, key(), START_MS))
    assert state == ConversationState(
        key=key(),
        fencing_epoch=epoch,
        head_version=0,
        dispatched_through=0,
        membership_version=0,
        member_count=0,
        last_created_at_ms=0,
        created_at_ms=START_MS,
    )
    assert await store.conversation(key()) == state


async def test_creating_it_again_gives_the_one_that_exists(engine: Engine) -> None:
    epoch = await created(engine)
    state = await committed(engine, epoch, [membership(1, added=[ANNA])])
    again = await engine.backends.conversations.create_conversation(0, epoch, key(), START_MS + 9)
    assert value(again) == state


async def test_creating_and_claiming_are_fenced_by_the_shards_epoch(engine: Engine) -> None:
    store = engine.backends.conversations
    old = await created(engine)
    new_epoch = await epoch_of(engine, nonce=b"m" * 16)
    for outcome in (
        await store.claim(0, old, key()),
        await store.create_conversation(0, old, key(), START_MS),
        await store.create_conversation(0, old, key("other"), START_MS),
        await store.claim(0, new_epoch + 1, key()),
    ):
        assert refused(outcome) is Refusal.STALE_EPOCH
    assert await store.conversation(key("other")) is None
    stored = await store.conversation(key())
    assert stored is not None
    assert stored.fencing_epoch == old


async def test_a_claim_raises_the_heads_epoch_and_repeats_harmlessly(engine: Engine) -> None:
    store = engine.backends.conversations
    old = await created(engine)
    before = await committed(engine, old, [event(1)])
    epoch = await epoch_of(engine, nonce=b"m" * 16)
    for _ in range(2):
        assert value(await store.claim(0, epoch, key())) == replace(before, fencing_epoch=epoch)
    assert await store.conversation(key()) == replace(before, fencing_epoch=epoch)


async def test_a_head_with_a_larger_epoch_is_never_claimed(engine: Engine) -> None:
    """A conversation that moved shards keeps its fence: both shards draw from one counter."""
    store = engine.backends.conversations
    small = await epoch_of(engine, shard=1)
    large = await epoch_of(engine, shard=0, nonce=b"m" * 16)
    value(await store.create_conversation(0, large, key(), START_MS))
    assert refused(await store.claim(1, small, key())) is Refusal.STALE_EPOCH


async def test_a_claim_of_no_conversation_is_not_found(engine: Engine) -> None:
    epoch = await epoch_of(engine)
    outcome = await engine.backends.conversations.claim(0, epoch, key())
    assert refused(outcome) is Refusal.NOT_FOUND


# --- committing -------------------------------------------------------------------------------


async def test_k_events_commit_as_one_step(engine: Engine) -> None:
    store = engine.backends.conversations
    epoch = await created(engine)
    events = [membership(1, added=[ANNA, BEN]), event(2), event(3, sender=BEN)]
    state = value(await store.commit(step(epoch, 0, [new(each) for each in events])))
    assert (state.head_version, state.fencing_epoch) == (3, epoch)
    assert (state.membership_version, state.member_count) == (1, 2)
    assert (state.dispatched_through, state.last_created_at_ms) == (0, START_MS + 3)
    assert await store.conversation(key()) == state
    assert list(await store.outbox(key(), 0, 10)) == events
    assert list(await store.pending(0)) == [Pending(key(), 0, 3)]
    prior = await store.prior_results(key(), [IdempotencyKey(BEN, "m3")])
    assert prior[IdempotencyKey(BEN, "m3")].conversation_seq == 3


@pytest.mark.parametrize("expected", [0, 1, 3, 9])
async def test_a_wrong_head_changes_nothing(engine: Engine, expected: int) -> None:
    epoch = await created(engine)
    await committed(engine, epoch, [membership(1, added=[ANNA]), event(2)])
    before = await everything(engine, key())
    late = step(
        epoch,
        expected,
        [new(membership(expected + 1, added=[BEN]))],
        request_id=b"another request.",
    )
    assert refused(await engine.backends.conversations.commit(late)) is Refusal.HEAD_MOVED
    assert await everything(engine, key()) == before


async def test_a_stale_shard_epoch_never_adds_an_event(engine: Engine) -> None:
    """WR-01: the old owner's append is refused by the store itself; exactly one seq 2 exists."""
    store = engine.backends.conversations
    old = await created(engine)
    await committed(engine, old, [event(1)])
    epoch = await epoch_of(engine, nonce=b"m" * 16)
    before = await everything(engine, key())
    late = await store.commit(step(old, 1, [new(event(2, text="late"))], request_id=b"l" * 16))
    assert refused(late) is Refusal.STALE_EPOCH
    assert await everything(engine, key()) == before
    value(await store.claim(0, epoch, key()))
    mine = event(2, text="the successor's")
    await committed(engine, epoch, [mine])
    late = await store.commit(step(old, 1, [new(event(2, text="late"))], request_id=b"l" * 16))
    assert refused(late) is Refusal.STALE_EPOCH
    assert list(await store.outbox(key(), 1, 10)) == [mine]


async def test_a_claimed_head_refuses_a_smaller_epoch_of_another_shard(engine: Engine) -> None:
    store = engine.backends.conversations
    small = await epoch_of(engine, shard=1)
    large = await epoch_of(engine, shard=0, nonce=b"m" * 16)
    value(await store.create_conversation(0, large, key(), START_MS))
    late = await store.commit(step(small, 0, [new(event(1))], writer_shard=1))
    assert refused(late) is Refusal.STALE_EPOCH
    assert list(await store.outbox(key(), 0, 10)) == []


async def test_the_same_request_again_is_applied_once(engine: Engine) -> None:
    """WR-04: an unknown outcome is resolved by the same step; it is never applied twice."""
    store = engine.backends.conversations
    epoch = await created(engine)
    one = step(epoch, 0, [new(membership(1, added=[ANNA])), new(event(2))])
    state = value(await store.commit(one))
    for _ in range(2):
        assert value(await store.commit(one)) == state
    assert len(await store.outbox(key(), 0, 10)) == 2


async def test_the_same_request_is_applied_still_after_the_epoch_was_raised(engine: Engine) -> None:
    """What was applied was applied: the old owner may acknowledge it."""
    store = engine.backends.conversations
    epoch = await created(engine)
    one = step(epoch, 0, [new(event(1))])
    value(await store.commit(one))
    await epoch_of(engine, nonce=b"m" * 16)
    assert value(await store.commit(one)).head_version == 1


async def test_a_request_that_is_not_the_last_any_more_is_a_moved_head(engine: Engine) -> None:
    store = engine.backends.conversations
    epoch = await created(engine)
    one = step(epoch, 0, [new(event(1))])
    value(await store.commit(one))
    await committed(engine, epoch, [event(2)])
    assert isinstance(await store.commit(one), NotApplied)
    assert len(await store.outbox(key(), 0, 10)) == 2


async def test_a_used_idempotency_key_refuses_the_whole_step(engine: Engine) -> None:
    """WR-03: the second call finds what the first gave: seq 1 and its event id; one row."""
    store = engine.backends.conversations
    epoch = await created(engine)
    first = new(event(1), "M")
    value(await store.commit(step(epoch, 0, [first])))
    before = await everything(engine, key())
    again = step(epoch, 1, [new(event(2), "N"), new(event(3), "M")], request_id=b"r" * 16)
    assert refused(await store.commit(again)) is Refusal.DUPLICATE
    assert await everything(engine, key()) == before
    used = IdempotencyKey(ANNA, "M")
    assert await store.prior_results(key(), [used, IdempotencyKey(ANNA, "N")]) == {
        used: PriorResult(first.event.event_id, 1, first.event.created_at_ms, first.content_digest)
    }


async def test_idempotency_is_per_sender_conversation_and_tenant(engine: Engine) -> None:
    store = engine.backends.conversations
    epoch = await created(engine)
    conversations = [key(), key("other"), key(tenant=RIVAL)]
    for conversation in conversations:
        value(await store.create_conversation(0, epoch, conversation, START_MS))
        steps = [new(event(1, conversation), "M"), new(event(2, conversation, sender=BEN), "M")]
        value(await store.commit(step(epoch, 0, steps, conversation=conversation)))
    for conversation in conversations:
        prior = await store.prior_results(conversation, [IdempotencyKey(BEN, "M")])
        assert [result.event_id for result in prior.values()] == [event(2, conversation).event_id]


async def test_a_commit_to_no_conversation_applies_nothing(engine: Engine) -> None:
    epoch = await epoch_of(engine)
    outcome = await engine.backends.conversations.commit(step(epoch, 0, [new(event(1))]))
    assert isinstance(outcome, NotApplied)
    assert await engine.backends.conversations.conversation(key()) is None


async def test_an_event_comes_back_with_all_that_its_dispatch_pins(engine: Engine) -> None:
    epoch = await created(engine)
    pinned = replace(
        membership(1, added=ODD_IDS, removed=["zoe"], sender=BEN),
        membership_version=7,
        routing_version=3,
        chunk_recipients=5,
        encoded=bytes(range(256)),
        trace_parent="",
    )
    carried = replace(event(2), kind=9, trace_parent="00-trace")
    await committed(engine, epoch, [pinned, carried])
    assert list(await engine.backends.conversations.outbox(key(), 0, 10)) == [pinned, carried]


async def test_idempotency_keys_are_forgotten_by_age_alone(engine: Engine) -> None:
    store = engine.backends.conversations
    epoch = await created(engine)
    await committed(engine, epoch, [event(n) for n in (1, 2, 3, 4)])
    went = [await store.expire_idempotency(START_MS + 4, limit) for limit in (2, 10, 10)]
    assert went == ([0, 0, 0] if engine.forgets_by_itself else [2, 1, 0])
    asked = [IdempotencyKey(ANNA, f"m{n}") for n in (1, 2, 3, 4)]
    kept = asked if engine.forgets_by_itself else asked[-1:]
    assert sorted(one.client_msg_id for one in await store.prior_results(key(), asked)) == [
        one.client_msg_id for one in kept
    ]


# --- outbox and progress ----------------------------------------------------------------------


async def test_the_first_log_that_was_noted_stays(engine: Engine) -> None:
    store = engine.backends.conversations
    assert await store.first_log() is None
    assert value(await store.note_first_log("cluster/topic-1")) == "cluster/topic-1"
    assert value(await store.note_first_log("cluster/topic-2")) == "cluster/topic-1"
    assert await store.first_log() == "cluster/topic-1"


async def test_the_outbox_is_in_order_above_a_mark_up_to_a_limit(engine: Engine) -> None:
    store = engine.backends.conversations
    epoch = await created(engine)
    await committed(engine, epoch, [event(n) for n in range(1, 8)])
    assert [each.conversation_seq for each in await store.outbox(key(), 2, 3)] == [3, 4, 5]
    assert list(await store.outbox(key(), 7, 3)) == []
    assert list(await store.outbox(key("none"), 0, 3)) == []


async def test_progress_rises_and_a_drained_conversation_is_pending_no_more(
    engine: Engine,
) -> None:
    store = engine.backends.conversations
    epoch = await created(engine)
    await committed(engine, epoch, [event(n) for n in (1, 2, 3)])
    assert list(await store.advance(0, epoch, [Progress(key(), 2)])) == [Applied(None)]
    assert list(await store.pending(0)) == [Pending(key(), 2, 3)]
    assert list(await store.advance(0, epoch, [Progress(key(), 1)])) == [Applied(None)]
    assert list(await store.pending(0)) == [Pending(key(), 2, 3)]
    assert list(await store.advance(0, epoch, [Progress(key(), 3)])) == [Applied(None)]
    assert list(await store.pending(0)) == []
    await committed(engine, epoch, [event(4)])
    assert list(await store.pending(0)) == [Pending(key(), 3, 4)]


async def test_progress_above_the_head_is_refused(engine: Engine) -> None:
    store = engine.backends.conversations
    epoch = await created(engine)
    await committed(engine, epoch, [event(1)])
    (outcome,) = await store.advance(0, epoch, [Progress(key(), 2)])
    assert refused(outcome) is Refusal.HEAD_MOVED
    assert list(await store.pending(0)) == [Pending(key(), 0, 1)]


async def test_progress_of_a_stale_owner_is_refused(engine: Engine) -> None:
    """Else it could mark an event done before its successor produced it again."""
    store = engine.backends.conversations
    old = await created(engine)
    await committed(engine, old, [event(1)])
    await epoch_of(engine, nonce=b"m" * 16)
    (outcome,) = await store.advance(0, old, [Progress(key(), 1)])
    assert refused(outcome) is Refusal.STALE_EPOCH
    assert list(await store.pending(0)) == [Pending(key(), 0, 1)]


async def test_each_conversations_progress_has_an_outcome_of_its_own(engine: Engine) -> None:
    store = engine.backends.conversations
    epoch = await created(engine)
    second, third = key("second"), key("third")
    for conversation in (second, third):
        value(await store.create_conversation(0, epoch, conversation, START_MS))
    await committed(engine, epoch, [event(1), event(1, second), event(1, third)])
    good, bad, also_good = await store.advance(
        0, epoch, [Progress(key(), 1), Progress(second, 5), Progress(third, 1)]
    )
    assert (good, also_good) == (Applied(None), Applied(None))
    assert refused(bad) is Refusal.HEAD_MOVED
    assert list(await store.pending(0)) == [Pending(second, 0, 1)]


async def test_pending_conversations_are_found_by_their_writer_shard(engine: Engine) -> None:
    store = engine.backends.conversations
    for shard, name in ((0, "zero"), (1, "one")):
        epoch = await created(engine, key(name), shard=shard)
        await committed(engine, epoch, [event(1, key(name))], shard=shard)
    assert [pending.key for pending in await store.pending(0)] == [key("zero")]
    assert [pending.key for pending in await store.pending(1)] == [key("one")]
    assert list(await store.pending(2)) == []


# --- memberships ------------------------------------------------------------------------------


async def members_story(engine: Engine) -> None:
    """1: +anna +ben, 2: message, 3: −ben, 4: message, 5: +ben +carl, 6: −anna."""
    epoch = await created(engine)
    await committed(
        engine,
        epoch,
        [
            membership(1, added=[ANNA, BEN]),
            event(2),
            membership(3, removed=[BEN]),
            event(4),
            membership(5, added=[BEN, CARL]),
            membership(6, removed=[ANNA]),
        ],
    )


async def test_memberships_are_intervals_oldest_first(engine: Engine) -> None:
    await members_story(engine)
    store = engine.backends.conversations
    assert list(await store.intervals(key(), ANNA)) == [Interval(1, 6)]
    assert list(await store.intervals(key(), BEN)) == [Interval(1, 3), Interval(5)]
    assert list(await store.intervals(key(), CARL)) == [Interval(5)]
    assert list(await store.intervals(key(), DORA)) == []


async def test_members_at_a_seq_are_those_right_after_its_event(engine: Engine) -> None:
    """FAN-05: recipients are read at the version that the event's seq stands in."""
    await members_story(engine)
    store = engine.backends.conversations
    at = [list(await store.members_at(key(), seq)) for seq in range(8)]
    assert at == [
        [],
        [ANNA, BEN],
        [ANNA, BEN],
        [ANNA],
        [ANNA],
        [ANNA, BEN, CARL],
        [BEN, CARL],
        [BEN, CARL],
    ]


async def test_members_now_with_when_they_came(engine: Engine) -> None:
    await members_story(engine)
    store = engine.backends.conversations
    assert await store.current_members(key(), [ANNA, BEN, CARL, DORA]) == {BEN: 5, CARL: 5}
    assert list(await store.member_page(key(), "", 10)) == [(BEN, 5), (CARL, 5)]
    assert list(await store.member_page(key(), "", 1)) == [(BEN, 5)]
    assert list(await store.member_page(key(), BEN, 10)) == [(CARL, 5)]
    state = await store.conversation(key())
    assert state is not None
    assert (state.member_count, state.membership_version) == (2, 6)


async def test_members_come_in_byte_order_whatever_they_are_called(engine: Engine) -> None:
    store = engine.backends.conversations
    epoch = await created(engine)
    names = (*ODD_IDS, "Z", "z", "é", "\ufffd", "\U00010000")
    expected = list(ids(names))
    await committed(engine, epoch, [membership(1, added=names)])
    assert list(await store.members_at(key(), 1)) == expected
    paged: list[UserId] = []
    while page := await store.member_page(key(), paged[-1] if paged else "", 3):
        paged.extend(name for name, _ in page)
    assert paged == expected
    assert await store.current_members(key(), expected) == dict.fromkeys(expected, 1)


async def test_many_members_of_one_step_count_exactly(engine: Engine) -> None:
    epoch = await created(engine)
    names = [f"user-{n:04}" for n in range(1_000)]
    state = await committed(
        engine, epoch, [membership(1, added=names), membership(2, removed=names[::2])]
    )
    assert state.member_count == 500
    assert list(await engine.backends.conversations.members_at(key(), 2)) == names[1::2]


# --- reads ------------------------------------------------------------------------------------


async def test_bodies_are_read_by_reference_and_missing_ones_left_out(engine: Engine) -> None:
    store = engine.backends.conversations
    epoch = await created(engine)
    second = key("second")
    value(await store.create_conversation(0, epoch, second, START_MS))
    there = [event(1), event(2), event(1, second)]
    await committed(engine, epoch, there)
    absent = [event(3), event(1, key("none")), event(1, key(tenant=RIVAL))]
    found = await store.events([ref(each) for each in (*there, *absent)])
    assert found == {each.event_id: each.encoded for each in there}
    assert await store.events([]) == {}


async def test_history_shows_the_newest_events_inside_the_intervals(engine: Engine) -> None:
    await members_story(engine)
    store = engine.backends.conversations

    async def seqs(intervals: Sequence[Interval], before: int, limit: int) -> list[int]:
        events = await store.history(key(), intervals, before, limit)
        return [each.conversation_seq for each in events]

    bens = await store.intervals(key(), BEN)
    assert await seqs(bens, 0, 10) == [1, 2, 3, 5, 6]
    assert await seqs(bens, 0, 2) == [5, 6]
    assert await seqs(bens, 5, 2) == [2, 3]
    assert await seqs(bens, 2, 2) == [1]
    assert await seqs(bens, 1, 2) == []
    assert await seqs([Interval(1, 6)], 0, 3) == [4, 5, 6]
    assert await seqs([], 0, 10) == []


async def test_unread_counts_others_messages_that_were_seen(engine: Engine) -> None:
    """Reactions, memberships and own messages never count."""
    store = engine.backends.conversations
    epoch = await created(engine)
    await committed(
        engine,
        epoch,
        [
            membership(1, added=[ANNA, BEN]),
            event(2, sender=BEN),
            event(3, sender=ANNA),
            event(4, sender=BEN, kind=EventKind.REACTION),
            membership(5, removed=[ANNA]),
            event(6, sender=BEN),
            membership(7, added=[ANNA]),
            event(8, sender=BEN),
            event(9, sender=BEN),
        ],
    )
    annas = await store.intervals(key(), ANNA)
    assert await store.count_unread(key(), ANNA, annas, 0, 9) == 3
    assert await store.count_unread(key(), ANNA, annas, 2, 9) == 2
    assert await store.count_unread(key(), ANNA, annas, 0, 8) == 2
    assert await store.count_unread(key(), ANNA, annas, 9, 9) == 0
    assert await store.count_unread(key(), BEN, await store.intervals(key(), BEN), 0, 9) == 1
    assert await store.count_unread(key(), ANNA, [], 0, 9) == 0


async def test_an_event_is_found_by_its_id_with_the_epoch_it_was_committed_under(
    engine: Engine,
) -> None:
    store = engine.backends.conversations
    old = await created(engine)
    await committed(engine, old, [event(1)])
    epoch = await epoch_of(engine, nonce=b"m" * 16)
    await committed(engine, epoch, [event(2)])
    assert await store.find_event(event(1).event_id) == (event(1), old)
    assert await store.find_event(event(2).event_id) == (event(2), epoch)
    assert await store.find_event(event(3).event_id) is None


# --- the auditor's ----------------------------------------------------------------------------


async def test_dispatched_events_await_their_audit(engine: Engine) -> None:
    store = engine.backends.conversations
    epoch = await created(engine)
    await committed(engine, epoch, [event(n) for n in (1, 2, 3)])
    assert list(await store.audit_ranges(10)) == []
    await store.advance(0, epoch, [Progress(key(), 2)])
    assert list(await store.audit_ranges(10)) == [AuditRange(key(), 0, 2)]
    assert list(await store.event_ids(key(), 0, 2)) == [
        (1, event(1).event_id),
        (2, event(2).event_id),
    ]
    value(await store.set_audited(key(), 1))
    assert list(await store.audit_ranges(10)) == [AuditRange(key(), 1, 2)]
    value(await store.set_audited(key(), 2))
    value(await store.set_audited(key(), 1))
    assert list(await store.audit_ranges(10)) == []


async def test_audit_ranges_page_in_byte_order(engine: Engine) -> None:
    store = engine.backends.conversations
    epoch = await epoch_of(engine)
    keys = [key(name, tenant) for tenant in (RIVAL, ACME) for name in ODD_IDS]
    for conversation in keys:
        value(await store.create_conversation(0, epoch, conversation, START_MS))
        await committed(engine, epoch, [event(1, conversation)])
    await store.advance(0, epoch, [Progress(conversation, 1) for conversation in keys])
    seen: list[ConversationKey] = []
    while page := await store.audit_ranges(4, seen[-1] if seen else None):
        seen.extend(each.key for each in page)
    assert seen == sorted(keys, key=lambda of: (of.tenant.encode(), of.conversation.encode()))


async def test_conversations_page_in_byte_order(engine: Engine) -> None:
    store = engine.backends.conversations
    epoch = await epoch_of(engine)
    assert list(await store.conversation_page(4)) == []
    keys = [key(name, tenant) for tenant in (RIVAL, ACME) for name in ODD_IDS]
    for conversation in keys:
        value(await store.create_conversation(0, epoch, conversation, START_MS))
    await committed(engine, epoch, [event(1, keys[0])])
    seen: list[ConversationState] = []
    while page := await store.conversation_page(4, seen[-1].key if seen else None):
        assert len(page) <= 4
        seen.extend(page)
    keys.sort(key=lambda of: (of.tenant.encode(), of.conversation.encode()))
    assert seen == [await store.conversation(conversation) for conversation in keys]
    assert sum(state.head_version for state in seen) == 1


# --- ids and tenants --------------------------------------------------------------------------


async def test_odd_ids_and_two_tenants_never_meet(engine: Engine) -> None:
    store = engine.backends.conversations
    epoch = await epoch_of(engine)
    keys = [key(name, tenant) for tenant in (*ODD_IDS, ACME) for name in ODD_IDS]
    for conversation in keys:
        value(await store.create_conversation(0, epoch, conversation, START_MS))
        odd = event(2, conversation, sender=UserId(conversation.tenant))
        both: list[NewEvent] = [
            new(membership(1, conversation, added=[conversation.tenant])),
            new(odd, conversation.conversation),
        ]
        value(await store.commit(step(epoch, 0, both, conversation=conversation)))
    for conversation in keys:
        sender = UserId(conversation.tenant)
        events = await store.outbox(conversation, 0, 10)
        assert [each.key for each in events] == [conversation] * 2
        assert events[1] == event(2, conversation, sender=sender)
        assert list(await store.members_at(conversation, 1)) == [sender]
        used = IdempotencyKey(sender, conversation.conversation)
        prior = await store.prior_results(conversation, [used])
        assert prior[used].event_id == event(2, conversation).event_id


async def test_conversations_commit_side_by_side(engine: Engine) -> None:
    """Steps that are under way together are each whole: nobody's outcome is another's."""
    store = engine.backends.conversations
    epoch = await epoch_of(engine)
    keys = [key(f"c{n}") for n in range(20)]
    for conversation in keys:
        value(await store.create_conversation(0, epoch, conversation, START_MS))
    outcomes: dict[ConversationKey, Outcome[ConversationState]] = {}

    async def commit(conversation: ConversationKey, expected_head: int) -> None:
        events = [new(event(expected_head + 1, conversation))]
        outcomes[conversation] = await store.commit(
            step(epoch, expected_head, events, conversation=conversation)
        )

    tasks = [
        engine.runtime.spawn(commit(conversation, number % 2), conversation.conversation)
        for number, conversation in enumerate(keys)
    ]
    for task in tasks:
        await task
    for number, conversation in enumerate(keys):
        if number % 2:
            assert refused(outcomes[conversation]) is Refusal.HEAD_MOVED
        else:
            assert value(outcomes[conversation]).head_version == 1
