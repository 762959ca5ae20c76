"""Conversations in memory: head, events, outbox, idempotency, memberships.

A conversation is a partition key of its own, and the shard's epoch is another one. As in the
weakest engine, no step covers both: the shard's epoch is compared when a step is *issued*, the head
when it *lands*. So a late commit of an old owner can still land on a head that its successor has
not claimed, and on no other (design section 5, checkpoint 1).
"""

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from qimd.adapters.memory.control import EpochDisk
from qimd.adapters.memory.network import Wire
from qimd.core.ids import EventId, UserId
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.records import ConversationKey, Event, EventKind, EventRef, Interval
from qimd.ports.store import (
    AuditRange,
    CommitStep,
    ConversationState,
    IdempotencyKey,
    Pending,
    PriorResult,
    Progress,
    ShardKind,
)

_R = TypeVar("_R")

_STALE_SHARD = NotApplied(Refusal.STALE_EPOCH, "the shard's epoch is not the caller's")
_STALE_HEAD = NotApplied(Refusal.STALE_EPOCH, "the head's epoch is above the caller's")
_NO_CONVERSATION = NotApplied(Refusal.NOT_FOUND, "no such conversation")


@dataclass(slots=True)
class _Conversation:
    """One partition key."""

    state: ConversationState
    writer_shard: int
    events: list[tuple[Event, int]] = field(default_factory=list)
    """(event, the fencing epoch that it was committed under), by conversation_seq from 1."""
    idempotency: dict[IdempotencyKey, PriorResult] = field(default_factory=dict)
    memberships: dict[UserId, list[Interval]] = field(default_factory=dict)
    last_request_id: bytes | None = None
    audited_through: int = 0

    def copied(self) -> "_Conversation":
        """As it is now, whatever comes."""
        return replace(
            self,
            events=list(self.events),
            idempotency=dict(self.idempotency),
            memberships={user: list(each) for user, each in self.memberships.items()},
        )

    def between(self, after: int, through: int) -> Sequence[Event]:
        """Events in (after, through]."""
        return [event for event, _ in self.events[max(after, 0) : max(through, 0)]]

    def members(self) -> Sequence[tuple[UserId, int]]:
        """Members now with their added_seq, in byte order (which is that of code points)."""
        return sorted(
            (user, intervals[-1].added_seq)
            for user, intervals in self.memberships.items()
            if intervals[-1].removed_seq == 0
        )

    def added_seq(self, user: UserId) -> int | None:
        """Since when the user is a member; None if it is not one now."""
        intervals = self.memberships.get(user)
        if intervals is None or intervals[-1].removed_seq != 0:
            return None
        return intervals[-1].added_seq

    def change_members(self, event: Event) -> None:
        """Open and close intervals; who is (or is not) a member already stays so."""
        seq = event.conversation_seq
        for user in event.added:
            if self.added_seq(user) is None:
                self.memberships.setdefault(user, []).append(Interval(seq))
        for user in event.removed:
            if (added_seq := self.added_seq(user)) is not None:
                self.memberships[user][-1] = Interval(added_seq, seq)


