"""The session projection: rows, read marks, checkpoints. A step is one transaction."""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from qimd.adapters.sqlite.engine import Engine
from qimd.adapters.sqlite.interning import Interner
from qimd.adapters.sqlite.packing import dumps, rows_of
from qimd.adapters.sqlite.projection_steps import project_groups, restore_rows
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.records import ConversationKey, UserKey
from qimd.ports.projection import (
    CheckpointMeta,
    PagePosition,
    PartitionCheckpoint,
    ProjectStep,
    RestoreStep,
    SessionRow,
)
from qimd.ports.store import key_of

_STALE_TERM: Final = NotApplied(Refusal.STALE_EPOCH, "the partition's term is not the caller's")
_NO_PARTITION: Final = NotApplied(Refusal.NOT_FOUND, "the partition was never opened")
_MOVED: Final = NotApplied(Refusal.HEAD_MOVED, "another owner moved the checkpoint")
_NO_END: Final = (1 << 62, "")
"""Above every place in a list."""

_PARTITION = """
SELECT term, format_version, topic, partitions, cluster_id, topic_id, next_offset
FROM projection_partitions WHERE partition = ?
"""
_OPEN = """
INSERT INTO projection_partitions VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (partition) DO UPDATE SET term = excluded.term WHERE term < excluded.term
"""
_RESET = """
UPDATE projection_partitions SET
    format_version = ?, topic = ?, partitions = ?, cluster_id = ?, topic_id = ?, next_offset = ?
WHERE partition = ?
"""
_READ_MARKS = """
SELECT json_group_array(json_array(key, mark)) FROM (
    SELECT j.key, coalesce(max(m.read_through), 0) AS mark
    FROM json_each(:places) AS j
    LEFT JOIN users AS u ON u.tenant = j.value ->> 0 AND u.user = j.value ->> 1
    LEFT JOIN conversations AS c ON c.tenant = j.value ->> 0 AND c.conversation = j.value ->> 2
    LEFT JOIN read_marks AS m ON m.user_id = u.id AND m.conversation_id = c.id
    GROUP BY j.key)
"""
_ROWS = """
SELECT json_group_array(json_array(
    tenant, conversation, activity_ms, applied_seq, unread, read_through))
FROM (
    SELECT c.tenant, c.conversation, r.activity_ms, r.applied_seq, r.unread,
        coalesce(m.read_through, 0) AS read_through
    FROM users AS u
    CROSS JOIN projection_rows AS r ON r.user_id = u.id
    CROSS JOIN conversations AS c ON c.id = r.conversation_id
    LEFT JOIN read_marks AS m ON m.user_id = u.id AND m.conversation_id = c.id
    WHERE u.tenant = :tenant AND u.user = :user
        AND (r.activity_ms, c.conversation) < (:activity_ms, :conversation)
    ORDER BY r.activity_ms DESC, c.conversation DESC LIMIT :limit)
"""
_ROW = """
SELECT r.activity_ms, r.applied_seq, r.unread, coalesce(m.read_through, 0), u.id, c.id
FROM users AS u
CROSS JOIN conversations AS c ON c.tenant = :tenant AND c.conversation = :conversation
CROSS JOIN projection_rows AS r ON r.user_id = u.id AND r.conversation_id = c.id
LEFT JOIN read_marks AS m ON m.user_id = u.id AND m.conversation_id = c.id
WHERE u.tenant = :tenant AND u.user = :user
"""
_SET_UNREAD = "UPDATE projection_rows SET unread = ? WHERE user_id = ? AND conversation_id = ?"
_RAISE_MARK = """
INSERT INTO read_marks (user_id, conversation_id, read_through) VALUES (?, ?, ?)
ON CONFLICT (user_id, conversation_id)
DO UPDATE SET read_through = max(read_through, excluded.read_through)
"""


