"""Applying a step where one partition is all that can be written at once: marks, then entries, then
progress, then W.

The first three carry no condition, since their keys are a function of the log: whoever writes them,
and however often, writes the same. W alone is conditional, and nothing shows before it. A crash in
between leaves entries above W, which no page shows, and progress at a record's own seq, which says
that this very record was entered before and makes it nobody's duplicate.

Everything up to W was entered when W rose, with its progress. So whoever finds a dispatch done at a
smaller seq knows that it is, and an owner that was overtaken writes only what its successor writes.
"""
# ruff: noqa: S608  (statements are put together from constants of this package alone)

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from qimd.adapters.scylla.conversation_rows import bucket_of
from qimd.adapters.scylla.mailbox_records import (
    RECORD_COLUMNS,
    RECORD_MARKS,
    record_values,
    segment_of,
    span_of,
)
from qimd.adapters.scylla.mailbox_shards import NO_SHARD, STALE_TERM, Become, ShardRow
from qimd.adapters.scylla.session import Row, Write
from qimd.core.ids import DispatchId, TenantId, UserId
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.parameters import LANES
from qimd.core.records import EventRef, lane_mask
from qimd.ports.mailbox import (
    ApplyStep,
    MaterialisedRecord,
    RecordStep,
    RecordVerdict,
    watermark,
)

Verdicts = tuple[RecordVerdict, ...]
Partitions = Sequence[Sequence[Write]]
"""Writes by partition."""

Place = tuple[int, int, TenantId, UserId]
"""(span, lane, tenant, user): a shard has entries of the user there."""

_WORD: Final = 1 << 64

_MARK: Final = """
INSERT INTO mailbox_marks (deployment, shard, bucket, tenant, conversation,
                           fencing_epoch, first_seq)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_ENTRY: Final = """
