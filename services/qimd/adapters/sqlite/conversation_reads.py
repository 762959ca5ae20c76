"""What is read of conversations, as jobs of a reader thread."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from qimd.adapters.sqlite.packing import dumps, rows_and_blobs_of, rows_of, spans
from qimd.core.ids import EventId, UserId
from qimd.core.records import ConversationKey, Event, EventKind, EventRef, Interval
from qimd.ports.store import AuditRange, IdempotencyKey, Pending, PriorResult, key_of

_NO_END: Final = 1 << 62
"""Above every conversation_seq."""

_ID = "SELECT id FROM conversations WHERE tenant = ? AND conversation = ?"
_NEWEST_EVENTS = """
SELECT json_group_array(json_array(
        conversation_seq, hex(event_id), kind, sender, sender_device, created_at_ms,
        membership_version, routing_version, chunk_recipients, length(encoded), trace_parent,
        added, removed)),
    CAST(group_concat(encoded, '') AS BLOB)
FROM (
    SELECT * FROM events WHERE conversation_id = ? AND conversation_seq BETWEEN ? AND ?
    ORDER BY conversation_seq DESC LIMIT ?)
"""
_PLACE_OF_EVENT = """
SELECT c.tenant, c.conversation, c.id, e.conversation_seq, e.fencing_epoch
FROM events AS e JOIN conversations AS c ON c.id = e.conversation_id WHERE e.event_id = ?
"""
_ENCODED = """
SELECT json_group_array(json_array(j.key, length(e.encoded))),
    CAST(group_concat(e.encoded, '') AS BLOB)
FROM json_each(:spans) AS j
CROSS JOIN events AS e ON e.event_id = substr(:blobs, j.value ->> 0, j.value ->> 1)
"""
_PRIOR_RESULTS = """
SELECT json_group_array(json_array(
    j.key, hex(i.event_id), i.conversation_seq, i.created_at_ms, hex(i.content_digest)))
FROM json_each(:keys) AS j
CROSS JOIN idempotency AS i
    ON i.conversation_id = :conversation_id
    AND i.sender = j.value ->> 0 AND i.client_msg_id = j.value ->> 1
"""
_PENDING = """
SELECT json_group_array(json_array(tenant, conversation, dispatched_through, head_version))
FROM conversations WHERE writer_shard = ? AND dispatched_through < head_version
"""
_MEMBERS_AT = """
SELECT json_group_array(user) FROM memberships
WHERE conversation_id = :id AND added_seq <= :seq AND (removed_seq = 0 OR :seq < removed_seq)
"""
_CURRENT_MEMBERS = """
SELECT json_group_array(json_array(m.user, m.added_seq))
FROM json_each(:users) AS j
CROSS JOIN memberships AS m
    ON m.conversation_id = :id AND m.user = j.value AND m.removed_seq = 0
"""
_MEMBER_PAGE = """
SELECT json_group_array(json_array(user, added_seq)) FROM (
    SELECT user, added_seq FROM memberships
    WHERE conversation_id = ? AND removed_seq = 0 AND user > ? ORDER BY user LIMIT ?)
"""
_INTERVALS = """
SELECT json_group_array(json_array(added_seq, removed_seq)) FROM memberships
WHERE conversation_id = ? AND user = ?
"""
_COUNT_UNREAD = """
SELECT count(*) FROM events
WHERE conversation_id = ? AND conversation_seq BETWEEN ? AND ? AND kind = ? AND sender IS NOT ?
"""
_AUDIT_RANGES = """
SELECT json_group_array(json_array(tenant, conversation, audited_through, dispatched_through))
FROM (
    SELECT tenant, conversation, audited_through, dispatched_through FROM conversations
    WHERE audited_through < dispatched_through AND (tenant, conversation) > (?, ?)
    ORDER BY tenant, conversation LIMIT ?)
