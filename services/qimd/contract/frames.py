"""Server frames, encoded. Pages, pushes and histories are joined from bytes: an event is encoded
once when it is committed, and never parsed on its way to a client.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from qim.conversation.v1 import event_pb2
from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import HistoryPage, MailboxPage, PushEvents, ServerFrame
from qimd.contract import codec, wire
from qimd.contract.errors import error_message
from qimd.contract.problems import Problem
from qimd.contract.violation import ContractViolation, Reason
from qimd.core.errors import QimError
from qimd.core.records import Accepted, EventSummary, SessionItem


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """A ServerFrame's bytes. `kind` is its arm: `send_ack`, `push_events` …"""

    data: bytes = field(repr=False)
    kind: str


def server_frame(frame: ServerFrame) -> EncodedFrame:
    """Encode a frame. Raises ContractViolation."""
    kind = frame.WhichOneof("frame")
    if kind is None:
        raise codec.violation(frame, Problem(Reason.MISSING, "frame"))
    return EncodedFrame(codec.encode(frame), kind)


def page_frame(
    request_id: int,
    delivered: Sequence[bytes],
    covered_through: int,
    cursor_token: bytes,
    more: bool,
) -> EncodedFrame:
    """A MAILBOX_PAGE of encoded DeliveredEvents. An empty token replaces none."""
    payload = wire.repeated(MailboxPage.EVENTS_FIELD_NUMBER, delivered) + wire.number(
        MailboxPage.COVERED_THROUGH_SEQ_FIELD_NUMBER, covered_through
    )
    if cursor_token:
        payload += wire.delimited(MailboxPage.CURSOR_TOKEN_FIELD_NUMBER, cursor_token)
    payload += wire.number(MailboxPage.MORE_FIELD_NUMBER, more)
    return _answer(request_id, ServerFrame.MAILBOX_PAGE_FIELD_NUMBER, payload, "mailbox_page")


def push_frame(delivered: Sequence[bytes]) -> EncodedFrame:
    """A PUSH_EVENTS of encoded DeliveredEvents."""
    payload = wire.repeated(PushEvents.EVENTS_FIELD_NUMBER, delivered)
    return EncodedFrame(
        wire.delimited(ServerFrame.PUSH_EVENTS_FIELD_NUMBER, payload), "push_events"
    )


def history_frame(
    request_id: int, conversation_id: str, events: Sequence[bytes], more: bool
) -> EncodedFrame:
    """A HISTORY_PAGE of encoded ConversationEvents."""
    payload = b"".join(
        (
            wire.delimited(HistoryPage.CONVERSATION_ID_FIELD_NUMBER, conversation_id.encode()),
            wire.repeated(HistoryPage.EVENTS_FIELD_NUMBER, events),
            wire.number(HistoryPage.MORE_FIELD_NUMBER, more),
        )
    )
    return _answer(request_id, ServerFrame.HISTORY_PAGE_FIELD_NUMBER, payload, "history_page")


def _answer(request_id: int, arm: int, payload: bytes, kind: str) -> EncodedFrame:
    if request_id <= 0:
        raise ContractViolation(ServerFrame.DESCRIPTOR.full_name, Reason.ZERO, field="request_id")
    head = wire.number(ServerFrame.REQUEST_ID_FIELD_NUMBER, request_id)
    return EncodedFrame(head + wire.delimited(arm, payload), kind)


def error_frame(request_id: int, error: QimError) -> EncodedFrame:
    """An ERROR: the answer to a request, or with request_id 0 the stream's own."""
    return server_frame(ServerFrame(request_id=request_id, error=error_message(error)))


def session_message(item: SessionItem) -> gateway_pb2.Session:
    """One row of a session list."""
    return gateway_pb2.Session(
        conversation_id=item.key.conversation,
        last_event=_summary(item.last_event) if item.last_event else None,
        activity_at_ms=item.activity_ms,
        unread_count=item.unread,
        read_through_seq=item.read_through,
    )


def _summary(summary: EventSummary) -> gateway_pb2.EventSummary:
    return gateway_pb2.EventSummary(
        conversation_seq=summary.conversation_seq,
        event_id=summary.event_id,
        kind=cast("event_pb2.EventKind", summary.kind),
        sender_user_id=summary.sender or "",
        created_at_ms=summary.created_at_ms,
        preview=summary.preview,
    )


def send_result(draft_id: str, result: Accepted | QimError) -> gateway_pb2.SendResult:
    """The answer to one event of a SEND. `draft_id` is its client_msg_id, as it came."""
    if isinstance(result, QimError):
        return gateway_pb2.SendResult(client_msg_id=draft_id, error=error_message(result))
    return gateway_pb2.SendResult(
        client_msg_id=draft_id,
        accepted=gateway_pb2.Accepted(
            event_id=result.event_id,
            conversation_seq=result.conversation_seq,
            created_at_ms=result.created_at_ms,
            duplicate=result.duplicate,
        ),
    )
