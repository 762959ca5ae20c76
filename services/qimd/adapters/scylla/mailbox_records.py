"""Records of a mailbox shard, in segments of consecutive seqs, and the spans of its entries."""

from collections.abc import Iterator
from typing import Final

from qimd.adapters.scylla.mailbox_shards import ShardRow
from qimd.adapters.scylla.session import Row
from qimd.core.ids import ConversationId, DispatchId, EventId, TenantId, UserId
from qimd.core.records import ConversationKey, EventRef
from qimd.core.seq import MailboxSeq, epoch_of, mailbox_seq
from qimd.ports.mailbox import MaterialisedRecord

SEGMENT_BITS: Final = 18
"""8 of a seq's index and 10 of the log offset: at most 1,024 records, with their users 15 MB."""

SPAN_BITS: Final = 26
"""8 of a seq's index and 18 of the log offset. A lane's entries of a span are one partition: with
262,144 records of 200 recipients about 60 MB, and a user who has some in it is told so once.
"""

RECORD_COLUMNS: Final = (
    "event_id, tenant, conversation, conversation_seq, event_kind, sender, event_at_ms, "
    "dispatch_id, fencing_epoch, chunk_index, chunk_count, at_ms"
)
RECORD_MARKS: Final = ", ".join("?" * 12)


def record_values(record: MaterialisedRecord) -> tuple[object, ...]:
    """What stands in RECORD_COLUMNS."""
    ref = record.ref
    return (
        ref.event_id,
        ref.key.tenant,
        ref.key.conversation,
        ref.conversation_seq,
        ref.kind,
        ref.sender or "",
        ref.created_at_ms,
        record.dispatch_id,
        record.fencing_epoch,
        record.chunk_index,
        record.chunk_count,
        record.at_ms,
    )


def record_of(shard: int, seq: int, columns: Row) -> MaterialisedRecord:
    """From RECORD_COLUMNS."""
    event_id, tenant, conversation, conversation_seq, kind, sender, event_at_ms = columns[:7]
    dispatch_id, fencing_epoch, chunk_index, chunk_count, at_ms = columns[7:]
    return MaterialisedRecord(
        shard=shard,
        seq=MailboxSeq(seq),
        ref=EventRef(
            ConversationKey(TenantId(tenant), ConversationId(conversation)),
            conversation_seq,
            EventId(event_id),
            kind,
            UserId(sender) if sender else None,
            event_at_ms,
        ),
        dispatch_id=DispatchId(dispatch_id),
        fencing_epoch=fencing_epoch,
        chunk_index=chunk_index,
        chunk_count=chunk_count,
        at_ms=at_ms,
    )


def segment_of(seq: int) -> int:
    """The segment that holds a seq."""
    return seq >> SEGMENT_BITS


def span_of(seq: int) -> int:
    """The span of entries that holds a seq. Spans are in the order of their seqs."""
    return seq >> SPAN_BITS


def epoch_of_span(span: int) -> int:
    """The shard_epoch of all of a span's seqs."""
    return epoch_of(span << SPAN_BITS)


def segments(row: ShardRow, after: int, through: int) -> Iterator[int]:
    """The segments that can hold records of the shard in (after, through], in order.

    Each epoch has its own, from its first offset to the last position that it reached: offsets
    begin anew with an epoch, and its segments do not.
    """
    reached = [*(end.position for end in row.ends), row.state.position]
    for boundary, position in zip(row.state.boundaries, reached, strict=True):
        first = max(after + 1, mailbox_seq(boundary.shard_epoch, boundary.first_offset))
        last = min(through, position)
        if first <= last:
            yield from range(segment_of(first), segment_of(last) + 1)
