"""What spans tell of hints whose traces are recorded. Read only by who records."""

from collections.abc import Iterable, Iterator

from qim.gateway.v1.gateway_pb2 import DeliveredEvent
from qimd.contract import codec
from qimd.core.ids import ConversationId, EventId, UserId
from qimd.core.records import ConversationKey, EventRef
from qimd.ports.services import Hint
from qimd.telemetry.tracing import Traced


def traced(hints: Iterable[Hint]) -> Iterator[Traced]:
    """Their events, which nobody else parses here. Raises ContractViolation."""
    for hint in hints:
        delivered = codec.parse(DeliveredEvent, hint.delivered)
        event = delivered.event
        ref = EventRef(
            ConversationKey(hint.tenant, ConversationId(event.conversation_id)),
            event.conversation_seq,
            EventId(event.event_id),
            int(event.kind),
            UserId(event.sender_user_id) if event.sender_user_id else None,
            event.created_at_ms,
        )
        yield Traced(hint.trace_parent, ref, delivered.mailbox_seq)
