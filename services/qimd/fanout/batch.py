"""A batch: runs of consecutive events of many conversations, and the records that they need."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from qimd.contract.dispatch import encode_dispatch
from qimd.contract.violation import ContractViolation
from qimd.core.ids import DispatchId, dispatch_id
from qimd.core.records import Event, LogIdentity
from qimd.fanout.logic import Outbox
from qimd.fanout.recipients import Chunks, EncodedChunk
from qimd.ports.log import ProduceRecord
from qimd.ports.quarantine import Quarantined, unproduced_offset


@dataclass(frozen=True, slots=True)
class Record:
    """One record, and what it came from."""

    event: Event
    chunk: EncodedChunk
    produce: ProduceRecord

    @property
    def dispatch(self) -> DispatchId:
        """Which dispatch it is."""
        return dispatch_id(self.event.event_id, self.chunk.mailbox_shard, self.chunk.index)


@dataclass(slots=True)
class Batch:
    """What is produced and awaited together. A conversation has at most one run in it."""

    identity: LogIdentity
    fencing_epoch: int
    runs: list[tuple[Outbox, int]] = field(default_factory=list)
    """(outbox, the last conversation_seq of its run)."""
    records: list[Record] = field(default_factory=list)
    broken: list[tuple[Record, str]] = field(default_factory=list)
    """Dispatches that the contract refuses to encode, and why."""

    @property
    def outboxes(self) -> Sequence[Outbox]:
        """The outboxes with a run in it, in their turn."""
        return [outbox for outbox, _ in self.runs]

    @property
    def recipients(self) -> int:
        """Mailbox entries that the records stand for."""
        return sum(record.chunk.blocks.recipients for record in self.records)

    def events(self) -> Iterator[Event]:
        """The events of the records, each once: an event's records stand together."""
        last: Event | None = None
        for record in self.records:
            if record.event is not last:
                last = record.event
                yield last

    def add(self, event: Event, chunks: Chunks) -> None:
        """Add an event's records, the next ones of its conversation."""
        for chunk in chunks:
            problem = ""
            try:
                value = encode_dispatch(
                    event,
                    fencing_epoch=self.fencing_epoch,
                    mailbox_shard=chunk.mailbox_shard,
                    chunk_index=chunk.index,
                    chunk_count=len(chunks),
                    log_identity=self.identity.text,
                    blocks=chunk.blocks,
                )
            except ContractViolation as violation:
                value, problem = b"", violation.reason
            record = Record(event, chunk, ProduceRecord(chunk.mailbox_shard, value))
            if problem:
                self.broken.append((record, problem))
            else:
                self.records.append(record)

    def quarantined(self, rejected: Sequence[int], now_ms: int) -> Sequence[Quarantined]:
        """What of the batch is for quarantine: what the log can never take, and what is broken."""
        refused = [(self.records[index], "the log can't take it") for index in rejected]
        return [
            Quarantined(
                log_identity=self.identity.text,
                partition=record.produce.partition,
                offset=unproduced_offset(record.dispatch),
                source=_source(record.event),
                reason=reason,
                at_ms=now_ms,
                value=record.produce.value,
            )
            for record, reason in (*refused, *self.broken)
        ]


def _source(event: Event) -> str:
    """Names the event for an operator. Not parsed: the ids may hold any separator."""
    key = event.key
    return f"outbox {key.tenant}/{key.conversation} seq {event.conversation_seq}"