class ConversationDisk:
    """What survives a process: conversations, and the indexes over them."""

    def __init__(self) -> None:
        self.conversations: dict[ConversationKey, _Conversation] = {}
        self.places: dict[EventId, tuple[ConversationKey, int]] = {}
        self.first_log: str | None = None

    def copied(self) -> "ConversationDisk":
        """As it is now, whatever comes."""
        other = ConversationDisk()
        other.conversations = {key: stored.copied() for key, stored in self.conversations.items()}
        other.places, other.first_log = dict(self.places), self.first_log
        return other

    def take_back(self, synced: "ConversationDisk") -> None:
        """Start anew, as it was at the last sync."""
        before = synced.copied()
        # In place: stores hold the table itself.
        self.conversations.clear()
        self.conversations.update(before.conversations)
        self.places, self.first_log = before.places, before.first_log

    def claim(
        self, writer_shard: int, epoch: int, key: ConversationKey
    ) -> Outcome[ConversationState]:
        """Fence the head, see `ports.store.ConversationStore`."""
        stored = self.conversations.get(key)
        if stored is None:
            return _NO_CONVERSATION
        if stored.state.fencing_epoch > epoch:
            return _STALE_HEAD
        stored.writer_shard = writer_shard
        stored.state = replace(stored.state, fencing_epoch=epoch)
        return Applied(stored.state)

    def create(
        self, writer_shard: int, epoch: int, key: ConversationKey, created_at_ms: int
    ) -> Outcome[ConversationState]:
        """An empty head, or the one that is there."""
        if key not in self.conversations:
            state = ConversationState(
                key=key,
                fencing_epoch=epoch,
                head_version=0,
                dispatched_through=0,
                membership_version=0,
                member_count=0,
                last_created_at_ms=0,
                created_at_ms=created_at_ms,
            )
            self.conversations[key] = _Conversation(state, writer_shard)
        return self.claim(writer_shard, epoch, key)

    def commit(self, step: CommitStep, *, shard_is_stale: bool) -> Outcome[ConversationState]:
        """See `ports.store.CommitStep`."""
        stored = self.conversations.get(step.key)
        if stored is None:
            return _NO_CONVERSATION
        if step.request_id == stored.last_request_id:
            return Applied(stored.state)
        refused = _refusal(step, stored, shard_is_stale=shard_is_stale)
        if refused is not None:
            return refused
        for new in step.events:
            self._append(stored, step.epoch, new.event)
            if new.idempotency is not None:
                stored.idempotency[new.idempotency] = PriorResult(
                    new.event.event_id,
                    new.event.conversation_seq,
                    new.event.created_at_ms,
                    new.content_digest,
                )
        stored.last_request_id = step.request_id
        return Applied(stored.state)

    def _append(self, stored: _Conversation, epoch: int, event: Event) -> None:
        stored.events.append((event, epoch))
        self.places[event.event_id] = (event.key, event.conversation_seq)
        changes = event.kind == EventKind.MEMBERSHIP
        if changes:
            stored.change_members(event)
        stored.state = replace(
            stored.state,
            fencing_epoch=epoch,
            head_version=event.conversation_seq,
            last_created_at_ms=event.created_at_ms,
            membership_version=(
                event.conversation_seq if changes else stored.state.membership_version
            ),
            member_count=len(stored.members()) if changes else stored.state.member_count,
        )


def _refusal(step: CommitStep, stored: _Conversation, *, shard_is_stale: bool) -> NotApplied | None:
    head = stored.state.head_version
    numbers = [new.event.conversation_seq for new in step.events]
    keys = [new.idempotency for new in step.events if new.idempotency is not None]
    if shard_is_stale:
        return _STALE_SHARD
    if stored.state.fencing_epoch > step.epoch:
        return _STALE_HEAD
    if head != step.expected_head:
        return NotApplied(Refusal.HEAD_MOVED, f"the head is at {head}")
    if not numbers or numbers != list(range(head + 1, head + 1 + len(numbers))):
        return NotApplied(Refusal.REJECTED, "the events do not continue the head")
    if len(dict.fromkeys(keys)) < len(keys) or any(key in stored.idempotency for key in keys):
        return NotApplied(Refusal.DUPLICATE, "an idempotency key exists")
    return None


def _place(key: ConversationKey) -> tuple[str, str]:
    """What conversations are ordered by: as their bytes are."""
    return key.tenant, key.conversation


def _sees(intervals: Sequence[Interval], seq: int) -> bool:
    return any(interval.sees(seq) for interval in intervals)


