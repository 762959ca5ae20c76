"""Quarantine: one table, a record once."""

import sqlite3
from collections.abc import Sequence

from qimd.adapters.sqlite.engine import Engine
from qimd.core.outcome import Applied, Outcome
from qimd.ports.quarantine import Quarantined

_KEEP = """
INSERT INTO quarantine (log_identity, partition, log_offset, source, reason, at_ms, value)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (log_identity, partition, log_offset) DO NOTHING
"""
_NEWEST = """
SELECT log_identity, partition, log_offset, source, reason, at_ms, value
FROM quarantine ORDER BY id DESC LIMIT ?
"""


class SqliteQuarantineStore:
    """`ports.quarantine.QuarantineStore`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def quarantine(self, records: Sequence[Quarantined]) -> Outcome[None]:
        rows = [
            (r.log_identity, r.partition, r.offset, r.source, r.reason, r.at_ms, r.value)
            for r in records
        ]

        def job(db: sqlite3.Connection) -> Outcome[None]:
            db.executemany(_KEEP, rows)
            return Applied(None)

        return await self._engine.write(job, weight=len(rows))

    async def quarantined(self, limit: int) -> Sequence[Quarantined]:
        return await self._engine.read(
            lambda db: [Quarantined(*row) for row in db.execute(_NEWEST, (limit,)).fetchall()]
        )
