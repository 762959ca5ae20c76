"""The writer: commits the events of the conversations whose shards are owned here.

A call finds its conversation's queue before its first await, so that calls take effect in the order
in which they were made. What a shard's term forbids is refused at the write, not here.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import ConversationId, TenantId, check_id
from qimd.core.lease import Term
from qimd.core.parameters import DISPATCH_CHUNK_RECIPIENTS
from qimd.core.records import Accepted, ConversationKey
from qimd.core.routing import RoutingTable
from qimd.ports.runtime import Runtime
from qimd.ports.services import Commit, Fanout
from qimd.ports.store import ConversationState, ConversationStore, TenantStore
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import NO_SPANS, Spans
from qimd.writer.cache import MemberCache
from qimd.writer.conversation import Administer, Conversation
from qimd.writer.head import Changed, Head, Tools
from qimd.writer.logic import (
    MembershipChange,
    addition,
    check_count,
    check_users,
    removal,
    same_creation,
)
from qimd.writer.sends import Send
from qimd.writer.shard import OutcomeUnknownError, Shard, not_owner
from qimd.writer.steps import Pins

CONVERSATIONS_CACHED_MAX: Final = 16_384
"""Idle conversations whose head is remembered, a shard: one read each saves a claim, 1 KB each."""

TERM_CHECK_INTERVAL_S: Final = 1.0
"""How soon serving a shard ends after somebody else ended its term: as often as a lost lease is
tried again. Writes do not wait for it; they look at the term themselves.
"""

_log = logger("writer")


class WriterService:
    """Implements `ports.services.Writer`, and the administration of conversations.

    `chunk_recipients` (users a record) is pinned in each event, so a change of it never changes the
    records of an event that is committed already.
    """

    def __init__(
        self,
        table: RoutingTable,
        tenants: TenantStore,
        conversations: ConversationStore,
        fanout: Fanout,
        runtime: Runtime,
        metrics: Metrics,
        *,
        chunk_recipients: int = DISPATCH_CHUNK_RECIPIENTS,
        spans: Spans = NO_SPANS,
    ) -> None:
        self._table = table
        self._tenants = tenants
        self._tools = Tools(
            store=conversations,
            fanout=fanout,
            runtime=runtime,
            metrics=metrics,
            members=MemberCache(),
            pins=Pins(table.version, chunk_recipients),
            spans=spans,
        )
        self._shards: dict[int, _Served] = {}

    # --- ownership -------------------------------------------------------------------------------

    async def serve(self, term: Term) -> None:
        """Commit for a shard until its term has ended, and its last call has settled."""
        runtime = self._tools.runtime
        shard = Shard(term, runtime)
        self._shards[term.shard] = served = _Served(shard, self._tools)
        _log.info("serving a writer shard", writer_shard=term.shard, fencing_epoch=term.epoch)
        try:
            while not term.ended:
                try:
                    await runtime.wait_for(shard.over.wait(), TERM_CHECK_INTERVAL_S)
                except TimeoutError:
                    continue
        finally:
            shard.close()
            if self._shards.get(term.shard) is served:
                del self._shards[term.shard]
        # Whoever releases the lease next must know that no write of this term is under way.
        await shard.quiet.wait()
        _log.info("left a writer shard", writer_shard=term.shard, fencing_epoch=term.epoch)

    # --- SENDs -----------------------------------------------------------------------------------

    async def commit(self, command: Commit) -> Sequence[Accepted | QimError]:
        """See `ports.services.Writer`."""
        check_count(command.drafts)
        answer: asyncio.Future[Sequence[Accepted | QimError] | QimError]
        answer = asyncio.get_running_loop().create_future()
        self._conversation(command.key).submit(Send(command, answer))
        results = await answer
        if isinstance(results, QimError):
            raise results
        return results

    # --- administration --------------------------------------------------------------------------

    async def create_conversation(
        self, tenant: TenantId, conversation: ConversationId, members: Sequence[str]
    ) -> ConversationState:
        """Create a conversation with up to 1,000 members; more are added by `add_members`.

        Idempotent. Raises QimError: NOT_FOUND without the tenant, ALREADY_EXISTS if it was created
        with other members, INVALID_ARGUMENT, NOT_OWNER, UNAVAILABLE.
        """
        key = _checked_key(tenant, conversation)
        users = check_users(members, "member_user_ids", least=0)
        if await self._tenants.tenant(tenant) is None:
            raise QimError(ErrorCode.NOT_FOUND, "there is no such tenant", field="tenant_id")

        async def act(head: Head) -> Changed:
            state = await head.created()
            if state.head_version == 0:
                change = MembershipChange(added=tuple(sorted(users)))
                return await head.change(lambda now: _first_members(now, change))
            first = await self._tools.store.members_at(key, 1)
            if not same_creation(users, first):
                raise QimError(
                    ErrorCode.ALREADY_EXISTS, "the conversation was created with other members"
                )
            return Changed(0, state)

        return (await self._administer(key, act)).state

    async def add_members(
        self, tenant: TenantId, conversation: ConversationId, users: Sequence[str]
    ) -> Changed:
        """Add 1 to 1,000 users; those that are members already are left out.

        Raises QimError: NOT_FOUND without the conversation, INVALID_ARGUMENT, NOT_OWNER,
        UNAVAILABLE.
        """
        key = _checked_key(tenant, conversation)
        wanted = check_users(users, "user_ids")

        async def decide(state: ConversationState) -> MembershipChange:
            members = await self._tools.store.current_members(key, wanted)
            return addition(state, wanted, members, "user_ids")

        return await self._administer(key, lambda head: head.change(decide))

    async def remove_members(
        self, tenant: TenantId, conversation: ConversationId, users: Sequence[str]
    ) -> Changed:
        """Remove 1 to 1,000 users; those that are no members are left out.

        Raises as `add_members`.
        """
        key = _checked_key(tenant, conversation)
        wanted = check_users(users, "user_ids")

        async def decide(_: ConversationState) -> MembershipChange:
            return removal(wanted, await self._tools.store.current_members(key, wanted))

        return await self._administer(key, lambda head: head.change(decide))

    async def _administer(
        self, key: ConversationKey, act: Callable[[Head], Awaitable[Changed]]
    ) -> Changed:
        answer: asyncio.Future[Changed | QimError] = asyncio.get_running_loop().create_future()
        self._conversation(key).submit(Administer(act, answer))
        changed = await answer
        if isinstance(changed, QimError):
            raise changed
        return changed

    def _conversation(self, key: ConversationKey) -> Conversation:
        """The conversation's queue. Raises NOT_OWNER for a shard that is not served here."""
        served = self._shards.get(self._table.writer_shard(key.tenant, key.conversation))
        if served is None:
            raise not_owner()
        return served.conversation(key)


