"""Applying records to a mailbox shard, as one job of the writer thread.

An ApplyStep of 32 records for the same 512 recipients is one insert of 16,384 entries: recipients
and seqs are two JSON arrays, crossed in the order of the entries' tree, so that neighbours are
written together. Nothing is done per recipient in Python.
"""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qimd.adapters.sqlite.inserting import insert_rows
from qimd.adapters.sqlite.interning import Interner
from qimd.adapters.sqlite.mailbox_shards import LANE_LAST, NO_SHARD, STALE_TERM, load_shard
from qimd.adapters.sqlite.packing import dumps, rows_of, spans
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.parameters import LANES
from qimd.core.records import ConversationKey, lane_mask
from qimd.core.seq import MailboxSeq
from qimd.ports.mailbox import (
    ApplyStep,
    RecordStep,
    RecordVerdict,
    ShardState,
)

_WORD: Final = 1 << 64
_SIGN: Final = 1 << 63

_MOVE_SHARD = """
UPDATE mailbox_shards SET
    next_offset = ?, position = ?, lagging = ?, lane_last = ?, last_request_id = ?,
    last_verdicts = ?
WHERE shard = ?
"""
_LOAD_PROGRESS = """
SELECT json_group_array(
    json_array(hex(p.dispatch_id), p.lane_mask, hex(p.content_digest), p.seen_seq))
FROM json_each(:spans) AS j
CROSS JOIN dispatch_progress AS p
    ON p.dispatch_id = substr(:blobs, j.value ->> 0, j.value ->> 1)
"""
_STORE_PROGRESS = """
INSERT INTO dispatch_progress (dispatch_id, lane_mask, content_digest, seen_seq)
VALUES (?, ?, ?, ?)
ON CONFLICT (dispatch_id) DO UPDATE
SET lane_mask = excluded.lane_mask, seen_seq = excluded.seen_seq
"""
# A lane that lags may see a dispatch again at the same place.
_ADD_SEEN = """
INSERT INTO mailbox_seen (shard, seq, dispatch_id) VALUES (?, ?, ?)
ON CONFLICT (shard, seq) DO NOTHING
"""
# A record whose lanes come in turns has its row already.
_ADD_RECORDS = """
INSERT INTO mailbox_records (
    shard, seq, conversation_id, conversation_seq, event_id, kind, sender, created_at_ms,
    dispatch_id, fencing_epoch, chunk_index, chunk_count, at_ms
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (shard, seq) DO NOTHING
"""
_ADD_ENTRIES = """
INSERT INTO mailbox_entries (user_id, seq)
SELECT u.value, s.value FROM json_each(:users) AS u CROSS JOIN json_each(:seqs) AS s WHERE true
ON CONFLICT (user_id, seq) DO NOTHING
"""
_ADD_MARKS = """
INSERT INTO mailbox_marks (shard, conversation_id, fencing_epoch, first_seq) VALUES (?, ?, ?, ?)
ON CONFLICT (shard, conversation_id, fencing_epoch) DO NOTHING
"""
_ADD_BUCKETS = """
INSERT INTO mailbox_buckets (shard, day, first_seq) VALUES (?, ?, ?)
ON CONFLICT (shard, day) DO NOTHING
"""


@dataclass(slots=True)
class _Progress:
    """Which lanes of a dispatch are done, what its content was, and where it was seen last."""

    digest: bytes
    done: int
    seen: int


def apply(
    db: sqlite3.Connection, interner: Interner, step: ApplyStep
) -> Outcome[Sequence[RecordVerdict]]:
    """See `ports.mailbox.ApplyStep`."""
    stored = load_shard(db, step.shard)
    if stored is None:
        return NO_SHARD
    if step.request_id == stored.last_request_id:
        return Applied(
            [RecordVerdict(a, d, bool(x)) for a, d, x in json.loads(stored.last_verdicts)]
        )
    state = stored.state
    if state.term != step.term:
        return STALE_TERM
    if state.position != step.expected_position or _lowers(state, step):
        return NotApplied(Refusal.HEAD_MOVED, "the shard's position is another")
    verdicts = _materialise(db, interner, step)
    _add_marks(db, interner, step)
    _move(db, step, state.lane_last, verdicts)
    return Applied(verdicts)


def _lowers(state: ShardState, step: ApplyStep) -> bool:
    """Whether a watermark would go back."""
    return step.position < state.position or any(
        step.lagging.get(lane, step.position) < state.lagging.get(lane, state.position)
        for lane in {*state.lagging, *step.lagging}
    )


