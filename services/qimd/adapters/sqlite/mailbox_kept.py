"""Log records of lagging lanes, beyond the log's retention: rare, so plain rows."""

import sqlite3
from collections.abc import Sequence

from qimd.adapters.sqlite.mailbox_shards import refused
from qimd.core.outcome import Applied, Outcome
from qimd.core.seq import MailboxSeq
from qimd.ports.mailbox import KeptRecord

_KEEP = """
INSERT INTO mailbox_kept (shard, seq, after, timestamp_ms, value) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (shard, seq) DO NOTHING
"""
_KEPT = """
SELECT after, seq, timestamp_ms, value FROM mailbox_kept WHERE shard = ? AND seq > ?
ORDER BY seq LIMIT ?
"""
_DROP = "DELETE FROM mailbox_kept WHERE shard = ? AND seq <= ?"


def keep_records(
    db: sqlite3.Connection, shard: int, term: int, records: Sequence[KeptRecord]
) -> Outcome[None]:
    """See `ports.mailbox.MailboxStore`."""
    refusal = refused(db, shard, term)
    if refusal is not None:
        return refusal
    db.executemany(_KEEP, [(shard, r.seq, r.after, r.timestamp_ms, r.value) for r in records])
    return Applied(None)


def kept_records(
    db: sqlite3.Connection, shard: int, after: MailboxSeq, limit: int
) -> Sequence[KeptRecord]:
    """See `ports.mailbox.MailboxStore`."""
    return [KeptRecord(*row) for row in db.execute(_KEPT, (shard, after, limit)).fetchall()]


def drop_kept(db: sqlite3.Connection, shard: int, term: int, through: MailboxSeq) -> Outcome[int]:
    """See `ports.mailbox.MailboxStore`."""
    refusal = refused(db, shard, term)
    if refusal is not None:
        return refusal
    return Applied(db.execute(_DROP, (shard, through)).rowcount)
