"""A mailbox shard as it is stored, and the steps that move its bounds (in the writer thread)."""

import json
import sqlite3
import struct
from dataclasses import dataclass
from typing import Final

from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.parameters import LANES
from qimd.core.seq import SEQ_NONE, MailboxSeq, before_offset
from qimd.ports.mailbox import (
    Collected,
    DayBucket,
    EpochBoundary,
    ShardState,
    lowest_watermark,
)

STALE_TERM: Final = NotApplied(Refusal.STALE_EPOCH, "the shard's term is not the caller's")
NO_SHARD: Final = NotApplied(Refusal.NOT_FOUND, "the shard was never opened")
LANE_LAST: Final = struct.Struct(f">{LANES}Q")
"""A seq a lane, 8 big-endian bytes each."""

_LOAD = """
SELECT term, next_offset, position, lagging, floor, lane_last, last_request_id, last_verdicts
FROM mailbox_shards WHERE shard = ?
"""
_ADD_SHARD = "INSERT INTO mailbox_shards VALUES (?, ?, ?, ?, '[]', ?, ?, x'', '[]')"
# A mark is folded into another at or below the bound whose epoch is larger.
_FOLD_MARKS = """
DELETE FROM mailbox_marks AS m WHERE m.shard = :shard AND m.first_seq <= :below AND EXISTS (
    SELECT 1 FROM mailbox_marks AS larger
    WHERE larger.shard = m.shard AND larger.conversation_id = m.conversation_id
        AND larger.fencing_epoch > m.fencing_epoch AND larger.first_seq <= :below)
"""
_LAST_EXPIRED = """
SELECT count(*), max(seq) FROM (
    SELECT seq FROM mailbox_records WHERE shard = :shard AND seq <= :floor
    ORDER BY seq LIMIT :limit)
"""
_EXPIRE_ENTRIES = """
DELETE FROM mailbox_entries
WHERE user_id IN (SELECT id FROM users WHERE partition = :shard) AND seq <= :last
"""
_SEE_EXPIRED = """
INSERT INTO mailbox_seen (shard, seq, dispatch_id)
SELECT shard, seq, dispatch_id FROM mailbox_records WHERE shard = :shard AND seq <= :last
ON CONFLICT (shard, seq) DO NOTHING
"""
_EXPIRE_RECORDS = "DELETE FROM mailbox_records WHERE shard = :shard AND seq <= :last"

