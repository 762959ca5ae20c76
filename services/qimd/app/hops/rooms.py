"""The called side: a call's message → the port of a room of this process → the answer's bytes."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from qim.control.v1.control_service_pb2 import RebaseShardResponse, RebuildProjectionResponse
from qim.conversation.v1.conversation_service_pb2 import (
    AddMembersRequest,
    AddMembersResponse,
    CreateConversationRequest,
    CreateConversationResponse,
    RemoveMembersRequest,
    RemoveMembersResponse,
)
from qim.gateway.v1 import gateway_pb2
from qim.hop.v1 import hop_service_pb2 as hop
from qim.hop.v1.hop_service_pb2 import HopAnswer, HopCall
from qimd.contract import codec
from qimd.contract.errors import error_message
from qimd.contract.frames import session_message
from qimd.contract.hops import page_answer
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import ConversationId, DeviceId, TenantId, UserId
from qimd.core.records import Accepted, ConversationKey, DeviceKey, Draft, UserKey
from qimd.core.seq import MailboxSeq
from qimd.ports.services import (
    Commit,
    GapReport,
    Mailbox,
    MailboxOperations,
    Page,
    Rebased,
    SessionOperations,
    Sessions,
    SessionSupplement,
    Writer,
)

R = TypeVar("R")


class Conversations(Protocol):
    """The administration of conversations as its handlers have it: calls of the contract that only
    the owner of the writer shard can serve. Each is idempotent, and raises QimError.
    """

    async def CreateConversation(
        self, request: CreateConversationRequest
    ) -> CreateConversationResponse:
        """Create a conversation with its first members."""

    async def AddMembers(self, request: AddMembersRequest) -> AddMembersResponse:
        """Add members by one membership event."""

    async def RemoveMembers(self, request: RemoveMembersRequest) -> RemoveMembersResponse:
        """Remove members by one membership event."""


@dataclass(frozen=True, slots=True)
class LocalRooms:
    """The rooms that other processes may call here. What a process does not run is None."""

    writer: Writer | None = None
    mailbox: Mailbox | None = None
    mailbox_operations: MailboxOperations | None = None
    sessions: Sessions | None = None
    session_operations: SessionOperations | None = None
    supplement: SessionSupplement | None = None
    conversations: Conversations | None = None


async def answer(rooms: LocalRooms, call: HopCall) -> bytes:
    """Make the call; gives the encoded HopAnswer. Raises QimError.

    Up to its first await this calls the room: calls that are begun in order reach it in order.
    """
    match call.WhichOneof("call"):
        case "commit":
            return await _commit(_here(rooms.writer), call)
        case "open_device":
            opened = await _here(rooms.mailbox).open_device(_device(call))
            message = hop.DeviceOpened(
                cursor_token=opened.cursor_token,
                last_applied_mailbox_seq=opened.last_applied,
                watermark_floor_seq=opened.floor,
            )
            return codec.encode(HopAnswer(call_id=call.call_id, device_opened=message))
        case "pull_mailbox":
            asked = call.pull_mailbox
            pulled = await _here(rooms.mailbox).pull(
                _device(call), asked.cursor_token, asked.last_applied_mailbox_seq, asked.limit
            )
            return _pulled(call.call_id, pulled)
        case "acknowledge":
            acked = await _here(rooms.mailbox).ack(
                _device(call),
                call.acknowledge.last_applied_mailbox_seq,
                MailboxSeq(call.acknowledge.handed_seq),
            )
            ack_ok = gateway_pb2.AckOk(last_applied_mailbox_seq=acked)
            return codec.encode(HopAnswer(call_id=call.call_id, ack_ok=ack_ok))
        case "read_mailbox":
            page = await _here(rooms.mailbox).read(
                _user(call), call.read_mailbox.after_seq, call.read_mailbox.limit
            )
            return _pulled(call.call_id, page)
        case "report":
            confirmed = await _here(rooms.mailbox).report(_user(call), _gap(call))
            report_ok = gateway_pb2.ReportOk(confirmed=confirmed)
            return codec.encode(HopAnswer(call_id=call.call_id, report_ok=report_ok))
        case "pull_session_list":
            return await _list(_here(rooms.sessions), call)
        case "mark_read":
            return await _mark_read(_here(rooms.sessions), call)
        case "create_conversation" | "add_members" | "remove_members":
            return await _administer(_here(rooms.conversations), call)
        case "rebase_shard":
            return await _rebase(_here(rooms.mailbox_operations), call)
        case "rebuild_projection":
            return await _rebuild(_here(rooms.session_operations), call)
        case _:
            raise QimError(ErrorCode.UNIMPLEMENTED, "this process does not know the call")


def error_answer(call_id: int, error: QimError) -> bytes:
    """The encoded HopAnswer of a failure; of the stream itself with call_id 0."""
    return codec.encode(HopAnswer(call_id=call_id, error=error_message(error)))


def _here(room: R | None) -> R:
    """The room. Raises NOT_OWNER where this process does not run it."""
    if room is None:
        raise QimError(ErrorCode.NOT_OWNER, "this process does not run the room")
    return room


def _user(call: HopCall) -> UserKey:
    return UserKey(TenantId(call.tenant_id), UserId(call.user_id))


def _device(call: HopCall) -> DeviceKey:
    return DeviceKey(TenantId(call.tenant_id), UserId(call.user_id), DeviceId(call.device_id))


def _conversation(call: HopCall, conversation: str) -> ConversationKey:
    return ConversationKey(TenantId(call.tenant_id), ConversationId(conversation))


# --- writer -----------------------------------------------------------------------------------


async def _commit(writer: Writer, call: HopCall) -> bytes:
    asked = call.commit
    results = await writer.commit(
        Commit(
            key=_conversation(call, asked.conversation_id),
            sender=UserId(call.user_id),
            sender_device=DeviceId(call.device_id),
            drafts=[
                Draft(draft.client_msg_id, int(draft.kind), draft.body, draft.target_seq)
                for draft in asked.drafts
            ],
            trace_parent=asked.trace_parent,
        )
    )
    committed = hop.Committed(results=map(_result, results))
    return codec.encode(HopAnswer(call_id=call.call_id, committed=committed))


def _result(result: Accepted | QimError) -> hop.CommitResult:
    if isinstance(result, QimError):
        return hop.CommitResult(error=error_message(result))
    return hop.CommitResult(
        accepted=gateway_pb2.Accepted(
            event_id=result.event_id,
            conversation_seq=result.conversation_seq,
            created_at_ms=result.created_at_ms,
            duplicate=result.duplicate,
        )
    )


async def _administer(conversations: Conversations, call: HopCall) -> bytes:
    made = HopAnswer(call_id=call.call_id)
    match call.WhichOneof("call"):
        case "create_conversation":
            created = await conversations.CreateConversation(call.create_conversation)
            made.conversation_created.CopyFrom(created)
        case "add_members":
            added = await conversations.AddMembers(call.add_members)
            made.members_added.CopyFrom(added)
        case _:
            removed = await conversations.RemoveMembers(call.remove_members)
            made.members_removed.CopyFrom(removed)
    return codec.encode(made)


# --- mailbox ----------------------------------------------------------------------------------


def _pulled(call_id: int, pulled: Page | Rebased) -> bytes:
    if isinstance(pulled, Page):
        return page_answer(
            call_id, pulled.events, pulled.covered_through, pulled.cursor_token, pulled.more
        )
    rebased = gateway_pb2.CursorRebased(
        lost_from_seq=pulled.lost_from,
        lost_through_seq=pulled.lost_through,
        cursor_token=pulled.cursor_token,
        last_applied_mailbox_seq=pulled.last_applied,
    )
    return codec.encode(HopAnswer(call_id=call_id, cursor_rebased=rebased))


def _gap(call: HopCall) -> GapReport:
    asked = call.report
    return GapReport(
        kind=int(asked.kind),
        key=_conversation(call, asked.conversation_id),
        from_seq=asked.from_conversation_seq,
        through_seq=asked.through_conversation_seq,
        covered_through=MailboxSeq(asked.covered_through_seq),
    )


async def _rebase(operations: MailboxOperations, call: HopCall) -> bytes:
    asked = call.rebase_shard
    plan = await operations.rebase(asked.mailbox_shard_id, dry_run=asked.dry_run)
    rebased = RebaseShardResponse(
        mailbox_shard_id=plan.shard,
        fault=plan.fault,
        rebuild_epoch=plan.rebuild_epoch,
        log_epoch=plan.log_epoch,
        log_identity=plan.log_identity,
        first_offset=plan.first_offset,
        conversations=plan.conversations,
        events=plan.events,
        dry_run=asked.dry_run,
    )
    return codec.encode(HopAnswer(call_id=call.call_id, shard_rebased=rebased))


# --- session ----------------------------------------------------------------------------------


async def _list(sessions: Sessions, call: HopCall) -> bytes:
    asked = call.pull_session_list
    items, next_page = await sessions.list(_user(call), asked.page_token, asked.limit)
    listed = gateway_pb2.SessionList(
        sessions=map(session_message, items), next_page_token=next_page
    )
    return codec.encode(HopAnswer(call_id=call.call_id, session_list=listed))


async def _mark_read(sessions: Sessions, call: HopCall) -> bytes:
    key = _conversation(call, call.mark_read.conversation_id)
    mark, unread = await sessions.mark_read(_user(call), key, call.mark_read.read_through_seq)
    read_ok = gateway_pb2.ReadOk(
        conversation_id=key.conversation, read_through_seq=mark, unread_count=unread
    )
    return codec.encode(HopAnswer(call_id=call.call_id, read_ok=read_ok))


async def _rebuild(operations: SessionOperations, call: HopCall) -> bytes:
    asked = call.rebuild_projection
    plan = await operations.rebuild(asked.partition, dry_run=asked.dry_run)
    rebuilt = RebuildProjectionResponse(
        partition=plan.partition,
        dirty=plan.dirty,
        log_identity=plan.log_identity,
        next_offset=plan.next_offset,
        conversations=plan.conversations,
        events=plan.events,
        rows=plan.rows,
        dry_run=asked.dry_run,
    )
    return codec.encode(HopAnswer(call_id=call.call_id, projection_rebuilt=rebuilt))
