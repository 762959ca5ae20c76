"""The operator's client: blocking calls on the admin token. For tools, not for applications.

Methods return the contract's own messages and raise QimError.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, TypeVar

import grpc
from google.protobuf.message import Message

from qim.control.v1 import (
    control_service_pb2,
    control_service_pb2_grpc,
    shadow_service_pb2,
    shadow_service_pb2_grpc,
)
from qim.conversation.v1 import conversation_service_pb2, conversation_service_pb2_grpc
from qim.mailbox.v1 import mailbox_service_pb2, mailbox_service_pb2_grpc
from qim.session.v1 import session_service_pb2, session_service_pb2_grpc
from qim.tenant.v1 import tenant_service_pb2, tenant_service_pb2_grpc
from qimd.contract.grpc_status import from_rpc_error
from qimd.contract.grpc_sync import StrictChannel
from qimd.core.parameters import FRAME_BYTES_MAX, MEMBERSHIP_CHANGE_USERS_MAX

Response = TypeVar("Response", bound=Message)

_MEMBERS_PAGE: Final = 1_000


class AdminClient:
    """Administration of tenants, conversations and the running system.

    `timeout_s` is the gRPC deadline of each call. Plain text unless `credentials` is given.
    """

    def __init__(
        self,
        address: str,
        admin_token: str,
        *,
        timeout_s: float = 10.0,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        options = [("grpc.max_receive_message_length", 2 * FRAME_BYTES_MAX)]
        self._channel = (
            grpc.secure_channel(address, credentials, options=options)
            if credentials is not None
            else grpc.insecure_channel(address, options=options)
        )
        channel = StrictChannel(self._channel)
        self._tenants = tenant_service_pb2_grpc.TenantServiceStub(channel)
        self._conversations = conversation_service_pb2_grpc.ConversationServiceStub(channel)
        self._control = control_service_pb2_grpc.ControlServiceStub(channel)
        self._shadow = shadow_service_pb2_grpc.ShadowServiceStub(channel)
        self._mailbox = mailbox_service_pb2_grpc.MailboxServiceStub(channel)
        self._session = session_service_pb2_grpc.SessionServiceStub(channel)
        self._metadata = (("authorization", f"Bearer {admin_token}"),)
        self._timeout_s = timeout_s

    def __enter__(self) -> "AdminClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def _call(self, method: Callable[..., Response], request: Message) -> Response:
        try:
            return method(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    # --- tenants ------------------------------------------------------------------------------

    def create_tenant(self, tenant: str, keys: Mapping[str, bytes]) -> tenant_service_pb2.Tenant:
        """Create a tenant. `keys`: key id → raw Ed25519 public key, 32 bytes."""
        request = tenant_service_pb2.CreateTenantRequest(
            tenant_id=tenant,
            keys=[
                tenant_service_pb2.TenantKey(key_id=key_id, public_key=key)
                for key_id, key in keys.items()
            ],
        )
        return self._call(self._tenants.CreateTenant, request).tenant

    def get_tenant(self, tenant: str) -> tenant_service_pb2.Tenant:
        """A tenant, with its public keys."""
        request = tenant_service_pb2.GetTenantRequest(tenant_id=tenant)
        return self._call(self._tenants.GetTenant, request).tenant

    # --- conversations ------------------------------------------------------------------------

    def create_conversation(
        self, tenant: str, conversation: str, members: Sequence[str]
    ) -> conversation_service_pb2.Conversation:
        """Create a conversation with any number of members: one membership event per 1,000."""
        first, rest = members[:MEMBERSHIP_CHANGE_USERS_MAX], members[MEMBERSHIP_CHANGE_USERS_MAX:]
        request = conversation_service_pb2.CreateConversationRequest(
            tenant_id=tenant, conversation_id=conversation, member_user_ids=first
        )
        created = self._call(self._conversations.CreateConversation, request).conversation
        return self.add_members(tenant, conversation, rest) if rest else created

    def get_conversation(
        self, tenant: str, conversation: str
    ) -> conversation_service_pb2.Conversation:
        """A conversation's head and counts."""
        request = conversation_service_pb2.GetConversationRequest(
            tenant_id=tenant, conversation_id=conversation
        )
        return self._call(self._conversations.GetConversation, request).conversation

    def add_members(
        self, tenant: str, conversation: str, users: Sequence[str]
    ) -> conversation_service_pb2.Conversation:
        """Add any number of members; those who are members already are left out."""
        for part in _parts(users):
            request = conversation_service_pb2.AddMembersRequest(
                tenant_id=tenant, conversation_id=conversation, user_ids=part
            )
            self._call(self._conversations.AddMembers, request)
        return self.get_conversation(tenant, conversation)

    def remove_members(
        self, tenant: str, conversation: str, users: Sequence[str]
    ) -> conversation_service_pb2.Conversation:
        """Remove any number of members."""
        for part in _parts(users):
            request = conversation_service_pb2.RemoveMembersRequest(
                tenant_id=tenant, conversation_id=conversation, user_ids=part
            )
            self._call(self._conversations.RemoveMembers, request)
        return self.get_conversation(tenant, conversation)

    def members(self, tenant: str, conversation: str) -> Iterator[conversation_service_pb2.Member]:
        """All members, by their ids' bytes."""
        after = ""
        while True:
            request = conversation_service_pb2.ListMembersRequest(
                tenant_id=tenant,
                conversation_id=conversation,
                after_user_id=after,
                limit=_MEMBERS_PAGE,
            )
            page = self._call(self._conversations.ListMembers, request)
            yield from page.members
            if not page.more or not page.members:
                return
            after = page.members[-1].user_id

    # --- the running system -------------------------------------------------------------------

    def trace(self, event_id: bytes) -> control_service_pb2.TraceEventResponse:
        """One event through every stage. `event_id`: 16 bytes."""
        request = control_service_pb2.TraceEventRequest(event_id=event_id)
        return self._call(self._control.TraceEvent, request)

    def quarantine(self, limit: int = 0) -> Sequence[control_service_pb2.QuarantinedRecord]:
        """What could not be decoded, or not be produced, newest first."""
        request = control_service_pb2.ListQuarantineRequest(limit=limit)
        return self._call(self._control.ListQuarantine, request).records

    def rebase_shard(self, shard: int, *, dry_run: bool) -> control_service_pb2.RebaseShardResponse:
        """The way out of a halted mailbox shard; `dry_run` shows what it will touch."""
        request = control_service_pb2.RebaseShardRequest(mailbox_shard_id=shard, dry_run=dry_run)
        return self._call(self._control.RebaseShard, request)

    def rebuild_projection(
        self, partition: int, *, dry_run: bool
    ) -> control_service_pb2.RebuildProjectionResponse:
        """The way out of a dirty projection partition; `dry_run` shows what it will touch."""
        request = control_service_pb2.RebuildProjectionRequest(partition=partition, dry_run=dry_run)
        return self._call(self._control.RebuildProjection, request)

    def describe_shadow(self) -> shadow_service_pb2.ShadowPair:
        """How far the mailbox store's shadow follows, and what differs."""
        request = shadow_service_pb2.DescribeShadowRequest()
        return self._call(self._shadow.DescribeShadow, request).pair

    def switch_shadow(self, primary: str, *, dry_run: bool) -> shadow_service_pb2.ShadowPair:
        """Serve mailboxes from the engine `primary`; `dry_run` shows what it will touch."""
        request = shadow_service_pb2.SwitchShadowRequest(primary=primary, dry_run=dry_run)
        return self._call(self._shadow.SwitchShadow, request).pair

    def mailbox_shards(self) -> Sequence[mailbox_service_pb2.MailboxShard]:
        """The mailbox shards' positions and faults."""
        request = mailbox_service_pb2.DescribeShardsRequest()
        return self._call(self._mailbox.DescribeShards, request).shards

    def projection_partitions(self) -> Sequence[session_service_pb2.ProjectionPartition]:
        """The session projection's checkpoints."""
        request = session_service_pb2.DescribePartitionsRequest()
        return self._call(self._session.DescribePartitions, request).partitions


def _parts(users: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(users), MEMBERSHIP_CHANGE_USERS_MAX):
        yield users[start : start + MEMBERSHIP_CHANGE_USERS_MAX]
