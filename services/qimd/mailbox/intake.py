"""From log records to what a shard can apply: strict decoding, and what may not be decoded."""

from collections.abc import Sequence
from dataclasses import dataclass

from qimd.contract.dispatch import decode_dispatch
from qimd.contract.violation import ContractViolation, ReaderTooOld
from qimd.core.records import Dispatch
from qimd.mailbox.logic import Arrived, Fault, seq_at
from qimd.ports.log import LogRecord
from qimd.ports.mailbox import EpochBoundary
from qimd.ports.quarantine import Quarantined


@dataclass(frozen=True, slots=True)
class Intake:
    """A fetched batch: what to apply, what to quarantine, and the fault that ends it, if any.

    `taken` records are accounted for; nothing may be applied from the fault on.
    """

    arrived: tuple[Arrived, ...]
    quarantined: tuple[Quarantined, ...]
    taken: int
    fault: Fault | None


def take_in(
    records: Sequence[LogRecord], shard: int, boundary: EpochBoundary, now_ms: int
) -> Intake:
    """Decode a batch of the shard's partition."""
    arrived: list[Arrived] = []
    quarantined: list[Quarantined] = []
    for index, record in enumerate(records):
        try:
            dispatch = decode_dispatch(record.value)
        except ReaderTooOld as error:
            # A newer version can read it: to set it aside would lose it.
            fault = Fault("reader_too_old", f"offset {record.offset}: {error.message}")
            return Intake(tuple(arrived), tuple(quarantined), index, fault)
        except ContractViolation as error:
            quarantined.append(undecodable(record, error, shard, boundary.log_identity, now_ms))
            continue
        if is_foreign(dispatch, shard, boundary.log_identity):
            fault = Fault(
                "foreign_record",
                f"offset {record.offset} is of shard {dispatch.mailbox_shard} "
                f"of log {dispatch.log_identity}",
            )
            return Intake(tuple(arrived), tuple(quarantined), index, fault)
        seq = seq_at(boundary, record.offset)
        arrived.append(Arrived(seq, dispatch, record.timestamp_ms))
    return Intake(tuple(arrived), tuple(quarantined), len(records), None)


def is_foreign(dispatch: Dispatch, shard: int, log_identity: str) -> bool:
    """Whether a record was not produced to this partition of this log."""
    return dispatch.log_identity != log_identity or dispatch.mailbox_shard != shard


def undecodable(
    record: LogRecord, violation: ContractViolation, shard: int, log_identity: str, now_ms: int
) -> Quarantined:
    """A record that no version can read, as the quarantine keeps it."""
    return Quarantined(
        log_identity=log_identity,
        partition=shard,
        offset=record.offset,
        source="mailbox",
        reason=str(violation.reason),
        at_ms=now_ms,
        value=record.value,
    )
