"""A broker whose disk is full: it ends, and comes back once there is room."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.builders import value
from tests.contract.engines import Engine
from tests.contract.kafka_engine import eventually, make_topic, patient
from tests.engines.kafka import Kafka
from tests.support.disk import fill, small_disk

from qimd.adapters.kafka import KafkaLog, open_kafka
from qimd.app.runtime import AsyncioRuntime
from qimd.core.errors import ErrorCode, QimError
from qimd.core.outcome import Applied, Outcome, Unknown
from qimd.ports.log import ProduceRecord
from qimd.telemetry.metrics import Metrics

ENGINES = ("kafka",)

RECORD_BYTES = 50_000
LEFT = 1_000_000
"""What the ballast leaves: some twenty records, the last of which meets the end amid its bytes."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Kafka]:
    with small_disk(tmp_path / "small", 40) as disk, Kafka(disk / "kafka") as started:
        yield started


@pytest.fixture
async def log(engine: Engine, server: Kafka) -> AsyncIterator[KafkaLog]:
    """A log on it. `engine` leaves the test out where there is none."""
    assert engine.name == "kafka"
    impatient = replace(patient(server.address), request_timeout_s=5.0)
    async with open_kafka(impatient, AsyncioRuntime(Metrics()), "qim.dispatch") as made:
        await make_topic(made)
        yield made


def record(number: int) -> ProduceRecord:
    return ProduceRecord(0, b"%d" % number + b"." * RECORD_BYTES)


async def until_refused(log: KafkaLog) -> tuple[int, Outcome[None]]:
    """How many records were acknowledged, and what the next one was told."""
    producer = await log.open_producer()
    acknowledged = 0
    while True:
        (outcome,) = await producer.produce([record(acknowledged)])
        if not isinstance(outcome, Applied):
            await producer.close()
            return acknowledged, outcome
        acknowledged += 1


async def ended(server: Kafka) -> None:
    """Return once its process is gone."""
    async with asyncio.timeout(60):
        while await asyncio.to_thread(server.running().alive):
            pass


async def stored(log: KafkaLog) -> list[int]:
    """The numbers of the records."""
    reader = await log.open_reader(0, 0)
    high = (await log.watermarks(0)).high
    values: list[bytes] = []
    while len(values) < high:
        values += [one.value for one in await reader.fetch(1_000, 1)]
    await reader.close()
    assert all(len(one) > RECORD_BYTES for one in values)
    return [int(one.rstrip(b".")) for one in values]


async def test_a_record_that_finds_no_room_is_not_acknowledged_and_what_was_stays(
    server: Kafka, log: KafkaLog
) -> None:
    identity = await log.identity()
    ballast = fill(server.folder.parent, LEFT)
    acknowledged, outcome = await until_refused(log)
    assert acknowledged > 5
    assert isinstance(outcome, Unknown)
    # It ends by itself: none of its disks works.
    await ended(server)
    with pytest.raises(QimError) as error:
        await log.open_producer()
    assert error.value.code is ErrorCode.UNAVAILABLE

    ballast.unlink()
    server.start()
    await asyncio.to_thread(server.wait)
    assert await eventually(log.identity) == identity
    kept = await eventually(lambda: stored(log))
    # The one of unknown outcome may be there too, whole.
    assert kept in (list(range(acknowledged)), list(range(acknowledged + 1)))
    producer = await eventually(log.open_producer)
    for number in range(acknowledged, acknowledged + 3):
        value((await producer.produce([record(number)]))[0])
    assert await stored(log) == [*kept, *range(acknowledged, acknowledged + 3)]
