"""Leases on the runtime's monotonic clock.

That clock means nothing to a process on a later boot. The dev profile does not need it to: whoever
opens the file as its sole owner holds the data folder's exclusive lock, which a dead process can't
hold and a stopped one does, so every older owner is proved dead.
"""

import sqlite3
from typing import Final

from qimd.adapters.sqlite.engine import Engine
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.ports.lease import LeaseView
from qimd.ports.runtime import Runtime
from qimd.ports.store import ShardKind

_HELD: Final = NotApplied(Refusal.CONFLICT, "another owner holds the key")
_ENDED: Final = NotApplied(Refusal.NOT_FOUND, "the lease has ended")

_ACQUIRE = """
INSERT INTO leases (kind, shard, holder, expires_at_s, released) VALUES (?, ?, ?, ?, 0)
ON CONFLICT (kind, shard) DO UPDATE SET
    holder = excluded.holder, expires_at_s = excluded.expires_at_s, released = 0
"""


class SqliteLease:
    """`ports.lease.LeasePort`."""

    def __init__(self, engine: Engine, runtime: Runtime, *, sole_owner: bool) -> None:
        self._engine = engine
        self._runtime = runtime
        self._sole_owner = sole_owner

    async def release_all(self) -> None:
        """Mark every lease as released: their owners are dead. Raises what `write` can't do."""

        def job(db: sqlite3.Connection) -> Outcome[None]:
            db.execute("UPDATE leases SET released = 1")
            return Applied(None)

        await self._engine.write(job)

    async def view(self, kind: ShardKind, shard: int) -> LeaseView:
        now_s = self._runtime.monotonic_s()
        return await self._engine.read(lambda db: self._view(db, kind, shard, now_s))

    async def acquire(self, kind: ShardKind, shard: int, owner: str, ttl_s: float) -> Outcome[None]:
        now_s = self._runtime.monotonic_s()

        def job(db: sqlite3.Connection) -> Outcome[None]:
            if self._view(db, kind, shard, now_s).holder not in {"", owner}:
                return _HELD
            db.execute(_ACQUIRE, (kind.value, shard, owner, now_s + ttl_s))
            return Applied(None)

        return await self._engine.write(job)

    async def renew(self, kind: ShardKind, shard: int, owner: str, ttl_s: float) -> Outcome[None]:
        now_s = self._runtime.monotonic_s()

        def job(db: sqlite3.Connection) -> Outcome[None]:
            lost = _not_held(self._view(db, kind, shard, now_s), owner)
            if lost is not None:
                return lost
            db.execute(
                "UPDATE leases SET expires_at_s = ? WHERE kind = ? AND shard = ?",
                (now_s + ttl_s, kind.value, shard),
            )
            return Applied(None)

        return await self._engine.write(job)

    async def release(self, kind: ShardKind, shard: int, owner: str) -> Outcome[None]:
        now_s = self._runtime.monotonic_s()

        def job(db: sqlite3.Connection) -> Outcome[None]:
            place = (kind.value, shard)
            row = _row(db, kind, shard)
            if row is not None and row[0] == owner and row[2]:
                return Applied(None)
            lost = _not_held(self._view(db, kind, shard, now_s), owner)
            if lost is not None:
                return lost
            db.execute("UPDATE leases SET released = 1 WHERE kind = ? AND shard = ?", place)
            return Applied(None)

        return await self._engine.write(job)

    def _view(self, db: sqlite3.Connection, kind: ShardKind, shard: int, now_s: float) -> LeaseView:
        row = _row(db, kind, shard)
        if row is None:
            # Under the folder's lock a key that nobody ever held is as good as one given up.
            return LeaseView("", released=self._sole_owner)
        holder, expires_at_s, released = row
        holds = not released and now_s < expires_at_s
        return LeaseView(holder if holds else "", bool(released))


def _row(db: sqlite3.Connection, kind: ShardKind, shard: int) -> tuple[str, float, int] | None:
    row: tuple[str, float, int] | None = db.execute(
        "SELECT holder, expires_at_s, released FROM leases WHERE kind = ? AND shard = ?",
        (kind.value, shard),
    ).fetchone()
    return row


def _not_held(view: LeaseView, owner: str) -> NotApplied | None:
    if view.holder == owner:
        return None
    return _HELD if view.holder else _ENDED
