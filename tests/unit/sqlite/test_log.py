"""What is this log's own: waking readers, spent producers, batches, retention."""

import asyncio
import struct
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from tests.contract.builders import refused, value
from tests.support.runtime import WALL_START_MS, ManualRuntime
from tests.unit.sqlite.scenes import executed, held, queued

from qimd.adapters.sqlite import SqliteBackends
from qimd.adapters.sqlite.backends import RETENTION_MS_DEFAULT
from qimd.adapters.sqlite.batches import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from qimd.adapters.sqlite.log import SqliteReader
from qimd.core.outcome import Refusal
from qimd.ports.log import LogRecord, ProduceRecord, Watermarks

T = TypeVar("T")


def made(count: int, partition: int = 0, size: int = 4) -> list[ProduceRecord]:
    return [ProduceRecord(partition, number.to_bytes(size, "big")) for number in range(count)]


async def waiting_fetch(
    store: SqliteBackends, runtime: ManualRuntime, partition: int = 0
) -> asyncio.Future[Sequence[LogRecord]]:
    """A fetch that has looked, found nothing, and waits: its deadline is set on the clock."""
    waits = asyncio.Event()

    class Watched(ManualRuntime):
        async def wait_for(self, coro: Coroutine[Any, Any, T], timeout_s: float) -> T:
            waits.set()
            return await runtime.wait_for(coro, timeout_s)

    reader = SqliteReader(
        store.log, store.engine, Watched(), partition, 0, (await store.log.identity()).topic_id
    )
    fetch = asyncio.ensure_future(reader.fetch(10, 3600.0))
    await waits.wait()
    return fetch


async def test_an_append_wakes_the_readers_of_its_partition_alone(
    store: SqliteBackends, runtime: ManualRuntime
) -> None:
    first, second = await waiting_fetch(store, runtime), await waiting_fetch(store, runtime)
    other = await waiting_fetch(store, runtime, 1)
    producer = await store.backends.log.open_producer()
    value((await producer.produce(made(1)))[0])
    for fetch in (first, second):
        assert [record.offset for record in await fetch] == [0]
    assert not other.done()
    value((await producer.produce(made(1, 1)))[0])
    await other


async def test_a_reader_wakes_though_the_producers_caller_was_cancelled(
    store: SqliteBackends, runtime: ManualRuntime
) -> None:
    fetch = await waiting_fetch(store, runtime)
    producer = await store.backends.log.open_producer()
    async with held(store):
        call = asyncio.ensure_future(producer.produce(made(1)))
        await queued(call)
        call.cancel()
    assert [record.offset for record in await fetch] == [0]


async def test_a_fetch_gives_up_when_its_time_is_over(
    store: SqliteBackends, runtime: ManualRuntime
) -> None:
    fetch = await waiting_fetch(store, runtime)
    await runtime.advance(3599.0)
    assert not fetch.done()
    await runtime.advance(1.0)
    assert await fetch == []


async def test_what_is_queued_behind_a_failed_batch_never_overtakes_it(
    store: SqliteBackends,
) -> None:
    """F05: of one producer's records a prefix lands; the rest is sent again by a new one."""
    producer = await store.backends.log.open_producer()
    value(
        await store.engine.write(
            executed(
                "CREATE TEMP TRIGGER fail BEFORE INSERT ON main.log_batches "
                "WHEN NEW.sizes = x'00000003' BEGIN SELECT RAISE(ABORT, 'broken'); END"
            )
        )
    )
    async with held(store):
        calls = [asyncio.ensure_future(producer.produce(made(1, size=size))) for size in (2, 3, 4)]
        await queued(*calls)
    landed, broken, behind = [(await call)[0] for call in calls]
    value(landed)
    assert refused(broken) is Refusal.REJECTED
    assert refused(behind) is Refusal.UNREACHABLE
    assert refused((await producer.produce(made(1)))[0]) is Refusal.UNREACHABLE
    assert await store.log.watermarks(0) == Watermarks(0, 1)
    again = await store.backends.log.open_producer()
    value((await again.produce(made(1)))[0])
    assert await store.log.watermarks(0) == Watermarks(0, 2)


async def test_a_large_produce_is_kept_as_bounded_batches_and_read_back_whole(
    store: SqliteBackends,
) -> None:
    producer = await store.backends.log.open_producer()
    sent = [*made(2 * BATCH_RECORDS_MAX + 1), *made(3, size=BATCH_BYTES_MAX // 2)]
    for outcome in await producer.produce(sent):
        value(outcome)
    counts = await store.engine.read(
        lambda db: [
            len(struct.unpack(f">{len(sizes) // 4}I", sizes))
            for (sizes,) in db.execute("SELECT sizes FROM log_batches ORDER BY id")
        ]
    )
    # The last of the small ones shares a batch with the first large one, and then it is full.
    assert counts == [BATCH_RECORDS_MAX, BATCH_RECORDS_MAX, 2, 2]
    for start in (0, 1, BATCH_RECORDS_MAX - 1, BATCH_RECORDS_MAX, 2 * BATCH_RECORDS_MAX):
        reader = await store.log.open_reader(0, start)
        found = [record for _ in sent for record in await reader.fetch(7, 0)]
        assert [record.value for record in found] == [one.value for one in sent[start:]]
        assert [record.offset for record in found] == list(range(start, len(sent)))


async def test_retention_deletes_whole_old_batches_and_raises_low(
    store: SqliteBackends, runtime: ManualRuntime
) -> None:
    producer = await store.backends.log.open_producer()
    for _ in range(3):
        await producer.produce(made(4))
        await runtime.advance(1.0)
    now_ms = WALL_START_MS + RETENTION_MS_DEFAULT + 1_500
    assert await store.log.enforce_retention(now_ms) == 8
    assert await store.log.watermarks(0) == Watermarks(8, 12)
    assert await store.log.enforce_retention(now_ms) == 0
    assert await store.log.enforce_retention(now_ms + 3_600_000) == 4
    assert await store.log.watermarks(0) == Watermarks(12, 12)
    value((await producer.produce(made(1)))[0])
    assert await store.log.watermarks(0) == Watermarks(12, 13)
