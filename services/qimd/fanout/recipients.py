"""Who receives an event, already cut into chunks and encoded.

Most messages of a conversation have the same recipients: their blocks are made once a membership
version and appended to every record's header. Both caches are bounded by the users they hold; what
is not there is read from the store and made again, to the same bytes.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from qimd.contract.dispatch import EncodedBlocks, encode_blocks
from qimd.core.dispatch import plan_chunks
from qimd.core.ids import UserId
from qimd.core.records import ConversationKey, Event, EventKind
from qimd.core.routing import RoutingTable
from qimd.ports.store import ConversationStore

CHUNK_USERS_CACHED_MAX: Final = 1_000_000
"""Encoded recipients kept: about 50 MB, ten of the largest groups or 50,000 of 20 members."""

ROSTER_USERS_CACHED_MAX: Final = 400_000
"""Members kept as ids, for the next membership change: about 40 MB."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """The recipients of one record."""

    mailbox_shard: int
    index: int
    blocks: EncodedBlocks


Chunks = tuple[EncodedChunk, ...]


@dataclass(slots=True)
class _Roster:
    """Members right after the event at `through`; `version` is the last change before that."""

    version: int
    through: int
    members: frozenset[UserId]


class _Bounded(Generic[K, V]):
    """A map whose values together weigh at most `weight_max`; the least recently used go first."""

    def __init__(self, weight_max: int, weight: Callable[[V], int]) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._weight_max = weight_max
        self._weight = weight
        self._total = 0

    def get(self, key: K) -> V | None:
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self._total -= self._weight(old)
        self._entries[key] = value
        self._total += self._weight(value)
        # The newest stays even if it alone is above the bound: it is about to be used.
        while self._total > self._weight_max and len(self._entries) > 1:
            _, gone = self._entries.popitem(last=False)
            self._total -= self._weight(gone)


class Recipients:
    """The chunks of events, asked for in each conversation's order."""

    def __init__(
        self,
        table: RoutingTable,
        conversations: ConversationStore,
        *,
        chunk_users_max: int = CHUNK_USERS_CACHED_MAX,
        roster_users_max: int = ROSTER_USERS_CACHED_MAX,
    ) -> None:
        self._table = table
        self._conversations = conversations
        # An entry weighs one more than its users, so that empty ones are bounded too.
        self._chunks: _Bounded[tuple[ConversationKey, int, int, int], Chunks] = _Bounded(
            chunk_users_max, lambda chunks: 1 + sum(chunk.blocks.recipients for chunk in chunks)
        )
        self._rosters: _Bounded[ConversationKey, _Roster] = _Bounded(
            roster_users_max, lambda roster: 1 + len(roster.members)
        )

    async def chunks(self, event: Event) -> Chunks:
        """The records that the event needs, in their order. Raises QimError(UNAVAILABLE)."""
        place = (
            event.key,
            event.membership_version,
            event.chunk_recipients,
            event.routing_version,
        )
        if event.kind == EventKind.MEMBERSHIP:
            members = await self._changed(event)
            if event.removed:
                # Those who leave are told once; the version's own blocks do without them.
                return self._encode(event, members.union(event.removed))
        else:
            known = self._chunks.get(place)
            if known is not None:
                self._follow(event)
                return known
            members = await self._members(event)
        chunks = self._encode(event, members)
        self._chunks.put(place, chunks)
        return chunks

    async def _changed(self, event: Event) -> frozenset[UserId]:
        """Members after a membership change: a delta of those before, if they are at hand."""
        seq = event.conversation_seq
        roster = self._rosters.get(event.key)
        if roster is not None and roster.version == seq:
            return roster.members
        if roster is not None and roster.through == seq - 1:
            members = roster.members.union(event.added).difference(event.removed)
        elif seq == 1:
            members = frozenset(event.added)
        else:
            members = frozenset(await self._conversations.members_at(event.key, seq))
        self._rosters.put(event.key, _Roster(seq, seq, members))
        return members

    async def _members(self, event: Event) -> frozenset[UserId]:
        """Members at the version that the event pins, whatever the version of today is."""
        version = event.membership_version
        roster = self._rosters.get(event.key)
        if roster is None or roster.version != version:
            members = frozenset(await self._conversations.members_at(event.key, version))
            # No change lies between the version and the event: they are its members, too.
            roster = _Roster(version, event.conversation_seq, members)
            self._rosters.put(event.key, roster)
        self._follow(event)
        return roster.members

    def _follow(self, event: Event) -> None:
        """A delta is right only for the very next event, so the roster keeps up with them."""
        roster = self._rosters.get(event.key)
        if roster is None or roster.version != event.membership_version:
            return
        if event.conversation_seq == roster.through + 1:
            roster.through = event.conversation_seq

    def _encode(self, event: Event, users: frozenset[UserId]) -> Chunks:
        planned = plan_chunks(self._table, event.key.tenant, users, event.chunk_recipients)
        return tuple(
            EncodedChunk(chunk.mailbox_shard, chunk.index, encode_blocks(chunk.blocks))
            for chunk in planned
        )
