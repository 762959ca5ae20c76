"""Leases: who may believe to own a shard.

Epochs (`ports.store.EpochStore`) make a wrong belief safe.
"""

from dataclasses import dataclass
from typing import Protocol

from qimd.core.outcome import Outcome
from qimd.ports.store import ShardKind


@dataclass(frozen=True, slots=True)
class LeaseView:
    """What the engine says of a key now.

    `holder` is empty if the key is absent. `released` says that the last owner gave it up durably
    after its last write had settled: a successor need not wait.
    """

    holder: str
    released: bool


class LeasePort(Protocol):
    """Lease keys, one a shard."""

    async def view(self, kind: ShardKind, shard: int) -> LeaseView:
        """Look at a key. Raises QimError(UNAVAILABLE)."""

    async def acquire(self, kind: ShardKind, shard: int, owner: str, ttl_s: float) -> Outcome[None]:
        """Take an absent key; CONFLICT if somebody holds it. The same owner again is Applied."""

    async def renew(self, kind: ShardKind, shard: int, owner: str, ttl_s: float) -> Outcome[None]:
        """Prolong it. NOT_FOUND or CONFLICT means lost: it is not taken again by this call."""

    async def release(self, kind: ShardKind, shard: int, owner: str) -> Outcome[None]:
        """Give it up, durably, after the last write under it has settled."""
