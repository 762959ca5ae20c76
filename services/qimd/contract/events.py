"""ConversationEvents: encoded once when they are committed, carried as those bytes ever after."""

from collections.abc import Sequence
from typing import Final, cast

from google.protobuf.unknown_fields import UnknownFieldSet

from qim.conversation.v1 import event_pb2
from qim.conversation.v1.event_pb2 import ConversationEvent, MembershipChange, Message, Reaction
from qim.gateway.v1.gateway_pb2 import DeliveredEvent, OutgoingEvent
from qimd.contract import codec, wire
from qimd.contract.problems import Problem
from qimd.contract.violation import ContractViolation, Reason
from qimd.core.errors import ErrorCode, QimError, invalid
from qimd.core.ids import DeviceId, EventId, UserId, check_id, content_digest
from qimd.core.parameters import (
    BODY_BYTES_MAX,
    EXACT_INTEGER_MAX,
    REACTION_BYTES_MAX,
    SESSION_PREVIEW_BYTES,
)
from qimd.core.records import ConversationKey, Draft, EventKind, EventSummary


def encode_event(
    *,
    key: ConversationKey,
    conversation_seq: int,
    event_id: EventId,
    kind: int,
    sender: UserId | None,
    sender_device: DeviceId | None,
    created_at_ms: int,
    client_msg_id: str,
    membership_version: int,
    body: bytes = b"",
    target_seq: int = 0,
    added: Sequence[UserId] = (),
    removed: Sequence[UserId] = (),
) -> bytes:
    """The event's bytes. `body` is a message's, or a reaction's text in UTF-8.

    Raises ContractViolation for what is no event, such as a kind that this build does not make.
    """
    event = ConversationEvent(
        conversation_id=key.conversation,
        conversation_seq=conversation_seq,
        event_id=event_id,
        kind=cast("event_pb2.EventKind", kind),
        sender_user_id=sender or "",
        sender_device_id=sender_device or "",
        created_at_ms=created_at_ms,
        client_msg_id=client_msg_id,
        membership_version=membership_version,
    )
    if kind == EventKind.MESSAGE:
        event.message.CopyFrom(Message(body=body))
    elif kind == EventKind.REACTION:
        event.reaction.CopyFrom(Reaction(target_seq=target_seq, reaction=_text(event, body)))
    elif kind == EventKind.MEMBERSHIP:
        event.membership_change.CopyFrom(
            MembershipChange(added_user_ids=added, removed_user_ids=removed)
        )
    else:
        raise codec.violation(event, Problem(Reason.DOMAIN, "kind"))
    return codec.encode(event)


def _text(event: ConversationEvent, body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        # Without the cause: it quotes the body.
        raise codec.violation(event, Problem(Reason.DOMAIN, "reaction.reaction")) from None


def decode_event(data: bytes) -> ConversationEvent:
    """The event. Raises ContractViolation."""
    return codec.decode(ConversationEvent, data)


_SEQ_TAG: Final = wire.tag(DeliveredEvent.MAILBOX_SEQ_FIELD_NUMBER, wire.VARINT)
_EVENT_TAG: Final = wire.tag(DeliveredEvent.EVENT_FIELD_NUMBER, wire.LENGTH_DELIMITED)


def encode_delivered(seq: int, encoded_event: bytes) -> bytes:
    """The DeliveredEvent around an encoded event, which is not parsed.

    Raises ContractViolation for a mailbox_seq of 0.
    """
    if seq <= 0:
        raise ContractViolation(
            DeliveredEvent.DESCRIPTOR.full_name, Reason.ZERO, field="mailbox_seq"
        )
    size = wire.varint(len(encoded_event))
    return b"".join((_SEQ_TAG, wire.varint(seq), _EVENT_TAG, size, encoded_event))


def summarise(encoded_event: bytes) -> EventSummary:
    """What a session list shows of the event: the first 256 bytes of a body, or a reaction."""
    event = decode_event(encoded_event)
    content = event.WhichOneof("content")
    preview = b""
    if content == "message":
        preview = event.message.body[:SESSION_PREVIEW_BYTES]
    elif content == "reaction":
        preview = event.reaction.reaction.encode()
    return EventSummary(
        conversation_seq=event.conversation_seq,
        event_id=EventId(event.event_id),
        kind=int(event.kind),
        sender=UserId(event.sender_user_id) if event.sender_user_id else None,
        created_at_ms=event.created_at_ms,
        preview=preview,
    )


def draft_of(outgoing: OutgoingEvent, field: str) -> Draft:
    """The draft that a client sends as `field`, such as `send.events[3]`.

    Raises QimError(INVALID_ARGUMENT) naming the field that is outside its limits (design section
    13), and QimError(UNIMPLEMENTED) for a content that only a newer server knows.
    """
    client_msg_id = check_id(outgoing.client_msg_id, f"{field}.client_msg_id")
    content = outgoing.WhichOneof("content")
    if content == "message":
        body = outgoing.message.body
        if len(body) > BODY_BYTES_MAX:
            raise _too_long(f"{field}.message.body", len(body), BODY_BYTES_MAX)
        return Draft(client_msg_id, EventKind.MESSAGE, body)
    if content == "reaction":
        return _reaction_draft(client_msg_id, outgoing.reaction, f"{field}.reaction")
    if len(UnknownFieldSet(outgoing)):
        raise QimError(
            ErrorCode.UNIMPLEMENTED, f"{field} has a content that is not known here", field=field
        )
    raise invalid(f"{field} has no content", f"{field}.content")


def _reaction_draft(client_msg_id: str, reaction: Reaction, field: str) -> Draft:
    text = reaction.reaction.encode()
    if not text:
        raise invalid(f"{field}.reaction is empty", f"{field}.reaction")
    if len(text) > REACTION_BYTES_MAX:
        raise _too_long(f"{field}.reaction", len(text), REACTION_BYTES_MAX)
    if not 1 <= reaction.target_seq <= EXACT_INTEGER_MAX:
        raise invalid(f"{field}.target_seq is outside 1..2^53 - 1", f"{field}.target_seq")
    return Draft(client_msg_id, EventKind.REACTION, text, reaction.target_seq)


def _too_long(field: str, size: int, limit: int) -> QimError:
    return invalid(f"{field} has {size} bytes; at most {limit} are allowed", field)


def draft_digest(draft: Draft) -> bytes:
    """16 bytes over an explicit tuple of fields: the same content has the same digest, however it
    was built or spelled on the wire.
    """
    return content_digest(
        draft.kind.to_bytes(4, "big"), draft.target_seq.to_bytes(8, "big"), draft.body
    )
