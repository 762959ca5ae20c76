"""Frames of the hop between processes, joined from calls and answers that are encoded already.

Pages and hints are joined from the bytes of events, which are parsed nowhere between the store and
the client.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from qim.hop.v1.hop_service_pb2 import (
    Hint,
    HopAnswer,
    HopReply,
    HopRequest,
    Page,
    PageEvent,
    TracedEvent,
)
from qimd.contract import codec, wire
from qimd.contract.events import encode_delivered
from qimd.contract.frames import EncodedFrame
from qimd.contract.problems import Problem
from qimd.contract.violation import Reason
from qimd.core.ids import TenantId, UserId
from qimd.core.records import DeliveredEvent
from qimd.core.seq import MailboxSeq

_CALL_ID_TAG: Final = wire.tag(HopAnswer.CALL_ID_FIELD_NUMBER, wire.VARINT)


def request_frame(calls: Iterable[bytes]) -> bytes:
    """A HopRequest of encoded HopCalls."""
    return wire.repeated(HopRequest.CALLS_FIELD_NUMBER, calls)


def reply_frame(answers: Iterable[bytes]) -> EncodedFrame:
    """A HopReply of encoded HopAnswers."""
    return EncodedFrame(wire.repeated(HopReply.ANSWERS_FIELD_NUMBER, answers), "answers")


def page_answer(
    call_id: int,
    events: Sequence[DeliveredEvent],
    covered_through: int,
    cursor_token: bytes,
    more: bool,
) -> bytes:
    """A HopAnswer with a page. An empty token replaces none. Raises ContractViolation."""
    if call_id <= 0:
        raise codec.violation(HopAnswer(), Problem(Reason.ZERO, "call_id"))
    # A PageEvent is written as a DeliveredEvent is; a reader leaves its event as bytes.
    payload = wire.repeated(
        Page.EVENTS_FIELD_NUMBER, (encode_delivered(event.seq, event.encoded) for event in events)
    )
    payload += wire.number(Page.COVERED_THROUGH_SEQ_FIELD_NUMBER, covered_through)
    if cursor_token:
        payload += wire.delimited(Page.CURSOR_TOKEN_FIELD_NUMBER, cursor_token)
    payload += wire.number(Page.MORE_FIELD_NUMBER, more)
    head = _CALL_ID_TAG + wire.varint(call_id)
    return head + wire.delimited(HopAnswer.PAGE_FIELD_NUMBER, payload)


def hint_events(delivered: Sequence[bytes], trace_parents: Sequence[str]) -> bytes:
    """Encoded DeliveredEvents as the part of a Hint that is the same for every receiver, with the
    traceparent of each, empty for one that is not recorded.
    """
    traced = [
        codec.encode(TracedEvent(index=index, trace_parent=trace_parent))
        for index, trace_parent in enumerate(trace_parents)
        if trace_parent
    ]
    return wire.repeated(Hint.DELIVERED_FIELD_NUMBER, delivered) + wire.repeated(
        Hint.TRACED_FIELD_NUMBER, traced
    )


def hint_answer(tenant: TenantId, users: Sequence[UserId], events: bytes) -> bytes:
    """A HopAnswer with a Hint for these users; `events` comes from `hint_events`."""
    payload = (
        wire.delimited(Hint.TENANT_ID_FIELD_NUMBER, tenant.encode())
        + wire.repeated(Hint.USER_IDS_FIELD_NUMBER, map(str.encode, users))
        + events
    )
    return wire.delimited(HopAnswer.HINT_FIELD_NUMBER, payload)


def delivered_seq(delivered: bytes) -> MailboxSeq:
    """The mailbox_seq of an encoded DeliveredEvent, whose event is not parsed.

    Raises ContractViolation.
    """
    return MailboxSeq(codec.parse(PageEvent, delivered).mailbox_seq)
