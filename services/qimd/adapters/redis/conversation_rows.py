"""Conversations and events as scripts take and give them."""

import json
import sys
from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from qimd.adapters.redis.engine import Arg
from qimd.adapters.redis.packing import rows_of
from qimd.core.ids import EventId, join_key
from qimd.core.records import ConversationKey, Event, Interval
from qimd.ports.store import ConversationState, IdempotencyKey, NewEvent

STATE: Final = (
    "fencing_epoch",
    "head_version",
    "dispatched_through",
    "membership_version",
    "member_count",
    "last_created_at_ms",
    "created_at_ms",
)
"""The fields of a head that a ConversationState is made of, in its order."""

NO_END: Final = 1 << 62
"""Above every conversation_seq."""

SENDER_BYTES: Final = 4
"""Of each event in the string of senders (`lua/conversation_commit.lua`): little-endian."""

_TEXTS_OF_AN_EVENT: Final = 5
_DIGITS: Final = 16
"""Of each of the two numbers at the end of a membership (`lua/members.lua`)."""


def state_of(key: ConversationKey, values: Sequence[bytes]) -> ConversationState:
    """The state from its fields, in the order of STATE."""
    return ConversationState(key, *map(int, values))


def idempotency_field(key: IdempotencyKey) -> bytes:
    """What an idempotency key is called within its conversation."""
    return join_key(key.sender, key.client_msg_id)


def arguments_of(new: NewEvent, epoch: int) -> tuple[Arg, ...]:
    """What `conversation_commit.lua` takes of an event."""
    event = new.event
    row = (
        event.kind,
        event.sender,
        event.sender_device,
        event.membership_version,
        event.routing_version,
        event.chunk_recipients,
        epoch,
        event.trace_parent,
        event.added,
        event.removed,
    )
    return (
        event.conversation_seq,
        int(event.kind),
        event.sender or "",
        event.created_at_ms,
        event.event_id,
        b"" if new.idempotency is None else idempotency_field(new.idempotency),
        new.content_digest,
        json.dumps(row, ensure_ascii=False, separators=(",", ":")),
        event.encoded,
    )


def events_of(key: ConversationKey, data: bytes) -> list[tuple[Event, int]]:
    """Events from `events_in.lua`, each with its epoch, in increasing conversation_seq."""
    events = [_event(key, *texts) for texts in rows_of(data, _TEXTS_OF_AN_EVENT)]
    events.reverse()
    return events


def _event(
    key: ConversationKey,
    seq: bytes,
    event_id: bytes,
    created_at_ms: bytes,
    row: bytes,
    encoded: bytes,
) -> tuple[Event, int]:
    kind, sender, device, membership, routing, chunk, epoch, trace, added, removed = json.loads(row)
    event = Event(
        key=key,
        conversation_seq=int(seq),
        event_id=EventId(event_id),
        kind=kind,
        sender=sender,
        sender_device=device,
        created_at_ms=int(created_at_ms),
        membership_version=membership,
        routing_version=routing,
        chunk_recipients=chunk,
        encoded=encoded,
        trace_parent=trace,
        added=tuple(added),
        removed=tuple(removed),
    )
    return event, epoch


def span_of(first: int, last: int) -> tuple[int, int]:
    """Where the senders of [first, last] are in the string of them: first and last byte."""
    return SENDER_BYTES * (first - 1), SENDER_BYTES * last - 1


def unread_in(senders: bytes, reader: int) -> int:
    """The messages among these events that are not by the sender of number `reader` (0: nobody)."""
    numbers = array("I", senders)
    if sys.byteorder == "big":
        numbers.byteswap()
    own = numbers.count(reader) if reader else 0
    return len(numbers) - numbers.count(0) - own


def ranges_of(intervals: Sequence[Interval], first: int, last: int) -> list[tuple[int, int]]:
    """What the intervals see of [first, last], as increasing ranges that do not overlap: a removal
    and the next addition may be the same event.
    """
    ranges: list[tuple[int, int]] = []
    for interval in sorted(intervals, key=attrgetter("added_seq")):
        start = max(interval.added_seq, ranges[-1][1] + 1 if ranges else first)
        end = min(interval.removed_seq or NO_END, last)
        if start <= end:
            ranges.append((start, end))
    return ranges


def interval_of(member: bytes) -> Interval:
    """The interval that a member of the memberships stands for (`lua/members.lua`)."""
    return Interval(int(member[-2 * _DIGITS : -_DIGITS]), int(member[-_DIGITS:]))
