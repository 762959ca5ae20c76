"""Tenants and shard epochs in memory."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from qimd.adapters.memory.network import Wire
from qimd.core.ids import TenantId
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.ports.store import ShardKind, TenantRecord


class TenantDisk:
    """What survives a process: tenants by id."""

    def __init__(self) -> None:
        self.tenants: dict[TenantId, TenantRecord] = {}


class MemoryTenantStore:
    """`ports.store.TenantStore`; a tenant is a partition key."""

    def __init__(self, disk: TenantDisk, wire: Wire) -> None:
        self._tenants = disk.tenants
        self._wire = wire

    async def tenant(self, tenant: TenantId) -> TenantRecord | None:
        return await self._wire.read("tenant", tenant, lambda: self._tenants.get(tenant))

    async def create_tenant(self, record: TenantRecord) -> Outcome[TenantRecord]:
        def effect() -> Outcome[TenantRecord]:
            stored = self._tenants.setdefault(
                record.tenant, replace(record, keys=dict(record.keys))
            )
            if dict(stored.keys) != dict(record.keys):
                return NotApplied(Refusal.CONFLICT, "the tenant exists with other keys")
            return Applied(stored)

        return await self._wire.step("create_tenant", record.tenant, effect, record)

    async def put_key(
        self, tenant: TenantId, key_id: str, public_key: bytes
    ) -> Outcome[TenantRecord]:
        def effect() -> Outcome[TenantRecord]:
            stored = self._tenants.get(tenant)
            if stored is None:
                return NotApplied(Refusal.NOT_FOUND, "no such tenant")
            if stored.keys.get(key_id, public_key) != public_key:
                return NotApplied(Refusal.CONFLICT, "the key id exists with another key")
            return self._store(replace(stored, keys={**stored.keys, key_id: public_key}))

        return await self._wire.step("put_key", tenant, effect)

    async def remove_key(self, tenant: TenantId, key_id: str) -> Outcome[TenantRecord]:
        def effect() -> Outcome[TenantRecord]:
            stored = self._tenants.get(tenant)
            if stored is None:
                return NotApplied(Refusal.NOT_FOUND, "no such tenant")
            keys = {other: key for other, key in stored.keys.items() if other != key_id}
            return self._store(replace(stored, keys=keys))

        return await self._wire.step("remove_key", tenant, effect)

    def _store(self, record: TenantRecord) -> Outcome[TenantRecord]:
        self._tenants[record.tenant] = record
        return Applied(record)


@dataclass(slots=True)
class _ShardEpoch:
    epoch: int = 0
    given: dict[bytes, int] = field(default_factory=dict)
    """The epoch that each nonce was given: a nonce is never given a second one."""


class EpochDisk:
    """What survives a process: the deployment's counter and each shard's epoch."""

    def __init__(self) -> None:
        self.counter = 0
        self._shards: dict[Hashable, _ShardEpoch] = {}

    def copied(self) -> "EpochDisk":
        """As it is now, whatever comes."""
        other = EpochDisk()
        other.counter = self.counter
        other._shards = {
            shard: replace(stored, given=dict(stored.given))
            for shard, stored in self._shards.items()
        }
        return other

    def take_back(self, synced: "EpochDisk") -> None:
        """Start anew, as it was at the last sync."""
        before = synced.copied()
        self.counter, self._shards = before.counter, before._shards

    def current(self, kind: ShardKind, shard: int) -> int:
        """The shard's epoch; 0 before its first owner."""
        stored = self._shards.get((kind, shard))
        return 0 if stored is None else stored.epoch

    def raise_epoch(self, kind: ShardKind, shard: int, nonce: bytes, now_s: int) -> Outcome[int]:
        """See `ports.store.EpochStore`."""
        stored = self._shards.setdefault((kind, shard), _ShardEpoch())
        given = stored.given.get(nonce)
        if given is not None:
            if given != stored.epoch:
                return NotApplied(Refusal.STALE_EPOCH, "another owner has raised it since")
            return Applied(given)
        self.counter = max(self.counter + 1, now_s)
        stored.epoch = self.counter
        stored.given[nonce] = self.counter
        return Applied(self.counter)


class MemoryEpochStore:
    """`ports.store.EpochStore`; the counter makes all epochs one partition key."""

    def __init__(self, disk: EpochDisk, wire: Wire) -> None:
        self._disk = disk
        self._wire = wire

    async def raise_epoch(
        self, kind: ShardKind, shard: int, nonce: bytes, now_s: int
    ) -> Outcome[int]:
        return await self._wire.step(
            "raise_epoch",
            (kind, shard),
            lambda: self._disk.raise_epoch(kind, shard, nonce, now_s),
        )
