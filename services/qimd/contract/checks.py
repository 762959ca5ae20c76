"""What a parsed message must satisfy beyond its schema, one check a message, by full name.

A check sees structure: presence, pairing, enum and oneof, and values that no writer produces. The
limits of a request's values (design section 13) are the rooms' to judge, with INVALID_ARGUMENT that
names the field, since one bad event of a SEND must not refuse the others. Ids are checked where
they enter the system, not on every hop.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from qim.common.v1 import error_pb2
from qim.conversation.v1 import event_pb2
from qim.cursor.v1 import mailbox_cursor_pb2
from qim.dispatch.v1 import group_dispatch_pb2
from qim.gateway.v1 import gateway_pb2
from qimd.contract import hop_checks  # noqa: F401 - it adds to CHECKS
from qimd.contract.problems import (
    CHECKS,
    Check,
    Problem,
    check,
    counted,
    digest_problem,
    increasing,
    kind_problem,
    without_arm,
)
from qimd.contract.views import DeliveredColumns, EventColumns, frame_columns
from qimd.contract.violation import Reason
from qimd.core.ids import DIGEST_BYTES
from qimd.core.parameters import EXACT_INTEGER_MAX, LANES, SHARD_EPOCH_MAX

# --- frames -----------------------------------------------------------------------------------

UNPROMPTED: Final = frozenset({"push_events", "redirect", "kicked", "going_away"})
"""Server frames that answer nothing, hence carry request_id 0. An ERROR may: the stream's own."""


@check(gateway_pb2.ClientFrame)
def _client_frame(frame: gateway_pb2.ClientFrame) -> Problem | None:
    if frame.request_id == 0:
        return Problem(Reason.ZERO, "request_id")
    return None if frame.WhichOneof("frame") else without_arm(frame, "frame")


@check(gateway_pb2.ServerFrame)
def _server_frame(frame: gateway_pb2.ServerFrame) -> Problem | None:
    kind = frame.WhichOneof("frame")
    if kind is None:
        return without_arm(frame, "frame")
    if kind in UNPROMPTED:
        return Problem(Reason.DOMAIN, "request_id") if frame.request_id else None
    if frame.request_id == 0 and kind != "error":
        return Problem(Reason.ZERO, "request_id")
    return None


@check(gateway_pb2.DeliveredEvent)
def _delivered(delivered: gateway_pb2.DeliveredEvent) -> Problem | None:
    if delivered.mailbox_seq == 0:
        return Problem(Reason.ZERO, "mailbox_seq")
    return None if delivered.HasField("event") else Problem(Reason.MISSING, "event")


@check(gateway_pb2.MailboxPage)
def _page(page: gateway_pb2.MailboxPage) -> Problem | None:
    seqs = [delivered.mailbox_seq for delivered in page.events]
    return None if increasing(seqs) else Problem(Reason.DOMAIN, "events")


@check(gateway_pb2.HistoryPage)
def _history(page: gateway_pb2.HistoryPage) -> Problem | None:
    seqs = [event.conversation_seq for event in page.events]
    return None if increasing(seqs) else Problem(Reason.DOMAIN, "events")


@check(gateway_pb2.SendResult)
def _send_result(result: gateway_pb2.SendResult) -> Problem | None:
    return None if result.WhichOneof("outcome") else without_arm(result, "outcome")


@check(gateway_pb2.Accepted)
def _accepted(accepted: gateway_pb2.Accepted) -> Problem | None:
    return digest_problem(accepted.event_id, "event_id") or counted(
        accepted.conversation_seq, "conversation_seq"
    )


@check(gateway_pb2.EventSummary)
def _summary(summary: gateway_pb2.EventSummary) -> Problem | None:
    return (
        counted(summary.conversation_seq, "conversation_seq")
        or digest_problem(summary.event_id, "event_id")
        or kind_problem(summary.kind)
    )


@check(gateway_pb2.Report)
def _report(report: gateway_pb2.Report) -> Problem | None:
    return None if report.kind else Problem(Reason.MISSING, "kind")


@check(gateway_pb2.Kicked)
def _kicked(kicked: gateway_pb2.Kicked) -> Problem | None:
    return None if kicked.reason else Problem(Reason.MISSING, "reason")


@check(error_pb2.Error)
def _error(error: error_pb2.Error) -> Problem | None:
    if not error.code:
        return Problem(Reason.MISSING, "code")
    if error.code == error_pb2.ERROR_CODE_RATE_LIMITED and error.retry_after_ms == 0:
        return Problem(Reason.ZERO, "retry_after_ms")
    return None


# --- events -----------------------------------------------------------------------------------

_CONTENT_OF: Final[Mapping[int, str]] = {
    event_pb2.EVENT_KIND_MESSAGE: "message",
    event_pb2.EVENT_KIND_REACTION: "reaction",
    event_pb2.EVENT_KIND_MEMBERSHIP: "membership_change",
}
"""The content of each known kind. A kind of a newer release is carried with what it holds."""


