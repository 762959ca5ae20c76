"""The dispatch log in the same file: partitions, offsets from 0, watermarks, a retention.

Readers never poll. An append wakes them through the loop, also when the caller that appended has
been cancelled meanwhile.
"""

import asyncio
import sqlite3
import uuid
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from qimd.adapters.sqlite.batches import append, id_of, read_batches
from qimd.adapters.sqlite.engine import Engine
from qimd.adapters.sqlite.file import OpenRefused, PartitionCountDiffers
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
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

RETENTION_BATCHES_MAX: Final = 1_000
"""Batches that one step of the retention deletes: it never holds the writer for long."""

_TOPIC = """
SELECT t.topic_id, t.partitions, t.retention_ms, t.max_record_bytes, m.value
FROM log_topic AS t JOIN meta AS m ON m.name = 'cluster_id' WHERE t.topic = ?
"""
_PLACE = """
SELECT t.topic_id, p.low, p.high FROM log_topic AS t JOIN log_partitions AS p
WHERE t.topic = ? AND p.partition = ?
"""
_OFFSET_AT = """
SELECT base_offset FROM log_batches WHERE partition = ? AND timestamp_ms >= ?
ORDER BY timestamp_ms, base_offset LIMIT 1
"""
_EXPIRED = """
SELECT max(id), count(*) FROM (
    SELECT id FROM log_batches WHERE partition = ? AND timestamp_ms < ?
    ORDER BY timestamp_ms, base_offset LIMIT ?)
"""
_RAISE_LOW = """
UPDATE log_partitions SET low = coalesce(
    (SELECT base_offset FROM log_batches WHERE id > ? AND id < ? ORDER BY id LIMIT 1), high)
WHERE partition = ? RETURNING low
"""


