"""What is read of mailboxes, as jobs of a reader thread."""

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from qimd.adapters.sqlite.packing import dumps, rows_of, spans
from qimd.core.ids import DispatchId, EventId
from qimd.core.records import ConversationKey, EventRef, UserKey
from qimd.core.seq import MailboxSeq
from qimd.ports.mailbox import Entry, EpochMark, MaterialisedRecord
from qimd.ports.store import key_of

_MARKS = """
SELECT json_group_array(json_array(j.key, m.fencing_epoch, m.first_seq))
FROM json_each(:keys) AS j
CROSS JOIN conversations AS c
    ON c.tenant = j.value ->> 0 AND c.conversation = j.value ->> 1
CROSS JOIN mailbox_marks AS m ON m.shard = :shard AND m.conversation_id = c.id
"""
_RECORD_COLUMNS = """
SELECT json_group_array(json_array(
    shard, seq, tenant, conversation, conversation_seq, hex(event_id), kind, sender,
    created_at_ms, hex(dispatch_id), fencing_epoch, chunk_index, chunk_count, at_ms))
"""
_RECORDS_OF = (
    _RECORD_COLUMNS
    + """
FROM mailbox_records_named WHERE event_id = ?
"""
)
_RECORDS_AFTER = (
    _RECORD_COLUMNS  # noqa: S608  # both parts are constants
    + """
FROM (SELECT * FROM mailbox_records_named WHERE shard = ? AND seq > ? ORDER BY seq LIMIT ?)
"""
)
_DISPATCH_COUNTS = """
SELECT json_group_array(json_array(key, dispatches, chunk_count)) FROM (
    SELECT j.key, count(DISTINCT r.dispatch_id) AS dispatches, max(r.chunk_count) AS chunk_count
    FROM json_each(:spans) AS j
    CROSS JOIN mailbox_records AS r
        ON r.event_id = substr(:blobs, j.value ->> 0, j.value ->> 1)
    GROUP BY j.key)
"""
_USERS = "SELECT id, partition FROM users WHERE tenant = ? AND user = ?"
_ENTRIES = """
SELECT json_group_array(json_array(
    seq, conversation_id, conversation_seq, hex(event_id), kind, sender, created_at_ms))
FROM (
    SELECT r.* FROM mailbox_entries AS e
    CROSS JOIN mailbox_records AS r ON r.shard = ? AND r.seq = e.seq
    WHERE e.user_id = ? AND e.seq > ? AND e.seq <= ? ORDER BY e.seq LIMIT ?)
"""
_NAMES = """
SELECT json_group_array(json_array(c.id, c.tenant, c.conversation)) FROM json_each(?) AS j
CROSS JOIN conversations AS c ON c.id = j.value
"""
_ENTRY_SEQS = """
SELECT json_group_array(json_array(r.conversation_seq, r.seq))
FROM conversations AS c
CROSS JOIN mailbox_records AS r
    ON r.conversation_id = c.id AND r.conversation_seq BETWEEN :first AND :last
CROSS JOIN users AS u ON u.tenant = :tenant AND u.user = :user AND u.partition = r.shard
CROSS JOIN mailbox_entries AS e ON e.user_id = u.id AND e.seq = r.seq
WHERE c.tenant = :tenant AND c.conversation = :conversation
"""


def epoch_marks(
    db: sqlite3.Connection, shard: int, keys: Sequence[ConversationKey]
) -> Mapping[ConversationKey, Sequence[EpochMark]]:
    """The marks of some conversations, by increasing first_seq."""
    asked = {"shard": shard, "keys": dumps([(key.tenant, key.conversation) for key in keys])}
    marks: defaultdict[ConversationKey, list[EpochMark]] = defaultdict(list)
    for index, epoch, first_seq in rows_of(db.execute(_MARKS, asked)):
        marks[keys[index]].append(EpochMark(epoch, first_seq))
    return {key: tuple(sorted(of, key=attrgetter("first_seq"))) for key, of in marks.items()}


