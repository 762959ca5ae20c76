"""Bytes of mailboxes in Redis: seqs, records, a shard's state. `lua/mailbox_layout.lua` says where
each lies.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from qimd.adapters.redis.keys import conversation_of, joined
from qimd.core.ids import DispatchId, UserId
from qimd.core.parameters import LANES
from qimd.core.records import ConversationKey, EventRef
from qimd.core.seq import MailboxSeq
from qimd.ports.mailbox import (
    DayBucket,
    DeviceState,
    EpochBoundary,
    EpochMark,
    KeptRecord,
    MaterialisedRecord,
    RecordStep,
    RecordVerdict,
    ShardState,
)

NO_LANES: Final = bytes(8 * LANES)
"""The lane_last of a shard without entries."""

SEQ: Final = struct.Struct(">Q")
_PLACE: Final = struct.Struct(">IQ")
"""A record's shard and seq; or a number and an entry's seq."""

_LAGGING: Final = struct.Struct(">BQ")
_PAIR: Final = struct.Struct(">QQ")
"""A mark (epoch, first seq), a day bucket (day, first seq), a device (acked, handed)."""

_BOUNDARY: Final = struct.Struct(">IQ")
_VERDICT: Final = struct.Struct(">QQ?")
_RECORD: Final = struct.Struct(">16s16sQiqQIIqHB")
"""event_id, dispatch_id, conversation_seq, kind, created_at_ms, fencing_epoch, chunk_index,
chunk_count, at_ms, then the bytes of the conversation's name and of the sender's: both follow.

The event_id is first: `lua/mailbox_expire.lua` takes it from there.
"""

_KEPT: Final = struct.Struct(">Qq")


def seq_bytes(seq: int) -> bytes:
    """As it is stored and compared."""
    return SEQ.pack(seq)


def seqs_of(data: bytes) -> list[MailboxSeq]:
    """Seqs that lie one behind the other."""
    return [MailboxSeq(seq) for (seq,) in SEQ.iter_unpack(data)]


def places_of(data: bytes) -> Iterator[tuple[int, int]]:
    """(shard or place, seq) pairs that lie one behind the other."""
    return _PLACE.iter_unpack(data)


# --- records ----------------------------------------------------------------------------------


def pack_record(record: RecordStep, at_ms: int) -> bytes:
    """What the record's recipients share."""
    ref = record.ref
    conversation = joined(ref.key)
    sender = (ref.sender or "").encode()
    fixed = _RECORD.pack(
        ref.event_id,
        record.dispatch_id,
        ref.conversation_seq,
        ref.kind,
        ref.created_at_ms,
        record.fencing_epoch,
        record.chunk_index,
        record.chunk_count,
        at_ms,
        len(conversation),
        len(sender),
    )
    return fixed + conversation + sender


class Shared(NamedTuple):
    """What a record's recipients share, as it is stored: a record without its place."""

    ref: EventRef
    dispatch_id: DispatchId
    fencing_epoch: int
    chunk_index: int
    chunk_count: int
    at_ms: int

    def at(self, shard: int, seq: int) -> MaterialisedRecord:
        """The record in its place."""
        return MaterialisedRecord(shard, MailboxSeq(seq), *self)


def shared_of(data: bytes) -> Iterator[Shared]:
    """What lies one behind the other."""
    keys: dict[bytes, ConversationKey] = {}
    start = 0
    while start < len(data):
        event_id, dispatch_id, number, kind, created_at_ms, *rest = _RECORD.unpack_from(data, start)
        *numbers, conversation_bytes, sender_bytes = rest
        first = start + _RECORD.size
        middle = first + conversation_bytes
        start = middle + sender_bytes
        conversation = data[first:middle]
        # Most records of a page are of a few conversations.
        key = keys.get(conversation)
        if key is None:
            key = keys[conversation] = conversation_of(conversation)
        sender = UserId(data[middle:start].decode()) if sender_bytes else None
        ref = EventRef(key, number, event_id, kind, sender, created_at_ms)
        yield Shared(ref, dispatch_id, *numbers)


def verdicts_of(data: bytes) -> list[RecordVerdict]:
    """One a record, in the order of the step."""
    return [RecordVerdict(*verdict) for verdict in _VERDICT.iter_unpack(data)]


# --- a shard ----------------------------------------------------------------------------------


def pack_boundary(boundary: EpochBoundary) -> bytes:
    """The epoch is first: `lua/mailbox_begin_epoch.lua` compares it."""
    fixed = _BOUNDARY.pack(boundary.shard_epoch, boundary.first_offset)
    return fixed + boundary.log_identity.encode()


def _boundary_of(data: bytes) -> EpochBoundary:
    epoch, first_offset = _BOUNDARY.unpack_from(data)
    return EpochBoundary(epoch, first_offset, data[_BOUNDARY.size :].decode())


def pack_lagging(lagging: Mapping[int, MailboxSeq]) -> bytes:
    """The lanes that lag, each with its watermark."""
    return b"".join(_LAGGING.pack(lane, seq) for lane, seq in lagging.items())


def pack_buckets(buckets: Sequence[DayBucket]) -> bytes:
    """Day buckets, one behind the other."""
    return b"".join(_PAIR.pack(bucket.day, bucket.first_seq) for bucket in buckets)


def pack_mark(mark: EpochMark) -> bytes:
    """One mark."""
    return _PAIR.pack(mark.fencing_epoch, mark.first_seq)


def marks_of(data: bytes) -> tuple[EpochMark, ...]:
    """A conversation's marks."""
    return tuple(EpochMark(epoch, MailboxSeq(seq)) for epoch, seq in _PAIR.iter_unpack(data))


def state_of(shard: int, stored: Sequence[Any]) -> ShardState:
    """The shard as `lua/mailbox_state.lua` answers it."""
    term, next_offset, position, lagging, floor, lane_last, boundaries, days = stored
    return ShardState(
        shard=shard,
        term=int(term),
        next_offset=int(next_offset),
        position=_seq_of(position),
        lagging={lane: MailboxSeq(seq) for lane, seq in _LAGGING.iter_unpack(lagging)},
        floor=_seq_of(floor),
        lane_last=tuple(seqs_of(lane_last)),
        boundaries=tuple(_boundary_of(boundary) for boundary in boundaries),
        buckets=tuple(DayBucket(day, MailboxSeq(seq)) for day, seq in _PAIR.iter_unpack(days)),
    )


def _seq_of(data: bytes) -> MailboxSeq:
    (seq,) = SEQ.unpack(data)
    return MailboxSeq(seq)


# --- kept records and devices -----------------------------------------------------------------


def pack_kept(record: KeptRecord) -> bytes:
    """What is kept at its seq."""
    return _KEPT.pack(record.after, record.timestamp_ms) + record.value


def kept_of(seq: MailboxSeq, data: bytes) -> KeptRecord:
    """The record that is kept at a seq."""
    after, timestamp_ms = _KEPT.unpack_from(data)
    return KeptRecord(MailboxSeq(after), seq, timestamp_ms, data[_KEPT.size :])


def device_of(data: bytes) -> DeviceState:
    """A device's position."""
    acked, handed = _PAIR.unpack(data)
    return DeviceState(MailboxSeq(acked), MailboxSeq(handed))
