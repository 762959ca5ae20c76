"""The room's gRPC face: a request message in, a response message out."""

from qim.session.v1.session_service_pb2 import (
    DescribePartitionsRequest,
    DescribePartitionsResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    MarkReadRequest,
    MarkReadResponse,
    ProjectionPartition,
)
from qimd.contract.frames import session_message
from qimd.core.ids import ConversationId, TenantId, UserId, check_id
from qimd.core.records import ConversationKey, UserKey
from qimd.session.service import SessionService


class SessionHandlers:
    """The calls of qim.session.v1.SessionService. Each raises QimError."""

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    async def ListSessions(self, request: ListSessionsRequest) -> ListSessionsResponse:
        """A page of a user's list."""
        user = _user_of(request.tenant_id, request.user_id)
        items, next_page = await self._sessions.list(user, request.page_token, request.limit)
        return ListSessionsResponse(
            sessions=[session_message(item) for item in items], next_page_token=next_page
        )

    async def MarkRead(self, request: MarkReadRequest) -> MarkReadResponse:
        """Raise a user's read mark."""
        user = _user_of(request.tenant_id, request.user_id)
        conversation = ConversationId(check_id(request.conversation_id, "conversation_id"))
        key = ConversationKey(user.tenant, conversation)
        mark, unread = await self._sessions.mark_read(user, key, request.read_through_seq)
        return MarkReadResponse(read_through_seq=mark, unread_count=unread)

    async def DescribePartitions(
        self, request: DescribePartitionsRequest
    ) -> DescribePartitionsResponse:
        """The partitions that are owned here."""
        return DescribePartitionsResponse(
            partitions=[
                ProjectionPartition(
                    partition=status.partition,
                    next_offset=status.next_offset,
                    high_watermark=status.high_watermark,
                    ready=status.ready,
                    dirty=status.dirty,
                )
                for status in self._sessions.describe()
            ]
        )


def _user_of(tenant: str, user: str) -> UserKey:
    return UserKey(TenantId(check_id(tenant, "tenant_id")), UserId(check_id(user, "user_id")))