def _materialise(
    db: sqlite3.Connection, interner: Interner, step: ApplyStep
) -> list[RecordVerdict]:
    if not step.records:
        return []
    progress = _load_progress(db, step.records)
    # Most records of a step share their blocks: which lanes they are for is found once for all.
    shared = {id(record.blocks): record.blocks for record in step.records}
    masks = {place: lane_mask(blocks) for place, blocks in shared.items()}
    verdicts = [_judge(progress, record, masks[id(record.blocks)]) for record in step.records]
    _store_progress(db, progress)
    new = [
        (record, verdict)
        for record, verdict in zip(step.records, verdicts, strict=True)
        if verdict.applied
    ]
    insert_rows(
        db,
        _ADD_SEEN,
        [
            (step.shard, record.seq, record.dispatch_id)
            for record, verdict in zip(step.records, verdicts, strict=True)
            if not verdict.applied
        ],
    )
    if new:
        ids = interner.conversations(db, (record.ref.key for record, _ in new))
        _add_records(db, step, [record for record, _ in new], ids)
        _add_entries(db, interner, step.shard, new)
    return verdicts


def _judge(progress: dict[bytes, _Progress], record: RecordStep, asked: int) -> RecordVerdict:
    """What becomes of a record, and the progress after it: one step may hold a dispatch twice."""
    known = progress.setdefault(record.dispatch_id, _Progress(record.content_digest, 0, 0))
    known.seen = max(known.seen, record.seq)
    if known.digest != record.content_digest:
        return RecordVerdict(0, 0, digest_differs=True)
    new = asked & ~known.done
    known.done |= asked
    return RecordVerdict(new, asked & ~new)


def _load_progress(db: sqlite3.Connection, records: Sequence[RecordStep]) -> dict[bytes, _Progress]:
    places, blobs = spans(record.dispatch_id for record in records)
    return {
        bytes.fromhex(dispatch_id): _Progress(bytes.fromhex(digest), mask % _WORD, seen)
        for dispatch_id, mask, digest, seen in rows_of(
            db.execute(_LOAD_PROGRESS, {"spans": places, "blobs": blobs})
        )
    }


def _store_progress(db: sqlite3.Connection, progress: dict[bytes, _Progress]) -> None:
    rows = [
        (dispatch_id, _signed(one.done), one.digest, one.seen)
        for dispatch_id, one in progress.items()
    ]
    insert_rows(db, _STORE_PROGRESS, rows)


def _signed(mask: int) -> int:
    """The same 64 bits as SQLite's signed integer."""
    return mask - _WORD if mask >= _SIGN else mask


def _add_records(
    db: sqlite3.Connection,
    step: ApplyStep,
    records: Sequence[RecordStep],
    ids: Mapping[ConversationKey, int],
) -> None:
    rows = [
        (
            step.shard,
            record.seq,
            ids[record.ref.key],
            record.ref.conversation_seq,
            record.ref.event_id,
            record.ref.kind,
            record.ref.sender,
            record.ref.created_at_ms,
            record.dispatch_id,
            record.fencing_epoch,
            record.chunk_index,
            record.chunk_count,
            step.at_ms,
        )
        for record in records
    ]
    insert_rows(db, _ADD_RECORDS, rows)


def _add_entries(
    db: sqlite3.Connection,
    interner: Interner,
    shard: int,
    new: Sequence[tuple[RecordStep, RecordVerdict]],
) -> None:
    """Entries of all records, those with the same recipients by one statement."""
    seqs: defaultdict[str, list[int]] = defaultdict(list)
    for record, verdict in new:
        blocks = tuple(record.blocks)
        if verdict.duplicate:
            blocks = tuple(block for block in blocks if verdict.applied >> block.lane & 1)
        users = interner.audience(db, shard, record.ref.key.tenant, blocks)
        seqs[users].append(record.seq)
    for users, theirs in seqs.items():
        db.execute(_ADD_ENTRIES, {"users": users, "seqs": dumps(theirs)})


def _add_marks(db: sqlite3.Connection, interner: Interner, step: ApplyStep) -> None:
    if step.marks:
        ids = interner.conversations(db, (key for key, _ in step.marks))
        insert_rows(
            db,
            _ADD_MARKS,
            [
                (step.shard, ids[key], mark.fencing_epoch, mark.first_seq)
                for key, mark in step.marks
            ],
        )
    insert_rows(
        db, _ADD_BUCKETS, [(step.shard, bucket.day, bucket.first_seq) for bucket in step.buckets]
    )


def _move(
    db: sqlite3.Connection,
    step: ApplyStep,
    lane_last: Sequence[MailboxSeq],
    verdicts: Sequence[RecordVerdict],
) -> None:
    last: list[int] = list(lane_last)
    # Of records for the same lanes the last one counts: seqs increase.
    seqs = {
        verdict.applied: record.seq for record, verdict in zip(step.records, verdicts, strict=True)
    }
    for mask, seq in seqs.items():
        for lane in range(LANES):
            if mask >> lane & 1:
                last[lane] = max(last[lane], seq)
    moved: tuple[Any, ...] = (
        step.next_offset,
        step.position,
        dumps(list(step.lagging.items())),
        LANE_LAST.pack(*last),
        step.request_id,
        dumps([(v.applied, v.duplicate, int(v.digest_differs)) for v in verdicts]),
        step.shard,
    )
    db.execute(_MOVE_SHARD, moved)
