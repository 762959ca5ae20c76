"""The rooms behind the connection, wherever they run: `ports.services` over the router.

Reads, and calls that only raise values, are made again at the next owner. A commit is made again
only while nothing else of its conversation is under way: a repetition is harmless by itself (its
client_msg_ids are known), but it may not come behind what was sent after it.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import TypeVar

from qim.conversation.v1.conversation_service_pb2 import (
    AddMembersRequest,
    AddMembersResponse,
    CreateConversationRequest,
    CreateConversationResponse,
    RemoveMembersRequest,
    RemoveMembersResponse,
)
from qimd.app.hops import asks
from qimd.app.hops.asks import Ask
from qimd.app.hops.failures import Elsewhere
from qimd.app.hops.rooms import Conversations
from qimd.app.hops.router import Local, Router
from qimd.core.errors import QimError, unavailable
from qimd.core.ids import ConversationId, TenantId, UserId
from qimd.core.records import Accepted, ConversationKey, DeviceKey, SessionItem, UserKey
from qimd.core.routing import RoutingTable
from qimd.core.seq import MailboxSeq
from qimd.ports.services import (
    Commit,
    GapReport,
    Mailbox,
    MailboxOperations,
    OpenedDevice,
    Page,
    Rebased,
    RebasePlan,
    RebuildPlan,
    SessionOperations,
    Sessions,
    SessionSupplement,
    Writer,
)
from qimd.ports.store import ShardKind

R = TypeVar("R")
_Results = Sequence[Accepted | QimError]
_Change = CreateConversationRequest | AddMembersRequest | RemoveMembersRequest


class RemoteWriter:
    """`ports.services.Writer`. `local` is the room of this process, if it has one."""

    def __init__(self, router: Router, table: RoutingTable, local: Writer | None = None) -> None:
        self._router = router
        self._table = table
        self._local = local
        self._lines: dict[ConversationKey, _Line] = {}

    async def commit(self, command: Commit) -> _Results:
        """See the port."""
        line = self._lines.setdefault(command.key, _Line())
        line.calls += 1
        line.shared |= line.calls > 1
        try:
            return await self._commit(line, command)
        finally:
            line.calls -= 1
            if not line.calls:
                del self._lines[command.key]

    async def _commit(self, line: "_Line", command: Commit) -> _Results:
        shard = self._table.writer_shard(command.key.tenant, command.key.conversation)
        ask = asks.commit(command)
        room = self._local
        local: Local[_Results] | None = None if room is None else lambda: room.commit(command)
        deadline_s = self._router.deadline_s(ask)
        async with line.order:
            begun = await self._router.begin(ShardKind.WRITER, shard, ask, local, deadline_s)
        try:
            return await begun.answer
        except QimError as error:
            if not self._router.moved(ShardKind.WRITER, shard, begun.address, error):
                raise
            if line.shared:
                raise unavailable(
                    "the conversation's writer changed; send again under the same client_msg_id"
                ) from error
        # Whatever is sent meanwhile waits behind the lock, so that nothing overtakes.
        async with line.order:
            return await self._router.call(ShardKind.WRITER, shard, ask, local, deadline_s)


class _Line:
    """The commits of one conversation that are under way.

    A lock's waiters are served in the order in which they came, and none who comes later passes
    them: whoever holds it sends next.
    """

    __slots__ = ("calls", "order", "shared")

    def __init__(self) -> None:
        self.calls = 0
        self.order = asyncio.Lock()
        self.shared = False
        """Two or more were under way at a time: if one fails, its place is lost."""


class RemoteConversations:
    """`rooms.Conversations`. `local` is what serves them for the writer shards of this process."""

    def __init__(self, router: Router, table: RoutingTable, local: Conversations | None) -> None:
        self._router = router
        self._table = table
        self._local = local

    async def CreateConversation(
        self, request: CreateConversationRequest
    ) -> CreateConversationResponse:
        """See the protocol."""
        room = self._local
        local = None if room is None else lambda: room.CreateConversation(request)
        return await self._call(request, asks.create_conversation(request), local)

    async def AddMembers(self, request: AddMembersRequest) -> AddMembersResponse:
        """See the protocol."""
        room = self._local
        local = None if room is None else lambda: room.AddMembers(request)
        return await self._call(request, asks.add_members(request), local)

    async def RemoveMembers(self, request: RemoveMembersRequest) -> RemoveMembersResponse:
        """See the protocol."""
        room = self._local
        local = None if room is None else lambda: room.RemoveMembers(request)
        return await self._call(request, asks.remove_members(request), local)

    async def _call(self, request: _Change, ask: Ask[R], local: Local[R] | None) -> R:
        shard = self._table.writer_shard(
            TenantId(request.tenant_id), ConversationId(request.conversation_id)
        )
        deadline_s = self._router.deadline_s(ask)
        return await self._router.call(ShardKind.WRITER, shard, ask, local, deadline_s)


class RemoteMailbox:
    """`ports.services.Mailbox` and `MailboxOperations`."""

    def __init__(
        self,
        router: Router,
        table: RoutingTable,
        local: Mailbox | None = None,
        operations: MailboxOperations | None = None,
    ) -> None:
        self._router = router
        self._table = table
        self._local = local
        self._operations = operations

    async def open_device(self, device: DeviceKey) -> OpenedDevice:
        """See the port."""
        room = self._local
        local = None if room is None else lambda: room.open_device(device)
        return await self._call(device.owner, asks.open_device(device), local)

    async def pull(
        self, device: DeviceKey, cursor_token: bytes, last_applied: int, limit: int
    ) -> Page | Rebased:
        """See the port."""
        room = self._local
        local = (
            None if room is None else lambda: room.pull(device, cursor_token, last_applied, limit)
        )
        ask = asks.pull(device, cursor_token, last_applied, limit)
        return await self._call(device.owner, ask, local)

    async def ack(self, device: DeviceKey, last_applied: int, handed: MailboxSeq) -> MailboxSeq:
        """See the port."""
        room = self._local
        local = None if room is None else lambda: room.ack(device, last_applied, handed)
        return await self._call(device.owner, asks.ack(device, last_applied, handed), local)

    async def read(self, user: UserKey, after: int, limit: int) -> Page:
        """See the port."""
        room = self._local
        local = None if room is None else lambda: room.read(user, after, limit)
        return await self._call(user, asks.read_mailbox(user, after, limit), local)

    async def report(self, user: UserKey, report: GapReport) -> bool:
        """See the port."""
        room = self._local
        local = None if room is None else lambda: room.report(user, report)
        return await self._call(user, asks.report(user, report), local)

    async def rebase(self, shard: int, *, dry_run: bool) -> RebasePlan:
        """See the port."""
        room = self._operations
        local = None if room is None else lambda: room.rebase(shard, dry_run=dry_run)
        ask = asks.rebase(shard, dry_run)
        deadline_s = self._router.deadline_s(ask)
        return await self._router.call(ShardKind.MAILBOX, shard, ask, local, deadline_s)

    async def _call(self, user: UserKey, ask: Ask[R], local: Local[R] | None) -> R:
        shard, _ = self._table.mailbox(user.tenant, user.user)
        deadline_s = self._router.deadline_s(ask)
        return await self._router.call(ShardKind.MAILBOX, shard, ask, local, deadline_s)


class RemoteSessions:
    """`ports.services.Sessions` and `SessionOperations`."""

    def __init__(
        self,
        router: Router,
        table: RoutingTable,
        local: Sessions | None = None,
        operations: SessionOperations | None = None,
    ) -> None:
        self._router = router
        self._table = table
        self._local = local
        self._operations = operations

    async def list(
        self, user: UserKey, page_token: bytes, limit: int
    ) -> tuple[Sequence[SessionItem], bytes]:
        """See the port."""
        room = self._local
        local = None if room is None else lambda: room.list(user, page_token, limit)
        return await self._call(user, asks.list_sessions(user, page_token, limit), local)

    async def mark_read(self, user: UserKey, key: ConversationKey, through: int) -> tuple[int, int]:
        """See the port."""
        room = self._local
        local = None if room is None else lambda: room.mark_read(user, key, through)
        return await self._call(user, asks.mark_read(user, key, through), local)

    async def rebuild(self, partition: int, *, dry_run: bool) -> RebuildPlan:
        """See the port."""
        room = self._operations
        local = None if room is None else lambda: room.rebuild(partition, dry_run=dry_run)
        ask = asks.rebuild(partition, dry_run)
        deadline_s = self._router.deadline_s(ask)
        return await self._router.call(ShardKind.SESSION, partition, ask, local, deadline_s)

    async def _call(self, user: UserKey, ask: Ask[R], local: Local[R] | None) -> R:
        partition, _ = self._table.mailbox(user.tenant, user.user)
        deadline_s = self._router.deadline_s(ask)
        return await self._router.call(ShardKind.SESSION, partition, ask, local, deadline_s)


class RemoteSupplement:
    """`ports.services.SessionSupplement`: told if the owner is known and takes it, else dropped."""

    def __init__(
        self, router: Router, table: RoutingTable, local: SessionSupplement | None = None
    ) -> None:
        self._router = router
        self._table = table
        self._local = local

    def touched(self, key: ConversationKey, users: Collection[UserId], created_at_ms: int) -> None:
        """See the port. The users are those of a record, hence of one partition."""
        if not users:
            return
        partition, _ = self._table.mailbox(key.tenant, next(iter(users)))
        try:
            home = self._router.known_home(ShardKind.SESSION, partition)
        except Elsewhere:
            return
        if home is not None:
            home.tell(asks.touched(key, users, created_at_ms))
        elif self._local is not None:
            self._local.touched(key, users, created_at_ms)
