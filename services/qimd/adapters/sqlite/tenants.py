"""Tenants with their keys, and the epochs of shards."""

import sqlite3
from typing import Final

from qimd.adapters.sqlite.engine import Engine
from qimd.core.ids import TenantId
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.ports.store import ShardKind, TenantRecord

_NO_TENANT: Final = NotApplied(Refusal.NOT_FOUND, "no such tenant")

_DRAW_EPOCH = """
INSERT INTO epoch_draws (kind, shard, nonce, epoch)
SELECT :kind, :shard, :nonce, max(coalesce(max(epoch), 0) + 1, :now_s) FROM epochs
RETURNING epoch
"""
_SET_EPOCH = """
INSERT INTO epochs (kind, shard, epoch) VALUES (:kind, :shard, :epoch)
ON CONFLICT (kind, shard) DO UPDATE SET epoch = excluded.epoch
"""
_DRAWN = """
SELECT d.epoch, e.epoch FROM epoch_draws AS d JOIN epochs AS e USING (kind, shard)
WHERE d.kind = :kind AND d.shard = :shard AND d.nonce = :nonce
"""


class SqliteTenantStore:
    """`ports.store.TenantStore`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def tenant(self, tenant: TenantId) -> TenantRecord | None:
        return await self._engine.read(lambda db: _load(db, tenant))

    async def create_tenant(self, record: TenantRecord) -> Outcome[TenantRecord]:
        def job(db: sqlite3.Connection) -> Outcome[TenantRecord]:
            stored = _load(db, record.tenant)
            if stored is not None:
                if dict(stored.keys) != dict(record.keys):
                    return NotApplied(Refusal.CONFLICT, "the tenant exists with other keys")
                return Applied(stored)
            db.execute("INSERT INTO tenants VALUES (?, ?)", (record.tenant, record.created_at_ms))
            db.executemany(
                "INSERT INTO tenant_keys VALUES (?, ?, ?)",
                [(record.tenant, key_id, key) for key_id, key in record.keys.items()],
            )
            return _found(db, record.tenant)

        return await self._engine.write(job)

    async def put_key(
        self, tenant: TenantId, key_id: str, public_key: bytes
    ) -> Outcome[TenantRecord]:
        def job(db: sqlite3.Connection) -> Outcome[TenantRecord]:
            stored = _load(db, tenant)
            if stored is None:
                return _NO_TENANT
            if stored.keys.get(key_id, public_key) != public_key:
                return NotApplied(Refusal.CONFLICT, "the key id exists with another key")
            db.execute(
                "INSERT INTO tenant_keys VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (tenant, key_id, public_key),
            )
            return _found(db, tenant)

        return await self._engine.write(job)

    async def remove_key(self, tenant: TenantId, key_id: str) -> Outcome[TenantRecord]:
        def job(db: sqlite3.Connection) -> Outcome[TenantRecord]:
            db.execute("DELETE FROM tenant_keys WHERE tenant = ? AND key_id = ?", (tenant, key_id))
            return _found(db, tenant)

        return await self._engine.write(job)


def _load(db: sqlite3.Connection, tenant: TenantId) -> TenantRecord | None:
    row = db.execute("SELECT created_at_ms FROM tenants WHERE tenant = ?", (tenant,)).fetchone()
    if row is None:
        return None
    keys = db.execute("SELECT key_id, public_key FROM tenant_keys WHERE tenant = ?", (tenant,))
    return TenantRecord(tenant, dict(keys.fetchall()), row[0])


def _found(db: sqlite3.Connection, tenant: TenantId) -> Outcome[TenantRecord]:
    stored = _load(db, tenant)
    return _NO_TENANT if stored is None else Applied(stored)


class SqliteEpochStore:
    """`ports.store.EpochStore`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def raise_epoch(
        self, kind: ShardKind, shard: int, nonce: bytes, now_s: int
    ) -> Outcome[int]:
        asked = {"kind": kind.value, "shard": shard, "nonce": nonce, "now_s": now_s}

        def job(db: sqlite3.Connection) -> Outcome[int]:
            drawn = db.execute(_DRAWN, asked).fetchone()
            if drawn is not None:
                given, current = drawn
                if given != current:
                    return NotApplied(Refusal.STALE_EPOCH, "another owner has raised it since")
                return Applied(given)
            ((epoch,),) = db.execute(_DRAW_EPOCH, asked).fetchall()
            db.execute(_SET_EPOCH, {"kind": kind.value, "shard": shard, "epoch": epoch})
            return Applied(epoch)

        return await self._engine.write(job)
