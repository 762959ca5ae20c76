"""Between the contract's messages and the application's values."""

from collections.abc import Iterable
from typing import cast

from qim.conversation.v1 import event_pb2
from qim.gateway.v1 import gateway_pb2
from qimd.client.model import Event, Message, Reaction, Report, Sent, Session


def event_of(message: event_pb2.ConversationEvent, mailbox_seq: int = 0) -> Event:
    """An event of a history page, or of a mailbox."""
    change = message.membership_change
    return Event(
        conversation=message.conversation_id,
        seq=message.conversation_seq,
        event_id=message.event_id,
        kind=message.kind,
        sender=message.sender_user_id,
        sender_device=message.sender_device_id,
        created_at_ms=message.created_at_ms,
        client_msg_id=message.client_msg_id,
        membership_version=message.membership_version,
        body=message.message.body,
        reaction=message.reaction.reaction,
        target_seq=message.reaction.target_seq,
        added=tuple(change.added_user_ids),
        removed=tuple(change.removed_user_ids),
        mailbox_seq=mailbox_seq,
    )


def delivered(messages: Iterable[gateway_pb2.DeliveredEvent]) -> list[Event]:
    """The events of a page or a push."""
    return [event_of(message.event, message.mailbox_seq) for message in messages]


def outgoing(content: Message | Reaction, client_msg_id: str) -> gateway_pb2.OutgoingEvent:
    """One event of a SEND."""
    if isinstance(content, Message):
        message = event_pb2.Message(body=content.body)
        return gateway_pb2.OutgoingEvent(client_msg_id=client_msg_id, message=message)
    reaction = event_pb2.Reaction(target_seq=content.target_seq, reaction=content.reaction)
    return gateway_pb2.OutgoingEvent(client_msg_id=client_msg_id, reaction=reaction)


def sent_of(result: gateway_pb2.SendResult) -> Sent:
    """An accepted event of a SEND_ACK."""
    accepted = result.accepted
    return Sent(
        client_msg_id=result.client_msg_id,
        event_id=accepted.event_id,
        seq=accepted.conversation_seq,
        created_at_ms=accepted.created_at_ms,
        duplicate=accepted.duplicate,
    )


def session_of(message: gateway_pb2.Session) -> Session:
    """A row of the session list."""
    last = message.last_event
    return Session(
        conversation=message.conversation_id,
        activity_at_ms=message.activity_at_ms,
        unread=message.unread_count,
        read_through_seq=message.read_through_seq,
        last_seq=last.conversation_seq,
        last_event_id=last.event_id,
        last_kind=last.kind,
        last_sender=last.sender_user_id,
        preview=last.preview,
    )


def report_frame(report: Report) -> gateway_pb2.ClientFrame:
    """The REPORT of what was seen."""
    return gateway_pb2.ClientFrame(
        report=gateway_pb2.Report(
            kind=cast("gateway_pb2.ReportKind", int(report.kind)),
            conversation_id=report.conversation,
            from_conversation_seq=report.from_seq,
            through_conversation_seq=report.through_seq,
            covered_through_seq=report.covered_through,
        )
    )
