"""Projecting groups of events onto rows: two set statements a group, whatever its size.

Members who sent none of a group's events are all alike: unread grows by the messages above
max(applied_seq, read mark), which is the rule of `ports.projection.ProjectStep` without an own
event in it, whatever part of the group a row has seen before. Senders are few, and the order of
events decides for them: their rows are read, folded event by event, and written back.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qimd.adapters.sqlite.interning import Interner
from qimd.adapters.sqlite.packing import dumps, rows_of
from qimd.core.ids import TenantId, UserId
from qimd.core.records import ConversationKey, EventKind
from qimd.ports.projection import ProjectedEvent, ProjectionGroup, RestoreStep

# The inner count is only evaluated for a row that has seen a part of the group, or whose mark lies
# in it. A second run of the same statement changes nothing, as a replay must not.
_PROJECT = """
UPDATE projection_rows AS r SET
    activity_ms = max(r.activity_ms, :activity_ms),
    applied_seq = max(r.applied_seq, :last),
    unread = r.unread + CASE
        WHEN max(r.applied_seq, u.read_through) < :first THEN :messages
        WHEN r.applied_seq >= :last THEN 0
        ELSE (
            SELECT count(*) FROM json_each(:message_seqs)
            WHERE value > max(r.applied_seq, u.read_through))
        END
FROM (
    SELECT j.value AS id, coalesce(m.read_through, 0) AS read_through
    FROM json_each(:users) AS j
    LEFT JOIN read_marks AS m
        ON m.user_id = j.value AND m.conversation_id = :conversation_id
    WHERE j.value NOT IN (SELECT value FROM json_each(:senders))
) AS u
WHERE r.user_id = u.id AND r.conversation_id = :conversation_id
"""
_ADD_ROWS = """
INSERT INTO projection_rows (user_id, conversation_id, activity_ms, applied_seq, unread)
SELECT value, :conversation_id, 0, 0, 0 FROM json_each(:users)
WHERE value NOT IN (SELECT value FROM json_each(:senders))
ON CONFLICT (user_id, conversation_id) DO NOTHING
"""
_LOAD_SENDERS = """
SELECT json_group_array(json_array(
    j.key, coalesce(r.activity_ms, 0), coalesce(r.applied_seq, 0), coalesce(r.unread, 0),
    coalesce(m.read_through, 0)))
FROM json_each(:places) AS j
LEFT JOIN projection_rows AS r
    ON r.user_id = j.value ->> 0 AND r.conversation_id = j.value ->> 1
LEFT JOIN read_marks AS m
    ON m.user_id = j.value ->> 0 AND m.conversation_id = j.value ->> 1
"""
_STORE_SENDERS = """
INSERT INTO projection_rows (user_id, conversation_id, activity_ms, applied_seq, unread)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4
FROM json_each(:rows) WHERE true
ON CONFLICT (user_id, conversation_id) DO UPDATE SET
    activity_ms = excluded.activity_ms, applied_seq = excluded.applied_seq,
    unread = excluded.unread
"""
_STORE_MARKS = """
INSERT INTO read_marks (user_id, conversation_id, read_through)
SELECT value ->> 0, value ->> 1, value ->> 5 FROM json_each(:rows) WHERE value ->> 5 > 0
ON CONFLICT (user_id, conversation_id) DO UPDATE SET
    read_through = max(read_through, excluded.read_through)
"""

_OTHER_MARKS = """
SELECT json_group_array(j.key)
FROM json_each(:rows) AS j
LEFT JOIN read_marks AS m
    ON m.user_id = j.value ->> 0 AND m.conversation_id = j.value ->> 1
WHERE coalesce(m.read_through, 0) <> j.value ->> 5
"""
_RESTORE = """
INSERT INTO projection_rows (user_id, conversation_id, activity_ms, applied_seq, unread)
SELECT j.value ->> 0, j.value ->> 1, j.value ->> 2, j.value ->> 3, j.value ->> 4
FROM json_each(:rows) AS j
LEFT JOIN read_marks AS m
    ON m.user_id = j.value ->> 0 AND m.conversation_id = j.value ->> 1
WHERE coalesce(m.read_through, 0) = j.value ->> 5
ON CONFLICT (user_id, conversation_id) DO UPDATE SET
    activity_ms = excluded.activity_ms, applied_seq = excluded.applied_seq,
    unread = excluded.unread