@check(event_pb2.ConversationEvent)
def _event(event: event_pb2.ConversationEvent) -> Problem | None:
    if not event.conversation_id:
        return Problem(Reason.MISSING, "conversation_id")
    problem = (
        counted(event.conversation_seq, "conversation_seq")
        or digest_problem(event.event_id, "event_id")
        or kind_problem(event.kind)
    )
    if problem:
        return problem
    if event.kind != event_pb2.EVENT_KIND_MEMBERSHIP:
        if not event.sender_user_id:
            return Problem(Reason.MISSING, "sender_user_id")
        if not event.client_msg_id:
            return Problem(Reason.MISSING, "client_msg_id")
    content = _CONTENT_OF.get(event.kind)
    if content is not None and event.WhichOneof("content") != content:
        return Problem(Reason.DOMAIN, "content")
    return None


# --- lists of events --------------------------------------------------------------------------


def _good_list(frame: gateway_pb2.ServerFrame, data: bytes) -> bool:
    """Whether the frame is a list of events in which the walk would find nothing.

    A page or push has hundreds, and hardly ever a bad one, so this takes no step for each of them;
    only where it says no does the walk look, one by one. The codec has read the frame from `data`
    and lost nothing: no event has a field twice, or one that is spelled out as 0 or empty. Hence a
    column as long as there are events has one value of each. (A kind below 0 could hide a doubled
    field, as said in `_run`. No such kind is good here.)
    """
    arm = frame.WhichOneof("frame")
    if arm == "push_events":
        return _good_deliveries(frame.push_events.events, frame_columns(data).push_events.events)
    if arm == "mailbox_page":
        delivered = frame_columns(data).mailbox_page.events
        return increasing(delivered.mailbox_seq[:]) and _good_deliveries(
            frame.mailbox_page.events, delivered
        )
    if arm == "history_page":
        columns = frame_columns(data).history_page.events
        return increasing(columns.conversation_seq[:]) and _good_events(
            len(frame.history_page.events), columns, frame.history_page.events
        )
    return False


def _good_deliveries(
    delivered: Sequence[gateway_pb2.DeliveredEvent], columns: DeliveredColumns
) -> bool:
    count = len(delivered)
    return len(columns.mailbox_seq) == count and _good_events(
        count, columns.event, (each.event for each in delivered)
    )


def _good_events(
    count: int, columns: EventColumns, events: Iterable[event_pb2.ConversationEvent]
) -> bool:
    """Of `count` events; they themselves are read only if they are of several kinds."""
    if count == 0:
        return True
    identities, seqs, kinds = columns.event_id[:], columns.conversation_seq[:], columns.kind[:]
    if not len(columns.conversation_id) == len(identities) == len(seqs) == len(kinds) == count:
        return False
    if max(seqs) > EXACT_INTEGER_MAX or set(map(len, identities)) != {DIGEST_BYTES}:
        return False
    present = set(kinds)
    sent = len(columns.sender_user_id) == len(columns.client_msg_id) == count
    if not (sent or present == {event_pb2.EVENT_KIND_MEMBERSHIP}):
        return False
    if not present <= _CONTENT_OF.keys():
        return False
    if len(present) == 1:
        return len(getattr(columns, _CONTENT_OF[kinds[0]])) == count
    return [_CONTENT_OF[kind] for kind in kinds] == [e.WhichOneof("content") for e in events]


# --- dispatches -------------------------------------------------------------------------------


def header_problem(dispatch: group_dispatch_pb2.GroupDispatch) -> Problem | None:
    """What is wrong with a dispatch apart from its blocks."""
    return header_values_problem(
        fencing_epoch=dispatch.fencing_epoch,
        tenant_id=dispatch.tenant_id,
        conversation_id=dispatch.conversation_id,
        conversation_seq=dispatch.conversation_seq,
        event_id=dispatch.event_id,
        dispatch_id=dispatch.dispatch_id,
        kind=dispatch.kind,
        sender_user_id=dispatch.sender_user_id,
        chunk_index=dispatch.chunk_index,
        chunk_count=dispatch.chunk_count,
        log_identity=dispatch.log_identity,
        min_reader_version=dispatch.min_reader_version,
    )


def header_values_problem(
    *,
    fencing_epoch: int,
    tenant_id: str,
    conversation_id: str,
    conversation_seq: int,
    event_id: bytes,
    dispatch_id: bytes,
    kind: int,
    sender_user_id: str,
    chunk_index: int,
    chunk_count: int,
    log_identity: str,
    min_reader_version: int,
) -> Problem | None:
    """As `header_problem`, of the fields that have something to check."""
    if min_reader_version == 0:
        return Problem(Reason.ZERO, "min_reader_version")
    if not tenant_id:
        return Problem(Reason.MISSING, "tenant_id")
    if not conversation_id:
        return Problem(Reason.MISSING, "conversation_id")
    if not log_identity:
        return Problem(Reason.MISSING, "log_identity")
    if not sender_user_id and kind != event_pb2.EVENT_KIND_MEMBERSHIP:
        return Problem(Reason.MISSING, "sender_user_id")
    if chunk_index >= chunk_count:
        return Problem(Reason.DOMAIN, "chunk_index")
    return (
        counted(fencing_epoch, "fencing_epoch")
        or counted(conversation_seq, "conversation_seq")
        or digest_problem(event_id, "event_id")
        or digest_problem(dispatch_id, "dispatch_id")
        or kind_problem(kind)
    )


