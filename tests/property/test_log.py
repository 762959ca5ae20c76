"""`ports.log` against a plain model, on every engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from tests.contract.engines import RECORD_BYTES_MAX, RETENTION_MS
from tests.property.machines import SETTINGS, EngineMachine, agree

from qimd.core.outcome import Refusal
from qimd.core.records import LogIdentity
from qimd.ports.log import (
    LogFault,
    LogFaultKind,
    LogRecord,
    Producer,
    ProduceRecord,
    Reader,
    Watermarks,
)

PARTITIONS = (0, 1)

partitions = st.sampled_from(PARTITIONS)
sizes = st.sampled_from([0, 1, 2, 3, RECORD_BYTES_MAX, RECORD_BYTES_MAX + 1])


@dataclass
class Partition:
    """Records from offset `low` on."""

    low: int = 0
    records: list[LogRecord] = field(default_factory=list)

    @property
    def high(self) -> int:
        return self.low + len(self.records)

    def at(self, offset: int) -> list[LogRecord]:
        """Records from an offset on."""
        return [record for record in self.records if record.offset >= offset]


class LogMachine(EngineMachine):
    """Producers and readers come and go, retention takes records, the topic is made anew."""

    @initialize()
    def begin(self) -> None:
        self.log = self.engine.backends.log
        self.partitions = [Partition() for _ in PARTITIONS]
        self.identity: LogIdentity = self.do(self.log.identity())
        self.made = 0
        self.producer: Producer | None = None
        self.reader: tuple[Reader, int, int] | None = None
        """The reader, its partition, and the next offset that it must give."""

    # --- producing ---

    def content(self, size: int) -> bytes:
        """So many bytes, other ones each time."""
        self.made += 1
        return (self.made.to_bytes(2, "big") * (size // 2 + 1))[:size]

    @rule(batch=st.lists(st.tuples(partitions, sizes), max_size=6), anew=st.booleans())
    def produce(self, batch: list[tuple[int, int]], anew: bool) -> None:
        if anew and self.producer is not None:
            self.do(self.producer.close())
            self.producer = None
        if self.producer is None:
            self.producer = self.do(self.log.open_producer())
        records = [ProduceRecord(place, self.content(size)) for place, size in batch]
        outcomes = self.do(self.producer.produce(records))
        assert len(outcomes) == len(records)
        now_ms = self.engine.runtime.wall_ms()
        for record, outcome in zip(records, outcomes, strict=True):
            too_large = len(record.value) > RECORD_BYTES_MAX
            agree(outcome, {Refusal.REJECTED} if too_large else set())
            if not too_large:
                to = self.partitions[record.partition]
                at_ms = max(now_ms, to.records[-1].timestamp_ms if to.records else 0)
                to.records.append(LogRecord(to.high, at_ms, record.value))

    # --- time ---

    @rule(seconds=st.sampled_from([0.001, 1.0, RETENTION_MS / 2_000, RETENTION_MS / 1_000]))
    def time_passes(self, seconds: float) -> None:
        self.do(self.engine.runtime.advance(seconds))

    @rule()
    def retention_is_enforced(self) -> None:
        now_ms = self.engine.runtime.wall_ms()
        self.do(_awaited(self.engine.enforce_retention(now_ms)))
        for partition in self.partitions:
            while partition.records and partition.records[0].timestamp_ms < now_ms - RETENTION_MS:
                partition.records.pop(0)
                partition.low += 1

    @rule()
    def the_topic_is_made_anew(self) -> None:
        self.close_reader()
        if self.producer is not None:
            self.do(self.producer.close())
            self.producer = None
        self.do(_awaited(self.engine.recreate_topic()))
        before, self.identity = self.identity, self.do(self.log.identity())
        assert self.identity.topic_id != before.topic_id
        assert self.identity.topic == before.topic
        self.partitions = [Partition() for _ in PARTITIONS]

    # --- reading ---

    @rule(place=partitions, off=st.integers(-1, 12))
    def open_reader(self, place: int, off: int) -> None:
        self.close_reader()
        partition = self.partitions[place]
        offset = partition.low + off
        if partition.low <= offset <= partition.high:
            self.reader = (self.do(self.log.open_reader(place, offset)), place, offset)
            return
        with pytest.raises(LogFault) as fault:
            self.do(self.log.open_reader(place, offset))
        assert fault.value.kind is LogFaultKind.OUT_OF_RANGE

    def close_reader(self) -> None:
        if self.reader is not None:
            self.do(self.reader[0].close())
            self.reader = None

    @rule(limit=st.integers(1, 4))
    def fetch(self, limit: int) -> None:
        if self.reader is None:
            return
        reader, place, offset = self.reader
        partition = self.partitions[place]
        if offset < partition.low:
            # Retention has overtaken it: what lies between is gone, and that must not go unnoticed.
            with pytest.raises(LogFault) as fault:
                self.do(reader.fetch(limit, 0))
            assert fault.value.kind is LogFaultKind.OUT_OF_RANGE
            self.close_reader()
            return
        records = self.do(reader.fetch(limit, 0))
        assert list(records) == partition.at(offset)[:limit]
        self.reader = (reader, place, offset + len(records))

    @rule(place=partitions, back_ms=st.sampled_from([-1, 0, 1, 1_000, RETENTION_MS]))
    def offset_at(self, place: int, back_ms: int) -> None:
        at_ms = self.engine.runtime.wall_ms() - back_ms
        partition = self.partitions[place]
        later = [record for record in partition.records if record.timestamp_ms >= at_ms]
        expected = later[0].offset if later else partition.high
        assert self.do(self.log.offset_at(place, at_ms)) == expected

    # --- what holds after every step ---

    @invariant()
    def watermarks_and_records_are_those_of_the_model(self) -> None:
        for place, partition in enumerate(self.partitions):
            marks = self.do(self.log.watermarks(place))
            assert marks == Watermarks(partition.low, partition.high)

    @invariant()
    def the_identity_is_the_same(self) -> None:
        assert self.do(self.log.identity()) == self.identity

    def teardown(self) -> None:
        try:
            for place, partition in enumerate(getattr(self, "partitions", [])):
                reader = self.do(self.log.open_reader(place, partition.low))
                assert list(self.do(reader.fetch(1_000, 0))) == partition.records
                self.do(reader.close())
        finally:
            super().teardown()


async def _awaited(work: object) -> None:
    await work  # type: ignore[misc]


class MemoryLog(LogMachine):
    engine_name = "memory"


class SqliteLog(LogMachine):
    engine_name = "sqlite"


TestMemoryLog = MemoryLog.TestCase
TestMemoryLog.settings = SETTINGS
TestSqliteLog = SqliteLog.TestCase
TestSqliteLog.settings = SETTINGS
