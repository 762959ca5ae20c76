"""Kafka in the suites: the memory engine with its log replaced, on a topic of the test's own."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from aiokafka.protocol.admin import DeleteRecordsRequest
from tests import engines
from tests.contract.engines import (
    PARTITIONS,
    RECORD_BYTES_MAX,
    RETENTION_MS,
    Engine,
    memory_engine,
)
from tests.support.runtime import ManualRuntime

from qimd.adapters.kafka import Cluster, KafkaLog, create_topic, delete_topic, open_kafka
from qimd.core.errors import QimError
from qimd.ports.runtime import Runtime

T = TypeVar("T")


class BrokerClock:
    """A broker's clock, which no test can move: what passes on it is told, and added up.

    Record times stay the broker's own; `stamped_ms` says from which one on a record counts as
    appended at or after a time that was told.
    """

    def __init__(self) -> None:
        self._spans = [(0, 0)]
        """(from this time of the broker on, milliseconds told beyond it), ascending."""

    def now_ms(self) -> int:
        return _broker_ms() + self._spans[-1][1]

    def move(self, seconds: float) -> None:
        """Let time pass; what comes now has another time of the broker than what was before."""
        before_ms = _broker_ms()
        while (now_ms := _broker_ms()) <= before_ms + 1:
            pass
        self._spans.append((now_ms, self._spans[-1][1] + round(seconds * 1000)))

    def stamped_ms(self, told_ms: int) -> int:
        ends = [start for start, _ in self._spans[1:]]
        for (start, ahead), end in zip(self._spans, ends, strict=False):
            if max(start, told_ms - ahead) < end:
                return max(start, told_ms - ahead)
        start, ahead = self._spans[-1]
        return max(start, told_ms - ahead)


def _broker_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, kw_only=True)
class KafkaEngine(Engine):
    clock: BrokerClock

    def log_ms(self) -> int:
        return self.clock.now_ms()

    async def pass_time(self, seconds: float) -> None:
        self.clock.move(seconds)
        await super().pass_time(seconds)


def patient(addresses: str) -> Cluster:
    """A cluster of the tests: on a busy machine it answers late, which here is no failure."""
    return replace(Cluster.at(addresses), request_timeout_s=60.0)


async def make_topic(log: KafkaLog) -> None:
    """As every engine of the suites has it."""
    await create_topic(
        log,
        partitions=PARTITIONS,
        retention_ms=RETENTION_MS,
        max_record_bytes=RECORD_BYTES_MAX,
    )


async def delete_before(log: KafkaLog, stamped_ms: int) -> None:
    """Delete what is older, as a broker does whose retention is over."""
    for partition in range(PARTITIONS):
        offset = await log.offset_at(partition, stamped_ms)
        request = DeleteRecordsRequest([(log.topic, [(partition, offset)])], 10_000)
        ((_, ((_, _, code, *_),), *_),) = (await log.brokers.ask_any(request)).topics
        assert code == 0


async def eventually(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What it gives once the broker answers in time, which a busy one may not at first."""
    async with asyncio.timeout(120):
        while True:
            try:
                return await call()
            except QimError:
                continue


@asynccontextmanager
async def own_topic(runtime: Runtime) -> AsyncIterator[KafkaLog]:
    """A log whose topic nobody else has."""
    at = engines.address("kafka")
    assert at is not None, "conftest leaves the engine out where it does not run"
    name = f"qim.dispatch.{uuid.uuid4().hex}"
    async with open_kafka(patient(at), runtime, name) as log:
        await make_topic(log)
        yield log


@asynccontextmanager
async def kafka_engine(runtime: ManualRuntime) -> AsyncIterator[Engine]:
    async with own_topic(runtime) as log:
        clock = BrokerClock()

        async def enforce_retention(now_ms: int) -> None:
            await delete_before(log, clock.stamped_ms(now_ms - RETENTION_MS))

        async def recreate_topic() -> None:
            await delete_topic(log)
            await make_topic(log)

        yield KafkaEngine(
            name="kafka",
            backends=replace(memory_engine(runtime).backends, log=log),
            runtime=runtime,
            enforce_retention=enforce_retention,
            recreate_topic=recreate_topic,
            topic=log.topic,
            clock=clock,
        )
