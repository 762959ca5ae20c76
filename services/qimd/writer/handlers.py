"""The writer's calls: requests of the contract in, responses out. Failures are QimErrors.

Registration with a server, the admin token and the mapping to a status are the application's.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from qim.conversation.v1 import conversation_service_pb2 as conversation_pb
from qim.gateway.v1 import gateway_pb2
from qim.writer.v1 import writer_service_pb2 as writer_pb
from qimd.contract.events import draft_of
from qimd.contract.frames import send_result
from qimd.core.errors import ErrorCode, QimError, invalid
from qimd.core.ids import ConversationId, DeviceId, TenantId, UserId, check_id
from qimd.core.parameters import MEMBERSHIP_CHANGE_USERS_MAX, SEND_EVENTS_MAX
from qimd.core.records import Accepted, ConversationKey, Draft
from qimd.ports.services import Commit, Writer
from qimd.ports.store import ConversationState, ConversationStore
from qimd.writer.service import WriterService

MEMBER_PAGE_MAX: Final = MEMBERSHIP_CHANGE_USERS_MAX
"""A page of ListMembers holds as many users as a membership event: about 128 KiB of ids."""


class WriterHandlers:
    """`qim.writer.v1.WriterService`: commits for any user of a tenant, on the admin token."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def Commit(self, request: writer_pb.CommitRequest) -> writer_pb.CommitResponse:
        """As SEND, for a named sender: a draft that is refused does not refuse the others."""
        key = _key(request.tenant_id, request.conversation_id)
        sender = UserId(check_id(request.sender_user_id, "sender_user_id"))
        device = DeviceId(check_id(request.sender_device_id, "sender_device_id"))
        if not 1 <= len(request.events) <= SEND_EVENTS_MAX:
            raise invalid(
                f"a commit holds 1 to {SEND_EVENTS_MAX} events, not {len(request.events)}", "events"
            )
        drafts = [_draft(event, index) for index, event in enumerate(request.events)]
        valid = [draft for draft in drafts if isinstance(draft, Draft)]
        committed: Sequence[Accepted | QimError] = ()
        if valid:
            committed = await self._writer.commit(Commit(key, sender, device, valid))
        left = iter(committed)
        results = [
            _placed(next(left), index) if isinstance(draft, Draft) else draft
            for index, draft in enumerate(drafts)
        ]
        return writer_pb.CommitResponse(
            results=[
                send_result(event.client_msg_id, result)
                for event, result in zip(request.events, results, strict=True)
            ]
        )


class ConversationChanges:
    """The calls of ConversationService that only the owner of the conversation can serve."""

    def __init__(self, writer: WriterService) -> None:
        self._writer = writer

    async def CreateConversation(
        self, request: conversation_pb.CreateConversationRequest
    ) -> conversation_pb.CreateConversationResponse:
        """Create a conversation with its first members."""
        state = await self._writer.create_conversation(
            TenantId(request.tenant_id),
            ConversationId(request.conversation_id),
            request.member_user_ids,
        )
        return conversation_pb.CreateConversationResponse(conversation=_message(state))

    async def AddMembers(
        self, request: conversation_pb.AddMembersRequest
    ) -> conversation_pb.AddMembersResponse:
        """Add members by one membership event."""
        changed = await self._writer.add_members(
            TenantId(request.tenant_id), ConversationId(request.conversation_id), request.user_ids
        )
        return conversation_pb.AddMembersResponse(
            conversation_seq=changed.conversation_seq, conversation=_message(changed.state)
        )

    async def RemoveMembers(
        self, request: conversation_pb.RemoveMembersRequest
    ) -> conversation_pb.RemoveMembersResponse:
        """Remove members by one membership event, of which they are told themselves."""
        changed = await self._writer.remove_members(
            TenantId(request.tenant_id), ConversationId(request.conversation_id), request.user_ids
        )
        return conversation_pb.RemoveMembersResponse(
            conversation_seq=changed.conversation_seq, conversation=_message(changed.state)
        )


class Changes(Protocol):
    """`ConversationChanges`, here or in the owner's process."""

    async def CreateConversation(
        self, request: conversation_pb.CreateConversationRequest
    ) -> conversation_pb.CreateConversationResponse:
        """Create a conversation with its first members."""

    async def AddMembers(
        self, request: conversation_pb.AddMembersRequest
    ) -> conversation_pb.AddMembersResponse:
        """Add members by one membership event."""

    async def RemoveMembers(
        self, request: conversation_pb.RemoveMembersRequest
    ) -> conversation_pb.RemoveMembersResponse:
        """Remove members by one membership event, of which they are told themselves."""


class ConversationHandlers:
    """`qim.conversation.v1.ConversationService`: administration, on the admin token."""

    def __init__(self, changes: Changes, conversations: ConversationStore) -> None:
        self._conversations = conversations
        self.CreateConversation = changes.CreateConversation
        self.AddMembers = changes.AddMembers
        self.RemoveMembers = changes.RemoveMembers

    async def GetConversation(
        self, request: conversation_pb.GetConversationRequest
    ) -> conversation_pb.GetConversationResponse:
        """The conversation as it is stored. Any node answers."""
        state = await self._state(_key(request.tenant_id, request.conversation_id))
        return conversation_pb.GetConversationResponse(conversation=_message(state))

    async def ListMembers(
        self, request: conversation_pb.ListMembersRequest
    ) -> conversation_pb.ListMembersResponse:
        """A page of the members of now, in byte order. Any node answers."""
        key = _key(request.tenant_id, request.conversation_id)
        if request.after_user_id:
            check_id(request.after_user_id, "after_user_id")
        if request.limit > MEMBER_PAGE_MAX:
            raise invalid(f"limit is above {MEMBER_PAGE_MAX}", "limit")
        limit = request.limit or MEMBER_PAGE_MAX
        await self._state(key)
        # One more than asked for tells whether there are more.
        page = await self._conversations.member_page(key, request.after_user_id, limit + 1)
        return conversation_pb.ListMembersResponse(
            members=[
                conversation_pb.Member(user_id=user, added_seq=added)
                for user, added in page[:limit]
            ],
            more=len(page) > limit,
        )

    async def _state(self, key: ConversationKey) -> ConversationState:
        state = await self._conversations.conversation(key)
        if state is None:
            raise QimError(ErrorCode.NOT_FOUND, "there is no such conversation")
        return state


def _key(tenant: str, conversation: str) -> ConversationKey:
    return ConversationKey(
        TenantId(check_id(tenant, "tenant_id")),
        ConversationId(check_id(conversation, "conversation_id")),
    )


def _draft(event: gateway_pb2.OutgoingEvent, index: int) -> Draft | QimError:
    try:
        return draft_of(event, f"events[{index}]")
    except QimError as error:
        return error


def _placed(result: Accepted | QimError, index: int) -> Accepted | QimError:
    return result.inside(f"events[{index}]") if isinstance(result, QimError) else result


def _message(state: ConversationState) -> conversation_pb.Conversation:
    return conversation_pb.Conversation(
        tenant_id=state.key.tenant,
        conversation_id=state.key.conversation,
        head_version=state.head_version,
        dispatched_through=state.dispatched_through,
        membership_version=state.membership_version,
        member_count=state.member_count,
        fencing_epoch=state.fencing_epoch,
        created_at_ms=state.created_at_ms,
    )
