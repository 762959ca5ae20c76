"""A mailbox shard and its devices as `ports.mailbox` describes them, with nothing optimised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from qimd.core.ids import DispatchId, EventId
from qimd.core.outcome import Refusal
from qimd.core.parameters import LANES
from qimd.core.records import ConversationKey, DeviceKey, UserKey
from qimd.core.seq import SEQ_NONE, MailboxSeq, before_offset
from qimd.ports.mailbox import (
    ApplyStep,
    DayBucket,
    DeviceState,
    Entry,
    EpochBoundary,
    EpochMark,
    MaterialisedRecord,
    RecordStep,
    RecordVerdict,
    ShardState,
)


@dataclass
class Shard:
    """One shard. Its mailboxes are sets of (user, entry)."""

    number: int
    term: int
    boundaries: list[EpochBoundary]
    next_offset: int
    position: MailboxSeq
    lagging: dict[int, MailboxSeq] = field(default_factory=dict)
    floor: MailboxSeq = SEQ_NONE
    lane_last: list[MailboxSeq] = field(default_factory=lambda: [SEQ_NONE] * LANES)
    buckets: list[DayBucket] = field(default_factory=list)
    marks: dict[ConversationKey, list[EpochMark]] = field(default_factory=dict)
    digests: dict[DispatchId, bytes] = field(default_factory=dict)
    seen: dict[DispatchId, MailboxSeq] = field(default_factory=dict)
    """Where each dispatch came last."""
    done: set[tuple[DispatchId, int]] = field(default_factory=set)
    records: dict[MailboxSeq, MaterialisedRecord] = field(default_factory=dict)
    entries: list[tuple[UserKey, Entry]] = field(default_factory=list)
    last: tuple[ApplyStep, tuple[RecordVerdict, ...]] | None = None

    @classmethod
    def new(cls, number: int, term: int, first: EpochBoundary) -> Shard:
        """A shard that is opened for the first time."""
        position = before_offset(first.shard_epoch, first.first_offset)
        return cls(number, term, [first], first.first_offset, position)

    def state(self) -> ShardState:
        """The port's view of it."""
        return ShardState(
            shard=self.number,
            term=self.term,
            next_offset=self.next_offset,
            position=self.position,
            lagging=dict(self.lagging),
            floor=self.floor,
            lane_last=tuple(self.lane_last),
            boundaries=tuple(self.boundaries),
            buckets=tuple(self.buckets),
        )

    # --- steps ---

    def refusals(self, step: ApplyStep) -> set[Refusal]:
        """Why a step is not applied."""
        found = set()
        if step.term != self.term:
            found.add(Refusal.STALE_EPOCH)
        falls = any(
            step.lagging.get(lane, step.position) < self.lagging.get(lane, self.position)
            for lane in range(LANES)
        )
        if step.expected_position != self.position or step.position < self.position or falls:
            found.add(Refusal.HEAD_MOVED)
        return found

    def apply(self, step: ApplyStep) -> tuple[RecordVerdict, ...]:
        """The step, which nothing refuses."""
        verdicts = tuple(self._write(step, record) for record in step.records)
        for of, mark in step.marks:
            marks = self.marks.setdefault(of, [])
            if all(known.fencing_epoch != mark.fencing_epoch for known in marks):
                marks.append(mark)
                marks.sort(key=lambda known: known.first_seq)
        known_days = {bucket.day for bucket in self.buckets}
        self.buckets += [bucket for bucket in step.buckets if bucket.day not in known_days]
        self.next_offset, self.position = step.next_offset, step.position
        self.lagging = dict(step.lagging)
        self.last = (step, verdicts)
        return verdicts

    def _write(self, step: ApplyStep, record: RecordStep) -> RecordVerdict:
        self.seen[record.dispatch_id] = max(self.seen.get(record.dispatch_id, SEQ_NONE), record.seq)
        if self.digests.setdefault(record.dispatch_id, record.content_digest) != (
            record.content_digest
        ):
            return RecordVerdict(0, 0, digest_differs=True)
        applied = duplicate = 0
        for block in record.blocks:
            if (record.dispatch_id, block.lane) in self.done:
                duplicate |= 1 << block.lane
                continue
            applied |= 1 << block.lane
            self.done.add((record.dispatch_id, block.lane))
            self.lane_last[block.lane] = max(self.lane_last[block.lane], record.seq)
            for user in block.users:
                entry = Entry(record.seq, record.ref)
                self.entries.append((UserKey(record.ref.key.tenant, user), entry))
        if applied:
            self.records.setdefault(
                record.seq,
                MaterialisedRecord(
                    shard=self.number,
                    seq=record.seq,
                    ref=record.ref,
                    dispatch_id=record.dispatch_id,
                    fencing_epoch=record.fencing_epoch,
                    chunk_index=record.chunk_index,
                    chunk_count=record.chunk_count,
                    at_ms=step.at_ms,
                ),
            )
        return RecordVerdict(applied, duplicate)

    def fold(self, below: MailboxSeq) -> int:
        """Of each conversation's marks at or below, the largest epoch's stays; how many went."""
        gone = 0
        for of, marks in self.marks.items():
            old = [mark for mark in marks if mark.first_seq <= below]
            if len(old) > 1:
                kept = max(old, key=lambda mark: mark.fencing_epoch)
                self.marks[of] = [kept, *(mark for mark in marks if mark.first_seq > below)]
                gone += len(old) - 1
        return gone

    def expire(self, floor: MailboxSeq, limit: int) -> int:
        """Raise the floor, then drop the oldest records at or below it; how many went."""
        self.floor = max(self.floor, floor)
        gone = sorted(seq for seq in self.records if seq <= self.floor)[:limit]
        for seq in gone:
            del self.records[seq]
        self.entries = [(user, entry) for user, entry in self.entries if entry.seq not in gone]
        return len(gone)

    def collect(self, through: MailboxSeq) -> int:
        """Forget the dispatches that came at or below, of which no record is left; how many."""
        left = (MailboxSeq(seq - 1) for seq in self.records)
        bound = min(through, self.floor, self.position, *self.lagging.values(), *left)
        gone = [name for name, seq in self.seen.items() if seq <= bound]
        for name in gone:
            del self.seen[name], self.digests[name]
        self.done = {one for one in self.done if one[0] in self.seen}
        return len(gone)

    def begin_epoch(self, boundary: EpochBoundary) -> None:
        """Append a boundary, which nothing refuses."""
        if boundary != self.boundaries[-1]:
            self.boundaries.append(boundary)
            self.next_offset = boundary.first_offset
            self.position = before_offset(boundary.shard_epoch, boundary.first_offset)
            self.lagging = {}

    # --- reads ---

    def records_of(self, event: EventId) -> list[MaterialisedRecord]:
        """What it holds of an event."""
        found = [record for _, record in sorted(self.records.items())]
        return [record for record in found if record.ref.event_id == event]

    def mailbox(self, user: UserKey) -> list[Entry]:
        """The user's entries, in order."""
        found = [entry for owner, entry in self.entries if owner == user]
        return sorted(found, key=lambda entry: entry.seq)


@dataclass
class Devices:
    """Positions of devices."""

    stored: dict[DeviceKey, DeviceState] = field(default_factory=dict)

    def opened(self, device: DeviceKey, floor: MailboxSeq) -> DeviceState:
        """A new one begins at the floor."""
        return self.stored.setdefault(device, DeviceState(floor, floor))

    def acked(self, device: DeviceKey, position: MailboxSeq, handed: MailboxSeq) -> DeviceState:
        """Both only rise."""
        before = self.stored[device]
        after = DeviceState(max(before.acked, position), max(before.handed, handed))
        self.stored[device] = after
        return after


def counts(records: Sequence[MaterialisedRecord]) -> tuple[int, int]:
    """(distinct dispatches, chunk_count) of an event that has some."""
    return len({record.dispatch_id for record in records}), records[0].chunk_count
