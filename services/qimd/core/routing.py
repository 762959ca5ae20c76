"""Routing: id → slot and lane by hash, slot → shard by a versioned table.

A published part of the contract: vectors for hash and table live in compat/golden.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from xxhash import xxh64_intdigest

from qimd.core.errors import invalid
from qimd.core.ids import ConversationId, TenantId, UserId, sized
from qimd.core.parameters import LANES, SLOTS

_SLOT_BITS: Final = SLOTS.bit_length() - 1


def route_hash(tenant: str, entity: str) -> int:
    """xxh64 (seed 0) of `u32 big-endian len(tenant) ‖ tenant ‖ id`."""
    return xxh64_intdigest(sized(tenant) + entity.encode())


def slot_of(route: int) -> int:
    """The hash's low 14 bits."""
    return route & (SLOTS - 1)


def lane_of(route: int) -> int:
    """The hash's next 6 bits."""
    return (route >> _SLOT_BITS) & (LANES - 1)


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """Slot → shard. Counts are powers of two, fixed for the life of a topic.

    `dedicated` maps a tenant to the mailbox shards that are its own; others share all.
    """

    version: int
    mailbox_shards: int
    writer_shards: int
    connection_shards: int = 1
    dedicated: Mapping[TenantId, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise QimError(INVALID_ARGUMENT) for a count that is not a power of two."""
        for name in ("mailbox_shards", "writer_shards", "connection_shards"):
            count = getattr(self, name)
            if count < 1 or count & (count - 1):
                raise invalid(f"{name} is {count}; it must be a power of two", name)
        for tenant, shards in self.dedicated.items():
            if not shards or any(not 0 <= shard < self.mailbox_shards for shard in shards):
                raise invalid(f"tenant {tenant!r} is given shards that do not exist", "dedicated")

    def mailbox(self, tenant: TenantId, user: UserId) -> tuple[int, int]:
        """(mailbox shard, lane) of a user."""
        route = route_hash(tenant, user)
        slot = slot_of(route)
        own = self.dedicated.get(tenant)
        shard = own[slot % len(own)] if own else slot % self.mailbox_shards
        return shard, lane_of(route)

    def writer_shard(self, tenant: TenantId, conversation: ConversationId) -> int:
        """The shard whose owner numbers a conversation's events."""
        return slot_of(route_hash(tenant, conversation)) % self.writer_shards

    def connection_shard(self, tenant: TenantId, user: UserId) -> int:
        """The connection shard that a user belongs to."""
        return slot_of(route_hash(tenant, user)) % self.connection_shards