class MemoryConversationStore:
    """`ports.store.ConversationStore`."""

    def __init__(self, disk: ConversationDisk, epochs: EpochDisk, wire: Wire) -> None:
        self._disk = disk
        self._conversations = disk.conversations
        self._epochs = epochs
        self._wire = wire

    def _is_stale(self, writer_shard: int, epoch: int) -> bool:
        return self._epochs.current(ShardKind.WRITER, writer_shard) != epoch

    # steps of the writer

    async def create_conversation(
        self, writer_shard: int, epoch: int, key: ConversationKey, created_at_ms: int
    ) -> Outcome[ConversationState]:
        stale = self._is_stale(writer_shard, epoch)

        def effect() -> Outcome[ConversationState]:
            if stale:
                return _STALE_SHARD
            return self._disk.create(writer_shard, epoch, key, created_at_ms)

        return await self._wire.step("create_conversation", key, effect)

    async def claim(
        self, writer_shard: int, epoch: int, key: ConversationKey
    ) -> Outcome[ConversationState]:
        stale = self._is_stale(writer_shard, epoch)

        def effect() -> Outcome[ConversationState]:
            return _STALE_SHARD if stale else self._disk.claim(writer_shard, epoch, key)

        return await self._wire.step("claim", key, effect)

    async def commit(self, step: CommitStep) -> Outcome[ConversationState]:
        stale = self._is_stale(step.writer_shard, step.epoch)
        return await self._wire.step(
            "commit", step.key, lambda: self._disk.commit(step, shard_is_stale=stale), step
        )

    async def prior_results(
        self, key: ConversationKey, keys: Sequence[IdempotencyKey]
    ) -> Mapping[IdempotencyKey, PriorResult]:
        def effect() -> Mapping[IdempotencyKey, PriorResult]:
            stored = self._conversations.get(key)
            known = {} if stored is None else stored.idempotency
            return {asked: known[asked] for asked in keys if asked in known}

        return await self._wire.read("prior_results", key, effect)

    async def expire_idempotency(self, before_ms: int, limit: int) -> int:
        def effect() -> int:
            old = [
                (stored, key)
                for stored in self._conversations.values()
                for key, prior in stored.idempotency.items()
                if prior.created_at_ms < before_ms
            ][:limit]
            for stored, key in old:
                del stored.idempotency[key]
            return len(old)

        return await self._wire.read("expire_idempotency", None, effect, mutates=True)

    # steps of the fanout

    async def note_first_log(self, log_identity: str) -> Outcome[str]:
        def effect() -> Outcome[str]:
            self._disk.first_log = self._disk.first_log or log_identity
            return Applied(self._disk.first_log)

        return await self._wire.step("note_first_log", None, effect)

    async def pending(self, writer_shard: int) -> Sequence[Pending]:
        def effect() -> Sequence[Pending]:
            return [
                Pending(key, stored.state.dispatched_through, stored.state.head_version)
                for key, stored in self._conversations.items()
                if stored.writer_shard == writer_shard
                and stored.state.dispatched_through < stored.state.head_version
            ]

        return await self._wire.read("pending", writer_shard, effect)

    async def outbox(self, key: ConversationKey, after: int, limit: int) -> Sequence[Event]:
        return await self._read(
            "outbox", key, (), lambda stored: stored.between(after, after + limit)
        )

    async def advance(
        self, writer_shard: int, epoch: int, progress: Sequence[Progress]
    ) -> Sequence[Outcome[None]]:
        stale = self._is_stale(writer_shard, epoch)
        return [await self._advance(epoch, one, shard_is_stale=stale) for one in progress]

    async def _advance(
        self, epoch: int, progress: Progress, *, shard_is_stale: bool
    ) -> Outcome[None]:
        def effect() -> Outcome[None]:
            stored = self._conversations.get(progress.key)
            if shard_is_stale:
                return _STALE_SHARD
            if stored is None:
                return _NO_CONVERSATION
            if stored.state.fencing_epoch > epoch:
                return _STALE_HEAD
            if progress.through > stored.state.head_version:
                return NotApplied(Refusal.HEAD_MOVED, "the head is below it")
            through = max(stored.state.dispatched_through, progress.through)
            stored.state = replace(stored.state, dispatched_through=through)
            return Applied(None)

        return await self._wire.step("advance", progress.key, effect, progress)

    # reads

    async def first_log(self) -> str | None:
        return await self._wire.read("first_log", None, lambda: self._disk.first_log)

    async def conversation(self, key: ConversationKey) -> ConversationState | None:
        return await self._read("conversation", key, None, lambda stored: stored.state)

    async def conversation_page(
        self, limit: int, after: ConversationKey | None = None
    ) -> Sequence[ConversationState]:
        above = ("", "") if after is None else _place(after)

        def effect() -> Sequence[ConversationState]:
            keys = sorted((key for key in self._conversations if _place(key) > above), key=_place)
            return [self._conversations[key].state for key in keys[:limit]]

        return await self._wire.read("conversation_page", None, effect)

    async def members_at(self, key: ConversationKey, conversation_seq: int) -> Sequence[UserId]:
        def members(stored: _Conversation) -> Sequence[UserId]:
            return sorted(
                user
                for user, intervals in stored.memberships.items()
                if any(
                    one.added_seq <= conversation_seq
                    and (one.removed_seq == 0 or conversation_seq < one.removed_seq)
                    for one in intervals
                )
            )

        return await self._read("members_at", key, (), members)

    async def current_members(
        self, key: ConversationKey, users: Sequence[UserId]
    ) -> Mapping[UserId, int]:
        def members(stored: _Conversation) -> Mapping[UserId, int]:
            since = {user: stored.added_seq(user) for user in users}
            return {user: added for user, added in since.items() if added is not None}

        return await self._read("current_members", key, {}, members)

    async def member_page(
        self, key: ConversationKey, after: str, limit: int
    ) -> Sequence[tuple[UserId, int]]:
        def page(stored: _Conversation) -> Sequence[tuple[UserId, int]]:
            return list(islice((one for one in stored.members() if one[0] > after), limit))

        return await self._read("member_page", key, (), page)

    async def intervals(self, key: ConversationKey, user: UserId) -> Sequence[Interval]:
        return await self._read(
            "intervals", key, (), lambda stored: tuple(stored.memberships.get(user, ()))
        )

    async def events(self, refs: Sequence[EventRef]) -> Mapping[EventId, bytes]:
        def effect() -> Mapping[EventId, bytes]:
            return {
                ref.event_id: event.encoded
                for ref in refs
                if (event := self._event_at(ref)) is not None
            }

        return await self._wire.read("events", None, effect)

    def _event_at(self, ref: EventRef) -> Event | None:
        stored = self._conversations.get(ref.key)
        if stored is None or not 0 < ref.conversation_seq <= len(stored.events):
            return None
        event, _ = stored.events[ref.conversation_seq - 1]
        return event if event.event_id == ref.event_id else None

    async def history(
        self, key: ConversationKey, intervals: Sequence[Interval], before_seq: int, limit: int
    ) -> Sequence[Event]:
        def newest(stored: _Conversation) -> Sequence[Event]:
            end = before_seq - 1 if before_seq > 0 else len(stored.events)
            seen = (
                event
                for event in reversed(stored.between(0, end))
                if _sees(intervals, event.conversation_seq)
            )
            return list(islice(seen, limit))[::-1]

        return await self._read("history", key, (), newest)

    async def count_unread(
        self,
        key: ConversationKey,
        user: UserId,
        intervals: Sequence[Interval],
        after: int,
        through: int,
    ) -> int:
        def count(stored: _Conversation) -> int:
            return sum(
                event.kind == EventKind.MESSAGE
                and event.sender != user
                and _sees(intervals, event.conversation_seq)
                for event in stored.between(after, through)
            )

        return await self._read("count_unread", key, 0, count)

    async def find_event(self, event_id: EventId) -> tuple[Event, int] | None:
        def effect() -> tuple[Event, int] | None:
            place = self._disk.places.get(event_id)
            if place is None:
                return None
            key, seq = place
            return self._conversations[key].events[seq - 1]

        return await self._wire.read("find_event", event_id, effect)

    # the auditor's

    async def audit_ranges(
        self, limit: int, after: ConversationKey | None = None
    ) -> Sequence[AuditRange]:
        def effect() -> Sequence[AuditRange]:
            due: list[tuple[tuple[str, str], AuditRange]] = []
            for key, stored in self._conversations.items():
                place = _place(key)
                audited, dispatched = stored.audited_through, stored.state.dispatched_through
                if audited < dispatched and (after is None or place > _place(after)):
                    insort(due, (place, AuditRange(key, audited, dispatched)), key=lambda x: x[0])
            return [one for _, one in due[:limit]]

        return await self._wire.read("audit_ranges", None, effect)

    async def event_ids(
        self, key: ConversationKey, after: int, through: int
    ) -> Sequence[tuple[int, EventId]]:
        def ids(stored: _Conversation) -> Sequence[tuple[int, EventId]]:
            return [
                (event.conversation_seq, event.event_id) for event in stored.between(after, through)
            ]

        return await self._read("event_ids", key, (), ids)

    async def set_audited(self, key: ConversationKey, through: int) -> Outcome[None]:
        def effect() -> Outcome[None]:
            stored = self._conversations.get(key)
            if stored is None:
                return _NO_CONVERSATION
            stored.audited_through = max(stored.audited_through, through)
            return Applied(None)

        return await self._wire.step("set_audited", key, effect)

    async def _read(
        self,
        op: str,
        key: ConversationKey,
        absent: _R,
        look: Callable[[_Conversation], _R],
    ) -> _R:
        def effect() -> _R:
            stored = self._conversations.get(key)
            return absent if stored is None else look(stored)

        return await self._wire.read(op, key, effect)
