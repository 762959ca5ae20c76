"""From what was decided to the step that the store applies: ids, times, pins, encoded events.

The only place of the room that makes events. Each is encoded once, here; pages and pushes carry the
same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from qimd.contract.events import encode_event
from qimd.core.ids import DeviceId, UserId, content_digest, event_id, join_key
from qimd.core.records import Event, EventKind
from qimd.ports.store import ConversationState, NewEvent
from qimd.writer.logic import Candidate, MembershipChange

_NO_CHANGE: Final = MembershipChange()


@dataclass(frozen=True, slots=True)
class Pins:
    """What an event pins of its dispatch, so that a replay builds the same records."""

    routing_version: int
    chunk_recipients: int


@dataclass(frozen=True, slots=True)
class Content:
    """An event before it has a place."""

    kind: int
    sender: UserId | None = None
    sender_device: DeviceId | None = None
    client_msg_id: str = ""
    body: bytes = b""
    target_seq: int = 0
    trace_parent: str = ""
    change: MembershipChange = _NO_CHANGE


def content_of(candidate: Candidate) -> Content:
    """A draft's content."""
    return Content(
        kind=candidate.draft.kind,
        sender=candidate.key.sender,
        sender_device=candidate.sender_device,
        client_msg_id=candidate.draft.client_msg_id,
        body=candidate.draft.body,
        target_seq=candidate.draft.target_seq,
        trace_parent=candidate.trace_parent,
    )


def place_event(
    state: ConversationState, pins: Pins, seq: int, created_at_ms: int, content: Content
) -> Event:
    """The event at `seq`, encoded. Raises ContractViolation for what the contract refuses."""
    key = state.key
    identity = event_id(key.tenant, key.conversation, seq)
    # A membership change is its own version: its recipients are those before and those after it.
    version = seq if content.kind == EventKind.MEMBERSHIP else state.membership_version
    encoded = encode_event(
        key=key,
        conversation_seq=seq,
        event_id=identity,
        kind=content.kind,
        sender=content.sender,
        sender_device=content.sender_device,
        created_at_ms=created_at_ms,
        client_msg_id=content.client_msg_id,
        membership_version=version,
        body=content.body,
        target_seq=content.target_seq,
        added=content.change.added,
        removed=content.change.removed,
    )
    return Event(
        key=key,
        conversation_seq=seq,
        event_id=identity,
        kind=content.kind,
        sender=content.sender,
        sender_device=content.sender_device,
        created_at_ms=created_at_ms,
        membership_version=version,
        routing_version=pins.routing_version,
        chunk_recipients=pins.chunk_recipients,
        encoded=encoded,
        trace_parent=content.trace_parent,
        added=content.change.added,
        removed=content.change.removed,
    )


def place_drafts(
    state: ConversationState, pins: Pins, created_at_ms: int, candidates: Sequence[Candidate]
) -> list[NewEvent]:
    """The candidates as consecutive events from `head_version + 1` on."""
    return [
        NewEvent(
            event=place_event(state, pins, seq, created_at_ms, content_of(candidate)),
            idempotency=candidate.key,
            content_digest=candidate.digest,
            client_msg_id=candidate.draft.client_msg_id,
        )
        for seq, candidate in enumerate(candidates, state.head_version + 1)
    ]


def place_change(
    state: ConversationState, pins: Pins, created_at_ms: int, change: MembershipChange
) -> NewEvent:
    """The membership event at `head_version + 1`. An administrator's: it has no sender."""
    content = Content(kind=EventKind.MEMBERSHIP, change=change)
    return NewEvent(
        event=place_event(state, pins, state.head_version + 1, created_at_ms, content),
        idempotency=None,
        content_digest=content_digest(join_key(*change.added), join_key(*change.removed)),
    )
