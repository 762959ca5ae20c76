"""What a suite needs of an engine besides its ports: to harm it, as operators and disasters do."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.runtime import ManualRuntime

from qimd.adapters.memory import MemoryCluster
from qimd.adapters.sqlite import open_sqlite
from qimd.ports.data import Backends

PARTITIONS = 4
RETENTION_MS = 3_600_000
RECORD_BYTES_MAX = 100_000


@dataclass(frozen=True)
class Engine:
    """A fresh deployment of one engine, on a clock that the test moves."""

    name: str
    backends: Backends
    runtime: ManualRuntime
    enforce_retention: Callable[[int], Awaitable[object]]
    recreate_topic: Callable[[], Awaitable[object]]
    end_leases: Callable[[], Awaitable[object]] | None = None
    """Has an engine with a clock of its own end what is over on the test's."""
    forgets_by_itself: bool = False
    """Used idempotency keys go without being asked for."""
    topic: str = "qim.dispatch"

    def log_ms(self) -> int:
        """What the clock reads that the log's records are stamped by, in milliseconds."""
        return self.runtime.wall_ms()

    async def pass_time(self, seconds: float) -> None:
        """Move the clock that leases end by, and the log's."""
        await self.runtime.advance(seconds)
        if self.end_leases is not None:
            await self.end_leases()


@asynccontextmanager
async def opened(name: str, folder: Path) -> AsyncIterator[Engine]:
    """Open the engine `name`; what it keeps on disk is in `folder`."""
    async with ManualRuntime() as runtime:
        match name:
            case "memory":
                yield memory_engine(runtime)
            case "torn":
                yield memory_engine(runtime, torn_mailbox=True)
            case "sqlite":
                async with sqlite_engine(runtime, folder) as engine:
                    yield engine
            case "redis":
                from tests.contract.redis_engine import redis_engine

                async with redis_engine(runtime) as engine:
                    yield engine
            case "kafka":
                from tests.contract.kafka_engine import kafka_engine

                async with kafka_engine(runtime) as engine:
                    yield engine
            case "etcd":
                from tests.contract.etcd_engine import etcd_engine

                async with etcd_engine(runtime) as engine:
                    yield engine
            case "shadow":
                from tests.contract.shadow_engine import shadow_engine

                async with shadow_engine(runtime, folder) as engine:
                    yield engine
            case "cassandra":
                from tests.contract.cassandra_engine import cassandra_engine

                async with cassandra_engine(runtime) as engine:
                    yield engine
            case _:
                raise ValueError(f"there is no engine {name!r}")


def memory_engine(runtime: ManualRuntime, *, torn_mailbox: bool = False) -> Engine:
    cluster = MemoryCluster(
        runtime,
        partitions=PARTITIONS,
        retention_ms=RETENTION_MS,
        max_record_bytes=RECORD_BYTES_MAX,
        torn_mailbox=torn_mailbox,
    )

    async def enforce_retention(now_ms: int) -> None:
        cluster.topic.enforce_retention(now_ms)

    async def recreate_topic() -> None:
        cluster.topic.recreate()

    return Engine(
        name="memory",
        backends=cluster.open(runtime),
        runtime=runtime,
        enforce_retention=enforce_retention,
        recreate_topic=recreate_topic,
    )


@asynccontextmanager
async def sqlite_engine(runtime: ManualRuntime, folder: Path) -> AsyncIterator[Engine]:
    opened_at = await open_sqlite(
        folder / "qim.db",
        runtime,
        partitions=PARTITIONS,
        retention_ms=RETENTION_MS,
        max_record_bytes=RECORD_BYTES_MAX,
    )
    try:
        yield Engine(
            name="sqlite",
            backends=opened_at.backends,
            runtime=runtime,
            enforce_retention=opened_at.log.enforce_retention,
            recreate_topic=opened_at.log.recreate_topic,
        )
    finally:
        await opened_at.close()
