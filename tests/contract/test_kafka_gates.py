"""The start gates of mailboxes and of session lists over a real log that is not what it must be."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from aiokafka.protocol.admin import AlterConfigsRequest, DeleteRecordsRequest
from tests.contract.engines import PARTITIONS, RETENTION_MS, Engine, memory_engine
from tests.contract.kafka_engine import make_topic, own_topic
from tests.contract.test_kafka import append
from tests.support.runtime import ManualRuntime
from tests.unit.mailbox.world import Presence

from qimd.adapters.kafka import KafkaLog, delete_topic
from qimd.app.runtime import AsyncioRuntime
from qimd.core.lease import Term
from qimd.core.records import LogIdentity
from qimd.core.routing import RoutingTable
from qimd.mailbox import gates
from qimd.mailbox.ports import Halted
from qimd.mailbox.ports import RoomPorts as MailboxPorts
from qimd.ports.data import Backends
from qimd.session.ports import RoomPorts as SessionPorts
from qimd.session.projector import Projector
from qimd.session.steps import ProjectionDirty, SteppedDown
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import NO_SPANS

ENGINES = ("kafka",)

TOPIC = 2
"""Kafka's number for the kind of resource."""

PATIENCE_S = 60.0
"""How long a busy machine may take."""


class Fickle(KafkaLog):
    """A log that is another one, and longer, from the question `changes_at` for its identity on."""

    def __init__(self, log: KafkaLog, changes_at: int = 0) -> None:
        super().__init__(log.brokers, AsyncioRuntime(Metrics()), log.topic)
        self._changes_at = changes_at
        self.asked = 0

    async def identity(self) -> LogIdentity:
        self.asked += 1
        if self.asked == self._changes_at:
            await begin_anew(self)
        return await super().identity()


async def begin_anew(log: KafkaLog) -> None:
    """The same name and settings, other records, and more of them than there were."""
    await delete_topic(log)
    await make_topic(log)
    await append(log, 0, *(b"new" for _ in range(10)))


async def keep_for(log: KafkaLog, retention_ms: int) -> None:
    settings = [("retention.ms", str(retention_ms)), ("message.timestamp.type", "LogAppendTime")]
    reply = await log.brokers.ask_any(AlterConfigsRequest([(TOPIC, log.topic, settings)], False))
    assert [code for code, *_ in reply.resources] == [0]
    async with asyncio.timeout(PATIENCE_S):
        while (await log.settings()).retention_ms != retention_ms:
            pass


@dataclass
class Rooms:
    """What the rooms keep of partition 0, and each room's start with it."""

    backends: Backends
    log: KafkaLog
    terms: int = 0

    async def mailbox(self, log: KafkaLog | None = None, partitions: int = PARTITIONS) -> str:
        """Why its shard halts; empty if it may read."""
        runtime = AsyncioRuntime(Metrics())
        ports = MailboxPorts(
            table=RoutingTable(1, partitions, 1),
            store=self.backends.mailbox,
            conversations=self.backends.conversations,
            log=log or self.log,
            quarantine=self.backends.quarantine,
            hints=Presence(),
            supplement=None,
            runtime=runtime,
            metrics=Metrics(),
            recovery_window_ms=RETENTION_MS,
            replay_safety_window_ms=None,
            on_stall_failover=lambda _: None,
            spans=NO_SPANS,
        )
        try:
            await gates.admit(ports, await gates.open_shard(ports, 0, self._term(runtime)))
        except Halted as halted:
            return str(halted)
        return ""

    async def session(self, log: KafkaLog | None = None, partitions: int = PARTITIONS) -> str:
        """Why its list is dirty; empty if it is ready."""
        runtime = AsyncioRuntime(Metrics())
        ports = SessionPorts(
            table=RoutingTable(1, partitions, 1),
            projection=self.backends.projection,
            conversations=self.backends.conversations,
            log=log or self.log,
            quarantine=self.backends.quarantine,
            runtime=runtime,
            metrics=Metrics(),
            recovery_window_ms=RETENTION_MS,
            spans=NO_SPANS,
        )
        term = self._term(runtime)
        projector = Projector(ports, term)
        run = asyncio.create_task(projector.run())
        async with asyncio.timeout(PATIENCE_S):
            while not projector.ready and not run.done():
                await asyncio.wait([run], timeout=0.01)
        term.end()
        try:
            await run
        except ProjectionDirty as dirty:
            return str(dirty)
        except SteppedDown:
            pass
        return ""

    def _term(self, runtime: AsyncioRuntime) -> Term:
        self.terms += 1
        return Term(0, self.terms, "node", 1e9, runtime.monotonic_s())


