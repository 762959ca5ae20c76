"""Finds the records of one event in the dispatch log, within a bound."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from qimd.contract.dispatch import decode_dispatch
from qimd.contract.violation import ContractViolation, ReaderTooOld
from qimd.control.logic import Copy
from qimd.core.parameters import CLOCK_REGRESSION_REJECT_MS
from qimd.core.records import Event
from qimd.ports.log import Log, LogRecord

SCAN_RECORDS_MAX: Final = 50_000
"""Records of one partition that a trace looks at: about a second's work."""

BATCH_RECORDS: Final = 512
FETCH_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a partition holds of an event: decoded copies, and offsets that can't be decoded."""

    copies: tuple[Copy, ...]
    undecodable: tuple[LogRecord, ...]


async def find_copies(log: Log, partition: int, event: Event) -> Found:
    """All copies from the event's time on. Raises LogFault, QimError(UNAVAILABLE)."""
    # An event's time may be clamped up to that much ahead of the clock that stamps the log.
    since_ms = max(0, event.created_at_ms - CLOCK_REGRESSION_REJECT_MS)
    copies: list[Copy] = []
    undecodable: list[LogRecord] = []
    async for record in _records(log, partition, since_ms):
        # A search in bytes, so that only the event's own records are decoded.
        if record.value.find(event.event_id) < 0:
            continue
        try:
            dispatch = decode_dispatch(record.value)
        except (ContractViolation, ReaderTooOld):
            undecodable.append(record)
            continue
        if dispatch.ref.event_id == event.event_id:
            copies.append(Copy(record.offset, record.timestamp_ms, dispatch))
    return Found(tuple(copies), tuple(undecodable))


async def _records(log: Log, partition: int, since_ms: int) -> AsyncIterator[LogRecord]:
    high = (await log.watermarks(partition)).high
    offset = await log.offset_at(partition, since_ms)
    end = min(high, offset + SCAN_RECORDS_MAX)
    if offset >= end:
        return
    reader = await log.open_reader(partition, offset)
    try:
        while offset < end:
            records = await reader.fetch(BATCH_RECORDS, FETCH_WAIT_S)
            if not records:
                return
            for record in records:
                offset = record.offset + 1
                if record.offset < end:
                    yield record
    finally:
        await reader.close()
