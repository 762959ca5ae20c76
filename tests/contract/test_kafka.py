"""What only Kafka has: topics that come back, producers that a refusal would poison, gates."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiokafka.protocol.admin import AlterConfigsRequest
from tests.contract.builders import refused, value
from tests.contract.engines import PARTITIONS, RECORD_BYTES_MAX, RETENTION_MS, Engine
from tests.contract.kafka_engine import make_topic, own_topic

from qimd.adapters.kafka import Demands, KafkaLog, LogRefused, delete_topic, gate
from qimd.adapters.kafka.protocol import BatchesProduce, ProduceRequest_v9
from qimd.app.runtime import AsyncioRuntime
from qimd.core.errors import ErrorCode, QimError
from qimd.core.outcome import Applied, Refusal, Unknown
from qimd.ports.log import LogFault, LogFaultKind, LogRecord, ProduceRecord, Watermarks
from qimd.telemetry.metrics import Metrics

ENGINES = ("kafka",)

FIT = Demands(
    partitions=PARTITIONS,
    recovery_window_ms=RETENTION_MS,
    record_bytes=RECORD_BYTES_MAX,
    single_node=True,
)


@pytest.fixture
async def log(engine: Engine) -> AsyncIterator[KafkaLog]:
    """A log on the real clock: these tests are about what happens, not about when."""
    assert engine.name == "kafka"
    runtime = AsyncioRuntime(Metrics())
    async with own_topic(runtime) as made:
        yield made
    await runtime.cancel_all()


async def append(log: KafkaLog, partition: int, *values: bytes) -> None:
    producer = await log.open_producer()
    for outcome in await producer.produce([ProduceRecord(partition, each) for each in values]):
        value(outcome)
    await producer.close()


async def stored(log: KafkaLog, partition: int = 0) -> list[bytes]:
    reader = await log.open_reader(partition, 0)
    records: list[LogRecord] = []
    high = (await log.watermarks(partition)).high
    while len(records) < high:
        records.extend(await reader.fetch(1_000, 1))
    return [record.value for record in records]


# --- a topic that goes, and one that comes back under its name --------------------------------


async def test_a_deleted_topic_is_missing_and_no_question_makes_it_again(log: KafkaLog) -> None:
    """F08 on a broker that makes none by itself: what asks is told that it is missing."""
    await append(log, 0, b"a")
    reader = await log.open_reader(0, 1)
    await delete_topic(log)
    for _ in range(2):
        with pytest.raises(LogFault) as fault:
            await reader.fetch(10, 0)
        assert fault.value.kind is LogFaultKind.MISSING
        with pytest.raises(LogFault) as fault:
            await log.identity()
        assert fault.value.kind is LogFaultKind.MISSING
        with pytest.raises(QimError) as error:
            await log.open_producer()
        assert error.value.code is ErrorCode.UNAVAILABLE


async def test_a_reader_never_hands_out_a_record_of_another_log(log: KafkaLog) -> None:
    """F06: also where the new log covers its position: not one fetch goes by, however soon."""
    await append(log, 0, *(b"old" for _ in range(3)))
    reader = await log.open_reader(0, 0)
    handed = list(await reader.fetch(1, 0))
    await delete_topic(log)
    await make_topic(log)
    await append(log, 0, *(b"new" for _ in range(10)))
    handed += await reader.fetch(2, 0)
    with pytest.raises(LogFault) as fault:
        await reader.fetch(1, 0)
    assert fault.value.kind is LogFaultKind.IDENTITY_CHANGED
    assert [record.value for record in handed] == [b"old"] * 3


async def test_a_reader_that_waits_learns_that_its_topic_was_made_anew(log: KafkaLog) -> None:
    reader = await log.open_reader(0, 0)
    waiting = asyncio.ensure_future(reader.fetch(10, 60))
    await asyncio.wait([waiting], timeout=0.1)
    await delete_topic(log)
    await make_topic(log)
    await append(log, 0, b"new")
    with pytest.raises(LogFault):
        await waiting


async def test_a_producer_never_writes_to_another_log(log: KafkaLog) -> None:
    producer = await log.open_producer()
    await append(log, 0, b"old")
    await delete_topic(log)
    await make_topic(log)
    (outcome,) = await producer.produce([ProduceRecord(0, b"late")])
    assert not isinstance(outcome, Applied)
    assert await log.watermarks(0) == Watermarks(0, 0)


# --- producers --------------------------------------------------------------------------------


async def test_a_broker_that_takes_no_id_in_a_produce_is_written_to_by_name(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before Kafka 4.1. What lands in another log then is known by the identity it carries."""
    monkeypatch.setattr(BatchesProduce, "_CLASSES", (ProduceRequest_v9,))
    await append(log, 0, b"a", b"b")
    assert await stored(log) == [b"a", b"b"]