"""
_EVENT_IDS = """
SELECT json_group_array(json_array(conversation_seq, hex(event_id))) FROM events
WHERE conversation_id = ? AND conversation_seq > ? AND conversation_seq <= ?
"""


def find_id(db: sqlite3.Connection, key: ConversationKey) -> int:
    """The conversation's id; 0, which no conversation has, if it is not known."""
    row = db.execute(_ID, (key.tenant, key.conversation)).fetchone()
    return 0 if row is None else int(row[0])


def prior_results(
    db: sqlite3.Connection, key: ConversationKey, keys: Sequence[IdempotencyKey]
) -> Mapping[IdempotencyKey, PriorResult]:
    """Those of the keys that exist."""
    asked = {
        "conversation_id": find_id(db, key),
        "keys": dumps([(one.sender, one.client_msg_id) for one in keys]),
    }
    return {
        keys[index]: PriorResult(
            EventId(bytes.fromhex(event_id)), seq, created_at_ms, bytes.fromhex(digest)
        )
        for index, event_id, seq, created_at_ms, digest in rows_of(
            db.execute(_PRIOR_RESULTS, asked)
        )
    }


def pending(db: sqlite3.Connection, writer_shard: int) -> Sequence[Pending]:
    """Conversations with a non-empty outbox."""
    return [
        Pending(key_of(tenant, conversation), dispatched_through, head_version)
        for tenant, conversation, dispatched_through, head_version in rows_of(
            db.execute(_PENDING, (writer_shard,))
        )
    ]


def outbox(db: sqlite3.Connection, key: ConversationKey, after: int, limit: int) -> Sequence[Event]:
    """Committed events above `after`, in order: they have no gaps."""
    return _events(db, key, find_id(db, key), (after + 1, after + limit), limit)


def history(
    db: sqlite3.Connection,
    key: ConversationKey,
    intervals: Sequence[Interval],
    before_seq: int,
    limit: int,
) -> Sequence[Event]:
    """The newest events below `before_seq` that the intervals see, in increasing order.

    Interval by interval from the last: what lies between two of them is never touched.
    """
    conversation_id = find_id(db, key)
    below = before_seq if before_seq > 0 else _NO_END
    found: list[Event] = []
    for first, last in reversed(_merged(intervals)):
        room = limit - len(found)
        if room <= 0:
            break
        span = (first, min(last, below - 1))
        found = [*_events(db, key, conversation_id, span, room), *found]
    return found


def count_unread(
    db: sqlite3.Connection,
    key: ConversationKey,
    user: UserId,
    intervals: Sequence[Interval],
    after: int,
    through: int,
) -> int:
    """Messages by others in (after, through] that the intervals see."""
    conversation_id = find_id(db, key)
    total = 0
    for first, last in _merged(intervals):
        span = (max(first, after + 1), min(last, through))
        row = db.execute(_COUNT_UNREAD, (conversation_id, *span, EventKind.MESSAGE, user))
        total += row.fetchone()[0]
    return total


def _merged(intervals: Sequence[Interval]) -> list[tuple[int, int]]:
    """The intervals as increasing ranges [first, last] that do not overlap: a removal and the next
    addition may be the same event.
    """
    ranges: list[tuple[int, int]] = []
    for interval in sorted(intervals, key=attrgetter("added_seq")):
        first, last = interval.added_seq, interval.removed_seq or _NO_END
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
        else:
            ranges.append((first, last))
    return ranges


def encoded_events(db: sqlite3.Connection, refs: Sequence[EventRef]) -> Mapping[EventId, bytes]:
    """The encoded events by id."""
    places, blobs = spans(ref.event_id for ref in refs)
    rows, view = rows_and_blobs_of(db.execute(_ENCODED, {"spans": places, "blobs": blobs}))
    found: dict[EventId, bytes] = {}
    start = 0
    for index, size in rows:
        found[refs[index].event_id] = bytes(view[start : start + size])
        start += size
    return found