class SqliteProjectionStore:
    """`ports.projection.ProjectionStore`."""

    def __init__(self, engine: Engine, interner: Interner) -> None:
        self._engine = engine
        self._interner = interner

    @property
    def restarts(self) -> int:
        """None takes anything back: a transaction is synced before it is answered."""
        return 0

    async def checkpoint(self, partition: int) -> PartitionCheckpoint | None:
        row = await self._engine.read(lambda db: _partition(db, partition))
        return None if row is None else row[1]

    async def open_partition(
        self, partition: int, term: int, initial: PartitionCheckpoint
    ) -> Outcome[PartitionCheckpoint]:
        new = (partition, term, *_columns(initial))

        def job(db: sqlite3.Connection) -> Outcome[PartitionCheckpoint]:
            db.execute(_OPEN, new)
            row = _partition(db, partition)
            if row is None:
                return _NO_PARTITION
            stored_term, checkpoint = row
            return Applied(checkpoint) if stored_term == term else _STALE_TERM

        return await self._engine.write(job)

    async def project(self, step: ProjectStep) -> Outcome[None]:
        def job(db: sqlite3.Connection) -> Outcome[None]:
            held = _held(db, step.partition, step.term)
            if isinstance(held, NotApplied):
                return held
            if held.next_offset != step.expected_next:
                return _MOVED
            project_groups(db, self._interner, step.partition, step.groups)
            db.execute(
                "UPDATE projection_partitions SET next_offset = ? WHERE partition = ?",
                (step.next_offset, step.partition),
            )
            return Applied(None)

        weight = sum(len(group.users) for group in step.groups)
        return await self._engine.write(job, weight=weight)

    async def read_marks(self, places: Sequence[tuple[UserKey, ConversationKey]]) -> Sequence[int]:
        asked = dumps([(user.tenant, user.user, key.conversation) for user, key in places])

        def job(db: sqlite3.Connection) -> Sequence[int]:
            return [mark for _, mark in sorted(rows_of(db.execute(_READ_MARKS, {"places": asked})))]

        return await self._engine.read(job)

    async def restore(self, step: RestoreStep) -> Outcome[Sequence[int]]:
        def job(db: sqlite3.Connection) -> Outcome[Sequence[int]]:
            held = _held(db, step.partition, step.term)
            if isinstance(held, NotApplied):
                return held
            return Applied(restore_rows(db, self._interner, step))

        return await self._engine.write(job, weight=1 + len(step.rows))

    async def reset_checkpoint(
        self, partition: int, term: int, expected: PartitionCheckpoint, wanted: PartitionCheckpoint
    ) -> Outcome[None]:
        def job(db: sqlite3.Connection) -> Outcome[None]:
            held = _held(db, partition, term)
            if isinstance(held, NotApplied):
                return held
            if held not in (expected, wanted):
                return _MOVED
            db.execute(_RESET, (*_columns(wanted), partition))
            return Applied(None)

        return await self._engine.write(job)

    async def rows(
        self, user: UserKey, below: PagePosition | None, limit: int
    ) -> Sequence[SessionRow]:
        activity_ms, conversation = (
            _NO_END if below is None else (below.activity_ms, below.conversation)
        )
        asked = {
            "tenant": user.tenant,
            "user": user.user,
            "activity_ms": activity_ms,
            "conversation": conversation,
            "limit": limit,
        }

        def job(db: sqlite3.Connection) -> Sequence[SessionRow]:
            rows = [
                SessionRow(key_of(tenant, name), *numbers)
                for tenant, name, *numbers in rows_of(db.execute(_ROWS, asked))
            ]
            rows.sort(key=lambda row: (row.activity_ms, row.key.conversation), reverse=True)
            return rows

        return await self._engine.read(job)

    async def row(self, user: UserKey, key: ConversationKey) -> SessionRow | None:
        found = await self._engine.read(lambda db: _row(db, user, key))
        return None if found is None else found[0]

    async def mark_read(
        self, user: UserKey, key: ConversationKey, read_through: int, applied_seq: int, unread: int
    ) -> Outcome[SessionRow]:
        def job(db: sqlite3.Connection) -> Outcome[SessionRow]:
            found = _row(db, user, key)
            if found is None:
                return NotApplied(Refusal.NOT_FOUND, "no such row")
            row, place = found
            if row.applied_seq != applied_seq:
                return NotApplied(Refusal.HEAD_MOVED, "the row has newer events")
            if row.read_through > read_through:
                return NotApplied(Refusal.HEAD_MOVED, "another device has read further")
            db.execute(_SET_UNREAD, (unread, *place))
            db.execute(_RAISE_MARK, (*place, read_through))
            return Applied(SessionRow(key, row.activity_ms, applied_seq, unread, read_through))

        return await self._engine.write(job, weight=2)


def _partition(db: sqlite3.Connection, partition: int) -> tuple[int, PartitionCheckpoint] | None:
    """(term, checkpoint) of a partition that was opened."""
    row: tuple[Any, ...] | None = db.execute(_PARTITION, (partition,)).fetchone()
    if row is None:
        return None
    term, *meta, next_offset = row
    return term, PartitionCheckpoint(CheckpointMeta(*meta), next_offset)


def _held(db: sqlite3.Connection, partition: int, term: int) -> PartitionCheckpoint | NotApplied:
    """The checkpoint, for the owner of this term."""
    row = _partition(db, partition)
    if row is None:
        return _NO_PARTITION
    return row[1] if row[0] == term else _STALE_TERM


def _columns(checkpoint: PartitionCheckpoint) -> tuple[int, str, int, str, str, int]:
    """As they lie in the table, behind partition and term."""
    meta = checkpoint.meta
    return (
        meta.format_version,
        meta.topic,
        meta.partitions,
        meta.cluster_id,
        meta.topic_id,
        checkpoint.next_offset,
    )


def _row(
    db: sqlite3.Connection, user: UserKey, key: ConversationKey
) -> tuple[SessionRow, tuple[int, int]] | None:
    """(the row, its key: user and conversation as integers)."""
    if user.tenant != key.tenant:
        return None
    asked = {"tenant": user.tenant, "user": user.user, "conversation": key.conversation}
    found = db.execute(_ROW, asked).fetchone()
    return None if found is None else (SessionRow(key, *found[:4]), found[4:])
