"""The dispatch log in memory: one topic, its partitions, its retention and its identity."""

import asyncio
import uuid
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from qimd.adapters.memory.network import Wire
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.records import LogIdentity
from qimd.ports.log import (
    LogFault,
    LogFaultKind,
    LogRecord,
    LogSettings,
    ProduceRecord,
    Watermarks,
)
from qimd.ports.runtime import Runtime

DISPATCH_TOPIC: Final = "qim.dispatch"


class _Partition:
    def __init__(self) -> None:
        self.low = 0
        self.records: list[LogRecord] = []
        self.waiting: list[asyncio.Future[None]] = []
        self._last_ms = 0

    @property
    def high(self) -> int:
        return self.low + len(self.records)

    def append(self, value: bytes, now_ms: int) -> None:
        self._last_ms = max(now_ms, self._last_ms)
        self.records.append(LogRecord(self.high, self._last_ms, value))
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class Topic:
    """What survives a process: the topic, and what an operator or a disaster does to it."""

    def __init__(
        self,
        runtime: Runtime,
        partitions: int,
        retention_ms: int | None,
        max_record_bytes: int | None,
        *,
        produces_by_id: bool,
    ) -> None:
        self._runtime = runtime
        self._produces_by_id = produces_by_id
        self._partitions = [_Partition() for _ in range(partitions)]
        self._exists = True
        self.cluster_id = self._new_id()
        self.topic_id = self._new_id()
        self.generation = 0
        """Raised by a re-creation that open readers notice."""
        self.settings = LogSettings(retention_ms, max_record_bytes)

    # --- what happens to a topic ---

    def enforce_retention(self, now_ms: int) -> int:
        """Drop what is older than the retention, from the front; how many records went."""
        if self.settings.retention_ms is None:
            return 0
        dropped = 0
        oldest_kept_ms = now_ms - self.settings.retention_ms
        for partition in self._partitions:
            gone = bisect_left(partition.records, oldest_kept_ms, key=lambda r: r.timestamp_ms)
            del partition.records[:gone]
            partition.low += gone
            dropped += gone
        return dropped

    def recreate(self, partitions: int | None = None, *, silently: bool = False) -> None:
        """Delete it and make it anew under the same name: another UUID, offsets from 0.

        `silently` makes open readers go on in the new one, as Kafka's do.
        """
        count = len(self._partitions) if partitions is None else partitions
        self._partitions = [_Partition() for _ in range(count)]
        self._exists = True
        self.topic_id = self._new_id()
        if not silently:
            self.generation += 1

    def delete(self) -> None:
        """Delete it."""
        self._exists = False

    # --- what the adapter does ---

    def identity(self) -> LogIdentity:
        """See `ports.log.Log`."""
        self._check_exists()
        return LogIdentity(self.cluster_id, DISPATCH_TOPIC, self.topic_id, len(self._partitions))

    def partition(self, number: int) -> _Partition:
        """A partition. Raises LogFault(MISSING) if there is none of the number."""
        self._check_exists()
        if not 0 <= number < len(self._partitions):
            raise LogFault(LogFaultKind.MISSING, f"there is no partition {number}")
        return self._partitions[number]

    def append(self, record: ProduceRecord, topic_id: str) -> Outcome[None]:
        """Append one record at the engine's time, which never goes back within a partition.

        `topic_id` is the topic that its producer was opened for. A broker that is told it (Kafka
        from 4.1 on) takes nothing for another one; an older one goes by the name, and does.
        """
        if self._produces_by_id and topic_id != self.topic_id:
            return NotApplied(Refusal.UNREACHABLE, "the topic was re-created")
        if not self._exists or not 0 <= record.partition < len(self._partitions):
            return NotApplied(Refusal.NOT_FOUND, "there is no such topic or partition")
        limit = self.settings.max_record_bytes
        if limit is not None and len(record.value) > limit:
            return NotApplied(Refusal.REJECTED, f"{len(record.value)} bytes, {limit} are allowed")
        self._partitions[record.partition].append(record.value, self._runtime.wall_ms())
        return Applied(None)

    def read(self, number: int, offset: int, limit: int) -> Sequence[LogRecord]:
        """Records from `offset` on. Raises LogFault."""
        partition = self.partition(number)
        check_range(partition, number, offset)
        start = offset - partition.low
        return partition.records[start : start + limit]

    def _check_exists(self) -> None:
        if not self._exists:
            raise LogFault(LogFaultKind.MISSING, f"there is no topic {DISPATCH_TOPIC}")

    def _new_id(self) -> str:
        return str(uuid.UUID(bytes=self._runtime.random_bytes(16), version=4))


