"""`ports.store.ConversationStore`: the steps here, the reads in `conversation_reads`.

Each step reads the head, judges it, and writes under the condition that the head still is the one
that was read.

The shard's epoch lies in another partition, so it is compared when a step is issued and not when it
lands: a late commit of an old owner can still land on a head that its successor has not claimed,
and on no other. That one is an event like any other. The successor finds it by its note (`notes`),
which was written before, and which goes only with the progress that covers it.

Written without a condition is what nobody can write otherwise: where an event is by its id.
"""
# ruff: noqa: S608  (statements are put together from constants of this package alone)

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from qimd.adapters.scylla.conversation_reads import ConversationReads
from qimd.adapters.scylla.conversation_rows import PLACE, Head, bucket_of
from qimd.adapters.scylla.memberships import changed, touched
from qimd.adapters.scylla.notes import Notes
from qimd.adapters.scylla.rising import rising
from qimd.adapters.scylla.session import DECISIONS_MAX, Session, Write, contended, step, worst
from qimd.adapters.scylla.tenants import ScyllaEpochStore
from qimd.core.ids import UserId
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.records import ConversationKey, Event, EventKind, Interval
from qimd.ports.store import (
    CommitStep,
    ConversationState,
    IdempotencyKey,
    Pending,
    PriorResult,
    Progress,
    ShardKind,
)

PROGRESS_IN_FLIGHT_MAX: Final = 8
"""Conditional writes of progress under way: a sender waits for a commit, nobody for progress."""

_STALE_SHARD: Final = NotApplied(Refusal.STALE_EPOCH, "the shard's epoch is not the caller's")
_STALE_HEAD: Final = NotApplied(Refusal.STALE_EPOCH, "the head's epoch is above the caller's")
_NO_CONVERSATION: Final = NotApplied(Refusal.NOT_FOUND, "no such conversation")

_SAME_HEAD: Final = f"WHERE {PLACE} IF fencing_epoch = ? AND head_version = ?"

_CREATE: Final = f"""
UPDATE conversations
SET fencing_epoch = ?, writer_shard = ?, created_at_ms = ?, head_version = 0,
    dispatched_through = 0, membership_version = 0, member_count = 0, last_created_at_ms = 0
WHERE {PLACE} IF fencing_epoch = null
"""
_CLAIM: Final = f"""
UPDATE conversations SET fencing_epoch = ?, writer_shard = ?
{_SAME_HEAD} AND dispatched_through = ?
"""
_MOVE: Final = f"""
UPDATE conversations
SET fencing_epoch = ?, head_version = ?, membership_version = ?, member_count = ?,
    last_created_at_ms = ?, last_request_id = ?
{_SAME_HEAD}
"""
_ADVANCE: Final = f"""
UPDATE conversations SET dispatched_through = ?
WHERE {PLACE} IF fencing_epoch <= ? AND head_version >= ? AND dispatched_through < ?
"""
_AUDITED: Final = f"UPDATE conversations USING TIMESTAMP ? SET audited_through = ? WHERE {PLACE}"

_NAME: Final = """
INSERT INTO conversation_names (deployment, bucket, tenant, conversation) VALUES (?, ?, ?, ?)
"""
_EVENT_PLACE: Final = """
INSERT INTO event_places (deployment, event_id, tenant, conversation, seq) VALUES (?, ?, ?, ?, ?)
"""
_NOTE_LOG: Final = "INSERT INTO deployments (deployment, first_log) VALUES (?, ?) IF NOT EXISTS"


@dataclass(frozen=True, slots=True)
class _Found:
    """What a commit is judged by, beside the head."""

    shard_epoch: int
    used: Mapping[IdempotencyKey, PriorResult]
    members: Mapping[UserId, Sequence[Interval]]


