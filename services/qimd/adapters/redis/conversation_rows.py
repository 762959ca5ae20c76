"""Conversations and events as scripts take and give them."""

import json
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from qimd.adapters.redis.engine import Arg
from qimd.adapters.redis.packing import rows_of
from qimd.core.ids import DeviceId, EventId, UserId, join_key
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

_TEXTS_OF_AN_EVENT: Final = 7
_DIGITS: Final = 16
"""Of each of the two numbers at the end of a membership (`lua/members.lua`)."""


def state_of(key: ConversationKey, values: Sequence[bytes]) -> ConversationState:
    """The state from its fields, in the order of STATE."""
    return ConversationState(key, *map(int, values))


def idempotency_field(key: IdempotencyKey) -> bytes:
    """What an idempotency key is called within its conversation."""
    return join_key(key.sender, key.client_msg_id)


def arguments_of(new: NewEvent, epoch: int) -> tuple[Arg, ...]:
    """What `conversation_commit.lua` takes of an event.

    `pins` is what no script looks at, but for who came and who went.
    """
    event = new.event
    pins = {
        "device": event.sender_device,
        "membership_version": event.membership_version,
        "routing_version": event.routing_version,
        "chunk_recipients": event.chunk_recipients,
        "fencing_epoch": epoch,
        "trace_parent": event.trace_parent,
        "added": event.added,
        "removed": event.removed,
    }
    return (
        event.conversation_seq,
        int(event.kind),
        event.sender or "",
        event.created_at_ms,
        event.event_id,
        b"" if new.idempotency is None else idempotency_field(new.idempotency),
        new.content_digest,
        json.dumps(pins, ensure_ascii=False, separators=(",", ":")),
        event.encoded,
    )


def events_of(key: ConversationKey, data: bytes) -> list[tuple[Event, int]]:
    """Events from `events_in.lua`, each with its epoch, in increasing conversation_seq."""
    events = [_event(key, row) for row in rows_of(data, _TEXTS_OF_AN_EVENT)]
    events.reverse()
    return events


def _event(key: ConversationKey, row: Sequence[bytes]) -> tuple[Event, int]:
    seq, kind, sender, created_at_ms, event_id, pins, encoded = row
    pinned: dict[str, Any] = json.loads(pins)
    device = pinned["device"]
    event = Event(
        key=key,
        conversation_seq=int(seq),
        event_id=EventId(event_id),
        kind=int(kind),
        sender=UserId(sender.decode()) if sender else None,
        sender_device=None if device is None else DeviceId(device),
        created_at_ms=int(created_at_ms),
        membership_version=pinned["membership_version"],
        routing_version=pinned["routing_version"],
        chunk_recipients=pinned["chunk_recipients"],
        encoded=encoded,
        trace_parent=pinned["trace_parent"],
        added=tuple(pinned["added"]),
        removed=tuple(pinned["removed"]),
    )
    return event, pinned["fencing_epoch"]


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
