"""Reads one partition forward, by the UUID of its topic.

aiokafka's consumer names the topic by its name, so it reads on in whatever is under that name now,
and fetches ahead in a task of its own. Here each fetch carries the UUID that the reader was opened
with: a broker that has another topic under the name refuses it, so not one record of another log is
ever handed out.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from aiokafka.errors import (
    CorruptRecordException,
    KafkaError,
    NoError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from aiokafka.record.memory_records import MemoryRecords

from qimd.adapters.kafka.brokers import Brokers, refused
from qimd.adapters.kafka.protocol import PartitionFetch
from qimd.adapters.kafka.topic import Topic, look
from qimd.core.errors import QimError, unavailable
from qimd.ports.log import LogFault, LogFaultKind, LogRecord
from qimd.ports.runtime import Runtime

FETCH_BYTES_MAX: Final = 1024 * 1024
"""Of one fetch. A larger batch still comes whole."""

POLL_MS: Final = 500
"""How long the broker holds a fetch that finds nothing. A fetch that was given up occupies the
connection for as long, so the caller's longer waits are made of several."""

# aiokafka has no names for these two.
_UNKNOWN_TOPIC_ID: Final = 100
_INCONSISTENT_TOPIC_ID: Final = 103
_ANOTHER_TOPIC: Final = {
    UnknownTopicOrPartitionError.errno,
    _UNKNOWN_TOPIC_ID,
    _INCONSISTENT_TOPIC_ID,
}


class KafkaReader:
    """`ports.log.Reader`."""

    def __init__(
        self, brokers: Brokers, runtime: Runtime, topic: Topic, partition: int, offset: int
    ) -> None:
        self._brokers = brokers
        self._runtime = runtime
        self._topic = topic
        self._partition = partition
        self._next = offset
        """The offset behind what was fetched."""
        self._ready: deque[LogRecord] = deque()
        """What was fetched and not handed out yet."""
        self._leader_moved = False

    async def fetch(self, records_max: int, wait_s: float) -> Sequence[LogRecord]:
        if not self._ready:
            if wait_s > 0:
                try:
                    await self._runtime.wait_for(self._arrival(), wait_s)
                except TimeoutError:
                    return ()
            else:
                await self._fill(0)
        count = min(records_max, len(self._ready))
        return [self._ready.popleft() for _ in range(count)]

    async def close(self) -> None:
        await self._brokers.close()

    async def _arrival(self) -> None:
        while not self._ready:
            await self._fill(POLL_MS)

    async def _fill(self, wait_ms: int) -> None:
        """Fetch once. A cancelled or failed call has changed nothing."""
        if self._leader_moved:
            await self._look()
        leader = self._topic.leader(self._partition)
        request = PartitionFetch(
            self._topic.topic_id, self._partition, self._next, wait_ms, FETCH_BYTES_MAX
        )
        try:
            reply = await self._brokers.ask(leader, request)
        except QimError:
            self._leader_moved = True
            raise
        code, records = _parts(reply)
        if code == NoError.errno:
            self._take(records)
        elif code == OffsetOutOfRangeError.errno:
            raise LogFault(
                LogFaultKind.OUT_OF_RANGE,
                f"offset {self._next} of partition {self._partition} is outside of the log",
            )
        else:
            self._leader_moved = True
            if code in _ANOTHER_TOPIC:
                await self._look()
            raise refused(code, f"a fetch from partition {self._partition}")

    async def _look(self) -> None:
        """Find the leader again. Raises LogFault if the topic is another one, or gone."""
        topic = await look(self._brokers, self._topic.identity.topic)
        if topic.identity != self._topic.identity:
            raise LogFault(
                LogFaultKind.IDENTITY_CHANGED,
                f"the topic is {topic.identity.text}, the reader's {self._topic.identity.text}",
            )
        self._topic = topic
        self._leader_moved = False

    def _take(self, fetched: bytes | None) -> None:
        """Decode batch by batch: what can be read of them is, the next fetch begins behind it."""
        try:
            batches = MemoryRecords(fetched or b"")
            while (batch := batches.next_batch()) is not None:
                self._ready.extend(_records(batch, self._next))
                self._next = batch.next_offset
        except KafkaError as error:
            if not self._ready:
                raise unavailable(
                    f"the batch at offset {self._next} of partition {self._partition} "
                    f"can't be read: {error}"
                ) from None


def _records(batch: Any, first: int) -> list[LogRecord]:
    """A batch's records from the offset `first` on: a broker sends whole batches, also of an offset
    within one. Raises KafkaError for a batch that is broken, or compressed in a way unknown here.
    """
    if not batch.validate_crc():
        raise CorruptRecordException("its checksum differs")
    if batch.is_control_batch:
        return []
    return [
        LogRecord(record.offset, record.timestamp, record.value or b"")
        for record in batch
        if record.offset >= first
    ]


def _parts(reply: Any) -> tuple[int, bytes | None]:
    """Error code and records of the one partition of a FetchResponse."""
    if reply.error_code != NoError.errno:
        return reply.error_code, None
    ((_, ((_, code, _, _, _, _, _, records, _),), _),) = reply.responses
    return code, records
