"""The shard's pure decisions against a plain model."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from qimd.core.ids import UserId, content_digest, dispatch_id, event_id
from qimd.core.parameters import LANES
from qimd.core.records import Dispatch, EventKind, EventRef, LaneBlock
from qimd.core.seq import SEQ_NONE, MailboxSeq, mailbox_seq
from qimd.mailbox import logic
from qimd.mailbox.logic import Arrived, Stall
from qimd.ports.mailbox import (
    DayBucket,
    EpochBoundary,
    EpochMark,
    ShardState,
    is_stale,
    resume_offset,
)
from qimd.ports.store import key_of

KEY = key_of("acme", "c")
BOUNDARY = EpochBoundary(1, 0, "cluster/topic")


def state(**changes: object) -> ShardState:
    start = ShardState(
        shard=0,
        term=1,
        next_offset=0,
        position=MailboxSeq(mailbox_seq(1, 0) - 1),
        lagging={},
        floor=SEQ_NONE,
        lane_last=(SEQ_NONE,) * LANES,
        boundaries=(BOUNDARY,),
        buckets=(),
    )
    return replace(start, **changes)  # type: ignore[arg-type]


def arrived(offset: int, number: int, epoch: int, *lanes: int, at_ms: int = 0) -> Arrived:
    own = event_id(KEY.tenant, KEY.conversation, number)
    dispatch = Dispatch(
        fencing_epoch=epoch,
        ref=EventRef(KEY, number, own, EventKind.MESSAGE, UserId("u"), 1),
        dispatch_id=dispatch_id(own, 0, 0),
        sender_device=None,
        membership_version=1,
        routing_version=1,
        mailbox_shard=0,
        chunk_index=0,
        chunk_count=1,
        log_identity=BOUNDARY.log_identity,
        min_reader_version=1,
        trace_parent="",
        blocks=tuple(LaneBlock(lane, (UserId(f"u{lane}"),)) for lane in lanes),
        content_digest=content_digest(own),
    )
    return Arrived(mailbox_seq(1, offset), dispatch, at_ms)


@given(
    log=st.lists(st.integers(1, 5), max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=4),
)
def test_staleness_is_a_function_of_the_log_however_it_is_cut_or_replayed(
    log: list[int], cuts: list[int]
) -> None:
    """A scan in offset order is the truth: stale iff a larger epoch came before."""
    truth = [any(earlier > epoch for earlier in log[:at]) for at, epoch in enumerate(log)]
    batch = [arrived(at, at + 1, epoch, 3) for at, epoch in enumerate(log)]
    marks: dict[object, tuple[EpochMark, ...]] = {}
    bounds = sorted({0, len(log), *(min(cut, len(log)) for cut in cuts)})
    taken: list[MailboxSeq] = []
    stale = 0
    for start, end in pairwise(bounds):
        plan = logic.plan(state(), marks, batch[start:end])
        taken.extend(record.seq for record in plan.records)
        stale += plan.stale
        for key, mark in plan.marks:
            marks[key] = (*marks.get(key, ()), mark)
    assert taken == [one.seq for one, dropped in zip(batch, truth, strict=True) if not dropped]
    assert stale == sum(truth)
    # A lane that reads all of it again later, with every mark known, gets the same verdicts.
    again = logic.plan_lane(marks, batch, 3)
    assert [record.seq for record in again] == taken


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 20)), max_size=8))
def test_folding_marks_changes_no_verdict_above_the_fold(raw: list[tuple[int, int]]) -> None:
    marks: list[EpochMark] = []
    for epoch, offset in sorted(raw, key=lambda pair: pair[1]):
        if logic.raises_mark(marks, epoch) and all(
            mark.first_seq != mailbox_seq(1, offset) for mark in marks
        ):
            marks.append(EpochMark(epoch, mailbox_seq(1, offset)))
    below = mailbox_seq(1, 10)
    old = [mark for mark in marks if mark.first_seq <= below]
    folded = [*old[-1:], *marks[len(old) :]]
    for offset in range(11, 22):
        for epoch in range(1, 7):
            seq = mailbox_seq(1, offset)
            assert is_stale(marks, epoch, seq) == is_stale(folded, epoch, seq)


def test_blocks_of_lagging_lanes_are_left_out_and_their_records_still_mark() -> None:
    lagging = state(lagging={3: SEQ_NONE})
    plan = logic.plan(lagging, {}, [arrived(0, 1, 4, 3), arrived(1, 2, 4, 3, 7)])
    assert [[block.lane for block in record.blocks] for record in plan.records] == [[7]]
    assert plan.marks == ((KEY, EpochMark(4, mailbox_seq(1, 0))),)


def test_a_batch_is_cut_at_the_entries_and_a_record_never_is() -> None:
    batch = [arrived(at, at + 1, 1, *range(lanes)) for at, lanes in enumerate((2, 2, 1, 5, 1))]
    parts = [[one.seq for one in part] for part in logic.split(batch, 4)]
    assert parts == [
        [one.seq for one in cut] for cut in (batch[:2], batch[2:3], batch[3:4], batch[4:])
    ]


def test_the_regression_detector_names_the_lane() -> None:
    last = [SEQ_NONE] * LANES
    last[7] = mailbox_seq(1, 5)
    plan = logic.plan(state(), {}, [arrived(5, 1, 1, 3, 7)])
    assert logic.regression(last, plan.records) == 7
    last[7] = mailbox_seq(1, 4)
    assert logic.regression(last, plan.records) is None
    assert logic.regression(last, [*plan.records, *plan.records]) == 3


def test_a_position_outside_of_the_log_is_a_fault_at_both_ends() -> None:
    """MBX-02, F09: below the low watermark is explicit, as above the end is; never a jump."""
    assert [logic.range_fault(at, 25, 30) is None for at in (24, 25, 30, 31)] == [
        False,
        True,
        True,
        False,
    ]
    fault = logic.range_fault(24, 25, 30)
    assert fault is not None
    assert fault.reason == "out_of_range"


def test_resuming_behind_a_watermark_reads_the_very_next_record() -> None:
    third = EpochBoundary(3, 25, "cluster/topic")
    before = MailboxSeq(mailbox_seq(3, 25) - 1)
    assert resume_offset(third, before) == 25
    assert resume_offset(third, mailbox_seq(3, 25)) == 26
    assert resume_offset(third, MailboxSeq(mailbox_seq(3, 30) - 1)) == 30
    assert resume_offset(third, mailbox_seq(1, 99)) == 25
    assert resume_offset(BOUNDARY, state().position) == 0


def test_log_time_that_goes_back_stays_in_the_open_bucket() -> None:
    day = logic.DAY_MS
    batch = [
        arrived(at, at + 1, 1, 3, at_ms=at_ms)
        for at, at_ms in enumerate((day, day + 5, 3 * day, 2 * day, 3 * day + 1))
    ]
    assert logic.new_buckets((), batch) == (
        DayBucket(1, mailbox_seq(1, 0)),
        DayBucket(3, mailbox_seq(1, 2)),
    )
    assert logic.new_buckets((DayBucket(9, SEQ_NONE),), batch) == ()


def test_the_floor_rises_by_whole_buckets_and_never_goes_back() -> None:
    buckets = tuple(DayBucket(day, mailbox_seq(1, 10 * day)) for day in (1, 2, 40))
    full = state(position=mailbox_seq(1, 450), buckets=buckets)
    assert logic.expired_floor(full, 31 * logic.DAY_MS) == SEQ_NONE
    assert logic.expired_floor(full, 32 * logic.DAY_MS) == mailbox_seq(1, 20) - 1
    assert logic.expired_floor(full, 33 * logic.DAY_MS) == mailbox_seq(1, 400) - 1
    assert logic.expired_floor(full, 71 * logic.DAY_MS) == full.position
    lagging = replace(full, lagging={3: mailbox_seq(1, 15)})
    assert logic.expired_floor(lagging, 71 * logic.DAY_MS) == mailbox_seq(1, 15)
    assert logic.expired_floor(replace(full, floor=mailbox_seq(1, 420)), 0) == mailbox_seq(1, 420)


def test_what_is_collectable_came_longer_ago_than_the_window() -> None:
    buckets = tuple(DayBucket(day, mailbox_seq(1, 10 * day)) for day in (1, 2, 40))
    full = state(position=mailbox_seq(1, 450), buckets=buckets)
    window_ms = 5 * logic.DAY_MS
    # The last millisecond of day 1 is to be so old.
    assert logic.collectable(full, 7 * logic.DAY_MS - 1, window_ms) == SEQ_NONE
    assert logic.collectable(full, 7 * logic.DAY_MS, window_ms) == mailbox_seq(1, 20) - 1
    assert logic.collectable(full, 46 * logic.DAY_MS - 1, window_ms) == mailbox_seq(1, 400) - 1
    assert logic.collectable(full, 46 * logic.DAY_MS, window_ms) == full.position
    assert logic.reached_ms(full) == 40 * logic.DAY_MS


@given(st.integers(0, 40), st.floats(0, 1, exclude_max=True))
def test_a_retry_waits_between_half_and_all_of_a_bounded_back_off(
    attempts: int, jitter: float
) -> None:
    wait_s = logic.retry_wait_s(attempts, jitter)
    assert 0.1 <= wait_s <= 10.0


def test_a_stall_is_told_once_at_its_limit() -> None:
    stall = Stall(since_s=100.0)
    assert not stall.alert_due(129.9)
    assert stall.alert_due(130.0)
    assert not stall.told().alert_due(500.0)
    assert not stall.failover_due(219.9)
    assert stall.failed(110.0, 0.5).failover_due(220.0)
