"""The steps on a conversation, as jobs of the writer thread: synchronous, one transaction each."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from qimd.adapters.sqlite.inserting import insert_rows
from qimd.adapters.sqlite.packing import dumps, rows_of
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.records import ConversationKey, Event, EventKind
from qimd.ports.store import (
    CommitStep,
    ConversationState,
    NewEvent,
    Progress,
    ShardKind,
    key_of,
)

STALE_SHARD: Final = NotApplied(Refusal.STALE_EPOCH, "the shard's epoch is not the caller's")
STALE_HEAD: Final = NotApplied(Refusal.STALE_EPOCH, "the head's epoch is above the caller's")
NO_CONVERSATION: Final = NotApplied(Refusal.NOT_FOUND, "no such conversation")

# A constant in the place of the kind's name, so that the statements below can hold it.
_WRITER: Final = ShardKind.WRITER.value

_LOAD = """
SELECT id, fencing_epoch, head_version, dispatched_through, membership_version, member_count,
    last_created_at_ms, created_at_ms, last_step_id
FROM conversations
WHERE tenant = ? AND conversation = ? AND head_version IS NOT NULL
"""
_LOAD_PAGE = """
SELECT json_group_array(json_array(
    tenant, conversation, fencing_epoch, head_version, dispatched_through, membership_version,
    member_count, last_created_at_ms, created_at_ms))
FROM (
    SELECT * FROM conversations
    WHERE head_version IS NOT NULL AND (tenant, conversation) > (?, ?)
    ORDER BY tenant, conversation LIMIT ?)
"""
_CREATE = """
INSERT INTO conversations (
    tenant, conversation, writer_shard, fencing_epoch, head_version, dispatched_through,
    audited_through, membership_version, member_count, last_created_at_ms, created_at_ms,
    last_step_id
) VALUES (:tenant, :conversation, :writer_shard, :epoch, 0, 0, 0, 0, 0, 0, :created_at_ms, x'')
ON CONFLICT (tenant, conversation) DO UPDATE SET
    writer_shard = excluded.writer_shard, fencing_epoch = excluded.fencing_epoch,
    head_version = 0, dispatched_through = 0, audited_through = 0, membership_version = 0,
    member_count = 0, last_created_at_ms = 0, created_at_ms = excluded.created_at_ms,
    last_step_id = excluded.last_step_id
WHERE head_version IS NULL
"""
_CLAIM = "UPDATE conversations SET fencing_epoch = ?, writer_shard = ? WHERE id = ?"
_MOVE_HEAD = """
UPDATE conversations SET
    fencing_epoch = ?, head_version = ?, membership_version = ?, member_count = ?,
    last_created_at_ms = ?, last_step_id = ?, writer_shard = ?
