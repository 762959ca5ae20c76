"""A broker that lets nobody read settings: nothing proves then that the log keeps what it must."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.contract.engines import Engine
from tests.contract.kafka_engine import make_topic, patient
from tests.contract.kafka_rights import AUTHORIZED, hide_broker_settings, hide_topic_settings
from tests.contract.test_kafka import FIT
from tests.engines.kafka import Kafka

from qimd.adapters.kafka import KafkaLog, LogRefused, gate, open_kafka
from qimd.app.runtime import AsyncioRuntime
from qimd.core.errors import ErrorCode, QimError
from qimd.ports.log import LogSettings, Watermarks
from qimd.telemetry.metrics import Metrics

ENGINES = ("kafka",)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with Kafka(tmp_path_factory.mktemp("kafka") / "broker", AUTHORIZED) as started:
        yield started


@pytest.fixture
async def log(engine: Engine, server: Kafka) -> AsyncIterator[KafkaLog]:
    """A log that is fit. `engine` leaves the tests out where there is none."""
    assert engine.name == "kafka"
    topic = f"qim.dispatch.{uuid.uuid4().hex}"
    async with open_kafka(patient(server.address), AsyncioRuntime(Metrics()), topic) as made:
        await make_topic(made)
        yield made


async def test_a_topic_whose_settings_may_not_be_read_is_refused_by_the_missing_right(
    log: KafkaLog,
) -> None:
    await hide_topic_settings(log)
    with pytest.raises(LogRefused) as refusal:
        await gate(log, FIT)
    told = f"DescribeConfigs: the right to it is missing on the topic {log.topic}"
    assert str(refusal.value) == told
    # Nothing else is: rooms that ask the log for its settings are told that it does not tell.
    assert await log.settings() == LogSettings(None, None)
    assert await log.watermarks(0) == Watermarks(0, 0)
    assert await (await log.open_reader(0, 0)).fetch(1, 0) == []
    with pytest.raises(QimError) as error:
        await log.open_producer()
    assert error.value.code is ErrorCode.UNAVAILABLE


async def test_a_broker_whose_settings_may_not_be_read_is_refused_by_the_missing_right(
    log: KafkaLog,
) -> None:
    await gate(log, FIT)
    await hide_broker_settings(log)
    with pytest.raises(LogRefused) as refusal:
        await asyncio.wait_for(gated_for_ever(log), 60)
    assert str(refusal.value) == "DescribeConfigs: the right to it is missing on the broker 1"


async def gated_for_ever(log: KafkaLog) -> None:
    """Until it is refused: a rule takes a moment to hold."""
    while True:
        await gate(log, FIT)
