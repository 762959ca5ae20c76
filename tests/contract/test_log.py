"""`ports.log`, sentence by sentence."""

import uuid
from collections.abc import Sequence

import pytest
from tests.contract.builders import refused, value
from tests.contract.engines import PARTITIONS, RECORD_BYTES_MAX, RETENTION_MS, Engine
from tests.support.runtime import ManualRuntime

from qimd.core.outcome import Applied, Refusal
from qimd.ports.log import LogFault, LogFaultKind, LogRecord, LogSettings, ProduceRecord, Watermarks

ENGINES = ("memory", "sqlite", "kafka")


def batch(partition: int, *values: bytes) -> list[ProduceRecord]:
    return [ProduceRecord(partition, each) for each in values]


async def append(engine: Engine, partition: int, *values: bytes) -> None:
    producer = await engine.backends.log.open_producer()
    for outcome in await producer.produce(batch(partition, *values)):
        value(outcome)
    await producer.close()


async def read(
    engine: Engine, partition: int, offset: int = 0, limit: int = 100
) -> Sequence[LogRecord]:
    reader = await engine.backends.log.open_reader(partition, offset)
    try:
        return await reader.fetch(limit, 0)
    finally:
        await reader.close()


# --- the topic --------------------------------------------------------------------------------


async def test_the_identity_proves_which_log_it_is(engine: Engine) -> None:
    identity = await engine.backends.log.identity()
    assert identity.topic == engine.topic
    assert identity.partitions == PARTITIONS
    assert identity.cluster_id
    assert uuid.UUID(identity.topic_id).int != 0
    assert identity.text.endswith(identity.topic_id)
    assert await engine.backends.log.identity() == identity


async def test_settings_are_what_start_gates_check(engine: Engine) -> None:
    assert await engine.backends.log.settings() == LogSettings(RETENTION_MS, RECORD_BYTES_MAX)


async def test_a_new_topic_is_empty(engine: Engine) -> None:
    for partition in range(PARTITIONS):
        assert await engine.backends.log.watermarks(partition) == Watermarks(0, 0)
        assert list(await read(engine, partition)) == []


# --- producing --------------------------------------------------------------------------------


async def test_records_land_in_order_with_offsets_from_zero(engine: Engine) -> None:
    await append(engine, 1, b"a", b"b")
    await append(engine, 1, b"c")
    records = await read(engine, 1)
    assert [(record.offset, record.value) for record in records] == [
        (0, b"a"),
        (1, b"b"),
        (2, b"c"),
    ]
    assert await engine.backends.log.watermarks(1) == Watermarks(0, 3)


async def test_partitions_know_nothing_of_one_another(engine: Engine) -> None:
    producer = await engine.backends.log.open_producer()
    mixed = batch(0, b"a") + batch(2, b"b") + batch(0, b"c") + batch(3, b"d") + batch(2, b"e")
    assert [type(outcome) for outcome in await producer.produce(mixed)] == [Applied] * 5
    values = [[record.value for record in await read(engine, n)] for n in range(PARTITIONS)]
    assert values == [[b"a", b"c"], [], [b"b", b"e"], [b"d"]]


async def test_an_empty_batch_is_nothing(engine: Engine) -> None:
    producer = await engine.backends.log.open_producer()
    assert list(await producer.produce([])) == []
    assert await engine.backends.log.watermarks(0) == Watermarks(0, 0)


async def test_bytes_come_back_as_they_went_in(engine: Engine) -> None:
    values = (bytes(range(256)), b"\x00", b"x" * RECORD_BYTES_MAX)
    await append(engine, 0, *values)
    assert tuple(record.value for record in await read(engine, 0)) == values


async def test_a_record_too_large_is_rejected_and_holds_nobody(engine: Engine) -> None:
    """Rejected for good, and the producer is not spent: the others go on in order."""
    producer = await engine.backends.log.open_producer()
    large = b"x" * (RECORD_BYTES_MAX + 1)
    first, too_large, other, behind = await producer.produce(
        batch(0, b"a", large) + batch(1, b"b") + batch(0, b"c")
    )
    assert refused(too_large) is Refusal.REJECTED
    for outcome in (first, other, behind, *await producer.produce(batch(0, b"d"))):
        value(outcome)
    assert [record.value for record in await read(engine, 0)] == [b"a", b"c", b"d"]
    assert [record.value for record in await read(engine, 1)] == [b"b"]