def find_event(db: sqlite3.Connection, event_id: EventId) -> tuple[Event, int] | None:
    """The event and the epoch that it was committed under."""
    place = db.execute(_PLACE_OF_EVENT, (event_id,)).fetchone()
    if place is None:
        return None
    tenant, conversation, conversation_id, seq, epoch = place
    (event,) = _events(db, key_of(tenant, conversation), conversation_id, (seq, seq), 1)
    return event, epoch


def members_at(db: sqlite3.Connection, key: ConversationKey, seq: int) -> Sequence[UserId]:
    """Who is a member right after the event at `seq`, in byte order."""
    row = db.execute(_MEMBERS_AT, {"id": find_id(db, key), "seq": seq})
    users: list[Any] = rows_of(row)
    # They come in the tree's order, which is this one; nothing promises it, and checking is cheap.
    users.sort()
    return users


def current_members(
    db: sqlite3.Connection, key: ConversationKey, users: Sequence[UserId]
) -> Mapping[UserId, int]:
    """Those of the users that are members now, with added_seq."""
    asked = {"id": find_id(db, key), "users": dumps(users)}
    return {UserId(user): added for user, added in rows_of(db.execute(_CURRENT_MEMBERS, asked))}


def member_page(
    db: sqlite3.Connection, key: ConversationKey, after: str, limit: int
) -> Sequence[tuple[UserId, int]]:
    """Members now above `after`, in byte order."""
    rows = rows_of(db.execute(_MEMBER_PAGE, (find_id(db, key), after, limit)))
    return sorted((UserId(user), added) for user, added in rows)


def intervals(db: sqlite3.Connection, key: ConversationKey, user: UserId) -> Sequence[Interval]:
    """The user's memberships, oldest first."""
    rows = rows_of(db.execute(_INTERVALS, (find_id(db, key), user)))
    return [Interval(added, removed) for added, removed in sorted(rows)]


def audit_ranges(
    db: sqlite3.Connection, limit: int, after: ConversationKey | None
) -> Sequence[AuditRange]:
    """Conversations with dispatched events that were not audited, in byte order."""
    above = ("", "") if after is None else (after.tenant, after.conversation)
    return [
        AuditRange(key_of(tenant, conversation), audited, dispatched)
        for tenant, conversation, audited, dispatched in sorted(
            rows_of(db.execute(_AUDIT_RANGES, (*above, limit)))
        )
    ]


def event_ids(
    db: sqlite3.Connection, key: ConversationKey, after: int, through: int
) -> Sequence[tuple[int, EventId]]:
    """(conversation_seq, event_id) in (after, through]."""
    rows = rows_of(db.execute(_EVENT_IDS, (find_id(db, key), after, through)))
    return [(seq, EventId(bytes.fromhex(event_id))) for seq, event_id in sorted(rows)]


def _events(
    db: sqlite3.Connection,
    key: ConversationKey,
    conversation_id: int,
    span: tuple[int, int],
    limit: int,
) -> Sequence[Event]:
    """The newest events of [first, last], in increasing conversation_seq."""
    rows, view = rows_and_blobs_of(db.execute(_NEWEST_EVENTS, (conversation_id, *span, limit)))
    events: list[Event] = []
    start = 0
    for seq, event_id, kind, sender, device, at_ms, members, routing, chunk, size, *rest in rows:
        trace_parent, added, removed = rest
        events.append(
            Event(
                key=key,
                conversation_seq=seq,
                event_id=EventId(bytes.fromhex(event_id)),
                kind=kind,
                sender=sender,
                sender_device=device,
                created_at_ms=at_ms,
                membership_version=members,
                routing_version=routing,
                chunk_recipients=chunk,
                encoded=bytes(view[start : start + size]),
                trace_parent=trace_parent,
                added=_users(added),
                removed=_users(removed),
            )
        )
        start += size
    events.sort(key=attrgetter("conversation_seq"))
    return events


def _users(text: str) -> tuple[UserId, ...]:
    return () if text == "[]" else tuple(json.loads(text))
