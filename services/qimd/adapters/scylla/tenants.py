"""Tenants, and the epochs' counter: each decided by conditional writes of one partition."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from qimd.adapters.scylla.session import DECISIONS_MAX, Session, Write, contended, step
from qimd.core.ids import TenantId
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.ports.store import ShardKind, TenantRecord

_NO_TENANT: Final = NotApplied(Refusal.NOT_FOUND, "no such tenant")

_TENANT: Final = """
SELECT keys, created_at_ms, version FROM tenants WHERE deployment = ? AND tenant = ?
"""
_CREATE: Final = """
INSERT INTO tenants (deployment, tenant, keys, created_at_ms, version)
VALUES (?, ?, ?, ?, 1) IF NOT EXISTS
"""
_KEYS: Final = """
UPDATE tenants SET keys = ?, version = ? WHERE deployment = ? AND tenant = ? IF version = ?
"""


class ScyllaTenantStore:
    """`ports.store.TenantStore`."""

    def __init__(self, session: Session, deployment: str) -> None:
        self._session = session
        self._deployment = deployment

    async def tenant(self, tenant: TenantId) -> TenantRecord | None:
        for keys, created_at_ms, _ in await self._session.rows(_TENANT, self._deployment, tenant):
            return _record(tenant, keys, created_at_ms)
        return None

    @step
    async def create_tenant(self, record: TenantRecord) -> Outcome[TenantRecord]:
        keys = dict(record.keys)
        place = (self._deployment, record.tenant)
        made = await self._session.decide([Write(_CREATE, (*place, keys, record.created_at_ms))])
        if not isinstance(made, Applied):
            return made
        if made.value:
            return Applied(record)
        stored = await self.tenant(record.tenant)
        if stored is None or dict(stored.keys) != keys:
            return NotApplied(Refusal.CONFLICT, "the tenant exists with other keys")
        return Applied(stored)

    async def put_key(
        self, tenant: TenantId, key_id: str, public_key: bytes
    ) -> Outcome[TenantRecord]:
        def with_it(keys: Mapping[str, bytes]) -> Mapping[str, bytes] | NotApplied:
            if keys.get(key_id, public_key) != public_key:
                return NotApplied(Refusal.CONFLICT, "the key id exists with another key")
            return {**keys, key_id: public_key}

        return await self._change_keys(tenant, with_it)

    async def remove_key(self, tenant: TenantId, key_id: str) -> Outcome[TenantRecord]:
        return await self._change_keys(
            tenant, lambda keys: {name: key for name, key in keys.items() if name != key_id}
        )

    @step
    async def _change_keys(
        self,
        tenant: TenantId,
        changed: Callable[[Mapping[str, bytes]], Mapping[str, bytes] | NotApplied],
    ) -> Outcome[TenantRecord]:
        place = (self._deployment, tenant)
        for _ in range(DECISIONS_MAX):
            rows = await self._session.rows_decided(_TENANT, *place)
            if not rows:
                return _NO_TENANT
            stored, created_at_ms, version = rows[0]
            before = _record(tenant, stored, created_at_ms)
            keys = changed(before.keys)
            if isinstance(keys, NotApplied):
                return keys
            if keys == before.keys:
                return Applied(before)
            outcome = await self._session.decide(
                [Write(_KEYS, (keys, version + 1, *place, version))]
            )
            if not isinstance(outcome, Applied):
                return outcome
            if outcome.value:
                return Applied(replace(before, keys=keys))
        return contended()


def _record(tenant: TenantId, keys: Mapping[str, bytes] | None, created_at_ms: int) -> TenantRecord:
    return TenantRecord(tenant, dict(keys or {}), created_at_ms)


# --- epochs -----------------------------------------------------------------------------------

NONCE_KEPT_S: Final = 24 * 3600
"""A lost reply is asked for again within the owner's self-fence deadline, 12 s."""

_CURRENT: Final = b""
"""In the place of a nonce: the epoch that is the shard's now."""

_COUNTER: Final = "SELECT DISTINCT counter FROM epochs WHERE deployment = ?"
_EPOCH: Final = """
SELECT epoch FROM epochs WHERE deployment = ? AND kind = ? AND shard = ? AND nonce = ?
"""
_DRAW: Final = "UPDATE epochs SET counter = ? WHERE deployment = ? IF counter = ?"
_TAKE: Final = """
INSERT INTO epochs (deployment, kind, shard, nonce, epoch) VALUES (?, ?, ?, ?, ?)
"""
_REMEMBER: Final = f"{_TAKE} USING TTL {NONCE_KEPT_S}"


class ScyllaEpochStore:
    """`ports.store.EpochStore`: the counter and all shards' epochs are one partition."""

    def __init__(self, session: Session, deployment: str) -> None:
        self._session = session
        self._deployment = deployment
        self._drawing = asyncio.Lock()
        """A process takes its shards over together: their draws would only fail one another."""

    async def current(self, kind: ShardKind, shard: int) -> int:
        """The shard's epoch; 0 before its first owner. Raises QimError(UNAVAILABLE)."""
        place = (self._deployment, kind.value, shard, _CURRENT)
        rows = await self._session.rows(_EPOCH, *place)
        return rows[0][0] if rows else 0

    @step
    async def raise_epoch(
        self, kind: ShardKind, shard: int, nonce: bytes, now_s: int
    ) -> Outcome[int]:
        async with self._drawing:
            return await self._draw(kind, shard, nonce, now_s)

    async def _draw(self, kind: ShardKind, shard: int, nonce: bytes, now_s: int) -> Outcome[int]:
        place = (self._deployment, kind.value, shard)
        for _ in range(DECISIONS_MAX):
            # The counter first: whoever draws after it was read makes the condition fail.
            counters = await self._session.rows_decided(_COUNTER, self._deployment)
            given, current = await asyncio.gather(
                self._session.rows(_EPOCH, *place, nonce), self.current(kind, shard)
            )
            if given:
                (epoch,) = given[0]
                if epoch != current:
                    return NotApplied(Refusal.STALE_EPOCH, "another owner has raised it since")
                return Applied(epoch)
            counter = counters[0][0] if counters else None
            epoch = max((counter or 0) + 1, now_s)
            drawn = await self._session.decide(
                [
                    Write(_DRAW, (epoch, self._deployment, counter)),
                    Write(_TAKE, (*place, _CURRENT, epoch)),
                    Write(_REMEMBER, (*place, nonce, epoch)),
                ]
            )
            if not isinstance(drawn, Applied):
                return drawn
            if drawn.value:
                return Applied(epoch)
        return contended()