def records_of(db: sqlite3.Connection, event_id: EventId) -> Sequence[MaterialisedRecord]:
    """What all shards hold of one event."""
    return _records(db.execute(_RECORDS_OF, (event_id,)))


def records_after(
    db: sqlite3.Connection, shard: int, after: MailboxSeq, limit: int
) -> Sequence[MaterialisedRecord]:
    """Records above `after`, in order."""
    return _records(db.execute(_RECORDS_AFTER, (shard, after, limit)))


def _records(cursor: sqlite3.Cursor) -> Sequence[MaterialisedRecord]:
    records = [_record(*row) for row in rows_of(cursor)]
    records.sort(key=attrgetter("shard", "seq"))
    return records


def _record(shard: int, seq: int, tenant: str, conversation: str, *rest: Any) -> MaterialisedRecord:
    conversation_seq, event_id, kind, sender, created_at_ms, dispatch_id, *numbers = rest
    epoch, chunk_index, chunk_count, at_ms = numbers
    return MaterialisedRecord(
        shard=shard,
        seq=MailboxSeq(seq),
        ref=EventRef(
            key=key_of(tenant, conversation),
            conversation_seq=conversation_seq,
            event_id=EventId(bytes.fromhex(event_id)),
            kind=kind,
            sender=sender,
            created_at_ms=created_at_ms,
        ),
        dispatch_id=DispatchId(bytes.fromhex(dispatch_id)),
        fencing_epoch=epoch,
        chunk_index=chunk_index,
        chunk_count=chunk_count,
        at_ms=at_ms,
    )


def dispatch_counts(
    db: sqlite3.Connection, event_ids: Sequence[EventId]
) -> Mapping[EventId, tuple[int, int]]:
    """(distinct dispatches held, chunk_count) of each event that has one."""
    places, blobs = spans(event_ids)
    rows = rows_of(db.execute(_DISPATCH_COUNTS, {"spans": places, "blobs": blobs}))
    return {event_ids[index]: (dispatches, chunks) for index, dispatches, chunks in rows}


def entries(
    db: sqlite3.Connection, user: UserKey, after: MailboxSeq, through: MailboxSeq, limit: int
) -> Sequence[Entry]:
    """Entries in (after, through], in order.

    A user is known to one shard; the loop is for one that moved, whose old entries are read too.
    """
    rows: list[list[Any]] = []
    for user_id, shard in db.execute(_USERS, (user.tenant, user.user)).fetchall():
        rows += rows_of(db.execute(_ENTRIES, (shard, user_id, after, through, limit)))
    rows.sort(key=itemgetter(0))
    del rows[limit:]
    asked = dumps(sorted({row[1] for row in rows}))
    names = {
        number: key_of(tenant, conversation)
        for number, tenant, conversation in rows_of(db.execute(_NAMES, (asked,)))
    }
    return [
        Entry(
            seq,
            EventRef(
                key=names[conversation_id],
                conversation_seq=conversation_seq,
                event_id=EventId(bytes.fromhex(event_id)),
                kind=kind,
                sender=sender,
                created_at_ms=created_at_ms,
            ),
        )
        for seq, conversation_id, conversation_seq, event_id, kind, sender, created_at_ms in rows
    ]


def entry_seqs(
    db: sqlite3.Connection, user: UserKey, key: ConversationKey, from_seq: int, through_seq: int
) -> Mapping[int, MailboxSeq]:
    """conversation_seq → mailbox_seq of the user's entries of a conversation."""
    if user.tenant != key.tenant:
        return {}
    asked = {
        "tenant": user.tenant,
        "user": user.user,
        "conversation": key.conversation,
        "first": from_seq,
        "last": through_seq,
    }
    return {
        seq: MailboxSeq(place) for seq, place in sorted(rows_of(db.execute(_ENTRY_SEQS, asked)))
    }