WHERE id = ?
"""
_ADD_EVENTS = """
INSERT INTO events (
    conversation_id, conversation_seq, kind, sender, created_at_ms, event_id, sender_device,
    membership_version, routing_version, chunk_recipients, fencing_epoch, trace_parent, added,
    removed, encoded
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ADD_IDEMPOTENCY = """
INSERT INTO idempotency (
    conversation_id, sender, client_msg_id, conversation_seq, event_id, created_at_ms,
    content_digest
) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (conversation_id, sender, client_msg_id) DO NOTHING
"""
_ADD_MEMBERS = """
INSERT INTO memberships (conversation_id, user, added_seq)
SELECT :conversation_id, value, :seq FROM json_each(:users) WHERE true
ON CONFLICT (conversation_id, user) WHERE removed_seq = 0 DO NOTHING
"""
_REMOVE_MEMBERS = """
UPDATE memberships SET removed_seq = :seq
WHERE conversation_id = :conversation_id AND removed_seq = 0
    AND user IN (SELECT value FROM json_each(:users))
"""
_LOAD_PROGRESS = """
SELECT json_group_array(
    json_array(j.key, c.id, c.fencing_epoch, c.head_version, c.dispatched_through))
FROM json_each(:asked) AS j
CROSS JOIN conversations AS c
    ON c.tenant = j.value ->> 0 AND c.conversation = j.value ->> 1
WHERE c.head_version IS NOT NULL
"""
_ADVANCE = """
UPDATE conversations SET dispatched_through = max(dispatched_through, raised.through)
FROM (SELECT value ->> 0 AS id, value ->> 1 AS through FROM json_each(:raised)) AS raised
WHERE conversations.id = raised.id
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """A conversation as it is stored."""

    id: int
    state: ConversationState
    last_step_id: bytes


def load(db: sqlite3.Connection, key: ConversationKey) -> Stored | None:
    """The conversation; None if it was not created, whether it has an id or not."""
    row = db.execute(_LOAD, (key.tenant, key.conversation)).fetchone()
    return None if row is None else Stored(row[0], ConversationState(key, *row[1:8]), row[8])


def load_page(
    db: sqlite3.Connection, limit: int, after: ConversationKey | None
) -> Sequence[ConversationState]:
    """Conversations that were created, in byte order, above `after`."""
    above = ("", "") if after is None else (after.tenant, after.conversation)
    rows = rows_of(db.execute(_LOAD_PAGE, (*above, limit)))
    return [
        ConversationState(key_of(tenant, conversation), *numbers)
        for tenant, conversation, *numbers in sorted(rows)
    ]


def shard_epoch(db: sqlite3.Connection, writer_shard: int) -> int:
    """The writer shard's epoch; 0 before its first owner."""
    row = db.execute(
        "SELECT epoch FROM epochs WHERE kind = ? AND shard = ?", (_WRITER, writer_shard)
    ).fetchone()
    return 0 if row is None else int(row[0])


def create(
    db: sqlite3.Connection, writer_shard: int, epoch: int, key: ConversationKey, created_at_ms: int
) -> Outcome[ConversationState]:
    """See `ports.store.ConversationStore.create_conversation`."""
    if shard_epoch(db, writer_shard) != epoch:
        return STALE_SHARD
    db.execute(
        _CREATE,
        {
            "tenant": key.tenant,
            "conversation": key.conversation,
            "writer_shard": writer_shard,
            "epoch": epoch,
            "created_at_ms": created_at_ms,
        },
    )
    return claim(db, writer_shard, epoch, key)


def claim(
    db: sqlite3.Connection, writer_shard: int, epoch: int, key: ConversationKey
) -> Outcome[ConversationState]:
    """See `ports.store.ConversationStore.claim`."""
    if shard_epoch(db, writer_shard) != epoch:
        return STALE_SHARD
    stored = load(db, key)
    if stored is None:
        return NO_CONVERSATION
    if stored.state.fencing_epoch > epoch:
        return STALE_HEAD
    if stored.state.fencing_epoch < epoch:
        db.execute(_CLAIM, (epoch, writer_shard, stored.id))
    return Applied(replace(stored.state, fencing_epoch=epoch))


def commit(db: sqlite3.Connection, step: CommitStep) -> Outcome[ConversationState]:
    """See `ports.store.CommitStep`. Checkpoint 1 of the fence (design section 5) is here."""
    stored = load(db, step.key)
    if stored is None:
        return NO_CONVERSATION
    if step.request_id == stored.last_step_id:
        return Applied(stored.state)
    if shard_epoch(db, step.writer_shard) != step.epoch:
        return STALE_SHARD
    refused = _refusal(step, stored.state)
    if refused is not None:
        return refused
    if not _add_idempotency(db, stored.id, step.events):
        return NotApplied(Refusal.DUPLICATE, "an idempotency key exists")
    events = [new.event for new in step.events]
    _add_events(db, stored.id, step.epoch, events)
    state = _with_members(db, stored.id, stored.state, events)
    state = replace(
        state,
        fencing_epoch=step.epoch,
        head_version=events[-1].conversation_seq,
        last_created_at_ms=events[-1].created_at_ms,
    )
    db.execute(
        _MOVE_HEAD,
        (
            state.fencing_epoch,
            state.head_version,
            state.membership_version,
            state.member_count,
            state.last_created_at_ms,
            step.request_id,
            step.writer_shard,
            stored.id,
        ),
    )
    return Applied(state)


def _refusal(step: CommitStep, state: ConversationState) -> NotApplied | None:
    head = state.head_version
    if state.fencing_epoch > step.epoch:
        return STALE_HEAD
    if head != step.expected_head:
        return NotApplied(Refusal.HEAD_MOVED, f"the head is at {head}")
    numbers = [new.event.conversation_seq for new in step.events]
    if not numbers or numbers != list(range(head + 1, head + 1 + len(numbers))):
        return NotApplied(Refusal.REJECTED, "the events do not continue the head")
    return None


def _add_idempotency(
    db: sqlite3.Connection, conversation_id: int, events: Sequence[NewEvent]
) -> bool:
    """Add the keys; False if one exists, in the store or twice in the step."""
    rows = [
        (
            conversation_id,
            new.idempotency.sender,
            new.idempotency.client_msg_id,
            new.event.conversation_seq,
            new.event.event_id,
            new.event.created_at_ms,
            new.content_digest,
        )
        for new in events
        if new.idempotency is not None
    ]
    return insert_rows(db, _ADD_IDEMPOTENCY, rows) == len(rows)


def _add_events(
    db: sqlite3.Connection, conversation_id: int, epoch: int, events: Sequence[Event]
) -> None:
    rows = [
        (
            conversation_id,
            event.conversation_seq,
            event.kind,
            event.sender,
            event.created_at_ms,
            event.event_id,
            event.sender_device,
            event.membership_version,
            event.routing_version,
            event.chunk_recipients,
            epoch,
            event.trace_parent,
            dumps(event.added),
            dumps(event.removed),
            event.encoded,
        )
        for event in events
    ]
    insert_rows(db, _ADD_EVENTS, rows)


def _with_members(
    db: sqlite3.Connection,
    conversation_id: int,
    state: ConversationState,
    events: Sequence[Event],
) -> ConversationState:
    """Open and close intervals; who is (or is not) a member already stays so."""
    for event in events:
        if event.kind != EventKind.MEMBERSHIP:
            continue
        place: dict[str, Any] = {
            "conversation_id": conversation_id,
            "seq": event.conversation_seq,
        }
        added = db.execute(_ADD_MEMBERS, place | {"users": dumps(event.added)}).rowcount
        removed = db.execute(_REMOVE_MEMBERS, place | {"users": dumps(event.removed)}).rowcount
        state = replace(
            state,
            membership_version=event.conversation_seq,
            member_count=state.member_count + added - removed,
        )
    return state


def advance(
    db: sqlite3.Connection, writer_shard: int, epoch: int, progress: Sequence[Progress]
) -> Outcome[Sequence[Outcome[None]]]:
    """See `ports.store.ConversationStore.advance`."""
    if shard_epoch(db, writer_shard) != epoch:
        return STALE_SHARD
    asked = dumps([(one.key.tenant, one.key.conversation) for one in progress])
    outcomes: list[Outcome[None]] = [NO_CONVERSATION] * len(progress)
    raised: dict[int, int] = {}
    for index, number, head_epoch, head_version, _ in rows_of(
        db.execute(_LOAD_PROGRESS, {"asked": asked})
    ):
        through = progress[index].through
        if head_epoch > epoch:
            outcomes[index] = STALE_HEAD
        elif through > head_version:
            outcomes[index] = NotApplied(Refusal.HEAD_MOVED, "the head is below it")
        else:
            raised[number] = max(through, raised.get(number, 0))
            outcomes[index] = Applied(None)
    if raised:
        db.execute(_ADVANCE, {"raised": dumps(list(raised.items()))})
    return Applied(outcomes)
