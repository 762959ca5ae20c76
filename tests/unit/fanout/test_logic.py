"""An outbox: what is told, found and read, in whatever order, goes out once, without a hole."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qimd.core.ids import ConversationId, TenantId, event_id
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.parameters import DISPATCH_CHUNK_RECIPIENTS, GROUP_DISPATCH_BYTES_MAX
from qimd.core.records import ConversationKey, Event, EventKind
from qimd.fanout.logic import (
    ACKNOWLEDGED_WITHIN_S,
    ENCODED_KEPT_BYTES,
    STREAM_PAUSE_S,
    STREAM_WITHIN_S,
    Outbox,
    Standing,
    hold_s,
    judge,
    largest_record_bytes,
)

KEY = ConversationKey(TenantId("acme"), ConversationId("room"))


def event(seq: int, encoded: bytes = b"") -> Event:
    identity = event_id(KEY.tenant, KEY.conversation, seq)
    return Event(KEY, seq, identity, EventKind.MESSAGE, None, None, 0, 1, 1, 512, encoded)


def events(first: int, last: int) -> list[Event]:
    return [event(seq) for seq in range(first, last + 1)]


def going_out(outbox: Outbox) -> list[int]:
    return [event.conversation_seq for event in outbox.run(10_000)]


def test_what_is_told_right_behind_goes_out() -> None:
    outbox = Outbox.first_told(KEY, 8, known_tail=7)
    outbox.tell(events(8, 9))
    outbox.tell(events(10, 10))
    assert outbox.standing is Standing.SETTLED
    assert going_out(outbox) == [8, 9, 10]
    assert outbox.size == 3


def test_a_hole_holds_back_what_is_behind_it_until_it_is_read() -> None:
    outbox = Outbox.first_told(KEY, 8, known_tail=7)
    outbox.tell(events(9, 9))
    assert outbox.standing is Standing.HOLE
    assert going_out(outbox) == []
    outbox.tell(events(10, 10))
    assert outbox.load(events(8, 9))
    assert outbox.standing is Standing.HOLE, "10 was told and is not read yet"
    assert outbox.load(events(10, 10))
    assert outbox.standing is Standing.SETTLED
    assert going_out(outbox) == [8, 9, 10]


def test_a_read_that_fills_nothing_says_so() -> None:
    outbox = Outbox.first_told(KEY, 8, known_tail=7)
    outbox.tell(events(9, 9))
    assert not outbox.load([])
    assert not outbox.load(events(9, 9))
    assert outbox.standing is Standing.HOLE


def test_a_first_word_is_trusted_only_after_a_look() -> None:
    behind = Outbox.first_told(KEY, 8, known_tail=None)
    behind.tell(events(8, 8))
    behind.verify(dispatched_through=7, head=8)
    assert (behind.standing, going_out(behind)) == (Standing.SETTLED, [8])
    late = Outbox.first_told(KEY, 8, known_tail=None)
    late.tell(events(8, 8))
    late.verify(dispatched_through=5, head=8)
    assert (late.standing, going_out(late)) == (Standing.HOLE, [])
    assert late.size == 3
    late.load(events(6, 8))
    assert going_out(late) == [6, 7, 8]


def test_an_inherited_outbox_is_read_before_what_is_told_meanwhile() -> None:
    outbox = Outbox.inherited(KEY, 5, 7)
    outbox.tell(events(8, 8))
    assert (going_out(outbox), outbox.size) == ([], 3)
    outbox.verify(dispatched_through=6, head=8)
    outbox.load(events(7, 8))
    assert (going_out(outbox), outbox.size) == ([7, 8], 2)


def test_a_scan_reveals_what_nobody_told() -> None:
    outbox = Outbox.first_told(KEY, 8, known_tail=7)
    outbox.tell(events(8, 8))
    assert not outbox.found(8)
    assert outbox.found(9)
    assert outbox.standing is Standing.HOLE


def test_what_is_told_twice_goes_out_once() -> None:
    outbox = Outbox.first_told(KEY, 8, known_tail=7)
    outbox.tell(events(8, 9))
    outbox.tell(events(8, 10))
    assert going_out(outbox) == [8, 9, 10]
    outbox.done(10)
    outbox.tell(events(9, 10))
    assert going_out(outbox) == []


def test_the_backlog_falls_with_the_store_not_with_the_log() -> None:
    outbox = Outbox.first_told(KEY, 8, known_tail=7)
    outbox.tell(events(8, 10))
    outbox.done(9)
    assert (going_out(outbox), outbox.size) == ([10], 3)
    outbox.stored(9)
    assert outbox.size == 1
    outbox.stored(8)
    assert outbox.size == 1, "progress never goes back"


def test_a_waiting_event_keeps_no_large_body() -> None:
    outbox = Outbox.first_told(KEY, 1, known_tail=0)
    outbox.tell([event(1, b"x" * (ENCODED_KEPT_BYTES + 1)), event(2, b"small")])
    assert [len(event.encoded) for event in outbox.run(2)] == [0, 5]


@given(
    st.lists(st.tuples(st.sampled_from("tslfd"), st.integers(1, 4)), max_size=40),
    st.integers(0, 3),
)
def test_whatever_happens_the_events_go_out_in_order_once(
    actions: Sequence[tuple[str, int]], dispatched: int
) -> None:
    """A writer commits; some of it is told, some is found by a scan, some read; nothing is lost."""
    head = stored = dispatched
    out: list[int] = []
    outbox: Outbox | None = None

    def settle(box: Outbox) -> None:
        if box.standing in {Standing.INHERITED, Standing.UNVERIFIED}:
            box.verify(stored, head)
        while box.standing is Standing.HOLE:
            assert box.load(events(box.tail + 1, min(box.tail + 2, head)))

    for action, count in actions:
        if action in "tsl":
            told = events(head + 1, head + count)
            head += count
            if action == "t":
                outbox = outbox or Outbox.first_told(KEY, told[0].conversation_seq, known_tail=None)
                outbox.tell(told)
            elif action == "s" and outbox is None:
                outbox = Outbox.inherited(KEY, stored, head)
            elif action == "s" and outbox is not None:
                outbox.found(head)
        if outbox is None:
            continue
        if action == "f":
            outbox.found(head)
        if action == "d":
            settle(outbox)
            run = [e.conversation_seq for e in outbox.run(count)]
            out.extend(run)
            if run:
                outbox.done(run[-1])
                stored = run[-1]
                outbox.stored(stored)
    outbox = outbox or Outbox.inherited(KEY, stored, head)
    outbox.found(head)
    settle(outbox)
    out.extend(going_out(outbox))
    assert out == list(range(dispatched + 1, head + 1))


REJECTED = NotApplied(Refusal.REJECTED)
AWAY = NotApplied(Refusal.UNREACHABLE)


@pytest.mark.parametrize(
    ("outcomes", "settled", "rejected"),
    [
        ([], True, ()),
        ([Applied(None), Applied(None)], True, ()),
        ([Applied(None), REJECTED, Applied(None)], True, (1,)),
        ([Applied(None), AWAY], False, ()),
        ([Unknown(), Applied(None)], False, ()),
        ([REJECTED, Unknown()], False, ()),
        ([NotApplied(Refusal.NO_SPACE)], False, ()),
    ],
)
def test_a_batch_is_settled_only_if_every_delivery_is(
    outcomes: Sequence[Outcome[None]], settled: bool, rejected: tuple[int, ...]
) -> None:
    verdict = judge(outcomes)
    assert (verdict.settled, verdict.rejected) == (settled, rejected)


def test_the_largest_record_follows_the_chunk_size() -> None:
    assert largest_record_bytes(DISPATCH_CHUNK_RECIPIENTS) == GROUP_DISPATCH_BYTES_MAX
    assert largest_record_bytes(1) < GROUP_DISPATCH_BYTES_MAX


def test_a_message_that_comes_by_itself_only_lets_its_acknowledgement_leave_first() -> None:
    assert hold_s(0.0, last_batch_s=float("-inf")) == ACKNOWLEDGED_WITHIN_S
    assert hold_s(STREAM_WITHIN_S, last_batch_s=0.0) == ACKNOWLEDGED_WITHIN_S


def test_a_stream_of_messages_is_dispatched_a_pause_apart() -> None:
    assert hold_s(7.0, last_batch_s=7.0) == STREAM_PAUSE_S
    assert hold_s(7.004, last_batch_s=7.0) == pytest.approx(STREAM_PAUSE_S - 0.004)
