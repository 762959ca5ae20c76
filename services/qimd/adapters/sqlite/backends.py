"""Opening the embedded engine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qimd.adapters.sqlite.conversations import SqliteConversationStore
from qimd.adapters.sqlite.engine import Engine
from qimd.adapters.sqlite.interning import Interner
from qimd.adapters.sqlite.lease import SqliteLease
from qimd.adapters.sqlite.log import SqliteLog
from qimd.adapters.sqlite.mailbox import SqliteMailboxStore
from qimd.adapters.sqlite.projection import SqliteProjectionStore
from qimd.adapters.sqlite.quarantine import SqliteQuarantineStore
from qimd.adapters.sqlite.tenants import SqliteEpochStore, SqliteTenantStore
from qimd.ports.data import Backends
from qimd.ports.runtime import Runtime

TOPIC: Final = "qim.dispatch"
PARTITIONS_DEFAULT: Final = 2
RETENTION_MS_DEFAULT: Final = 7 * 24 * 3600 * 1000
"""A mailbox or a projection that was down for a week still finds its place in the log."""

MAX_RECORD_BYTES_DEFAULT: Final = 1024 * 1024
"""Well above GROUP_DISPATCH_BYTES_MAX, as a broker's default is."""


@dataclass(frozen=True, slots=True)
class SqliteBackends:
    """The ports over one file, and what only this engine offers.

    `log.enforce_retention(now_ms)` is to be called now and then, `log.recreate_topic()` is
    for tests of a lost log.
    """

    backends: Backends
    log: SqliteLog
    projection: SqliteProjectionStore
    engine: Engine

    async def close(self) -> None:
        """Finish what is queued, then let go of the file."""
        await self.engine.close()


async def open_sqlite(
    path: Path,
    runtime: Runtime,
    *,
    partitions: int = PARTITIONS_DEFAULT,
    retention_ms: int = RETENTION_MS_DEFAULT,
    max_record_bytes: int = MAX_RECORD_BYTES_DEFAULT,
    sole_owner: bool = False,
) -> SqliteBackends:
    """Open the file at `path`, made with its topic if it is new.

    `sole_owner` says that the caller holds the data folder's exclusive lock: every older owner is
    dead, so all leases begin as released. `partitions` is fixed for the life of the topic.

    Raises OpenRefused (FormatTooNew, PartitionCountDiffers, or not this engine's file).
    """
    engine = Engine(path)
    interner = Interner()
    engine.watch(committed=interner.committed, rolled_back=interner.rolled_back)
    log = SqliteLog(engine, runtime, TOPIC)
    lease = SqliteLease(engine, runtime, sole_owner=sole_owner)
    projection = SqliteProjectionStore(engine, interner)
    try:
        await log.open_topic(partitions, retention_ms, max_record_bytes)
        if sole_owner:
            await lease.release_all()
    except BaseException:
        await engine.close()
        raise
    backends = Backends(
        tenants=SqliteTenantStore(engine),
        epochs=SqliteEpochStore(engine),
        conversations=SqliteConversationStore(engine),
        log=log,
        lease=lease,
        mailbox=SqliteMailboxStore(engine, interner),
        projection=projection,
        quarantine=SqliteQuarantineStore(engine),
    )
    return SqliteBackends(backends, log, projection, engine)