async def test_append_times_are_the_logs(engine: Engine) -> None:
    before_ms = engine.log_ms()
    await append(engine, 0, b"a")
    after_ms = engine.log_ms()
    await engine.pass_time(5)
    await append(engine, 0, b"b")
    first, second = await read(engine, 0)
    assert before_ms <= first.timestamp_ms <= after_ms < second.timestamp_ms


# --- reading ----------------------------------------------------------------------------------


async def test_a_reader_goes_forward_from_its_offset(engine: Engine) -> None:
    await append(engine, 0, *(bytes([n]) for n in range(10)))
    reader = await engine.backends.log.open_reader(0, 3)
    pages = [[record.offset for record in await reader.fetch(4, 0)] for _ in range(3)]
    assert pages == [[3, 4, 5, 6], [7, 8, 9], []]
    await append(engine, 0, b"new")
    assert [record.offset for record in await reader.fetch(4, 0)] == [10]


async def test_two_readers_have_positions_of_their_own(engine: Engine) -> None:
    await append(engine, 0, b"a", b"b")
    first = await engine.backends.log.open_reader(0, 0)
    second = await engine.backends.log.open_reader(0, 1)
    assert [record.value for record in await first.fetch(10, 0)] == [b"a", b"b"]
    assert [record.value for record in await second.fetch(10, 0)] == [b"b"]


async def test_a_waiting_reader_is_woken_by_the_first_record(engine: Engine) -> None:
    reader = await engine.backends.log.open_reader(2, 0)
    fetched: list[bytes] = []
    done = engine.runtime.monotonic_s()

    async def fetch() -> None:
        fetched.extend(record.value for record in await reader.fetch(10, 60))

    task = engine.runtime.spawn(fetch(), "fetch")
    await waits_on_the_clock(engine.runtime)
    await append(engine, 1, b"another partition's")
    await append(engine, 2, b"a")
    await task
    assert fetched == [b"a"]
    assert engine.runtime.monotonic_s() == done, "no time passed on the clock"
    assert engine.runtime.sleepers() == 0


async def test_a_reader_waits_no_longer_than_it_was_told(engine: Engine) -> None:
    reader = await engine.backends.log.open_reader(2, 0)
    fetched: list[Sequence[LogRecord]] = []

    async def fetch() -> None:
        fetched.append(await reader.fetch(10, 5))

    task = engine.runtime.spawn(fetch(), "fetch")
    await waits_on_the_clock(engine.runtime)
    await engine.runtime.advance(4.9)
    assert fetched == []
    await engine.runtime.advance(0.1)
    await task
    assert [list(records) for records in fetched] == [[]]
    await append(engine, 2, b"a")
    assert [record.value for record in await reader.fetch(10, 0)] == [b"a"]


async def test_a_position_outside_the_log_is_refused_at_once(engine: Engine) -> None:
    await append(engine, 0, b"a", b"b")
    for offset in (-1, 3, 1_000):
        with pytest.raises(LogFault) as fault:
            await engine.backends.log.open_reader(0, offset)
        assert fault.value.kind is LogFaultKind.OUT_OF_RANGE
    for offset in (0, 2):
        await engine.backends.log.open_reader(0, offset)


async def test_a_partition_that_is_not_there_is_a_fault(engine: Engine) -> None:
    with pytest.raises(LogFault):
        await engine.backends.log.watermarks(PARTITIONS)
    with pytest.raises(LogFault):
        await engine.backends.log.open_reader(PARTITIONS, 0)


# --- times and retention ----------------------------------------------------------------------


async def test_an_offset_is_found_by_its_time(engine: Engine) -> None:
    log = engine.backends.log
    assert await log.offset_at(0, engine.log_ms()) == 0
    for _ in range(3):
        await append(engine, 0, b"a", b"b")
        await engine.pass_time(10)
    records = await read(engine, 0)
    times = [record.timestamp_ms for record in records]
    assert times[0] == times[1] < times[2] == times[3] < times[4] == times[5]
    for asked in (-1, 0, *(time + step for time in times for step in (-1, 0, 1))):
        first = next((record.offset for record in records if record.timestamp_ms >= asked), 6)
        assert await log.offset_at(0, asked) == first


