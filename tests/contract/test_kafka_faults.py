"""A broker that freezes, dies, or makes topics by itself: one of the tests' own."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from tests.contract.builders import value
from tests.contract.engines import Engine
from tests.contract.kafka_engine import make_topic
from tests.contract.test_kafka import FIT
from tests.engines.kafka import Kafka

from qimd.adapters.kafka import Cluster, KafkaLog, LogRefused, gate, open_kafka
from qimd.app.runtime import AsyncioRuntime
from qimd.core.errors import ErrorCode, QimError
from qimd.core.outcome import Applied, Unknown
from qimd.ports.log import LogFault, ProduceRecord
from qimd.telemetry.metrics import Metrics

ENGINES = ("kafka",)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker that would make a topic for anybody who asks for it."""
    with Kafka(tmp_path_factory.mktemp("kafka"), auto_create_topics_enable="true") as started:
        yield started


@pytest.fixture
async def log(engine: Engine, server: Kafka) -> AsyncIterator[KafkaLog]:
    """A log on it, without its topic yet. `engine` leaves the tests out where there is none."""
    assert engine.name == "kafka"
    runtime = AsyncioRuntime(Metrics())
    cluster = replace(Cluster.at(server.address), request_timeout_s=1.0)
    async with open_kafka(cluster, runtime, f"qim.dispatch.{uuid.uuid4().hex}") as made:
        yield made


async def test_a_broker_that_makes_topics_by_itself_is_refused_and_not_tempted(
    log: KafkaLog,
) -> None:
    for _ in range(2):
        with pytest.raises(LogFault):
            await log.identity()
        with pytest.raises(LogFault):
            await log.open_reader(0, 0)
    await make_topic(log)
    with pytest.raises(LogRefused) as refusal:
        await gate(log, FIT)
    assert refusal.value.setting == "auto.create.topics.enable"


async def test_a_broker_that_freezes_leaves_nothing_open_for_ever(
    server: Kafka, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qimd.adapters.kafka.producer.PRODUCE_WITHIN_S", 1.0)
    await make_topic(log)
    reader = await log.open_reader(0, 0)
    producer = await log.open_producer()
    server.pause()
    (outcome,) = await producer.produce([ProduceRecord(0, b"a")])
    assert isinstance(outcome, Unknown)
    for ask in (lambda: reader.fetch(10, 0), log.identity, log.open_producer):
        with pytest.raises(QimError) as error:
            await ask()
        assert error.value.code is ErrorCode.UNAVAILABLE
    await producer.close()
    server.resume()
    successor = await log.open_producer()
    value((await successor.produce([ProduceRecord(0, b"a")]))[0])
    # The first try may have landed too, before the second: such a double has one dispatch_id.
    values = [record.value for record in await reader.fetch(10, 5)]
    assert values in ([b"a"], [b"a", b"a"])


async def test_a_broker_that_dies_keeps_what_it_acknowledged(server: Kafka, log: KafkaLog) -> None:
    await make_topic(log)
    reader = await log.open_reader(0, 0)
    producer = await log.open_producer()
    identity = await log.identity()
    for number in range(10):
        value((await producer.produce([ProduceRecord(0, b"%d" % number)]))[0])
    assert [record.offset for record in await reader.fetch(4, 0)] == [0, 1, 2, 3]
    server.kill()
    with pytest.raises(QimError):
        await log.identity()
    server.start()
    await asyncio.to_thread(server.wait)
    assert await log.identity() == identity
    # The producer met none of it, and its sequence goes on.
    outcomes = await producer.produce([ProduceRecord(0, b"10")])
    assert [type(outcome) for outcome in outcomes] == [Applied]
    values: list[bytes] = []
    while len(values) < 7:
        values += [record.value for record in await reader.fetch(10, 5)]
    assert values == [b"%d" % number for number in range(4, 11)]
