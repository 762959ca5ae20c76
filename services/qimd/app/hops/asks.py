"""The calls of the ports as messages to another process, and how their answers are read."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, cast

from qim.control.v1.control_service_pb2 import RebaseShardRequest, RebuildProjectionRequest
from qim.conversation.v1.conversation_service_pb2 import (
    AddMembersRequest,
    AddMembersResponse,
    CreateConversationRequest,
    CreateConversationResponse,
    RemoveMembersRequest,
    RemoveMembersResponse,
)
from qim.conversation.v1.event_pb2 import EventKind
from qim.gateway.v1 import gateway_pb2
from qim.hop.v1 import hop_service_pb2 as hop
from qim.hop.v1.hop_service_pb2 import HopAnswer, HopCall
from qimd.contract.errors import error_of
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import ConversationId, EventId, TenantId, UserId
from qimd.core.parameters import REQUEST_TIMEOUT_S
from qimd.core.records import (
    Accepted,
    ConversationKey,
    DeliveredEvent,
    DeviceKey,
    EventSummary,
    SessionItem,
    UserKey,
)
from qimd.core.seq import MailboxSeq
from qimd.ports.services import (
    Commit,
    GapReport,
    OpenedDevice,
    Page,
    Rebased,
    RebasePlan,
    RebuildPlan,
)

R = TypeVar("R")

OPERATION_TIMEOUT_S: Final = 600.0
"""A rebase or rebuild goes through a shard's conversations: minutes, where a request has seconds.
"""


@dataclass(frozen=True, slots=True)
class Ask(Generic[R]):
    """One call. `read` makes the result of the answer, or raises the QimError that it is."""

    call: HopCall
    read: Callable[[HopAnswer], R]
    timeout_s: float = REQUEST_TIMEOUT_S


def _arm(answer: HopAnswer, *expected: str) -> str:
    """The answer's arm. Raises the answer's error, and INTERNAL for another arm."""
    arm = answer.WhichOneof("answer") or "an answer that is not known here"
    if arm == "error":
        raise error_of(answer.error)
    if arm not in expected:
        raise QimError(
            ErrorCode.INTERNAL, f"another process answered {' or '.join(expected)} by {arm}"
        )
    return arm


# --- writer -----------------------------------------------------------------------------------


def commit(command: Commit) -> Ask[Sequence[Accepted | QimError]]:
    """`Writer.commit`."""
    count = len(command.drafts)

    def read(answer: HopAnswer) -> Sequence[Accepted | QimError]:
        _arm(answer, "committed")
        results = [_result(result) for result in answer.committed.results]
        if len(results) != count:
            raise QimError(ErrorCode.INTERNAL, "a commit has another number of results than drafts")
        return results

    drafts = [
        hop.Draft(
            client_msg_id=draft.client_msg_id,
            kind=cast("EventKind", draft.kind),
            body=draft.body,
            target_seq=draft.target_seq,
        )
        for draft in command.drafts
    ]
    call = HopCall(
        tenant_id=command.key.tenant,
        user_id=command.sender,
        device_id=command.sender_device,
        commit=hop.Commit(
            conversation_id=command.key.conversation,
            drafts=drafts,
            trace_parent=command.trace_parent,
        ),
    )
    return Ask(call, read)


def _result(result: hop.CommitResult) -> Accepted | QimError:
    if result.WhichOneof("outcome") != "accepted":
        return error_of(result.error)
    accepted = result.accepted
    return Accepted(
        EventId(accepted.event_id),
        accepted.conversation_seq,
        accepted.created_at_ms,
        accepted.duplicate,
    )


# --- conversations ----------------------------------------------------------------------------


def create_conversation(request: CreateConversationRequest) -> Ask[CreateConversationResponse]:
    """`rooms.Conversations.CreateConversation`."""

    def read(answer: HopAnswer) -> CreateConversationResponse:
        _arm(answer, "conversation_created")
        return answer.conversation_created

    return Ask(HopCall(create_conversation=request), read)


def add_members(request: AddMembersRequest) -> Ask[AddMembersResponse]:
    """`rooms.Conversations.AddMembers`."""

    def read(answer: HopAnswer) -> AddMembersResponse:
        _arm(answer, "members_added")
        return answer.members_added

    return Ask(HopCall(add_members=request), read)


def remove_members(request: RemoveMembersRequest) -> Ask[RemoveMembersResponse]:
    """`rooms.Conversations.RemoveMembers`."""

    def read(answer: HopAnswer) -> RemoveMembersResponse:
        _arm(answer, "members_removed")
        return answer.members_removed

    return Ask(HopCall(remove_members=request), read)


# --- mailbox ----------------------------------------------------------------------------------


def open_device(device: DeviceKey) -> Ask[OpenedDevice]:
    """`Mailbox.open_device`."""

    def read(answer: HopAnswer) -> OpenedDevice:
        _arm(answer, "device_opened")
        opened = answer.device_opened
        return OpenedDevice(
            opened.cursor_token,
            MailboxSeq(opened.last_applied_mailbox_seq),
            MailboxSeq(opened.watermark_floor_seq),
        )

    return Ask(_by(device, HopCall(open_device=hop.OpenDevice())), read)


def pull(
    device: DeviceKey, cursor_token: bytes, last_applied: int, limit: int
) -> Ask[Page | Rebased]:
    """`Mailbox.pull`."""

    def read(answer: HopAnswer) -> Page | Rebased:
        if _arm(answer, "page", "cursor_rebased") == "page":
            return _page(answer.page)
        rebased = answer.cursor_rebased
        return Rebased(
            MailboxSeq(rebased.lost_from_seq),
            MailboxSeq(rebased.lost_through_seq),
            rebased.cursor_token,
            MailboxSeq(rebased.last_applied_mailbox_seq),
        )

    asked = gateway_pb2.PullMailbox(
        cursor_token=cursor_token, last_applied_mailbox_seq=last_applied, limit=limit
    )
    return Ask(_by(device, HopCall(pull_mailbox=asked)), read)


def ack(device: DeviceKey, last_applied: int, handed: MailboxSeq) -> Ask[MailboxSeq]:
    """`Mailbox.ack`."""

    def read(answer: HopAnswer) -> MailboxSeq:
        _arm(answer, "ack_ok")
        return MailboxSeq(answer.ack_ok.last_applied_mailbox_seq)

    asked = hop.Acknowledge(last_applied_mailbox_seq=last_applied, handed_seq=handed)
    return Ask(_by(device, HopCall(acknowledge=asked)), read)


def read_mailbox(user: UserKey, after: int, limit: int) -> Ask[Page]:
    """`Mailbox.read`."""

    def read(answer: HopAnswer) -> Page:
        _arm(answer, "page")
        return _page(answer.page)

    asked = hop.ReadMailbox(after_seq=after, limit=limit)
    return Ask(_for(user, HopCall(read_mailbox=asked)), read)


def report(user: UserKey, gap: GapReport) -> Ask[bool]:
    """`Mailbox.report`."""

    def read(answer: HopAnswer) -> bool:
        _arm(answer, "report_ok")
        return answer.report_ok.confirmed

    asked = gateway_pb2.Report(
        kind=cast("gateway_pb2.ReportKind", gap.kind),
        conversation_id=gap.key.conversation,
        from_conversation_seq=gap.from_seq,
        through_conversation_seq=gap.through_seq,
        covered_through_seq=gap.covered_through,
    )
    return Ask(_for(user, HopCall(report=asked)), read)


def rebase(shard: int, dry_run: bool) -> Ask[RebasePlan]:
    """`MailboxOperations.rebase`."""

    def read(answer: HopAnswer) -> RebasePlan:
        _arm(answer, "shard_rebased")
        plan = answer.shard_rebased
        return RebasePlan(
            shard=plan.mailbox_shard_id,
            fault=plan.fault,
            rebuild_epoch=plan.rebuild_epoch,
            log_epoch=plan.log_epoch,
            log_identity=plan.log_identity,
            first_offset=plan.first_offset,
            conversations=plan.conversations,
            events=plan.events,
        )

    asked = RebaseShardRequest(mailbox_shard_id=shard, dry_run=dry_run)
    return Ask(HopCall(rebase_shard=asked), read, OPERATION_TIMEOUT_S)


def _page(page: hop.Page) -> Page:
    return Page(
        events=[DeliveredEvent(MailboxSeq(each.mailbox_seq), each.event) for each in page.events],
        covered_through=MailboxSeq(page.covered_through_seq),
        more=page.more,
        cursor_token=page.cursor_token,
    )


# --- session ----------------------------------------------------------------------------------


def list_sessions(
    user: UserKey, page_token: bytes, limit: int
) -> Ask[tuple[Sequence[SessionItem], bytes]]:
    """`Sessions.list`."""

    def read(answer: HopAnswer) -> tuple[Sequence[SessionItem], bytes]:
        _arm(answer, "session_list")
        listed = answer.session_list
        return [_item(user.tenant, row) for row in listed.sessions], listed.next_page_token

    asked = gateway_pb2.PullSessionList(page_token=page_token, limit=limit)
    return Ask(_for(user, HopCall(pull_session_list=asked)), read)


def mark_read(user: UserKey, key: ConversationKey, through: int) -> Ask[tuple[int, int]]:
    """`Sessions.mark_read`."""

    def read(answer: HopAnswer) -> tuple[int, int]:
        _arm(answer, "read_ok")
        return answer.read_ok.read_through_seq, answer.read_ok.unread_count

    asked = gateway_pb2.MarkRead(conversation_id=key.conversation, read_through_seq=through)
    return Ask(_for(user, HopCall(mark_read=asked)), read)


def rebuild(partition: int, dry_run: bool) -> Ask[RebuildPlan]:
    """`SessionOperations.rebuild`."""

    def read(answer: HopAnswer) -> RebuildPlan:
        _arm(answer, "projection_rebuilt")
        plan = answer.projection_rebuilt
        return RebuildPlan(
            partition=plan.partition,
            dirty=plan.dirty,
            log_identity=plan.log_identity,
            next_offset=plan.next_offset,
            conversations=plan.conversations,
            events=plan.events,
            rows=plan.rows,
        )

    asked = RebuildProjectionRequest(partition=partition, dry_run=dry_run)
    return Ask(HopCall(rebuild_projection=asked), read, OPERATION_TIMEOUT_S)


def _item(tenant: TenantId, row: gateway_pb2.Session) -> SessionItem:
    return SessionItem(
        key=ConversationKey(tenant, ConversationId(row.conversation_id)),
        last_event=_summary(row.last_event) if row.HasField("last_event") else None,
        activity_ms=row.activity_at_ms,
        unread=row.unread_count,
        read_through=row.read_through_seq,
    )


def _summary(summary: gateway_pb2.EventSummary) -> EventSummary:
    return EventSummary(
        conversation_seq=summary.conversation_seq,
        event_id=EventId(summary.event_id),
        kind=int(summary.kind),
        sender=UserId(summary.sender_user_id) if summary.sender_user_id else None,
        created_at_ms=summary.created_at_ms,
        preview=summary.preview,
    )


# --- what is told, without an answer ----------------------------------------------------------


def presence(
    tenant: TenantId, *, online: Iterable[UserId] = (), offline: Iterable[UserId] = ()
) -> HopCall:
    """Users who came online at this process, or left it."""
    change = hop.Presence(online_user_ids=online, offline_user_ids=offline)
    return HopCall(tenant_id=tenant, presence=change)


def touched(key: ConversationKey, users: Collection[UserId], created_at_ms: int) -> HopCall:
    """`SessionSupplement.touched`."""
    touch = hop.Touched(
        conversation_id=key.conversation, user_ids=users, created_at_ms=created_at_ms
    )
    return HopCall(tenant_id=key.tenant, touched=touch)


def cancel(call_id: int) -> HopCall:
    """Nobody waits for the call any more."""
    return HopCall(cancel=hop.Cancel(call_id=call_id))


def _for(user: UserKey, call: HopCall) -> HopCall:
    """The call with the user that it is for."""
    call.tenant_id, call.user_id = user.tenant, user.user
    return call


def _by(device: DeviceKey, call: HopCall) -> HopCall:
    """The call with the device that it is for."""
    call.device_id = device.device
    return _for(device.owner, call)