WHERE applied_seq <= excluded.applied_seq
"""


@dataclass(frozen=True, slots=True)
class SenderRow:
    """A row with its read mark, as the fold sees it."""

    activity_ms: int
    applied_seq: int
    unread: int
    read_through: int


def fold(row: SenderRow, user: UserId, events: Sequence[ProjectedEvent]) -> SenderRow:
    """The rule of `ports.projection.ProjectStep` for one user, event by event."""
    activity_ms, applied_seq = row.activity_ms, row.applied_seq
    unread, read_through = row.unread, row.read_through
    for event in events:
        activity_ms = max(activity_ms, event.created_at_ms)
        seq = event.conversation_seq
        if seq <= applied_seq:
            continue
        applied_seq = seq
        if event.sender == user:
            if unread == 0:
                read_through = max(read_through, seq)
        elif event.kind == EventKind.MESSAGE and seq > read_through:
            unread += 1
    return SenderRow(activity_ms, applied_seq, unread, read_through)


def project_groups(
    db: sqlite3.Connection, interner: Interner, partition: int, groups: Sequence[ProjectionGroup]
) -> None:
    """Bring the rows of all groups' users up to their events, in the caller's transaction."""
    groups = [group for group in groups if group.events and group.users]
    if not groups:
        return
    ids = interner.conversations(db, (group.key for group in groups))
    senders = _senders(groups)
    sender_ids = {
        key: dict(zip(users, interner.users(db, partition, key.tenant, users), strict=True))
        for key, users in senders.items()
    }
    for group in groups:
        _project(db, interner, partition, group, ids[group.key], sender_ids[group.key])
    _fold_senders(db, groups, ids, sender_ids)


def _senders(groups: Sequence[ProjectionGroup]) -> dict[ConversationKey, list[UserId]]:
    """The users of a conversation's groups that sent an event of any of them.

    Of any: a later group of the same conversation must find the earlier one's effect on its sender.
    """
    sent: defaultdict[ConversationKey, set[UserId]] = defaultdict(set)
    received: defaultdict[ConversationKey, set[UserId]] = defaultdict(set)
    for group in groups:
        sent[group.key].update(e.sender for e in group.events if e.sender is not None)
    for group in groups:
        received[group.key].update(sent[group.key].intersection(group.users))
    return {key: sorted(users) for key, users in received.items()}


def _project(
    db: sqlite3.Connection,
    interner: Interner,
    partition: int,
    group: ProjectionGroup,
    conversation_id: int,
    senders: dict[UserId, int],
) -> None:
    messages = [e.conversation_seq for e in group.events if e.kind == EventKind.MESSAGE]
    asked: dict[str, Any] = {
        "conversation_id": conversation_id,
        "users": interner.audience(db, partition, group.key.tenant, tuple(group.users)),
        "senders": dumps(list(senders.values())),
        "activity_ms": max(event.created_at_ms for event in group.events),
        "first": group.events[0].conversation_seq,
        "last": group.events[-1].conversation_seq,
        "messages": len(messages),
        "message_seqs": dumps(messages),
    }
    wanted = len(group.users) - len(senders.keys() & set(group.users))
    if wanted and db.execute(_PROJECT, asked).rowcount < wanted:
        # Some rows are not there yet. Made empty, they are what the statement expects; the others
        # are up to date by now, and running it again leaves them as they are.
        db.execute(_ADD_ROWS, asked)
        db.execute(_PROJECT, asked)


def _fold_senders(
    db: sqlite3.Connection,
    groups: Sequence[ProjectionGroup],
    conversations: dict[ConversationKey, int],
    sender_ids: dict[ConversationKey, dict[UserId, int]],
) -> None:
    owners = [(key, user) for key, users in sender_ids.items() for user in users]
    if not owners:
        return
    places = [(sender_ids[key][user], conversations[key]) for key, user in owners]
    rows = {
        owners[index]: SenderRow(*numbers)
        for index, *numbers in rows_of(db.execute(_LOAD_SENDERS, {"places": dumps(places)}))
    }
    for group in groups:
        for user in sender_ids[group.key].keys() & set(group.users):
            place = (group.key, user)
            rows[place] = fold(rows[place], user, group.events)
    stored = dumps(
        [
            (*place, row.activity_ms, row.applied_seq, row.unread, row.read_through)
            for place, row in zip(places, (rows[owner] for owner in owners), strict=True)
        ]
    )
    db.execute(_STORE_SENDERS, {"rows": stored})
    db.execute(_STORE_MARKS, {"rows": stored})


def restore_rows(db: sqlite3.Connection, interner: Interner, step: RestoreStep) -> Sequence[int]:
    """The rule of `ports.projection.RestoreStep`, in the caller's transaction; the indexes of the
    rows whose read mark is another.
    """
    conversations = interner.conversations(db, (restored.row.key for restored in step.rows))
    of_tenant: defaultdict[TenantId, list[UserId]] = defaultdict(list)
    for restored in step.rows:
        of_tenant[restored.row.key.tenant].append(restored.user)
    ids = {
        (tenant, user): number
        for tenant, users in of_tenant.items()
        for user, number in zip(
            users, interner.users(db, step.partition, tenant, users), strict=True
        )
    }
    rows = dumps(
        [
            (
                ids[restored.row.key.tenant, restored.user],
                conversations[restored.row.key],
                restored.row.activity_ms,
                restored.row.applied_seq,
                restored.row.unread,
                restored.row.read_through,
            )
            for restored in step.rows
        ]
    )
    db.execute(_RESTORE, {"rows": rows})
    others: list[Any] = rows_of(db.execute(_OTHER_MARKS, {"rows": rows}))
    return sorted(others)
