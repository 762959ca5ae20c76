"""The dispatch log: partitions of records with offsets, append-only, with a retention.

What the code needs from Kafka; the embedded log offers the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from qimd.core.outcome import Outcome
from qimd.core.records import LogIdentity


class LogFaultKind(Enum):
    """Why a log can't be read on, explicitly: nothing may be applied after it."""

    OUT_OF_RANGE = "out_of_range"
    IDENTITY_CHANGED = "identity_changed"
    MISSING = "missing"


class LogFault(Exception):
    """The log is not the one that the position belongs to, or no longer covers it."""

    def __init__(self, kind: LogFaultKind, detail: str) -> None:
        super().__init__(f"{kind.value}: {detail}")
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record. `timestamp_ms` is the log's append time."""

    offset: int
    timestamp_ms: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Watermarks:
    """`low` is the first offset still there, `high` the next one to be given."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What start gates check. None means the log does not tell."""

    retention_ms: int | None
    max_record_bytes: int | None


@dataclass(frozen=True, slots=True)
class ProduceRecord:
    """A record to append. `value` comes from the strict codec."""

    partition: int
    value: bytes


class Producer(Protocol):
    """One producer of one lease term."""

    async def produce(self, batch: Sequence[ProduceRecord]) -> Sequence[Outcome[None]]:
        """Append a batch, one outcome for each record; returns when all are settled.

        Promise: of the records for one partition a prefix lands, in order. REJECTED: this record
        can never be appended (too large). After any other failure the producer is spent: close it,
        open a new one, send the whole run again.
        """

    async def close(self) -> None:
        """Release it."""


class Reader(Protocol):
    """Reads one partition forward. No consumer group: the position is the caller's."""

    async def fetch(self, records_max: int, wait_s: float) -> Sequence[LogRecord]:
        """The next records, waiting up to `wait_s` for the first; empty if none came.

        Raises LogFault, or QimError(UNAVAILABLE) if the engine can't answer now.
        """

    async def close(self) -> None:
        """Release it."""


class Log(Protocol):
    """One topic."""

    async def identity(self) -> LogIdentity:
        """Asked of the engine each time. Raises LogFault(MISSING) without the topic or its UUID."""

    async def settings(self) -> LogSettings:
        """Asked of the engine each time."""

    async def watermarks(self, partition: int) -> Watermarks:
        """Asked of the engine each time."""

    async def offset_at(self, partition: int, timestamp_ms: int) -> int:
        """The first offset whose append time is at or after it; `high` if there is none."""

    async def open_producer(self) -> Producer:
        """A new producer. Raises QimError(UNAVAILABLE)."""

    async def open_reader(self, partition: int, offset: int, log_identity: str = "") -> Reader:
        """A reader whose next record is at `offset`.

        It gives records of the log with this identity (`LogIdentity.text`) alone; empty means the
        one that is there, for looks that prove nothing. Raises LogFault at once: IDENTITY_CHANGED
        if the log is another one, OUT_OF_RANGE if `offset` is outside [low, high].
        """