@pytest.fixture
async def rooms(engine: Engine) -> AsyncIterator[Rooms]:
    """Rooms that have been on their log once, which holds three records of nobody's."""
    assert engine.name == "kafka"
    runtime = AsyncioRuntime(Metrics())
    async with own_topic(runtime) as log, ManualRuntime() as manual:
        made = Rooms(replace(memory_engine(manual).backends, log=log), log)
        await append(log, 0, *(b"old" for _ in range(3)))
        assert (await made.mailbox(), await made.session()) == ("", "")
        yield made
    await runtime.cancel_all()


@pytest.mark.parametrize("asked", [2, 3])
async def test_a_log_that_changes_amid_a_mailboxs_gates_is_refused(
    rooms: Rooms, asked: int
) -> None:
    """Before its shape is judged, and behind its watermarks."""
    log = Fickle(rooms.log, asked)
    assert (await rooms.mailbox(log)).startswith("identity_changed")
    assert log.asked >= asked


@pytest.mark.parametrize("asked", range(2, 7))
async def test_a_log_that_changes_amid_a_projections_gates_is_refused(
    rooms: Rooms, asked: int
) -> None:
    """Around the watermarks: as it starts, as it has the partition, and as it has caught up."""
    log = Fickle(rooms.log, asked)
    assert "identity changed" in await rooms.session(log)
    assert log.asked >= asked


async def test_a_log_made_anew_and_grown_beyond_the_old_place_is_refused(rooms: Rooms) -> None:
    await begin_anew(rooms.log)
    assert (await rooms.log.watermarks(0)).high > 3
    assert (await rooms.mailbox()).startswith("identity_changed")
    assert "another log" in await rooms.session()


async def test_a_log_without_its_topic_is_refused(rooms: Rooms) -> None:
    await delete_topic(rooms.log)
    assert (await rooms.mailbox()).startswith("missing")
    assert "there is no topic" in await rooms.session()


async def test_a_log_of_another_number_of_partitions_is_refused(rooms: Rooms) -> None:
    for other in (PARTITIONS // 2, PARTITIONS * 2):
        told = f"{PARTITIONS} partitions, not"
        assert told in await rooms.mailbox(partitions=other)
        assert told in await rooms.session(partitions=other)


@pytest.mark.parametrize("retention_ms", [-1, RETENTION_MS - 1])
async def test_a_log_that_does_not_provably_keep_enough_is_refused(
    rooms: Rooms, retention_ms: int
) -> None:
    await keep_for(rooms.log, retention_ms)
    reason = "retention_unknown" if retention_ms < 0 else "retention_short"
    assert (await rooms.mailbox()).startswith(reason)
    assert f"retention.ms is {retention_ms}" in await rooms.session()


async def test_a_log_that_has_dropped_what_is_still_needed_is_refused(rooms: Rooms) -> None:
    """Both have a checkpoint, the mailbox's at 0: its gates read nothing yet. New rooms have none
    and would begin behind a gap.
    """
    request = DeleteRecordsRequest([(rooms.log.topic, [(0, 1)])], 10_000)
    ((_, ((_, low, code, *_),), *_),) = (await rooms.log.brokers.ask_any(request)).topics
    assert (low, code) == (1, 0)
    assert (await rooms.mailbox()).startswith("out_of_range")
    assert await rooms.session() == ""
    async with ManualRuntime() as manual:
        new = Rooms(replace(memory_engine(manual).backends, log=rooms.log), rooms.log)
        assert (await new.mailbox()).startswith("out_of_range")
        assert "there is no checkpoint, and the log begins at 1" in await new.session()
