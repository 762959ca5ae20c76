"""What operators' tools conclude: what became of a record, and whether an event is an orphan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from qimd.core.ids import EventId, dispatch_id
from qimd.core.parameters import BUCKET_DAYS_KEPT
from qimd.core.records import Dispatch
from qimd.core.seq import SEQ_NONE, MailboxSeq, mailbox_seq
from qimd.ports.mailbox import (
    EpochMark,
    MaterialisedRecord,
    ShardState,
    is_stale,
    watermark,
)
from qimd.ports.quarantine import Quarantined, unproduced_offset

DAY_MS: Final = 24 * 3600 * 1000
CHUNKS_MAX: Final = 256
"""Chunks of one event in one shard at the default chunk size, with the most members: 200."""


class Verdict(Enum):
    """What became of a record in a stage (`qim.control.v1.TraceVerdict`)."""

    DONE = 1
    PENDING = 2
    DUPLICATE = 3
    STALE_EPOCH = 4
    QUARANTINED = 5


@dataclass(frozen=True, slots=True)
class Copy:
    """One record of the log that carries a dispatch of the event."""

    offset: int
    timestamp_ms: int
    dispatch: Dispatch


@dataclass(frozen=True, slots=True)
class Placed:
    """A copy's verdict in the mailbox, with the seq and time of its entries."""

    verdict: Verdict
    seq: MailboxSeq = SEQ_NONE
    at_ms: int = 0


def seq_in(state: ShardState, log_identity: str, offset: int) -> MailboxSeq | None:
    """The seq of the record at an offset of a log; None if no epoch of the shard covers it."""
    for boundary in reversed(state.boundaries):
        if boundary.log_identity == log_identity and offset >= boundary.first_offset:
            return mailbox_seq(boundary.shard_epoch, offset)
    return None


def mailbox_verdict(
    copy: Copy,
    state: ShardState | None,
    marks: Sequence[EpochMark],
    materialised: Sequence[MaterialisedRecord],
    log_identity: str,
) -> Placed:
    """What the mailbox did, or will do, with a copy: the same rules, on what is durable."""
    own = [record for record in materialised if record.dispatch_id == copy.dispatch.dispatch_id]
    seq = None if state is None else seq_in(state, log_identity, copy.offset)
    if state is None or seq is None:
        # A rebase numbered it: under another seq, or not yet.
        return Placed(Verdict.DUPLICATE if own else Verdict.PENDING)
    if any(watermark(state, block.lane) < seq for block in copy.dispatch.blocks):
        return Placed(Verdict.PENDING, seq)
    for record in own:
        if record.seq == seq:
            return Placed(Verdict.DONE, seq, record.at_ms)
    if is_stale(marks, copy.dispatch.fencing_epoch, seq):
        return Placed(Verdict.STALE_EPOCH, seq)
    if own:
        return Placed(Verdict.DUPLICATE, seq)
    # Passed without a trace: nothing of it is in a mailbox.
    return Placed(Verdict.PENDING, seq)


# --- orphans ----------------------------------------------------------------------------------


def incomplete(
    event_ids: Sequence[tuple[int, EventId]], counts: Mapping[EventId, tuple[int, int]]
) -> list[tuple[int, EventId]]:
    """The events that do not have exactly as many dispatches as their records say."""
    return [
        (number, event)
        for number, event in event_ids
        if event not in counts or counts[event][0] != counts[event][1]
    ]


def is_quarantined(event: EventId, quarantined: Sequence[Quarantined]) -> bool:
    """Whether some dispatch of the event is kept in quarantine instead of in mailboxes.

    What was never produced has a place that is a function of its dispatch_id; what could not be
    decoded is known by the event's id in its bytes.
    """
    return any(
        record.value.find(event) >= 0
        or (
            record.offset < 0
            and any(
                record.offset == unproduced_offset(dispatch_id(event, record.partition, chunk))
                for chunk in range(CHUNKS_MAX)
            )
        )
        for record in quarantined
    )


def is_expired(created_at_ms: int, now_ms: int) -> bool:
    """Whether the event's entries may have left the day buckets: nothing can be said of it."""
    return created_at_ms // DAY_MS < now_ms // DAY_MS - BUCKET_DAYS_KEPT
