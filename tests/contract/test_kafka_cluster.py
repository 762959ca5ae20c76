"""Three brokers: the gate for copies, and a leader that dies in the midst of a run."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest
from tests.contract.builders import ANNA, block, event, ref, user
from tests.contract.engines import PARTITIONS, RECORD_BYTES_MAX, RETENTION_MS, Engine
from tests.contract.kafka_engine import eventually, patient
from tests.contract.owners import Owner, record
from tests.engines.kafka import Kafka, cluster

from qimd.adapters.kafka import Demands, KafkaLog, LogRefused, create_topic, gate, open_kafka
from qimd.adapters.kafka.topic import look
from qimd.app.runtime import AsyncioRuntime
from qimd.core.outcome import Applied
from qimd.core.seq import SEQ_MAX, SEQ_NONE
from qimd.ports.log import ProduceRecord, Reader
from qimd.telemetry.metrics import Metrics

ENGINES = ("kafka",)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Kafka]]:
    """A cluster that misses a dead broker soon."""
    settings = {"broker.session.timeout.ms": "4000"}
    members = cluster(tmp_path_factory.mktemp("kafka"), settings)
    with ExitStack() as stack:
        for member in members:
            member.start()
            stack.callback(member.kill)
        for member in members:
            member.wait()
        yield members


@pytest.fixture
async def log(engine: Engine, servers: list[Kafka]) -> AsyncIterator[KafkaLog]:
    """A log with three copies. `engine` leaves the tests out where there is no Kafka."""
    assert engine.name == "kafka"
    async with made(servers) as log:
        yield log


@asynccontextmanager
async def made(
    servers: list[Kafka], *, replicas: int = 3, **settings: str
) -> AsyncIterator[KafkaLog]:
    """A log, and its topic that differs from a good one by some settings."""
    addresses = ",".join(server.address for server in servers)
    topic = f"qim.dispatch.{uuid.uuid4().hex}"
    runtime = AsyncioRuntime(Metrics())
    async with open_kafka(patient(addresses), runtime, topic) as log:
        await create_topic(
            log,
            partitions=PARTITIONS,
            retention_ms=RETENTION_MS,
            max_record_bytes=RECORD_BYTES_MAX,
            replicas=replicas,
            others=settings,
        )
        yield log


async def test_three_copies_are_what_a_deployment_must_have(log: KafkaLog) -> None:
    await gate(log, Demands(PARTITIONS, RETENTION_MS, RECORD_BYTES_MAX))


@pytest.mark.parametrize(
    ("setting", "unsafe"),
    [("min.insync.replicas", "1"), ("unclean.leader.election.enable", "true")],
)
async def test_copies_that_may_lose_what_was_acknowledged_are_refused(
    engine: Engine, servers: list[Kafka], setting: str, unsafe: str
) -> None:
    """F11: one replica that has a record is no copy, and a leader that has it not forgets it."""
    assert engine.name == "kafka"
    async with made(servers, **{setting: unsafe}) as log:
        with pytest.raises(LogRefused) as refusal:
            await gate(log, Demands(PARTITIONS, RETENTION_MS, RECORD_BYTES_MAX))
    assert refusal.value.setting == setting


async def test_a_partition_without_a_leader_takes_records_again_once_it_has_one(
    engine: Engine, servers: list[Kafka]
) -> None:
    """F01: nothing of ours is restarted, and a member has each event once, though a dispatch may be
    in the log as often as it was sent. F05: of one batch it fails alone, and is told apart.
    """
    assert engine.name == "kafka"
    late = [b"1", b"2", b"3"]
    async with made(servers, replicas=1) as log:
        leaders = (await look(log.brokers, log.topic)).leaders
        other = next(partition for partition in leaders if leaders[partition] != leaders[0])
        (away,) = [server for server in servers if server.port == leaders[0].port]
        await asyncio.to_thread(away.kill)
        try:
            async with asyncio.timeout(60):
                # The cluster misses it by its own clock.
                while 0 in (await eventually(lambda: look(log.brokers, log.topic))).leaders:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            for _ in range(2):
                producer = await eventually(log.open_producer)
                batch = [*(ProduceRecord(0, each) for each in late), ProduceRecord(other, b"soon")]
                *failed, soon = await producer.produce(batch)
                await producer.close()
                assert not any(isinstance(each, Applied) for each in failed)
                assert isinstance(soon, Applied)
        finally:
            await asyncio.to_thread(away.start)
            await asyncio.to_thread(away.wait)
        await deliver(log, late)
        reader = await eventually(lambda: log.open_reader(0, 0))
        assert await materialised(engine, await everything(log, reader)) == [1, 2, 3]


async def test_a_leader_that_dies_costs_time_and_no_record(
    engine: Engine, log: KafkaLog, servers: list[Kafka]
) -> None:
    """What was acknowledged is there in its order; a run that failed went out again, whole."""
    reader = await eventually(lambda: log.open_reader(0, 0))
    leader = (await look(log.brokers, log.topic)).leader(0)
    runs = [[b"%d" % (20 * run + n) for n in range(1, 21)] for run in range(30)]
    for number, run in enumerate(runs):
        if number == 10:
            (dying,) = [server for server in servers if server.port == leader.port]
            await asyncio.to_thread(dying.kill)
        await deliver(log, run)
    assert await materialised(engine, await everything(log, reader)) == list(range(1, 601))
    assert (await look(log.brokers, log.topic)).leader(0) != leader


async def deliver(log: KafkaLog, run: list[bytes]) -> None:
    """As the fanout does: after a failure a new producer, and the whole run."""
    delivered = False
    async with asyncio.timeout(120):
        while not delivered:
            producer = await eventually(log.open_producer)
            outcomes = await producer.produce([ProduceRecord(0, value) for value in run])
            await producer.close()
            delivered = all(isinstance(outcome, Applied) for outcome in outcomes)


async def everything(log: KafkaLog, reader: Reader) -> list[bytes]:
    """All values of partition 0, through whatever its reader meets."""
    high = (await eventually(lambda: log.watermarks(0))).high
    values: list[bytes] = []
    async with asyncio.timeout(120):
        while len(values) < high:
            values += [record.value for record in await eventually(lambda: reader.fetch(1_000, 1))]
    return values


async def materialised(engine: Engine, values: list[bytes]) -> list[int]:
    """What a member has of dispatches that are named by their event's seq: all of it, in order."""
    owner = await Owner.of(engine)
    records = [
        record(offset, [block(0, ANNA)], of=ref(event(int(value))))
        for offset, value in enumerate(values)
    ]
    await owner.apply(records, len(records) - 1)
    entries = await engine.backends.mailbox.entries(user(ANNA), SEQ_NONE, SEQ_MAX, len(records))
    return [entry.ref.conversation_seq for entry in entries]