def check_range(partition: _Partition, number: int, offset: int) -> None:
    """Raise LogFault(OUT_OF_RANGE) unless a reader may stand at `offset`."""
    if not partition.low <= offset <= partition.high:
        raise LogFault(
            LogFaultKind.OUT_OF_RANGE,
            f"offset {offset} of partition {number} is outside [{partition.low}, {partition.high}]",
        )


class MemoryProducer:
    """`ports.log.Producer`. Each record crosses the network by itself, so a batch can be torn."""

    def __init__(self, topic: Topic, wire: Wire) -> None:
        self._topic = topic
        self._topic_id = topic.topic_id
        self._wire = wire
        self._spent = False

    async def produce(self, batch: Sequence[ProduceRecord]) -> Sequence[Outcome[None]]:
        failed: dict[int, None] = {}
        outcomes: list[Outcome[None]] = []
        if self._spent:
            failed = dict.fromkeys(record.partition for record in batch)
        for record in batch:
            if record.partition in failed:
                # Nothing may land behind a record that may not have: a prefix alone ever does.
                outcomes.append(NotApplied(Refusal.UNREACHABLE, "an earlier record failed"))
                continue
            outcome = await self._append(record)
            if not (isinstance(outcome, Applied) or _is_rejected(outcome)):
                failed[record.partition] = None
                self._spent = True
            outcomes.append(outcome)
        return outcomes

    async def _append(self, record: ProduceRecord) -> Outcome[None]:
        return await self._wire.step(
            "produce", record.partition, lambda: self._topic.append(record, self._topic_id), record
        )

    async def close(self) -> None:
        self._spent = True


def _is_rejected(outcome: Outcome[None]) -> bool:
    return isinstance(outcome, NotApplied) and outcome.refusal is Refusal.REJECTED


class MemoryReader:
    """`ports.log.Reader`."""

    def __init__(
        self, topic: Topic, wire: Wire, runtime: Runtime, partition: int, offset: int
    ) -> None:
        self._topic = topic
        self._generation = topic.generation
        self._wire = wire
        self._runtime = runtime
        self._partition = partition
        self._offset = offset

    async def fetch(self, records_max: int, wait_s: float) -> Sequence[LogRecord]:
        records = await self._read(records_max)
        if not records and wait_s > 0:
            await self._arrival(wait_s)
            records = await self._read(records_max)
        if records:
            self._offset = records[-1].offset + 1
        return records

    async def _read(self, records_max: int) -> Sequence[LogRecord]:
        return await self._wire.read("fetch", self._partition, lambda: self._look(records_max))

    def _look(self, records_max: int) -> Sequence[LogRecord]:
        if self._topic.generation != self._generation:
            raise LogFault(LogFaultKind.IDENTITY_CHANGED, "the topic was re-created")
        return self._topic.read(self._partition, self._offset, records_max)

    async def _arrival(self, wait_s: float) -> None:
        partition = self._topic.partition(self._partition)
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        partition.waiting.append(arrived)

        async def wait() -> None:
            await arrived

        try:
            await self._runtime.wait_for(wait(), wait_s)
        except TimeoutError:
            return
        finally:
            if arrived in partition.waiting:
                partition.waiting.remove(arrived)

    async def close(self) -> None:
        """Nothing is held: the position is the caller's."""


class MemoryLog:
    """`ports.log.Log`."""

    def __init__(self, topic: Topic, wire: Wire, runtime: Runtime) -> None:
        self._topic = topic
        self._wire = wire
        self._runtime = runtime

    async def identity(self) -> LogIdentity:
        return await self._wire.read("identity", None, self._topic.identity)

    async def settings(self) -> LogSettings:
        return await self._wire.read("settings", None, lambda: self._topic.settings)

    async def watermarks(self, partition: int) -> Watermarks:
        def effect() -> Watermarks:
            stored = self._topic.partition(partition)
            return Watermarks(stored.low, stored.high)

        return await self._wire.read("watermarks", partition, effect)

    async def offset_at(self, partition: int, timestamp_ms: int) -> int:
        def effect() -> int:
            stored = self._topic.partition(partition)
            return stored.low + bisect_left(
                stored.records, timestamp_ms, key=lambda record: record.timestamp_ms
            )

        return await self._wire.read("offset_at", partition, effect)

    async def open_producer(self) -> MemoryProducer:
        return await self._wire.read(
            "open_producer", None, lambda: MemoryProducer(self._topic, self._wire)
        )

    async def open_reader(
        self, partition: int, offset: int, log_identity: str = ""
    ) -> MemoryReader:
        def effect() -> MemoryReader:
            if log_identity and self._topic.identity().text != log_identity:
                raise LogFault(LogFaultKind.IDENTITY_CHANGED, "the topic was re-created")
            check_range(self._topic.partition(partition), partition, offset)
            return MemoryReader(self._topic, self._wire, self._runtime, partition, offset)

        return await self._wire.read("open_reader", partition, effect)
