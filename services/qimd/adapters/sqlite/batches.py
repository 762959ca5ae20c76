"""The log's rows: a batch each, as in Kafka. Appending and reading them, in the caller's
transaction.
"""

import sqlite3
import struct
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.ports.log import LogRecord, ProduceRecord

OFFSET_BITS: Final = 43
"""As in mailbox_seq."""

BATCH_RECORDS_MAX: Final = 64
BATCH_BYTES_MAX: Final = 1024 * 1024
"""A reader that wants a few records reads whole batches: this bounds what it reads in vain."""

_ADD_BATCH = "INSERT INTO log_batches VALUES (?, ?, ?, ?, ?, ?)"
_MOVE_HIGH = """
UPDATE log_partitions SET high = ?, last_timestamp_ms = ? WHERE partition = ?
"""
_BATCHES = """
SELECT base_offset, timestamp_ms, sizes, data FROM log_batches
WHERE id BETWEEN ? AND ? AND base_offset < ? ORDER BY id
"""


def id_of(partition: int, last_offset: int) -> int:
    """A batch's key."""
    return partition << OFFSET_BITS | last_offset


def append(
    db: sqlite3.Connection, batch: Sequence[ProduceRecord], limit_bytes: int, now_ms: int
) -> Outcome[Sequence[Outcome[None]]]:
    """Append what can be appended, in order; an outcome for each record.

    A record's time is `now_ms`, or its partition's last time if that is later: it never goes back.
    """
    outcomes: list[Outcome[None]] = []
    values: defaultdict[int, list[bytes]] = defaultdict(list)
    partitions = {
        partition: (high, last_ms)
        for partition, high, last_ms in db.execute(
            "SELECT partition, high, last_timestamp_ms FROM log_partitions"
        ).fetchall()
    }
    for record in batch:
        size = len(record.value)
        if record.partition not in partitions:
            outcomes.append(NotApplied(Refusal.NOT_FOUND, "there is no such partition"))
        elif size > limit_bytes:
            outcomes.append(NotApplied(Refusal.REJECTED, f"{size} bytes, above {limit_bytes}"))
        else:
            values[record.partition].append(record.value)
            outcomes.append(Applied(None))
    for partition, added in values.items():
        high, last_ms = partitions[partition]
        _append_to(db, partition, added, high, max(now_ms, last_ms))
    return Applied(outcomes)


def _append_to(
    db: sqlite3.Connection, partition: int, values: Sequence[bytes], high: int, at_ms: int
) -> None:
    for part in _cut(values):
        sizes = struct.pack(f">{len(part)}I", *map(len, part))
        place = id_of(partition, high + len(part) - 1)
        db.execute(_ADD_BATCH, (place, partition, high, at_ms, sizes, b"".join(part)))
        high += len(part)
    db.execute(_MOVE_HIGH, (high, at_ms, partition))


def _cut(values: Sequence[bytes]) -> Sequence[list[bytes]]:
    """The values in runs that respect the bounds of a batch."""
    parts: list[list[bytes]] = []
    room = 0
    for value in values:
        if not parts or len(parts[-1]) == BATCH_RECORDS_MAX or len(value) > room:
            parts.append([])
            room = BATCH_BYTES_MAX
        parts[-1].append(value)
        room -= len(value)
    return parts


def read_batches(
    db: sqlite3.Connection, partition: int, offset: int, records_max: int
) -> Sequence[LogRecord]:
    """Up to `records_max` records from `offset` on."""
    span = (id_of(partition, offset), id_of(partition + 1, 0) - 1, offset + records_max)
    records: list[LogRecord] = []
    for base, at_ms, sizes, data in db.execute(_BATCHES, span).fetchall():
        start = 0
        for place, size in enumerate(struct.unpack(f">{len(sizes) // 4}I", sizes), base):
            if offset <= place < offset + records_max:
                records.append(LogRecord(place, at_ms, data[start : start + size]))
            start += size
    return records
