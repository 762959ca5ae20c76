"""The projection's pure decisions: gates, folding, read marks."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qimd.adapters.memory.projection import project_row
from qimd.core.ids import DispatchId, EventId, UserId
from qimd.core.records import Dispatch, EventKind, EventRef, LaneBlock, LogIdentity
from qimd.ports.log import LogSettings, Watermarks
from qimd.ports.projection import PartitionCheckpoint, ProjectionGroup, SessionRow
from qimd.ports.store import key_of
from qimd.session.logic import (
    Dirty,
    clamp_mark,
    fold,
    judge_checkpoint,
    judge_identity,
    judge_record,
    judge_retention,
    meta_of,
)

LOG = LogIdentity("cluster", "qim.dispatch", "1b671a64-40d5-491e-99b0-da01ff1f3341", 2)
META = meta_of(LOG)


def dispatch(
    seq: int,
    blocks: Sequence[tuple[int, str]],
    *,
    conversation: str = "c",
    sender: str = "a",
    epoch: int = 1,
) -> Dispatch:
    return Dispatch(
        fencing_epoch=epoch,
        ref=EventRef(
            key_of("acme", conversation), seq, EventId(bytes(16)), EventKind.MESSAGE,
            UserId(sender), 1_000 + seq,
        ),
        dispatch_id=DispatchId(bytes(16)),
        sender_device=None,
        membership_version=1,
        routing_version=1,
        mailbox_shard=0,
        chunk_index=0,
        chunk_count=1,
        log_identity=LOG.text,
        min_reader_version=1,
        trace_parent="",
        blocks=tuple(LaneBlock(lane, tuple(map(UserId, users))) for lane, users in blocks),
        content_digest=bytes(16),
    )  # fmt: skip


# --- gates ----------------------------------------------------------------------------------


def test_the_same_identity_all_along_passes() -> None:
    assert judge_identity(LOG, LOG, LOG, 2) is None


@pytest.mark.parametrize("place", range(3))
def test_an_identity_that_changes_between_two_looks_is_refused(place: int) -> None:
    looks = [LOG, LOG, LOG]
    looks[place] = replace(LOG, topic_id="2c671a64-40d5-491e-99b0-da01ff1f3341")
    assert isinstance(judge_identity(*looks, 2), Dirty)


@pytest.mark.parametrize(
    "log",
    [
        replace(LOG, topic_id=""),
        replace(LOG, topic_id="00000000-0000-0000-0000-000000000000"),
        replace(LOG, cluster_id=""),
        replace(LOG, partitions=4),
        replace(LOG, partitions=1),
    ],
)
def test_a_log_that_can_t_be_proved_or_counted_exactly_is_refused(log: LogIdentity) -> None:
    assert isinstance(judge_identity(log, log, log, 2), Dirty)


@pytest.mark.parametrize("retention_ms", [None, -1, 0, 999])
def test_a_retention_that_is_missing_endless_or_too_short_is_refused(
    retention_ms: int | None,
) -> None:
    assert isinstance(judge_retention(LogSettings(retention_ms, None), 1_000), Dirty)


def test_a_retention_of_exactly_the_window_passes() -> None:
    assert judge_retention(LogSettings(1_000, None), 1_000) is None


@pytest.mark.parametrize(
    ("stored", "marks", "starts_at"),
    [
        (None, Watermarks(0, 9), 0),
        (None, Watermarks(1, 9), None),
        (PartitionCheckpoint(META, 3), Watermarks(3, 9), 3),
        (PartitionCheckpoint(META, 9), Watermarks(3, 9), 9),
        (PartitionCheckpoint(META, 2), Watermarks(3, 9), None),
        (PartitionCheckpoint(META, 10), Watermarks(3, 9), None),
    ],
)
def test_projection_starts_at_a_checkpoint_that_the_log_covers_and_nowhere_else(
    stored: PartitionCheckpoint | None, marks: Watermarks, starts_at: int | None
) -> None:
    """F09: a checkpoint below the low watermark is explicit; it never jumps."""
    judged = judge_checkpoint(stored, META, marks)
    assert (judged.next_offset if isinstance(judged, PartitionCheckpoint) else None) == starts_at


@pytest.mark.parametrize(
    "other",
    [
        replace(META, format_version=2),
        replace(META, topic="other"),
        replace(META, partitions=4),
        replace(META, cluster_id="other"),
        replace(META, topic_id="other"),
    ],
)
def test_a_checkpoint_of_another_log_is_refused_whichever_field_differs(other: object) -> None:
    stored = PartitionCheckpoint(other, 3)  # type: ignore[arg-type]
    assert isinstance(judge_checkpoint(stored, META, Watermarks(0, 9)), Dirty)


def test_a_record_of_another_log_or_shard_is_refused() -> None:
    record = dispatch(1, [(0, "a")])
    assert judge_record(record, 0, LOG.text) is None
    assert isinstance(judge_record(record, 1, LOG.text), Dirty)
    assert isinstance(judge_record(record, 0, "cluster/other"), Dirty)


# --- folding --------------------------------------------------------------------------------


def test_records_for_the_same_users_become_one_group() -> None:
    records = [dispatch(seq, [(0, "ab"), (3, "c")]) for seq in (1, 2, 3)]
    (step,) = fold(records, rows_max=100)
    (group,) = step.groups
    assert [event.conversation_seq for event in group.events] == [1, 2, 3]
    assert list(group.users) == ["a", "b", "c"]
    assert (step.records, step.rows) == (3, 3)


def test_chunks_of_one_event_fold_each_with_its_own_over_the_other() -> None:
    records = [dispatch(seq, blocks) for seq in (1, 2, 3) for blocks in ([(0, "ab")], [(1, "cd")])]
    (step,) = fold(records, rows_max=100)
    assert [[e.conversation_seq for e in group.events] for group in step.groups] == [
        [1, 2, 3],
        [1, 2, 3],
    ]


def test_a_record_never_joins_a_group_over_one_that_shares_its_users() -> None:
    records = [dispatch(1, [(0, "ab")]), dispatch(2, [(0, "abc")]), dispatch(3, [(0, "ab")])]
    (step,) = fold(records, rows_max=100)
    assert [[e.conversation_seq for e in group.events] for group in step.groups] == [[1], [2], [3]]


def test_a_user_listed_twice_in_a_record_is_one_recipient() -> None:
    (step,) = fold([dispatch(1, [(0, "ab"), (1, "a")])], rows_max=100)
    assert list(step.groups[0].users) == ["a", "b"]


def test_a_step_is_cut_before_it_writes_too_many_rows_and_never_within_a_record() -> None:
    records = [
        dispatch(1, [(0, "abc")], conversation="1"),
        None,
        dispatch(1, [(0, "abc")], conversation="2"),
        dispatch(2, [(0, "abc")], conversation="1"),
        dispatch(1, [(0, "abcdefgh")], conversation="3"),
    ]
    steps = fold(records, rows_max=5)
    assert [(step.records, step.rows) for step in steps] == [(2, 3), (1, 3), (1, 3), (1, 8)]
    assert sum(step.records for step in steps) == len(records)


def test_a_batch_without_anything_to_project_still_moves_the_checkpoint() -> None:
    (step,) = fold([None, None], rows_max=5)
    assert (step.records, step.groups) == (2, ())
    assert fold([], rows_max=5) == ()


CHUNKS = [
    [(0, "ab")],
    [(0, "ab"), (1, "c")],
    [(1, "c"), (2, "d")],
    [(2, "d")],
    [(0, "b"), (2, "d")],
]
RECORDS = st.lists(
    st.builds(
        dispatch,
        st.integers(1, 6),
        st.sampled_from(CHUNKS),
        conversation=st.sampled_from("xy"),
        sender=st.sampled_from("abcd"),
    ),
    max_size=14,
)


@given(RECORDS, st.integers(1, 8))
def test_applying_the_fold_is_applying_the_records_one_by_one(
    records: list[Dispatch], rows_max: int
) -> None:
    def rows(groups: Sequence[ProjectionGroup]) -> dict[tuple[str, str], SessionRow]:
        found: dict[tuple[str, str], SessionRow] = {}
        for group in groups:
            for user in group.users:
                place = (user, group.key.conversation)
                row = found.get(place) or SessionRow(group.key, 0, 0, 0, 0)
                found[place] = project_row(row, user, group.events)
        return found

    one_by_one = [group for record in records for step in fold([record], 100)
                  for group in step.groups]  # fmt: skip
    folded = [group for step in fold(records, rows_max) for group in step.groups]
    assert rows(folded) == rows(one_by_one)


# --- marks ----------------------------------------------------------------------------------


@given(st.integers(0, 9), st.integers(0, 2**64 - 1), st.integers(0, 9))
def test_a_mark_only_rises_and_never_above_the_last_event(
    stored: int, wanted: int, applied_seq: int
) -> None:
    mark = clamp_mark(stored, wanted, applied_seq)
    assert stored <= mark <= max(stored, applied_seq)
    assert mark >= min(wanted, applied_seq)
