"""A broker that freezes, dies, or makes topics by itself: one of the tests' own."""

import asyncio
import ssl
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.builders import value
from tests.contract.engines import Engine
from tests.contract.kafka_engine import eventually, make_topic, patient
from tests.contract.test_kafka import FIT
from tests.engines.kafka import Kafka
from tests.engines.process import HOST, free_port
from tests.support.certificates import self_signed

from qimd.adapters.kafka import KafkaLog, LogRefused, gate, open_kafka
from qimd.app.runtime import AsyncioRuntime
from qimd.core.errors import ErrorCode, QimError
from qimd.core.outcome import Applied, Unknown
from qimd.ports.log import LogFault, ProduceRecord
from qimd.telemetry.metrics import Metrics

ENGINES = ("kafka",)


PASSWORD = "a-password-of-the-tests"


class OddKafka(Kafka):
    """A broker that would make a topic for anybody who asks for it, and has a guarded door."""

    def __init__(self, folder: Path) -> None:
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        settings = {
            "auto.create.topics.enable": "true",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f'{login} required user_qim="{PASSWORD}";'
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "broker.pem"),
        }
        super().__init__(folder, settings)
        self.listeners["SASL_SSL"] = f"{HOST}:{free_port()}"
        self.certificate = self_signed(folder / "broker.pem", HOST)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OddKafka]:
    with OddKafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture
async def log(engine: Engine, server: OddKafka) -> AsyncIterator[KafkaLog]:
    """A log on it, without its topic yet. `engine` leaves the tests out where there is none."""
    assert engine.name == "kafka"
    topic = f"qim.dispatch.{uuid.uuid4().hex}"
    async with open_kafka(patient(server.address), AsyncioRuntime(Metrics()), topic) as made:
        yield made


async def test_a_broker_that_makes_topics_by_itself_is_refused_and_not_tempted(
    log: KafkaLog,
) -> None:
    """F08: whoever asks for the topic while it is absent does not make it by that."""
    for _ in range(2):
        with pytest.raises(LogFault):
            await log.identity()
        with pytest.raises(LogFault):
            await log.open_reader(0, 0)
    await make_topic(log)
    with pytest.raises(LogRefused) as refusal:
        await gate(log, FIT)
    assert refusal.value.setting == "auto.create.topics.enable"


async def test_a_guarded_cluster_is_reached_with_its_password_over_tls(
    log: KafkaLog, server: OddKafka
) -> None:
    await make_topic(log)
    guarded = replace(
        patient(server.listeners["SASL_SSL"]),
        tls=ssl.create_default_context(cadata=server.certificate),
        username="qim",
        password=PASSWORD,
        sasl_mechanism="PLAIN",
    )
    assert PASSWORD not in repr(guarded)
    runtime = AsyncioRuntime(Metrics())
    async with open_kafka(guarded, runtime, log.topic) as door:
        assert await door.identity() == await log.identity()
        producer = await door.open_producer()
        value((await producer.produce([ProduceRecord(0, b"a")]))[0])
        reader = await door.open_reader(0, 0)
        assert [record.value for record in await reader.fetch(10, 5)] == [b"a"]
    strangers = (
        replace(guarded, password="a-guess"),
        replace(guarded, username=""),
        replace(guarded, tls=None),
        replace(guarded, tls=ssl.create_default_context()),
    )
    for stranger in strangers:
        async with open_kafka(replace(stranger, request_timeout_s=2.0), runtime, log.topic) as door:
            with pytest.raises(QimError) as error:
                await door.identity()
            assert error.value.code is ErrorCode.UNAVAILABLE
            assert "a-guess" not in str(error.value)


async def test_a_broker_that_freezes_leaves_nothing_open_for_ever(
    server: OddKafka, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qimd.adapters.kafka.producer.PRODUCE_WITHIN_S", 1.0)
    await make_topic(log)
    impatient = replace(log.brokers.cluster, request_timeout_s=2.0)
    async with open_kafka(impatient, AsyncioRuntime(Metrics()), log.topic) as hasty:
        reader = await eventually(lambda: hasty.open_reader(0, 0))
        producer = await eventually(hasty.open_producer)
        server.pause()
        (outcome,) = await producer.produce([ProduceRecord(0, b"a")])
        assert isinstance(outcome, Unknown)
        asked = (reader.fetch(10, 0), hasty.identity(), hasty.open_producer())
        for error in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(error, QimError)
            assert error.code is ErrorCode.UNAVAILABLE
        await producer.close()
        server.resume()
        successor = await eventually(hasty.open_producer)
        value((await successor.produce([ProduceRecord(0, b"a")]))[0])
        # The first try may have landed too, before the second: such a double has one dispatch_id.
        values = [record.value for record in await eventually(lambda: reader.fetch(10, 5))]
        assert values in ([b"a"], [b"a", b"a"])


async def test_a_broker_that_dies_keeps_what_it_acknowledged(
    server: OddKafka, log: KafkaLog
) -> None:
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
    assert await eventually(log.identity) == identity
    # The producer met none of it, and its sequence goes on.
    outcomes = await producer.produce([ProduceRecord(0, b"10")])
    assert [type(outcome) for outcome in outcomes] == [Applied]
    values: list[bytes] = []
    while len(values) < 7:
        values += [record.value for record in await eventually(lambda: reader.fetch(10, 5))]
    assert values == [b"%d" % number for number in range(4, 11)]