class ScyllaConversationStore(ConversationReads):
    """`ports.store.ConversationStore`."""

    def __init__(self, session: Session, deployment: str) -> None:
        super().__init__(session, deployment)
        self._epochs = ScyllaEpochStore(session, deployment)
        self._notes = Notes(session, deployment)
        self._progress_slots = asyncio.Semaphore(PROGRESS_IN_FLIGHT_MAX)

    # --- the writer's ---

    @step
    async def create_conversation(
        self, writer_shard: int, epoch: int, key: ConversationKey, created_at_ms: int
    ) -> Outcome[ConversationState]:
        if await self._is_stale(writer_shard, epoch):
            return _STALE_SHARD
        # A name without a conversation is passed over; a conversation without a name would be lost.
        named = await self._session.write(
            [Write(_NAME, (self._deployment, bucket_of(key), key.tenant, key.conversation))]
        )
        if not isinstance(named, Applied):
            return _not_begun(named)
        place = self._partitions.place(key)
        made = await self._session.decide(
            [Write(_CREATE, (epoch, writer_shard, created_at_ms, *place))]
        )
        if not isinstance(made, Applied):
            return made
        if not made.value:
            return await self._claim(writer_shard, epoch, key)
        return Applied(ConversationState(key, epoch, 0, 0, 0, 0, 0, created_at_ms))

    @step
    async def claim(
        self, writer_shard: int, epoch: int, key: ConversationKey
    ) -> Outcome[ConversationState]:
        if await self._is_stale(writer_shard, epoch):
            return _STALE_SHARD
        return await self._claim(writer_shard, epoch, key)

    async def _claim(
        self, writer_shard: int, epoch: int, key: ConversationKey
    ) -> Outcome[ConversationState]:
        for _ in range(DECISIONS_MAX):
            head = await self._partitions.decided_head(key)
            if head is None:
                return _NO_CONVERSATION
            state = head.state
            if state.fencing_epoch > epoch:
                return _STALE_HEAD
            if (state.fencing_epoch, head.writer_shard) == (epoch, writer_shard):
                return Applied(state)
            if head.writer_shard != writer_shard and state.dispatched_through < state.head_version:
                noted = await self._notes.note_pending(writer_shard, key, state.head_version)
                if not isinstance(noted, Applied):
                    return _not_begun(noted)
            same = (state.fencing_epoch, state.head_version, state.dispatched_through)
            claimed = await self._session.decide(
                [Write(_CLAIM, (epoch, writer_shard, *self._partitions.place(key), *same))]
            )
            if not isinstance(claimed, Applied):
                return claimed
            if claimed.value:
                return Applied(replace(state, fencing_epoch=epoch))
        return contended()

    @step
    async def commit(self, step: CommitStep) -> Outcome[ConversationState]:
        head, found, noted = await asyncio.gather(
            self._partitions.head(step.key), self._find(step), self._note(step)
        )
        if not isinstance(noted, Applied):
            return _not_begun(noted)
        is_decided = False
        for _ in range(DECISIONS_MAX):
            answer = _NO_CONVERSATION if head is None else _judge(step, head, found)
            if head is not None and answer is None:
                moved = await self._move(step, head, found)
                if moved is not None:
                    return moved
            elif answer is not None and is_decided:
                return answer
            # What was read may be older than a try of this very step that has landed since.
            head = await self._partitions.decided_head(step.key)
            found, is_decided = await self._find(step), True
        return contended()

    async def _find(self, step: CommitStep) -> _Found:
        users = touched(_events(step))
        keys = [new.idempotency for new in step.events if new.idempotency is not None]
        epoch, used, members = await asyncio.gather(
            self._epochs.current(ShardKind.WRITER, step.writer_shard),
            self._partitions.results(step.key, keys),
            self._partitions.intervals(step.key, users),
        )
        return _Found(epoch, used, members)

    async def _note(self, step: CommitStep) -> Outcome[None]:
        """Write what must stand before the commit, and hurts nobody without it."""
        key, version = step.key, step.expected_head + len(step.events)
        places = [
            [
                Write(
                    _EVENT_PLACE,
                    (self._deployment, event.event_id, *_ids(key), event.conversation_seq),
                )
            ]
            for event in _events(step)
        ]
        noted, placed = await asyncio.gather(
            self._notes.note_pending(step.writer_shard, key, version),
            self._session.write_all(places),
        )
        return worst([noted, placed])

    async def _move(
        self, step: CommitStep, head: Head, found: _Found
    ) -> Outcome[ConversationState] | None:
        """Commit behind this head; None if it is another by now."""
        begun_and_ended, growth = changed(found.members, _events(step))
        after = _after(head.state, step, growth)
        place = self._partitions.place(step.key)
        moved = (
            after.fencing_epoch,
            after.head_version,
            after.membership_version,
            after.member_count,
            after.last_created_at_ms,
            step.request_id,
        )
        same = (head.state.fencing_epoch, head.state.head_version)
        decided = await self._session.decide(
            [
                Write(_MOVE, (*moved, *place, *same)),
                *(w for new in step.events for w in self._partitions.event_writes(new, step.epoch)),
                *self._partitions.member_writes(step.key, begun_and_ended),
            ]
        )
        if not isinstance(decided, Applied):
            return decided
        return Applied(after) if decided.value else None

    async def expire_idempotency(self, before_ms: int, limit: int) -> int:
        """See `ports.store.ConversationStore`: the engine forgets by itself, so none are left."""
        return 0

    # --- the fanout's ---

    @step
    async def note_first_log(self, log_identity: str) -> Outcome[str]:
        noted = await self._session.decide([Write(_NOTE_LOG, (self._deployment, log_identity))])
        if not isinstance(noted, Applied):
            return noted
        first = log_identity if noted.value else await self.first_log()
        return Applied(first or log_identity)

    async def pending(self, writer_shard: int) -> Sequence[Pending]:
        notes = await self._notes.pending(writer_shard)
        # Decided: a commit that its owner never heard of must be found by the successor.
        heads = await asyncio.gather(*(self._partitions.decided_head(key) for key, _ in notes))
        found: list[Pending] = []
        done: list[Progress] = []
        for (key, version), head in zip(notes, heads, strict=True):
            if head is None:
                continue
            through, last = head.state.dispatched_through, head.state.head_version
            if head.writer_shard == writer_shard and through < last:
                found.append(Pending(key, through, last))
            elif version <= through:
                done.append(Progress(key, through))
        await self._notes.drop_pending(writer_shard, done)
        return found

    async def advance(
        self, writer_shard: int, epoch: int, progress: Sequence[Progress]
    ) -> Sequence[Outcome[None]]:
        begun = await self._begin_advance(writer_shard, epoch, progress)
        if not isinstance(begun, Applied):
            return [begun] * len(progress)
        outcomes = await asyncio.gather(*(self._advance_in_turn(epoch, one) for one in progress))
        done = [
            one
            for one, outcome in zip(progress, outcomes, strict=True)
            if isinstance(outcome, Applied)
        ]
        await self._notes.drop_pending(writer_shard, done)
        return outcomes

    @step
    async def _begin_advance(
        self, writer_shard: int, epoch: int, progress: Sequence[Progress]
    ) -> Outcome[None]:
        if await self._is_stale(writer_shard, epoch):
            return _STALE_SHARD
        noted = await self._notes.note_unaudited(progress)
        return noted if isinstance(noted, Applied) else _not_begun(noted)

    async def _advance_in_turn(self, epoch: int, progress: Progress) -> Outcome[None]:
        async with self._progress_slots:
            return await self._advance(epoch, progress)

    @step
    async def _advance(self, epoch: int, progress: Progress) -> Outcome[None]:
        through, place = progress.through, self._partitions.place(progress.key)
        for _ in range(DECISIONS_MAX):
            decided = await self._session.decide(
                [Write(_ADVANCE, (through, *place, epoch, through, through))]
            )
            if not isinstance(decided, Applied):
                return decided
            if decided.value:
                return Applied(None)
            head = await self._partitions.decided_head(progress.key)
            if head is None:
                return _NO_CONVERSATION
            if head.state.fencing_epoch > epoch:
                return _STALE_HEAD
            if head.state.head_version < through:
                return NotApplied(Refusal.HEAD_MOVED, "the head is below it")
            if head.state.dispatched_through >= through:
                return Applied(None)
        return contended()

    # --- the auditor's ---

    @step
    async def set_audited(self, key: ConversationKey, through: int) -> Outcome[None]:
        if await self._partitions.head(key) is None:
            return _NO_CONVERSATION
        place = self._partitions.place(key)
        raised = await self._session.write([Write(_AUDITED, (rising(through), through, *place))])
        if isinstance(raised, Applied):
            await self._notes.drop_unaudited(key, through)
        return raised

    # --- what they share ---

    async def _is_stale(self, writer_shard: int, epoch: int) -> bool:
        return await self._epochs.current(ShardKind.WRITER, writer_shard) != epoch