_FIRST_RECORD = "SELECT min(seq) FROM mailbox_records WHERE shard = ?"
_LAST_SEEN = """
SELECT count(*), max(seq) FROM (
    SELECT seq FROM mailbox_seen WHERE shard = :shard AND seq <= :through
    ORDER BY seq LIMIT :limit)
"""
# What was seen again behind that goes with the later place.
_COLLECT = """
DELETE FROM dispatch_progress WHERE seen_seq <= :through AND dispatch_id IN (
    SELECT dispatch_id FROM mailbox_seen WHERE shard = :shard AND seq <= :last)
"""
_FORGET_SEEN = "DELETE FROM mailbox_seen WHERE shard = :shard AND seq <= :last"


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A shard as it is stored."""

    state: ShardState
    last_request_id: bytes
    last_verdicts: str


def load_shard(db: sqlite3.Connection, shard: int) -> StoredShard | None:
    """The shard; None if it was never opened."""
    row = db.execute(_LOAD, (shard,)).fetchone()
    if row is None:
        return None
    term, next_offset, position, lagging, floor, lane_last, request_id, verdicts = row
    state = ShardState(
        shard=shard,
        term=term,
        next_offset=next_offset,
        position=position,
        lagging={lane: MailboxSeq(seq) for lane, seq in json.loads(lagging)},
        floor=floor,
        lane_last=tuple(MailboxSeq(seq) for seq in LANE_LAST.unpack(lane_last)),
        boundaries=tuple(
            EpochBoundary(*boundary)
            for boundary in db.execute(
                "SELECT shard_epoch, first_offset, log_identity FROM mailbox_boundaries "
                "WHERE shard = ? ORDER BY shard_epoch",
                (shard,),
            ).fetchall()
        ),
        buckets=tuple(
            DayBucket(*bucket)
            for bucket in db.execute(
                "SELECT day, first_seq FROM mailbox_buckets WHERE shard = ? ORDER BY day", (shard,)
            ).fetchall()
        ),
    )
    return StoredShard(state, request_id, verdicts)


def open_shard(
    db: sqlite3.Connection, shard: int, term: int, first: EpochBoundary
) -> Outcome[ShardState]:
    """See `ports.mailbox.MailboxStore`."""
    stored = load_shard(db, shard)
    if stored is None:
        start = before_offset(first.shard_epoch, first.first_offset)
        none_yet = LANE_LAST.pack(*[SEQ_NONE] * LANES)
        db.execute(_ADD_SHARD, (shard, term, first.first_offset, start, SEQ_NONE, none_yet))
        _add_boundary(db, shard, first)
    elif stored.state.term > term:
        return STALE_TERM
    else:
        db.execute("UPDATE mailbox_shards SET term = ? WHERE shard = ?", (term, shard))
    return _state(db, shard)


def begin_epoch(
    db: sqlite3.Connection, shard: int, term: int, boundary: EpochBoundary
) -> Outcome[ShardState]:
    """See `ports.mailbox.MailboxStore`."""
    stored = load_shard(db, shard)
    if stored is None:
        return NO_SHARD
    if stored.state.term != term:
        return STALE_TERM
    last = stored.state.boundaries[-1]
    if boundary == last:
        return Applied(stored.state)
    if boundary.shard_epoch != last.shard_epoch + 1:
        return NotApplied(Refusal.CONFLICT, f"the last shard_epoch is {last.shard_epoch}")
    _add_boundary(db, shard, boundary)
    db.execute(
        "UPDATE mailbox_shards SET next_offset = ?, position = ?, lagging = '[]' WHERE shard = ?",
        (
            boundary.first_offset,
            before_offset(boundary.shard_epoch, boundary.first_offset),
            shard,
        ),
    )
    return _state(db, shard)


def _add_boundary(db: sqlite3.Connection, shard: int, boundary: EpochBoundary) -> None:
    db.execute(
        "INSERT INTO mailbox_boundaries VALUES (?, ?, ?, ?)",
        (shard, boundary.shard_epoch, boundary.first_offset, boundary.log_identity),
    )


def _state(db: sqlite3.Connection, shard: int) -> Outcome[ShardState]:
    stored = load_shard(db, shard)
    return NO_SHARD if stored is None else Applied(stored.state)


def fold_marks(db: sqlite3.Connection, shard: int, term: int, below: MailboxSeq) -> Outcome[int]:
    """See `ports.mailbox.MailboxStore`."""
    refusal = refused(db, shard, term)
    if refusal is not None:
        return refusal
    return Applied(db.execute(_FOLD_MARKS, {"shard": shard, "below": below}).rowcount)


def expire_buckets(
    db: sqlite3.Connection, shard: int, term: int, floor: MailboxSeq, limit: int
) -> Outcome[int]:
    """See `ports.mailbox.MailboxStore`."""
    refusal = refused(db, shard, term)
    if refusal is not None:
        return refusal
    ((raised,),) = db.execute(
        "UPDATE mailbox_shards SET floor = max(floor, ?) WHERE shard = ? RETURNING floor",
        (floor, shard),
    ).fetchall()
    count, last = db.execute(
        _LAST_EXPIRED, {"shard": shard, "floor": raised, "limit": limit}
    ).fetchone()
    if count:
        gone = {"shard": shard, "last": last}
        db.execute(_EXPIRE_ENTRIES, gone)
        db.execute(_SEE_EXPIRED, gone)
        db.execute(_EXPIRE_RECORDS, gone)
    return Applied(count)


def collect_progress(
    db: sqlite3.Connection, shard: int, term: int, through: MailboxSeq, limit: int
) -> Outcome[Collected]:
    """See `ports.mailbox.MailboxStore`."""
    stored = load_shard(db, shard)
    if stored is None:
        return NO_SHARD
    state = stored.state
    if state.term != term:
        return STALE_TERM
    bound = min(through, state.floor, lowest_watermark(state))
    (first_record,) = db.execute(_FIRST_RECORD, (shard,)).fetchone()
    if first_record is not None:
        bound = min(bound, first_record - 1)
    asked = {"shard": shard, "through": bound, "limit": limit}
    count, last = db.execute(_LAST_SEEN, asked).fetchone()
    if not count:
        return Applied(Collected(0, more=False))
    gone = {"shard": shard, "through": bound, "last": last}
    forgotten = db.execute(_COLLECT, gone).rowcount
    db.execute(_FORGET_SEEN, gone)
    return Applied(Collected(forgotten, more=count == limit))


def refused(db: sqlite3.Connection, shard: int, term: int) -> NotApplied | None:
    """Why a step of this term is not taken; None if it is."""
    row = db.execute("SELECT term FROM mailbox_shards WHERE shard = ?", (shard,)).fetchone()
    if row is None:
        return NO_SHARD
    return None if row[0] == term else STALE_TERM