class SqliteLog:
    """`ports.log.Log`, and what an operator or a disaster does to a topic."""

    def __init__(self, engine: Engine, runtime: Runtime, topic: str) -> None:
        self._engine = engine
        self._runtime = runtime
        self._topic = topic
        self._arrivals: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    # --- the topic's life ---

    async def open_topic(self, partitions: int, retention_ms: int, max_record_bytes: int) -> None:
        """Make the topic if it is new, and take over its settings. Raises OpenRefused."""

        def job(db: sqlite3.Connection) -> Outcome[int]:
            db.execute(
                "INSERT INTO meta VALUES ('cluster_id', ?) ON CONFLICT DO NOTHING",
                (self._new_uuid(),),
            )
            row = db.execute(_TOPIC, (self._topic,)).fetchone()
            if row is None:
                self._make(db, partitions, retention_ms, max_record_bytes)
                return Applied(partitions)
            db.execute(
                "UPDATE log_topic SET retention_ms = ?, max_record_bytes = ? WHERE topic = ?",
                (retention_ms, max_record_bytes, self._topic),
            )
            return Applied(int(row[1]))

        match await self._engine.write(job):
            case Applied(found):
                if found != partitions:
                    raise PartitionCountDiffers(found, partitions)
            case NotApplied(detail=detail) | Unknown(detail=detail):
                raise OpenRefused(f"the dispatch topic can't be opened: {detail}")

    async def recreate_topic(self) -> Outcome[None]:
        """Delete the topic and make it anew: another UUID, offsets from 0, nothing of the old left.

        What a test of a lost log does; readers that are open find the identity changed.
        """

        def job(db: sqlite3.Connection) -> Outcome[None]:
            row = db.execute(_TOPIC, (self._topic,)).fetchone()
            if row is None:
                return NotApplied(Refusal.NOT_FOUND, "there is no topic")
            self._remove(db)
            self._make(db, *row[1:4])
            return Applied(None)

        return await self._engine.write(job, on_applied=lambda _: self._wake_all())

    async def delete_topic(self) -> Outcome[None]:
        """Delete the topic."""

        def job(db: sqlite3.Connection) -> Outcome[None]:
            self._remove(db)
            return Applied(None)

        return await self._engine.write(job, on_applied=lambda _: self._wake_all())

    async def enforce_retention(self, now_ms: int) -> int:
        """Delete the batches that are older than the retention; how many records went.

        It deletes what it can: what remains, as on a failure, the next call finds.
        """
        _, partitions, retention_ms, _, _ = await self._engine.read(self._settings)
        gone = 0
        for partition in range(partitions):
            while (dropped := await self._expire(partition, now_ms - retention_ms)) > 0:
                gone += dropped
        return gone

    async def _expire(self, partition: int, oldest_kept_ms: int) -> int:
        def job(db: sqlite3.Connection) -> Outcome[int]:
            last, count = db.execute(
                _EXPIRED, (partition, oldest_kept_ms, RETENTION_BATCHES_MAX)
            ).fetchone()
            if not count:
                return Applied(0)
            low = self._watermarks(db, partition).low
            db.execute(
                "DELETE FROM log_batches WHERE id BETWEEN ? AND ?", (id_of(partition, 0), last)
            )
            ((raised,),) = db.execute(
                _RAISE_LOW, (last, id_of(partition + 1, 0), partition)
            ).fetchall()
            return Applied(raised - low)

        match await self._engine.write(job, weight=RETENTION_BATCHES_MAX):
            case Applied(dropped):
                return dropped
            case NotApplied() | Unknown():
                return 0

    def _make(self, db: sqlite3.Connection, partitions: int, *settings: int) -> None:
        db.execute(
            "INSERT INTO log_topic VALUES (?, ?, ?, ?, ?)",
            (self._topic, self._new_uuid(), partitions, *settings),
        )
        db.executemany(
            "INSERT INTO log_partitions VALUES (?, 0, 0, 0)", [(n,) for n in range(partitions)]
        )

    def _remove(self, db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM log_topic")
        db.execute("DELETE FROM log_partitions")
        db.execute("DELETE FROM log_batches")

    def _new_uuid(self) -> str:
        return str(uuid.UUID(bytes=self._runtime.random_bytes(16), version=4))

    # --- `ports.log.Log` ---

    async def identity(self) -> LogIdentity:
        topic_id, partitions, _, _, cluster_id = await self._engine.read(self._settings)
        return LogIdentity(cluster_id, self._topic, topic_id, partitions)

    async def settings(self) -> LogSettings:
        _, _, retention_ms, max_record_bytes, _ = await self._engine.read(self._settings)
        return LogSettings(retention_ms, max_record_bytes)

    async def watermarks(self, partition: int) -> Watermarks:
        return await self._engine.read(lambda db: self._watermarks(db, partition))

    async def offset_at(self, partition: int, timestamp_ms: int) -> int:
        def job(db: sqlite3.Connection) -> int:
            high = self._watermarks(db, partition).high
            row = db.execute(_OFFSET_AT, (partition, timestamp_ms)).fetchone()
            return high if row is None else int(row[0])

        return await self._engine.read(job)

    async def open_producer(self) -> "SqliteProducer":
        return SqliteProducer(self, self._engine, self._runtime)

    async def open_reader(
        self, partition: int, offset: int, log_identity: str = ""
    ) -> "SqliteReader":
        known_id = log_identity.rpartition("/")[2]
        topic_id = await self._engine.read(
            lambda db: self.check_place(db, partition, offset, known_id)
        )
        return SqliteReader(self, self._engine, self._runtime, partition, offset, topic_id)

    # --- for its producers and readers ---

    def max_record_bytes(self, db: sqlite3.Connection) -> int:
        """The topic's limit, in the caller's transaction. Raises LogFault(MISSING)."""
        return self._settings(db)[3]

    def check_place(
        self, db: sqlite3.Connection, partition: int, offset: int, known_id: str = ""
    ) -> str:
        """The topic's id, if a reader that knows it as `known_id` may stand at `offset`.

        Raises LogFault. The identity is judged first: a topic that was made anew may well cover the
        old position.
        """
        topic_id, low, high = self._place(db, partition)
        if known_id not in {"", topic_id}:
            raise LogFault(LogFaultKind.IDENTITY_CHANGED, "the topic was made anew")
        if not low <= offset <= high:
            raise LogFault(
                LogFaultKind.OUT_OF_RANGE,
                f"offset {offset} of partition {partition} is outside [{low}, {high}]",
            )
        return topic_id

    def arrival(self, partition: int) -> asyncio.Event:
        """Set by the next append to the partition. To be taken before one looks for records."""
        return self._arrivals[partition]

    def wake(self, partition: int) -> None:
        """Tell who waits for the partition. On the loop."""
        self._arrivals.pop(partition, asyncio.Event()).set()

    def _wake_all(self) -> None:
        for partition in list(self._arrivals):
            self.wake(partition)

    def _settings(self, db: sqlite3.Connection) -> tuple[str, int, int, int, str]:
        row: tuple[str, int, int, int, str] | None = db.execute(_TOPIC, (self._topic,)).fetchone()
        if row is None:
            raise LogFault(LogFaultKind.MISSING, f"there is no topic {self._topic}")
        return row

    def _watermarks(self, db: sqlite3.Connection, partition: int) -> Watermarks:
        _, low, high = self._place(db, partition)
        return Watermarks(low, high)

    def _place(self, db: sqlite3.Connection, partition: int) -> tuple[str, int, int]:
        row: tuple[str, int, int] | None = db.execute(_PLACE, (self._topic, partition)).fetchone()
        if row is None:
            raise LogFault(LogFaultKind.MISSING, f"there is no partition {partition}")
        return row


class SqliteProducer:
    """`ports.log.Producer`: a batch is one step, so all of it lands or nothing."""

    def __init__(self, log: SqliteLog, engine: Engine, runtime: Runtime) -> None:
        self._log = log
        self._engine = engine
        self._runtime = runtime
        self._spent = False

    async def produce(self, batch: Sequence[ProduceRecord]) -> Sequence[Outcome[None]]:
        now_ms = self._runtime.wall_ms()

        def job(db: sqlite3.Connection) -> Outcome[Sequence[Outcome[None]]]:
            # Judged in the writer thread, in the order of the calls: what was queued behind a
            # batch that failed must not land, or it would overtake it.
            if self._spent:
                return NotApplied(Refusal.UNREACHABLE, "an earlier batch failed")
            try:
                limit = self._log.max_record_bytes(db)
            except LogFault as fault:
                return NotApplied(Refusal.NOT_FOUND, fault.detail)
            return append(db, batch, limit, now_ms)

        outcome = await self._engine.write(
            job,
            weight=len(batch),
            on_applied=lambda outcomes: self._arrived(batch, outcomes),
            on_lost=self._spend,
        )
        match outcome:
            case Applied(outcomes):
                return outcomes
            case NotApplied() | Unknown():
                return [outcome] * len(batch)

    async def close(self) -> None:
        self._spent = True

    def _spend(self) -> None:
        self._spent = True

    def _arrived(self, batch: Sequence[ProduceRecord], outcomes: Sequence[Outcome[None]]) -> None:
        landed = {
            record.partition
            for record, outcome in zip(batch, outcomes, strict=True)
            if isinstance(outcome, Applied)
        }
        for partition in landed:
            self._log.wake(partition)


class SqliteReader:
    """`ports.log.Reader`."""

    def __init__(
        self,
        log: SqliteLog,
        engine: Engine,
        runtime: Runtime,
        partition: int,
        offset: int,
        topic_id: str,
    ) -> None:
        self._log = log
        self._engine = engine
        self._runtime = runtime
        self._partition = partition
        self._offset = offset
        self._topic_id = topic_id

    async def fetch(self, records_max: int, wait_s: float) -> Sequence[LogRecord]:
        arrival = self._log.arrival(self._partition)
        records = await self._look(records_max)
        if not records and wait_s > 0:
            try:
                await self._runtime.wait_for(arrival.wait(), wait_s)
            except TimeoutError:
                return records
            records = await self._look(records_max)
        return records

    async def close(self) -> None:
        """Nothing is held: the position is the caller's."""

    async def _look(self, records_max: int) -> Sequence[LogRecord]:
        def job(db: sqlite3.Connection) -> Sequence[LogRecord]:
            self._log.check_place(db, self._partition, self._offset, self._topic_id)
            return read_batches(db, self._partition, self._offset, records_max)

        records = await self._engine.read(job)
        if records:
            self._offset = records[-1].offset + 1
        return records
