"""Tenants with their keys, and the epochs of shards."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from qimd.adapters.redis.engine import Arg, RedisEngine
from qimd.adapters.redis.scripts import Script, load
from qimd.core.ids import TenantId
from qimd.core.outcome import Applied, Outcome
from qimd.ports.store import ShardKind, TenantRecord

_CREATE: Final = load("tenant_create")
_PUT_KEY: Final = load("tenant_put_key")
_REMOVE_KEY: Final = load("tenant_remove_key")
_RAISE_EPOCH: Final = load("epoch_raise")

_CREATED_AT: Final = b"created_at_ms"
_KEY: Final = "key:"
"""Before a key's id: the other fields of a tenant's hash."""


class RedisTenantStore:
    """`ports.store.TenantStore`: a hash a tenant."""

    def __init__(self, engine: RedisEngine) -> None:
        self._engine = engine

    async def tenant(self, tenant: TenantId) -> TenantRecord | None:
        [fields] = await self._engine.fetch([("HGETALL", self._key(tenant))])
        return _record(tenant, fields) if fields else None

    async def create_tenant(self, record: TenantRecord) -> Outcome[TenantRecord]:
        keys: chain[Arg] = chain.from_iterable(record.keys.items())
        return await self._step(_CREATE, record.tenant, (record.created_at_ms, *keys))

    async def put_key(
        self, tenant: TenantId, key_id: str, public_key: bytes
    ) -> Outcome[TenantRecord]:
        return await self._step(_PUT_KEY, tenant, (key_id, public_key))

    async def remove_key(self, tenant: TenantId, key_id: str) -> Outcome[TenantRecord]:
        return await self._step(_REMOVE_KEY, tenant, (key_id,))

    async def _step(
        self, script: Script, tenant: TenantId, args: Sequence[Arg]
    ) -> Outcome[TenantRecord]:
        outcome = await self._engine.run(script, [self._key(tenant)], args)
        if isinstance(outcome, Applied):
            [fields] = outcome.value
            return Applied(_record(tenant, fields))
        return outcome

    def _key(self, tenant: TenantId) -> bytes:
        return self._engine.keys.key("tenant", tenant)


def _record(tenant: TenantId, fields: Sequence[Any]) -> TenantRecord:
    """The tenant from its hash: names and values by turns."""
    values: dict[bytes, bytes] = dict(zip(fields[::2], fields[1::2], strict=True))
    created_at_ms = int(values.pop(_CREATED_AT))
    keys = {name.decode().removeprefix(_KEY): key for name, key in values.items()}
    return TenantRecord(tenant, keys, created_at_ms)


class RedisEpochStore:
    """`ports.store.EpochStore`: one hash has the counter and all shards."""

    def __init__(self, engine: RedisEngine) -> None:
        self._engine = engine

    async def raise_epoch(
        self, kind: ShardKind, shard: int, nonce: bytes, now_s: int
    ) -> Outcome[int]:
        keys = self._engine.keys
        outcome = await self._engine.run(
            _RAISE_EPOCH,
            (keys.key("epochs"), keys.key("epoch_draws", kind.value, str(shard))),
            (f"{kind.value}:{shard}", nonce, now_s),
        )
        if isinstance(outcome, Applied):
            [epoch] = outcome.value
            return Applied(int(epoch))
        return outcome