INSERT INTO mailbox_entries (deployment, shard, lane, span, tenant, user_id, seq,
                             conversation, conversation_seq, event_kind, sender, at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_PLACE: Final = """
INSERT INTO mailbox_places (deployment, tenant, user_id, span, shard, lane)
VALUES (?, ?, ?, ?, ?, ?)
"""
_RECORD: Final = f"""
INSERT INTO mailbox_records (deployment, shard, segment, seq, {RECORD_COLUMNS})
VALUES (?, ?, ?, ?, {RECORD_MARKS})
"""
_BLOCK: Final = """
INSERT INTO mailbox_blocks (deployment, shard, segment, seq, lane, users)
VALUES (?, ?, ?, ?, ?, ?)
"""
_DISPATCH: Final = f"""
INSERT INTO mailbox_dispatches (deployment, shard, seq, lanes, digest, {RECORD_COLUMNS})
VALUES (?, ?, ?, ?, ?, {RECORD_MARKS})
"""
_SEEN: Final = """
INSERT INTO mailbox_seen (deployment, shard, segment, seq, event_id, dispatch_id)
VALUES (?, ?, ?, ?, ?, ?)
"""


# --- what is decided --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """Lanes (a mask) of a dispatch that were done at a seq, and what its content was."""

    seq: int
    lanes: int
    digest: bytes


def done_of(row: Row) -> Done:
    """From (seq, lanes, digest) as they are stored."""
    seq, lanes, digest = row
    return Done(seq, unsigned(lanes), digest)


def unsigned(lanes: int) -> int:
    """A mask of 64 lanes from the engine's signed integer."""
    return lanes % _WORD


def judge(row: ShardRow | None, step: ApplyStep) -> Outcome[Sequence[RecordVerdict]] | None:
    """What a step is answered that is not to be applied, or was applied before."""
    if row is None:
        return NO_SHARD
    if step.request_id == row.last_request_id:
        return Applied(row.last_verdicts)
    state = row.state
    if state.term != step.term:
        return STALE_TERM
    if state.position != step.expected_position or _lowers(row, step):
        return NotApplied(Refusal.HEAD_MOVED, "the shard's position is another")
    return None


def verdicts_of(
    row: ShardRow, step: ApplyStep, done: Mapping[DispatchId, Sequence[Done]]
) -> Verdicts:
    """What becomes of each record, by what was done before of its dispatch."""
    verdicts: list[RecordVerdict] = []
    known = {name: _counted(row, found) for name, found in done.items()}
    for record in step.records:
        before = known.setdefault(record.dispatch_id, [])
        if any(one.digest != record.content_digest for one in before):
            verdicts.append(RecordVerdict(0, 0, digest_differs=True))
            continue
        asked = lane_mask(record.blocks)
        others = 0
        for one in before:
            # At its own seq it was this record, in a try that did not come to W.
            others |= one.lanes if one.seq != record.seq else 0
        new = asked & ~others
        before.append(Done(record.seq, new, record.content_digest))
        verdicts.append(RecordVerdict(new, asked & ~new))
    return tuple(verdicts)


def moved(
    row: ShardRow | None, step: ApplyStep, verdicts: Verdicts
) -> Become[Sequence[RecordVerdict]] | Outcome[Sequence[RecordVerdict]]:
    """Where the step leaves the shard."""
    answered = judge(row, step)
    if answered is not None or row is None:
        return answered or NO_SHARD
    state = row.state
    lane_last = list(state.lane_last)
    for record, verdict in zip(step.records, verdicts, strict=True):
        for lane in _lanes(verdict.applied):
            lane_last[lane] = max(lane_last[lane], record.seq)
    known_days = {bucket.day for bucket in state.buckets}
    new_days = (bucket for bucket in step.buckets if bucket.day not in known_days)
    after = replace(
        state,
        next_offset=step.next_offset,
        position=step.position,
        lagging=dict(step.lagging),
        lane_last=tuple(lane_last),
        buckets=(*state.buckets, *new_days),
    )
    last = replace(row, state=after, last_request_id=step.request_id, last_verdicts=verdicts)
    return Become(last, verdicts)


def _lowers(row: ShardRow, step: ApplyStep) -> bool:
    """Whether a watermark would go back."""
    return step.position < row.state.position or any(
        step.lagging.get(lane, step.position) < watermark(row.state, lane) for lane in range(LANES)
    )


def _counted(row: ShardRow, found: Iterable[Done]) -> list[Done]:
    """What of it counts: nothing that an epoch left unfinished when it ended."""
    counted = (replace(one, lanes=row.counted(one.seq, one.lanes)) for one in found)
    return [one for one in counted if one.lanes]


def _lanes(mask: int) -> Iterable[int]:
    return (lane for lane in range(mask.bit_length()) if mask >> lane & 1)


# --- what is written --------------------------------------------------------------------------


def mark_writes(deployment: str, step: ApplyStep) -> Partitions:
    """The epoch marks, each at its own seq."""
    partitions: dict[int, list[Write]] = {}
    for key, mark in step.marks:
        bucket = bucket_of(key)
        place = (deployment, step.shard, bucket, key.tenant, key.conversation)
        write = Write(_MARK, (*place, mark.fencing_epoch, mark.first_seq))
        partitions.setdefault(bucket, []).append(write)
    return list(partitions.values())


def places_of(step: ApplyStep, verdicts: Verdicts) -> set[Place]:
    """Where the entries of the lanes that are new go."""
    return {
        (span_of(record.seq), block.lane, record.ref.key.tenant, user)
        for record, verdict in zip(step.records, verdicts, strict=True)
        for block in record.blocks
        if verdict.applied >> block.lane & 1
        for user in block.users
    }


def place_writes(deployment: str, shard: int, places: Iterable[Place]) -> Partitions:
    """What tells a user's reader where to look."""
    return [
        [Write(_PLACE, (deployment, tenant, user, span, shard, lane))]
        for span, lane, tenant, user in places
    ]


def entry_writes(deployment: str, step: ApplyStep, verdicts: Verdicts) -> Partitions:
    """The entries of the lanes that are new, and the records that made them."""
    partitions: dict[object, list[Write]] = {}
    for record, verdict in zip(step.records, verdicts, strict=True):
        if not verdict.applied:
            continue
        segment = (deployment, step.shard, segment_of(record.seq))
        records = partitions.setdefault(("record", segment), [])
        values = record_values(_shared(step, record))
        records.append(Write(_RECORD, (*segment, record.seq, *values)))
        blocks = partitions.setdefault(("block", segment), [])
        tenant, entry = record.ref.key.tenant, _entry(record.ref)
        for block in record.blocks:
            if verdict.applied >> block.lane & 1:
                users = list(block.users)
                blocks.append(Write(_BLOCK, (*segment, record.seq, block.lane, users)))
                place = (deployment, step.shard, block.lane, span_of(record.seq))
                partitions.setdefault(place, []).extend(
                    Write(_ENTRY, (*place, tenant, user, record.seq, *entry)) for user in users
                )
    return list(partitions.values())


def progress_writes(deployment: str, step: ApplyStep, verdicts: Verdicts) -> Partitions:
    """The persistent dedupe, behind the entries; and where duplicates were seen."""
    partitions: dict[object, list[Write]] = {}
    for record, verdict in zip(step.records, verdicts, strict=True):
        shared = _shared(step, record)
        lanes = verdict.applied if verdict.applied < _WORD // 2 else verdict.applied - _WORD
        place = (deployment, step.shard, record.seq, lanes, record.content_digest)
        write = Write(_DISPATCH, (*place, *record_values(shared)))
        partitions.setdefault(record.ref.event_id, []).append(write)
        if not verdict.applied:
            segment = partitions.setdefault(segment_of(record.seq), [])
            segment.append(seen_write(deployment, shared))
    return list(partitions.values())


def seen_write(deployment: str, record: MaterialisedRecord) -> Write:
    """What tells that a dispatch was seen at a seq."""
    place = (deployment, record.shard, segment_of(record.seq), record.seq)
    return Write(_SEEN, (*place, record.ref.event_id, record.dispatch_id))


def _entry(ref: EventRef) -> tuple[object, ...]:
    """What the entries of a record have in common."""
    return (
        ref.key.conversation,
        ref.conversation_seq,
        ref.kind,
        ref.sender or "",
        ref.created_at_ms,
    )


def _shared(step: ApplyStep, record: RecordStep) -> MaterialisedRecord:
    return MaterialisedRecord(
        shard=step.shard,
        seq=record.seq,
        ref=record.ref,
        dispatch_id=record.dispatch_id,
        fencing_epoch=record.fencing_epoch,
        chunk_index=record.chunk_index,
        chunk_count=record.chunk_count,
        at_ms=step.at_ms,
    )
