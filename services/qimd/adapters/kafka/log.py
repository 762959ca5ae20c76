"""The dispatch log on Kafka."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka.errors import (
    GroupLoadInProgressError,
    NoError,
    UnknownTopicOrPartitionError,
)
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.transaction import InitProducerIdRequest

from qimd.adapters.kafka.batches import BATCH_OVERHEAD_BYTES, Cutter
from qimd.adapters.kafka.brokers import Brokers, Cluster, refused
from qimd.adapters.kafka.configs import NotAllowed, Resource, describe, log_settings
from qimd.adapters.kafka.producer import KafkaProducer
from qimd.adapters.kafka.reader import KafkaReader
from qimd.adapters.kafka.topic import Topic, look
from qimd.core.errors import unavailable
from qimd.core.records import LogIdentity
from qimd.ports.log import LogFault, LogFaultKind, LogSettings, Watermarks
from qimd.ports.runtime import Runtime

DISPATCH_TOPIC: Final = "qim.dispatch"

_LATEST: Final = -1
_EARLIEST: Final = -2
_NO_OFFSET: Final = -1


class KafkaLog:
    """`ports.log.Log`."""

    def __init__(self, brokers: Brokers, runtime: Runtime, topic: str) -> None:
        self.brokers = brokers
        self.topic = topic
        self._runtime = runtime

    async def identity(self) -> LogIdentity:
        return (await look(self.brokers, self.topic)).identity

    async def settings(self) -> LogSettings:
        keys = ("retention.ms", "max.message.bytes")
        try:
            configs = await describe(self.brokers, Resource.TOPIC, self.topic, keys)
        except NotAllowed:
            configs = {}
        return log_settings(configs)

    async def watermarks(self, partition: int) -> Watermarks:
        return await self._watermarks(await look(self.brokers, self.topic), partition)

    async def offset_at(self, partition: int, timestamp_ms: int) -> int:
        topic = await look(self.brokers, self.topic)
        # Kafka takes a negative time for a question of another kind.
        found = await self._offset(topic, partition, max(timestamp_ms, 0))
        return await self._offset(topic, partition, _LATEST) if found == _NO_OFFSET else found

    async def open_producer(self) -> KafkaProducer:
        try:
            topic = await look(self.brokers, self.topic)
            limit = (await self.settings()).max_record_bytes
        except LogFault as fault:
            raise unavailable(f"the dispatch log: {fault.detail}") from fault
        if limit is None:
            raise unavailable("the topic's max.message.bytes can't be read")
        cutter = Cutter(*await self._producer_id(), limit + BATCH_OVERHEAD_BYTES)
        return KafkaProducer(self.brokers.sibling(), self._runtime, topic, cutter, limit)

    async def open_reader(self, partition: int, offset: int, log_identity: str = "") -> KafkaReader:
        topic = await look(self.brokers, self.topic)
        if log_identity and topic.identity.text != log_identity:
            raise LogFault(
                LogFaultKind.IDENTITY_CHANGED,
                f"the log is {topic.identity.text}, not {log_identity}",
            )
        marks = await self._watermarks(topic, partition)
        if not marks.low <= offset <= marks.high:
            raise LogFault(
                LogFaultKind.OUT_OF_RANGE,
                f"offset {offset} of partition {partition} is outside [{marks.low}, {marks.high}]",
            )
        return KafkaReader(self.brokers.sibling(), self._runtime, topic, partition, offset)

    async def _producer_id(self) -> tuple[int, int]:
        """A new producer's id and epoch.

        A broker has ids in blocks of a thousand. Whoever asks while it fetches the next one is told
        to ask again; that takes milliseconds.
        """
        unnamed: Any = None
        try:
            async with asyncio.timeout(self.brokers.cluster.request_timeout_s):
                while True:
                    reply = await self.brokers.ask_any(InitProducerIdRequest(unnamed, 0))
                    if reply.error_code == NoError.errno:
                        return reply.producer_id, reply.producer_epoch
                    if reply.error_code != GroupLoadInProgressError.errno:
                        raise refused(reply.error_code, "a new producer")
        except TimeoutError:
            raise unavailable("Kafka gives no producer id") from None

    async def _watermarks(self, topic: Topic, partition: int) -> Watermarks:
        low = await self._offset(topic, partition, _EARLIEST)
        return Watermarks(low, await self._offset(topic, partition, _LATEST))

    async def _offset(self, topic: Topic, partition: int, timestamp_ms: int) -> int:
        """ListOffsets: the first offset at or after a time, or one of the ends."""
        request = OffsetRequest(-1, 0, [(self.topic, [(partition, timestamp_ms)])])
        reply = await self.brokers.ask(topic.leader(partition), request)
        ((_, ((_, code, _, offset, *_),)),) = reply.topics
        if code == UnknownTopicOrPartitionError.errno:
            raise LogFault(LogFaultKind.MISSING, f"there is no partition {partition}")
        if code != NoError.errno:
            raise refused(code, f"an offset of partition {partition}")
        return int(offset)


@asynccontextmanager
async def open_kafka(
    cluster: Cluster, runtime: Runtime, topic: str = DISPATCH_TOPIC
) -> AsyncIterator[KafkaLog]:
    """The log, its readers and its producers; at the end none of them is connected any more."""
    family: set[Brokers] = set()
    try:
        yield KafkaLog(Brokers(cluster, family), runtime, topic)
    finally:
        for brokers in list(family):
            await brokers.close()