def blocks_problem(lanes: Sequence[int], users: Sequence[Sequence[str]]) -> Problem | None:
    """What is wrong with a dispatch's blocks, given as parallel sequences.

    No user is looked at but the first, which is where an empty id would stand: the users' order is
    checked once, when the blocks are made.
    """
    if not lanes:
        return Problem(Reason.MISSING, "blocks")
    if lanes[-1] >= LANES or not increasing(lanes):
        return Problem(Reason.DOMAIN, "blocks.lane")
    if not (all(users) and all(map(itemgetter(0), users))):
        return Problem(Reason.MISSING, "blocks.user_ids")
    return None


@check(group_dispatch_pb2.GroupDispatch)
def _dispatch(dispatch: group_dispatch_pb2.GroupDispatch) -> Problem | None:
    return header_problem(dispatch) or blocks_problem(
        [block.lane for block in dispatch.blocks], [block.user_ids for block in dispatch.blocks]
    )


# --- cursors ----------------------------------------------------------------------------------


@check(mailbox_cursor_pb2.MailboxCursor)
def _cursor(cursor: mailbox_cursor_pb2.MailboxCursor) -> Problem | None:
    for field in ("tenant_id", "user_id", "device_id", "key_id"):
        if not getattr(cursor, field):
            return Problem(Reason.MISSING, field)
    if cursor.lane_id >= LANES:
        return Problem(Reason.DOMAIN, "lane_id")
    if not 1 <= cursor.shard_epoch <= SHARD_EPOCH_MAX:
        return Problem(Reason.DOMAIN, "shard_epoch")
    return None


@check(mailbox_cursor_pb2.MailboxCursorToken)
def _cursor_token(token: mailbox_cursor_pb2.MailboxCursorToken) -> Problem | None:
    if not token.cursor:
        return Problem(Reason.MISSING, "cursor")
    return None if len(token.signature) == 32 else Problem(Reason.DOMAIN, "signature")


# --- the walk ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    """What of a message type there is to check, so that the walk skips everything else."""

    check: Check[Message] | None
    enums: tuple[str, ...]
    repeated: tuple[tuple[str, "_Plan"], ...]
    singular: tuple[tuple[str, "_Plan"], ...]
    oneofs: tuple[tuple[str, Mapping[str, "_Plan"]], ...]

    @property
    def idle(self) -> bool:
        """Nothing of it, or below it, is checked."""
        return not (self.check or self.enums or self.repeated or self.singular or self.oneofs)


@cache
def _plan(descriptor: Descriptor) -> _Plan:
    """The plan of a message type. The contract has no recursive messages (a test says so)."""
    enums: list[str] = []
    repeated: list[tuple[str, _Plan]] = []
    singular: list[tuple[str, _Plan]] = []
    oneofs: dict[str, dict[str, _Plan]] = {}
    for field in descriptor.fields:
        if field.type == FieldDescriptor.TYPE_ENUM and not field.is_repeated:
            enums.append(field.name)
        if field.message_type is None:
            continue
        nested = _plan(field.message_type)
        if nested.idle or descriptor is group_dispatch_pb2.GroupDispatch.DESCRIPTOR:
            continue
        if field.containing_oneof is not None:
            oneofs.setdefault(field.containing_oneof.name, {})[field.name] = nested
        else:
            (repeated if field.is_repeated else singular).append((field.name, nested))
    return _Plan(
        CHECKS.get(descriptor.full_name),
        tuple(enums),
        tuple(repeated),
        tuple(singular),
        tuple(oneofs.items()),
    )


def problem_of(message: Message, data: bytes = b"") -> Problem | None:
    """The first problem of the message or of one inside it; None if there is none.

    `data` is what the codec has read the message from, which helps with long lists; empty if there
    is no such.
    """
    if data and isinstance(message, gateway_pb2.ServerFrame) and _good_list(message, data):
        return _server_frame(message)
    return _run(_plan(message.DESCRIPTOR), message)


def _run(plan: _Plan, message: Message) -> Problem | None:
    if plan.check is not None and (problem := plan.check(message)):
        return problem
    for name in plan.enums:
        # An enum below 0 takes more bytes to write than some spellings that parse to it, so it
        # could make up for the bytes that a doubled field loses.
        if getattr(message, name) < 0:
            return Problem(Reason.DOMAIN, name)
    for name, nested in plan.repeated:
        # A slice is one call into C, where iterating is one an item.
        for index, item in enumerate(getattr(message, name)[:]):
            if problem := _run(nested, item):
                return problem.inside(f"{name}[{index}]")
    for name, nested in plan.singular:
        if message.HasField(name) and (problem := _run(nested, getattr(message, name))):
            return problem.inside(name)
    for oneof, arms in plan.oneofs:
        arm = message.WhichOneof(oneof)
        if arm in arms and (problem := _run(arms[arm], getattr(message, arm))):
            return problem.inside(arm)
    return None
