"""The partition of a conversation: its head, and three kinds of rows.

- An event: name empty, seq its conversation_seq.
- A result, what the first SEND under an idempotency key gave: name the key, seq 0.
- A membership interval: name the user, seq where it begins; `removed_seq` OPEN while it lasts.
"""
# ruff: noqa: S608  (statements are put together from constants of this package alone)

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from qimd.adapters.scylla.session import Row, Session, Write
from qimd.core.ids import DeviceId, EventId, UserId, sized
from qimd.core.parameters import IDEMPOTENCY_WINDOW_MS
from qimd.core.records import ConversationKey, Event, Interval
from qimd.core.routing import route_hash
from qimd.ports.store import ConversationState, IdempotencyKey, NewEvent, PriorResult

T = TypeVar("T")

EVENT, RESULT, MEMBER = 1, 2, 3
OPEN: Final = (1 << 63) - 1
"""The removed_seq of a member: above every real one, so that one comparison tells who is in."""

RESULT_KEPT_S: Final = IDEMPOTENCY_WINDOW_MS // 1000 + 3600
"""The engine forgets results by itself: an hour after they may be, since clocks differ."""

NAMES_MAX: Final = 100
"""Rows named in one statement: ScyllaDB refuses more by default."""

BUCKETS: Final = 16
"""Partitions of a list that spans all conversations: enough to spread its writes, few enough to be
read side by side for one page."""

PLACE: Final = "deployment = ? AND tenant = ? AND conversation = ?"

_HEAD: Final = f"""
SELECT DISTINCT fencing_epoch, head_version, dispatched_through, membership_version, member_count,
                last_created_at_ms, created_at_ms, writer_shard, last_request_id, audited_through
FROM conversations WHERE {PLACE}
"""

_EVENT_COLUMNS: Final = (
    "seq, event_id, event_kind, sender, sender_device, at_ms, of_membership_version, "
    "routing_version, chunk_recipients, encoded, trace_parent, added, removed"
)
SELECT_EVENTS: Final = f"""
SELECT {_EVENT_COLUMNS}, epoch FROM conversations WHERE {PLACE} AND kind = {EVENT} AND name = 0x
"""
INSERT_EVENT: Final = f"""
INSERT INTO conversations (deployment, tenant, conversation, kind, name, {_EVENT_COLUMNS}, epoch)
VALUES (?, ?, ?, {EVENT}, 0x, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
INSERT_RESULT: Final = f"""
INSERT INTO conversations (deployment, tenant, conversation, kind, name, seq,
                           event_id, result_seq, at_ms, content_digest)