def _judge(step: CommitStep, head: Head, found: _Found) -> Outcome[ConversationState] | None:
    """What a step is answered that is not to be applied, or was applied before."""
    version = head.state.head_version
    numbers = [new.event.conversation_seq for new in step.events]
    keys = [new.idempotency for new in step.events if new.idempotency is not None]
    if step.request_id == head.last_request_id:
        return Applied(head.state)
    if found.shard_epoch != step.epoch:
        return _STALE_SHARD
    if head.state.fencing_epoch > step.epoch:
        return _STALE_HEAD
    if version != step.expected_head:
        return NotApplied(Refusal.HEAD_MOVED, f"the head is at {version}")
    if not numbers or numbers != list(range(version + 1, version + 1 + len(numbers))):
        return NotApplied(Refusal.REJECTED, "the events do not continue the head")
    if found.used or len(set(keys)) < len(keys):
        return NotApplied(Refusal.DUPLICATE, "an idempotency key exists")
    return None


def _after(before: ConversationState, step: CommitStep, growth: int) -> ConversationState:
    """The state behind the step, which has `growth` more members."""
    events = _events(step)
    changes = [event.conversation_seq for event in events if event.kind == EventKind.MEMBERSHIP]
    return replace(
        before,
        fencing_epoch=step.epoch,
        head_version=events[-1].conversation_seq,
        membership_version=changes[-1] if changes else before.membership_version,
        member_count=before.member_count + growth,
        last_created_at_ms=events[-1].created_at_ms,
    )


def _events(step: CommitStep) -> Sequence[Event]:
    return [new.event for new in step.events]


def _not_begun(outcome: NotApplied | Unknown) -> NotApplied:
    """What must stand before a step is not known to stand, so the step was not issued."""
    refusal = outcome.refusal if isinstance(outcome, NotApplied) else Refusal.UNREACHABLE
    return NotApplied(refusal, outcome.detail)


def _ids(key: ConversationKey) -> tuple[str, str]:
    return key.tenant, key.conversation