async def test_a_refused_batch_spends_the_producer_and_the_next_one_goes_on(log: KafkaLog) -> None:
    """Its sequence number is taken: what aiokafka's producer sends from then on fails for ever."""
    producer = await log.open_producer()
    value((await producer.produce([ProduceRecord(0, b"a")]))[0])
    await set_limit(log, 200)
    large = ProduceRecord(0, b"x" * 1_000)
    first, behind = await producer.produce([large, ProduceRecord(0, b"b")])
    assert isinstance(first, Unknown)
    assert not isinstance(behind, Applied)
    (spent,) = await producer.produce([ProduceRecord(1, b"c")])
    assert refused(spent) is Refusal.UNREACHABLE
    await producer.close()

    successor = await log.open_producer()
    too_large, landed = await successor.produce([large, ProduceRecord(0, b"b")])
    assert refused(too_large) is Refusal.REJECTED
    value(landed)
    assert await stored(log) == [b"a", b"b"]


async def set_limit(log: KafkaLog, batch_bytes: int) -> None:
    """Lower the topic's limit while producers are open."""
    change = (2, log.topic, [("max.message.bytes", str(batch_bytes))])
    ((code, *_),) = (await log.brokers.ask_any(AlterConfigsRequest([change], False))).resources
    assert code == 0
    while (await log.settings()).max_record_bytes > batch_bytes:  # type: ignore[operator]
        pass


async def test_a_batch_of_many_requests_lands_whole_and_in_order(log: KafkaLog) -> None:
    sizes = [(37 * n) % RECORD_BYTES_MAX for n in range(400)]
    batch = [ProduceRecord(n % PARTITIONS, bytes([n % 251]) * size) for n, size in enumerate(sizes)]
    producer = await log.open_producer()
    outcomes = await producer.produce(batch)
    assert [type(outcome) for outcome in outcomes] == [Applied] * len(batch)
    for partition in range(PARTITIONS):
        mine = [record.value for record in batch if record.partition == partition]
        assert await stored(log, partition) == mine


async def test_two_calls_of_one_producer_never_mix(log: KafkaLog) -> None:
    producer = await log.open_producer()
    calls = [[ProduceRecord(0, b"%d.%d" % (call, n)) for n in range(50)] for call in range(4)]
    for outcomes in await asyncio.gather(*map(producer.produce, calls)):
        for outcome in outcomes:
            value(outcome)
    assert await stored(log) == [record.value for call in calls for record in call]


async def test_a_cancelled_produce_spends_the_producer(log: KafkaLog) -> None:
    """What it sent may land; nothing may come behind it as if it had not been sent."""
    producer = await log.open_producer()
    call = asyncio.ensure_future(producer.produce([ProduceRecord(0, b"a")]))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    (outcome,) = await producer.produce([ProduceRecord(0, b"b")])
    assert refused(outcome) is Refusal.UNREACHABLE
    await append(log, 0, b"c")
    assert await stored(log) in ([b"a", b"c"], [b"c"])


# --- readers ----------------------------------------------------------------------------------


async def test_a_fetch_that_was_given_up_takes_nothing_with_it(log: KafkaLog) -> None:
    reader = await log.open_reader(0, 0)
    for _ in range(3):
        waiting = asyncio.ensure_future(reader.fetch(10, 60))
        await asyncio.wait([waiting], timeout=0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await append(log, 0, b"a", b"b")
    assert [record.value for record in await reader.fetch(10, 5)] == [b"a", b"b"]


async def test_a_reader_starts_within_a_batch(log: KafkaLog) -> None:
    await append(log, 0, *(bytes([n]) for n in range(20)))
    reader = await log.open_reader(0, 13)
    assert [record.offset for record in await reader.fetch(100, 0)] == list(range(13, 20))


async def test_a_closed_reader_can_be_closed_again(log: KafkaLog) -> None:
    reader = await log.open_reader(0, 0)
    await reader.fetch(1, 0)
    await reader.close()
    await reader.close()


# --- gates ------------------------------------------------------------------------------------


async def test_the_suites_own_topic_is_fit_for_a_single_node(log: KafkaLog) -> None:
    await gate(log, FIT)


async def test_one_broker_is_refused_unless_the_deployment_says_so(log: KafkaLog) -> None:
    replicated = Demands(PARTITIONS, RETENTION_MS, RECORD_BYTES_MAX)
    with pytest.raises(LogRefused) as refusal:
        await gate(log, replicated)
    assert refusal.value.setting == "brokers"


@pytest.mark.parametrize(
    ("demands", "setting"),
    [
        (Demands(PARTITIONS * 2, RETENTION_MS, RECORD_BYTES_MAX, True), "partitions"),
        (Demands(PARTITIONS, RETENTION_MS + 1, RECORD_BYTES_MAX, True), "retention.ms"),
        (Demands(PARTITIONS, RETENTION_MS, RECORD_BYTES_MAX + 1, True), "max.message.bytes"),
    ],
)
async def test_a_topic_that_is_too_small_is_refused(
    log: KafkaLog, demands: Demands, setting: str
) -> None:
    with pytest.raises(LogRefused) as refusal:
        await gate(log, demands)
    assert refusal.value.setting == setting


async def test_no_topic_no_start(log: KafkaLog) -> None:
    await delete_topic(log)
    with pytest.raises(LogFault) as fault:
        await gate(log, FIT)
    assert fault.value.kind is LogFaultKind.MISSING