VALUES (?, ?, ?, {RESULT}, ?, 0, ?, ?, ?, ?) USING TTL {RESULT_KEPT_S}
"""
INSERT_MEMBER: Final = f"""
INSERT INTO conversations (deployment, tenant, conversation, kind, name, seq, removed_seq)
VALUES (?, ?, ?, {MEMBER}, ?, ?, ?)
"""
_RESULTS: Final = f"""
SELECT name, event_id, result_seq, at_ms, content_digest FROM conversations
WHERE {PLACE} AND kind = {RESULT} AND name IN ?
"""
_INTERVALS: Final = f"""
SELECT name, seq, removed_seq FROM conversations WHERE {PLACE} AND kind = {MEMBER} AND name IN ?
"""


@dataclass(frozen=True, slots=True)
class Head:
    """The static columns of a conversation."""

    state: ConversationState
    writer_shard: int
    last_request_id: bytes | None
    audited_through: int


class Partitions:
    """Conversations as partitions of one deployment."""

    def __init__(self, session: Session, deployment: str) -> None:
        self.session = session
        self.deployment = deployment

    def place(self, key: ConversationKey) -> tuple[str, str, str]:
        """The partition key."""
        return self.deployment, key.tenant, key.conversation

    async def head(self, key: ConversationKey) -> Head | None:
        """The head; None without such a conversation. Raises QimError(UNAVAILABLE)."""
        return _head(key, await self.session.rows(_HEAD, *self.place(key)))

    async def heads(self, keys: Sequence[ConversationKey]) -> Sequence[Head | None]:
        """The heads of many."""
        found = await self.session.rows_of_each(_HEAD, map(self.place, keys))
        return [_head(key, rows) for key, rows in zip(keys, found, strict=True)]

    async def decided_head(self, key: ConversationKey) -> Head | None:
        """The same once every step that was begun is decided."""
        return _head(key, await self.session.rows_decided(_HEAD, *self.place(key)))

    async def results(
        self, key: ConversationKey, keys: Iterable[IdempotencyKey]
    ) -> Mapping[IdempotencyKey, PriorResult]:
        """Those of the idempotency keys that were used."""
        asked = {result_name(one): one for one in keys}
        found: dict[IdempotencyKey, PriorResult] = {}
        for name, event_id, seq, at_ms, digest in await self._named(_RESULTS, key, asked):
            found[asked[name]] = PriorResult(EventId(event_id), seq, at_ms, digest)
        return found

    async def intervals(
        self, key: ConversationKey, users: Iterable[UserId]
    ) -> Mapping[UserId, Sequence[Interval]]:
        """The memberships of each of the users that has any, oldest first."""
        found: dict[UserId, list[Interval]] = {}
        names = [user.encode() for user in users]
        for name, seq, removed in await self._named(_INTERVALS, key, names):
            interval = Interval(seq, 0 if removed == OPEN else removed)
            found.setdefault(UserId(name.decode()), []).append(interval)
        return found

    async def _named(self, cql: str, key: ConversationKey, names: Iterable[bytes]) -> Sequence[Row]:
        """The rows of a partition that have one of the names."""
        place = self.place(key)
        pages = await asyncio.gather(
            *(self.session.rows(cql, *place, some) for some in chunks(names, NAMES_MAX))
        )
        return [row for rows in pages for row in rows]

    # --- what a commit writes ---

    def event_writes(self, new: NewEvent, epoch: int) -> Iterator[Write]:
        """The event, and the result of its SEND."""
        event, place = new.event, self.place(new.event.key)
        yield Write(
            INSERT_EVENT,
            (
                *place,
                event.conversation_seq,
                event.event_id,
                event.kind,
                event.sender or "",
                event.sender_device or "",
                event.created_at_ms,
                event.membership_version,
                event.routing_version,
                event.chunk_recipients,
                event.encoded,
                event.trace_parent,
                event.added,
                event.removed,
                epoch,
            ),
        )
        if new.idempotency is not None:
            name = result_name(new.idempotency)
            given = (event.event_id, event.conversation_seq, event.created_at_ms)
            yield Write(INSERT_RESULT, (*place, name, *given, new.content_digest))

    def member_writes(
        self, key: ConversationKey, changed: Mapping[UserId, Sequence[Interval]]
    ) -> Iterator[Write]:
        """Memberships that begin or end."""
        for user, intervals in changed.items():
            for interval in intervals:
                removed = interval.removed_seq or OPEN
                values = (*self.place(key), user.encode(), interval.added_seq, removed)
                yield Write(INSERT_MEMBER, values)


def event_of(key: ConversationKey, row: Row) -> Event:
    """From a row of SELECT_EVENTS."""
    seq, event_id, kind, sender, device, at_ms, version, routing, chunk, encoded, trace = row[:11]
    added, removed = row[11:13]
    return Event(
        key=key,
        conversation_seq=seq,
        event_id=EventId(event_id),
        kind=kind,
        sender=UserId(sender) if sender else None,
        sender_device=DeviceId(device) if device else None,
        created_at_ms=at_ms,
        membership_version=version,
        routing_version=routing,
        chunk_recipients=chunk,
        encoded=encoded,
        trace_parent=trace,
        added=tuple(added or ()),
        removed=tuple(removed or ()),
    )


def result_name(key: IdempotencyKey) -> bytes:
    """An idempotency key as the name of its row, injectively."""
    return sized(key.sender) + key.client_msg_id.encode()


def bucket_of(key: ConversationKey) -> int:
    """Where a list of all conversations has it."""
    return route_hash(key.tenant, key.conversation) % BUCKETS


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items, so many at a time."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def _head(key: ConversationKey, rows: Sequence[Row]) -> Head | None:
    # A partition that was touched and never made has no epoch.
    if not rows or rows[0][0] is None:
        return None
    *numbers, writer_shard, last_request_id, audited_through = rows[0]
    state = ConversationState(key, *numbers)
    return Head(state, writer_shard, last_request_id, audited_through or 0)
