"""The authoritative store of conversations: see `conversation_steps` and `conversation_reads`."""

import sqlite3
from collections.abc import Mapping, Sequence

from qimd.adapters.sqlite import conversation_reads as reads
from qimd.adapters.sqlite import conversation_steps as steps
from qimd.adapters.sqlite.engine import Engine
from qimd.core.errors import unavailable
from qimd.core.ids import EventId, UserId
from qimd.core.outcome import Applied, NotApplied, Outcome, Unknown
from qimd.core.records import ConversationKey, Event, EventRef, Interval
from qimd.ports.store import (
    AuditRange,
    CommitStep,
    ConversationState,
    IdempotencyKey,
    Pending,
    PriorResult,
    Progress,
)

# Walks the oldest end of the index by age, no further than the last of the rows that go; left alone
# the planner walks whole conversations.
_EXPIRE_IDEMPOTENCY = """
DELETE FROM idempotency INDEXED BY idempotency_by_age
WHERE created_at_ms <= (
        SELECT max(created_at_ms) FROM (
            SELECT created_at_ms FROM idempotency
            WHERE created_at_ms < :before_ms ORDER BY created_at_ms LIMIT :limit))
    AND (conversation_id, sender, client_msg_id) IN (
        SELECT conversation_id, sender, client_msg_id FROM idempotency
        WHERE created_at_ms < :before_ms ORDER BY created_at_ms LIMIT :limit)
"""
_NOTE_FIRST_LOG = """
INSERT INTO meta VALUES ('first_log', ?) ON CONFLICT DO UPDATE SET value = value RETURNING value
"""
_FIRST_LOG = "SELECT value FROM meta WHERE name = 'first_log'"
_SET_AUDITED = """
UPDATE conversations SET audited_through = max(audited_through, ?)
WHERE tenant = ? AND conversation = ? AND head_version IS NOT NULL
"""


class SqliteConversationStore:
    """`ports.store.ConversationStore`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # steps of the writer

    async def create_conversation(
        self, writer_shard: int, epoch: int, key: ConversationKey, created_at_ms: int
    ) -> Outcome[ConversationState]:
        return await self._engine.write(
            lambda db: steps.create(db, writer_shard, epoch, key, created_at_ms), urgent=True
        )

    async def claim(
        self, writer_shard: int, epoch: int, key: ConversationKey
    ) -> Outcome[ConversationState]:
        return await self._engine.write(
            lambda db: steps.claim(db, writer_shard, epoch, key), urgent=True
        )

    async def commit(self, step: CommitStep) -> Outcome[ConversationState]:
        return await self._engine.write(
            lambda db: steps.commit(db, step), weight=2 * len(step.events), urgent=True
        )

    async def prior_results(
        self, key: ConversationKey, keys: Sequence[IdempotencyKey]
    ) -> Mapping[IdempotencyKey, PriorResult]:
        return await self._engine.read(lambda db: reads.prior_results(db, key, keys))

    async def expire_idempotency(self, before_ms: int, limit: int) -> int:
        asked = {"before_ms": before_ms, "limit": limit}

        def job(db: sqlite3.Connection) -> Outcome[int]:
            return Applied(db.execute(_EXPIRE_IDEMPOTENCY, asked).rowcount)

        match await self._engine.write(job, weight=limit):
            case Applied(count):
                return count
            case NotApplied() | Unknown():
                raise unavailable("old idempotency keys can't be dropped now")

    # steps of the fanout

    async def note_first_log(self, log_identity: str) -> Outcome[str]:
        def job(db: sqlite3.Connection) -> Outcome[str]:
            [noted] = db.execute(_NOTE_FIRST_LOG, (log_identity,)).fetchone()
            return Applied(noted)

        return await self._engine.write(job)

    async def pending(self, writer_shard: int) -> Sequence[Pending]:
        return await self._engine.read(lambda db: reads.pending(db, writer_shard))

    async def outbox(self, key: ConversationKey, after: int, limit: int) -> Sequence[Event]:
        return await self._engine.read(lambda db: reads.outbox(db, key, after, limit))

    async def advance(
        self, writer_shard: int, epoch: int, progress: Sequence[Progress]
    ) -> Sequence[Outcome[None]]:
        outcome = await self._engine.write(
            lambda db: steps.advance(db, writer_shard, epoch, progress), weight=len(progress)
        )
        match outcome:
            case Applied(outcomes):
                return outcomes
            case NotApplied() | Unknown():
                return [outcome] * len(progress)

    # reads

    async def first_log(self) -> str | None:
        def job(db: sqlite3.Connection) -> str | None:
            row = db.execute(_FIRST_LOG).fetchone()
            return None if row is None else str(row[0])

        return await self._engine.read(job)

    async def conversation(self, key: ConversationKey) -> ConversationState | None:
        stored = await self._engine.read(lambda db: steps.load(db, key))
        return None if stored is None else stored.state

    async def conversation_page(
        self, limit: int, after: ConversationKey | None = None
    ) -> Sequence[ConversationState]:
        return await self._engine.read(lambda db: steps.load_page(db, limit, after))

    async def members_at(self, key: ConversationKey, conversation_seq: int) -> Sequence[UserId]:
        return await self._engine.read(lambda db: reads.members_at(db, key, conversation_seq))

    async def current_members(
        self, key: ConversationKey, users: Sequence[UserId]
    ) -> Mapping[UserId, int]:
        return await self._engine.read(lambda db: reads.current_members(db, key, users))

    async def member_page(
        self, key: ConversationKey, after: str, limit: int
    ) -> Sequence[tuple[UserId, int]]:
        return await self._engine.read(lambda db: reads.member_page(db, key, after, limit))

    async def intervals(self, key: ConversationKey, user: UserId) -> Sequence[Interval]:
        return await self._engine.read(lambda db: reads.intervals(db, key, user))

    async def events(self, refs: Sequence[EventRef]) -> Mapping[EventId, bytes]:
        return await self._engine.read(lambda db: reads.encoded_events(db, refs))

    async def history(
        self, key: ConversationKey, intervals: Sequence[Interval], before_seq: int, limit: int
    ) -> Sequence[Event]:
        return await self._engine.read(
            lambda db: reads.history(db, key, intervals, before_seq, limit)
        )

    async def count_unread(
        self,
        key: ConversationKey,
        user: UserId,
        intervals: Sequence[Interval],
        after: int,
        through: int,
    ) -> int:
        return await self._engine.read(
            lambda db: reads.count_unread(db, key, user, intervals, after, through)
        )

    async def find_event(self, event_id: EventId) -> tuple[Event, int] | None:
        return await self._engine.read(lambda db: reads.find_event(db, event_id))

    # the auditor's

    async def audit_ranges(
        self, limit: int, after: ConversationKey | None = None
    ) -> Sequence[AuditRange]:
        return await self._engine.read(lambda db: reads.audit_ranges(db, limit, after))

    async def event_ids(
        self, key: ConversationKey, after: int, through: int
    ) -> Sequence[tuple[int, EventId]]:
        return await self._engine.read(lambda db: reads.event_ids(db, key, after, through))

    async def set_audited(self, key: ConversationKey, through: int) -> Outcome[None]:
        def job(db: sqlite3.Connection) -> Outcome[None]:
            raised = db.execute(_SET_AUDITED, (through, key.tenant, key.conversation))
            return Applied(None) if raised.rowcount else steps.NO_CONVERSATION

        return await self._engine.write(job)