class _Served:
    """A shard with the conversations in use; idle ones go, the least recently used first."""

    def __init__(self, shard: Shard, tools: Tools) -> None:
        self._shard = shard
        self._tools = tools
        self._conversations: OrderedDict[ConversationKey, Conversation] = OrderedDict()

    def conversation(self, key: ConversationKey) -> Conversation:
        """The conversation's queue. Raises UNAVAILABLE, or NOT_OWNER past the self-fence."""
        if key in self._shard.unresolved:
            raise OutcomeUnknownError
        if not self._shard.may_write():
            raise not_owner()
        found = self._conversations.get(key)
        if found is None:
            found = self._conversations[key] = Conversation(key, self._shard, self._tools)
            self._evict()
        self._conversations.move_to_end(key)
        return found

    def _evict(self) -> None:
        while len(self._conversations) > CONVERSATIONS_CACHED_MAX:
            oldest = next(iter(self._conversations))
            if not self._conversations[oldest].idle:
                # One with calls under way stays; there are never more of those than callers wait.
                self._conversations.move_to_end(oldest)
                return
            del self._conversations[oldest]


async def _first_members(state: ConversationState, change: MembershipChange) -> MembershipChange:
    """The creation's members, unless somebody else's event was first meanwhile."""
    return change if state.head_version == 0 else MembershipChange()


def _checked_key(tenant: TenantId, conversation: ConversationId) -> ConversationKey:
    return ConversationKey(
        TenantId(check_id(tenant, "tenant_id")),
        ConversationId(check_id(conversation, "conversation_id")),
    )
