"""What is read of conversations: without a condition, at a quorum of replicas."""
# ruff: noqa: S608  (statements are put together from constants of this package alone)

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import merge
from typing import Final

from qimd.adapters.scylla.conversation_rows import (
    BUCKETS,
    EVENT,
    MEMBER,
    NAMES_MAX,
    OPEN,
    PLACE,
    SELECT_EVENTS,
    Head,
    Partitions,
    chunks,
    event_of,
)
from qimd.adapters.scylla.session import Row, Session
from qimd.core.ids import EventId, UserId
from qimd.core.records import ConversationKey, Event, EventKind, EventRef, Interval
from qimd.ports.store import (
    AuditRange,
    ConversationState,
    IdempotencyKey,
    PriorResult,
    key_of,
)

_EVENTS: Final = f"kind = {EVENT} AND name = 0x"
_MEMBERS: Final = f"kind = {MEMBER}"

_OUTBOX: Final = f"{SELECT_EVENTS} AND seq > ? LIMIT ?"
_NEWEST: Final = f"""
{SELECT_EVENTS} AND seq >= ? AND seq <= ? ORDER BY kind DESC, name DESC, seq DESC LIMIT ?
"""
_EVENT_AT: Final = f"{SELECT_EVENTS} AND seq = ?"
_EVENT_IDS: Final = f"""
SELECT seq, event_id FROM conversations WHERE {PLACE} AND {_EVENTS} AND seq > ? AND seq <= ?
"""
_BODIES: Final = f"""
SELECT event_id, encoded FROM conversations WHERE {PLACE} AND {_EVENTS} AND seq IN ?
"""
_COUNT: Final = f"""
SELECT COUNT(*) FROM conversations
WHERE {PLACE} AND {_EVENTS} AND seq >= ? AND seq <= ? AND event_kind = {int(EventKind.MESSAGE)}
"""
_COUNT_ALL: Final = f"{_COUNT} ALLOW FILTERING"
_COUNT_OWN: Final = f"{_COUNT} AND sender = ? ALLOW FILTERING"
_EVENT_PLACE: Final = """
SELECT tenant, conversation, seq FROM event_places WHERE deployment = ? AND event_id = ?
"""
# Filtered within one partition's memberships.
_MEMBERS_AT: Final = f"""
SELECT name FROM conversations
WHERE {PLACE} AND {_MEMBERS} AND seq <= ? AND removed_seq > ? ALLOW FILTERING
"""
_MEMBER_PAGE: Final = f"""
SELECT name, seq FROM conversations
WHERE {PLACE} AND {_MEMBERS} AND name > ? AND removed_seq = {OPEN} LIMIT ? ALLOW FILTERING
"""

_FIRST_LOG: Final = "SELECT first_log FROM deployments WHERE deployment = ?"

_AFTER: Final = "deployment = ? AND bucket = ? AND (tenant, conversation) > (?, ?) LIMIT ?"
_NAMES: Final = f"SELECT tenant, conversation FROM conversation_names WHERE {_AFTER}"
_UNAUDITED: Final = f"SELECT tenant, conversation FROM unaudited WHERE {_AFTER}"