async def test_retention_drops_the_oldest_and_offsets_stay(engine: Engine) -> None:
    log = engine.backends.log
    await append(engine, 0, b"a", b"b")
    await engine.pass_time(60)
    await append(engine, 0, b"c")
    await engine.pass_time(RETENTION_MS / 1000 - 30)
    await engine.enforce_retention(engine.log_ms())
    assert await log.watermarks(0) == Watermarks(2, 3)
    assert [(record.offset, record.value) for record in await read(engine, 0, 2)] == [(2, b"c")]
    assert await log.offset_at(0, 0) == 2
    with pytest.raises(LogFault) as fault:
        await log.open_reader(0, 1)
    assert fault.value.kind is LogFaultKind.OUT_OF_RANGE


async def test_a_log_that_retention_emptied_goes_on_at_its_high(engine: Engine) -> None:
    log = engine.backends.log
    await append(engine, 0, b"a", b"b")
    await engine.pass_time(RETENTION_MS / 1000 + 1)
    await engine.enforce_retention(engine.log_ms())
    assert await log.watermarks(0) == Watermarks(2, 2)
    await append(engine, 0, b"c")
    assert [(record.offset, record.value) for record in await read(engine, 0, 2)] == [(2, b"c")]


async def test_a_reader_that_retention_overtook_faults_and_never_jumps(engine: Engine) -> None:
    """MBX-02, F09: a position below the log's start is an explicit out-of-range fault."""
    await append(engine, 0, b"a", b"b")
    reader = await engine.backends.log.open_reader(0, 0)
    await engine.pass_time(RETENTION_MS / 1000 + 1)
    await engine.enforce_retention(engine.log_ms())
    await append(engine, 0, b"c")
    with pytest.raises(LogFault) as fault:
        await reader.fetch(10, 0)
    assert fault.value.kind is LogFaultKind.OUT_OF_RANGE


# --- another log under the same name ----------------------------------------------------------


async def test_a_recreated_topic_has_another_identity_and_begins_at_zero(engine: Engine) -> None:
    """MBX-01: what proves it is the identity; the offsets alone could look right."""
    log = engine.backends.log
    await append(engine, 0, *(b"old" for _ in range(10)))
    before = await log.identity()
    await engine.recreate_topic()
    after = await log.identity()
    assert (after.cluster_id, after.topic, after.partitions) == (
        before.cluster_id,
        before.topic,
        before.partitions,
    )
    assert after.topic_id != before.topic_id
    assert await log.watermarks(0) == Watermarks(0, 0)
    await append(engine, 0, b"new")
    assert [(record.offset, record.value) for record in await read(engine, 0)] == [(0, b"new")]


async def test_a_reader_of_the_old_topic_faults(engine: Engine) -> None:
    await append(engine, 0, *(b"old" for _ in range(3)))
    reader = await engine.backends.log.open_reader(0, 3)
    await engine.recreate_topic()
    await append(engine, 0, *(b"new" for _ in range(5)))
    with pytest.raises(LogFault):
        await reader.fetch(10, 0)


async def test_a_reader_of_one_log_is_never_of_the_next(engine: Engine) -> None:
    """Who knows which log a position belongs to says so, and is told before a record comes."""
    log = engine.backends.log
    await append(engine, 0, *(b"old" for _ in range(3)))
    known = (await log.identity()).text
    reader = await log.open_reader(0, 1, known)
    assert [record.offset for record in await reader.fetch(10, 0)] == [1, 2]
    await reader.close()
    await engine.recreate_topic()
    await append(engine, 0, *(b"new" for _ in range(5)))
    with pytest.raises(LogFault) as fault:
        await log.open_reader(0, 1, known)
    assert fault.value.kind is LogFaultKind.IDENTITY_CHANGED


async def test_a_reader_is_opened_of_the_log_that_was_meant_or_not_at_all(engine: Engine) -> None:
    log = engine.backends.log
    await append(engine, 0, *(b"old" for _ in range(3)))
    old = (await log.identity()).text
    await (await log.open_reader(0, 3, old)).close()
    await engine.recreate_topic()
    await append(engine, 0, *(b"new" for _ in range(5)))
    for offset in (3, 1_000):
        with pytest.raises(LogFault) as fault:
            await log.open_reader(0, offset, old)
        assert fault.value.kind is LogFaultKind.IDENTITY_CHANGED
    reader = await log.open_reader(0, 3, (await log.identity()).text)
    assert [record.value for record in await reader.fetch(10, 0)] == [b"new", b"new"]


async def waits_on_the_clock(runtime: ManualRuntime) -> None:
    """Return once a task sleeps: an engine with threads gets there in its own time."""
    while runtime.sleepers() == 0:
        await runtime.sleep(0)