class ConversationReads:
    """The reading half of `ports.store.ConversationStore`."""

    def __init__(self, session: Session, deployment: str) -> None:
        self._session = session
        self._deployment = deployment
        self._partitions = Partitions(session, deployment)

    async def prior_results(
        self, key: ConversationKey, keys: Sequence[IdempotencyKey]
    ) -> Mapping[IdempotencyKey, PriorResult]:
        return await self._partitions.results(key, keys)

    async def outbox(self, key: ConversationKey, after: int, limit: int) -> Sequence[Event]:
        return self._events(key, await self._rows(_OUTBOX, key, after, limit))

    async def conversation(self, key: ConversationKey) -> ConversationState | None:
        head = await self._partitions.head(key)
        return None if head is None else head.state

    async def conversation_page(
        self, limit: int, after: ConversationKey | None = None
    ) -> Sequence[ConversationState]:
        heads = await self._heads(_NAMES, limit, after, lambda head: True)
        return [head.state for head in heads]

    async def audit_ranges(
        self, limit: int, after: ConversationKey | None = None
    ) -> Sequence[AuditRange]:
        heads = await self._heads(
            _UNAUDITED,
            limit,
            after,
            lambda head: head.audited_through < head.state.dispatched_through,
        )
        return [
            AuditRange(head.state.key, head.audited_through, head.state.dispatched_through)
            for head in heads
        ]

    async def members_at(self, key: ConversationKey, conversation_seq: int) -> Sequence[UserId]:
        rows = await self._rows(_MEMBERS_AT, key, conversation_seq, conversation_seq)
        return [UserId(name.decode()) for (name,) in rows]

    async def current_members(
        self, key: ConversationKey, users: Sequence[UserId]
    ) -> Mapping[UserId, int]:
        found = await self._partitions.intervals(key, users)
        return {
            user: intervals[-1].added_seq
            for user, intervals in found.items()
            if intervals[-1].removed_seq == 0
        }

    async def member_page(
        self, key: ConversationKey, after: str, limit: int
    ) -> Sequence[tuple[UserId, int]]:
        rows = await self._rows(_MEMBER_PAGE, key, after.encode(), limit)
        return [(UserId(name.decode()), seq) for name, seq in rows]

    async def intervals(self, key: ConversationKey, user: UserId) -> Sequence[Interval]:
        return (await self._partitions.intervals(key, [user])).get(user, ())

    async def events(self, refs: Sequence[EventRef]) -> Mapping[EventId, bytes]:
        wanted: dict[ConversationKey, list[int]] = {}
        for ref in refs:
            wanted.setdefault(ref.key, []).append(ref.conversation_seq)
        pages = await self._session.rows_of_each(
            _BODIES,
            (
                (*self._partitions.place(key), some)
                for key, seqs in wanted.items()
                for some in chunks(seqs, NAMES_MAX)
            ),
        )
        asked = {ref.event_id for ref in refs}
        return {
            EventId(event_id): encoded
            for rows in pages
            for event_id, encoded in rows
            if event_id in asked
        }

    async def history(
        self, key: ConversationKey, intervals: Sequence[Interval], before_seq: int, limit: int
    ) -> Sequence[Event]:
        last = before_seq - 1 if before_seq > 0 else OPEN
        newest: list[Event] = []
        for interval in sorted(intervals, key=lambda one: one.added_seq, reverse=True):
            first, end = _part(interval, 1, last)
            if first <= end and len(newest) < limit:
                rows = await self._rows(_NEWEST, key, first, end, limit - len(newest))
                newest.extend(self._events(key, rows))
        return newest[::-1]

    async def count_unread(
        self,
        key: ConversationKey,
        user: UserId,
        intervals: Sequence[Interval],
        after: int,
        through: int,
    ) -> int:
        parts = [_part(interval, after + 1, through) for interval in intervals]
        spans = [(first, end) for first, end in parts if first <= end]
        counts = await asyncio.gather(
            *(self._rows(_COUNT_ALL, key, *span) for span in spans),
            *(self._rows(_COUNT_OWN, key, *span, user) for span in spans),
        )
        numbers: list[int] = [rows[0][0] for rows in counts]
        return sum(numbers[: len(spans)]) - sum(numbers[len(spans) :])

    async def find_event(self, event_id: EventId) -> tuple[Event, int] | None:
        places = await self._session.rows(_EVENT_PLACE, self._deployment, event_id)
        for tenant, conversation, seq in places:
            key = key_of(tenant, conversation)
            for row in await self._rows(_EVENT_AT, key, seq):
                return event_of(key, row), row[-1]
        return None

    async def event_ids(
        self, key: ConversationKey, after: int, through: int
    ) -> Sequence[tuple[int, EventId]]:
        rows = await self._rows(_EVENT_IDS, key, after, through)
        return [(seq, EventId(event_id)) for seq, event_id in rows]

    async def first_log(self) -> str | None:
        rows = await self._session.rows(_FIRST_LOG, self._deployment)
        return rows[0][0] if rows else None

    # --- what they share ---

    async def _rows(self, cql: str, key: ConversationKey, *values: object) -> Sequence[Row]:
        """Of a conversation's partition."""
        return await self._session.rows(cql, *self._partitions.place(key), *values)

    def _events(self, key: ConversationKey, rows: Iterable[Row]) -> list[Event]:
        return [event_of(key, row) for row in rows]

    async def _heads(
        self,
        names: str,
        limit: int,
        after: ConversationKey | None,
        wanted: Callable[[Head], bool],
    ) -> Sequence[Head]:
        """Up to `limit` heads that are wanted, of a list in buckets, in order above `after`."""
        found: list[Head] = []
        while len(found) < limit:
            keys = await self._names(names, limit, after)
            heads = await self._partitions.heads(keys)
            found.extend(head for head in heads if head is not None and wanted(head))
            if len(keys) < limit:
                break
            after = keys[-1]
        return found[:limit]

    async def _names(
        self, names: str, limit: int, after: ConversationKey | None
    ) -> Sequence[ConversationKey]:
        above = ("", "") if after is None else (after.tenant, after.conversation)
        pages = await self._session.rows_of_each(
            names, ((self._deployment, bucket, *above, limit) for bucket in range(BUCKETS))
        )
        return [key_of(*name) for name in list(merge(*pages))[:limit]]


def _part(interval: Interval, first: int, last: int) -> tuple[int, int]:
    """(first, last) of [first, last] that the interval sees; nothing if they cross."""
    return max(first, interval.added_seq), min(last, interval.removed_seq or last)
