"""Mailboxes in memory: a shard is one partition key, a device another.

A shard's step is one atomic effect: entries, progress, marks, buckets and watermarks together.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from qimd.adapters.memory.network import Wire
from qimd.core.ids import DispatchId, EventId
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.parameters import LANES
from qimd.core.records import ConversationKey, DeviceKey, UserKey, lane_mask
from qimd.core.seq import SEQ_NONE, MailboxSeq, before_offset
from qimd.ports.mailbox import (
    ApplyStep,
    Collected,
    DayBucket,
    DeviceState,
    Entry,
    EpochBoundary,
    EpochMark,
    KeptRecord,
    MaterialisedRecord,
    RecordStep,
    RecordVerdict,
    ShardState,
    lowest_watermark,
)

_STALE_TERM: Final = NotApplied(Refusal.STALE_EPOCH, "the shard's term is not the caller's")
_NO_SHARD: Final = NotApplied(Refusal.NOT_FOUND, "the shard was never opened")


def _seq_of(item: Entry | MaterialisedRecord) -> MailboxSeq:
    return item.seq


@dataclass(slots=True)
class DispatchProgress:
    """Which lanes of a dispatch are done, what its content was, and where it was seen."""

    digest: bytes
    first: MailboxSeq
    last: MailboxSeq
    done: int = 0


@dataclass(slots=True)
class MailboxRecord:
    """What a record's recipients share, and who they are."""

    shared: MaterialisedRecord
    users: dict[UserKey, int] = field(default_factory=dict)
    """Each with the lane."""


@dataclass(slots=True)
class MailboxShard:
    """One partition key, as the disk has it."""

    term: int
    next_offset: int
    position: MailboxSeq
    floor: MailboxSeq
    boundaries: list[EpochBoundary]
    lagging: dict[int, MailboxSeq] = field(default_factory=dict)
    lane_last: list[MailboxSeq] = field(default_factory=lambda: [SEQ_NONE] * LANES)
    buckets: list[DayBucket] = field(default_factory=list)
    marks: dict[ConversationKey, list[EpochMark]] = field(default_factory=dict)
    progress: dict[DispatchId, DispatchProgress] = field(default_factory=dict)
    records: dict[MailboxSeq, MailboxRecord] = field(default_factory=dict)
    kept: dict[MailboxSeq, KeptRecord] = field(default_factory=dict)
    last_request_id: bytes | None = None
    last_verdicts: tuple[RecordVerdict, ...] = ()

    def watermark(self, lane: int) -> MailboxSeq:
        """W of a lane."""
        return self.lagging.get(lane, self.position)

    def lowers(self, step: ApplyStep) -> bool:
        """Whether a watermark would go back."""
        return step.position < self.position or any(
            step.lagging.get(lane, step.position) < self.watermark(lane) for lane in range(LANES)
        )

    def see(self, record: RecordStep) -> DispatchProgress:
        """The progress of the record's dispatch, which was seen there."""
        progress = self.progress.setdefault(
            record.dispatch_id, DispatchProgress(record.content_digest, record.seq, record.seq)
        )
        progress.last = max(progress.last, record.seq)
        return progress

    def raise_lane_last(self, record: RecordStep, lanes: int) -> None:
        """The record has entries of these lanes (a mask)."""
        for block in record.blocks:
            if lanes >> block.lane & 1:
                self.lane_last[block.lane] = max(self.lane_last[block.lane], record.seq)

    def move(self, step: ApplyStep, verdicts: tuple[RecordVerdict, ...]) -> None:
        """Stand where the step leaves the shard."""
        for key, mark in step.marks:
            self.mark(key, mark)
        known_days = [bucket.day for bucket in self.buckets]
        self.buckets.extend(one for one in step.buckets if one.day not in known_days)
        self.next_offset = step.next_offset
        self.position = step.position
        self.lagging = dict(step.lagging)
        self.last_request_id = step.request_id
        self.last_verdicts = verdicts

    def copied(self) -> "MailboxShard":
        """As it is now, whatever comes."""
        return replace(
            self,
            boundaries=list(self.boundaries),
            lagging=dict(self.lagging),
            lane_last=list(self.lane_last),
            buckets=list(self.buckets),
            marks={key: list(marks) for key, marks in self.marks.items()},
            progress={name: replace(one) for name, one in self.progress.items()},
            kept=dict(self.kept),
            records={seq: replace(row, users=dict(row.users)) for seq, row in self.records.items()},
        )

    def state(self, shard: int) -> ShardState:
        """A copy, as an owner sees it."""
        return ShardState(
            shard=shard,
            term=self.term,
            next_offset=self.next_offset,
            position=self.position,
            lagging=dict(self.lagging),
            floor=self.floor,
            lane_last=tuple(self.lane_last),
            boundaries=tuple(self.boundaries),
            buckets=tuple(self.buckets),
        )

    def mark(self, key: ConversationKey, mark: EpochMark) -> None:
        """Keep the first seq of an epoch; one that is known already stays where it is."""
        marks = self.marks.setdefault(key, [])
        if all(known.fencing_epoch != mark.fencing_epoch for known in marks):
            insort(marks, mark, key=lambda known: known.first_seq)

    def fold(self, key: ConversationKey, below: MailboxSeq) -> int:
        """Keep the largest epoch's of the marks at or below; how many went."""
        marks = self.marks[key]
        old = [mark for mark in marks if mark.first_seq <= below]
        if len(old) < 2:
            return 0
        kept = max(old, key=lambda mark: mark.fencing_epoch)
        self.marks[key] = [kept, *marks[len(old) :]]
        return len(old) - 1


class MailboxDisk:
    """What survives a process: shards, mailboxes, devices."""

    def __init__(self) -> None:
        self.shards: dict[int, MailboxShard] = {}
        self.entries: dict[UserKey, list[Entry]] = {}
        self.devices: dict[DeviceKey, DeviceState] = {}
        self.restarts = 0

    def copied(self) -> "MailboxDisk":
        """As it is now, whatever comes."""
        other = MailboxDisk()
        other.shards = {number: shard.copied() for number, shard in self.shards.items()}
        other.entries = {user: list(entries) for user, entries in self.entries.items()}
        other.devices = dict(self.devices)
        return other

    def take_back(self, synced: "MailboxDisk") -> None:
        """Start anew, as it was at the last sync."""
        self.restarts += 1
        before = synced.copied()
        self.shards, self.entries, self.devices = before.shards, before.entries, before.devices

    def open_shard(self, shard: int, term: int, first: EpochBoundary) -> Outcome[ShardState]:
        """See `ports.mailbox.MailboxStore`."""
        start = before_offset(first.shard_epoch, first.first_offset)
        stored = self.shards.setdefault(
            shard, MailboxShard(term, first.first_offset, start, SEQ_NONE, [first])
        )
        if stored.term > term:
            return _STALE_TERM
        stored.term = term
        return Applied(stored.state(shard))

    def begin_epoch(self, shard: int, term: int, boundary: EpochBoundary) -> Outcome[ShardState]:
        """See `ports.mailbox.MailboxStore`."""
        held = self.held(shard, term)
        if not isinstance(held, Applied):
            return held
        stored = held.value
        last = stored.boundaries[-1]
        if boundary == last:
            return Applied(stored.state(shard))
        if boundary.shard_epoch != last.shard_epoch + 1:
            return NotApplied(Refusal.CONFLICT, f"the last shard_epoch is {last.shard_epoch}")
        stored.boundaries.append(boundary)
        stored.next_offset = boundary.first_offset
        stored.position = before_offset(boundary.shard_epoch, boundary.first_offset)
        stored.lagging = {}
        return Applied(stored.state(shard))

    def apply(self, step: ApplyStep) -> Outcome[Sequence[RecordVerdict]]:
        """See `ports.mailbox.ApplyStep`."""
        answered = self.judge(step)
        if answered is not None:
            return answered
        stored = self.shards[step.shard]
        verdicts = tuple(self._materialise(stored, step, record) for record in step.records)
        stored.move(step, verdicts)
        return Applied(verdicts)

    def judge(self, step: ApplyStep) -> Outcome[Sequence[RecordVerdict]] | None:
        """What a step is answered that is not to be applied, or was applied before."""
        stored = self.shards.get(step.shard)
        if stored is None:
            return _NO_SHARD
        if step.request_id == stored.last_request_id:
            return Applied(stored.last_verdicts)
        if stored.term != step.term:
            return _STALE_TERM
        if stored.position != step.expected_position or stored.lowers(step):
            return NotApplied(Refusal.HEAD_MOVED, "the shard's position is another")
        return None

    def _materialise(
        self, stored: MailboxShard, step: ApplyStep, record: RecordStep
    ) -> RecordVerdict:
        asked = lane_mask(record.blocks)
        progress = stored.see(record)
        if progress.digest != record.content_digest:
            return RecordVerdict(0, 0, digest_differs=True)
        new = asked & ~progress.done
        progress.done |= asked
        if new:
            self.enter(step, record, new)
            stored.raise_lane_last(record, new)
        return RecordVerdict(new, asked & ~new)

    def enter(self, step: ApplyStep, record: RecordStep, lanes: int) -> None:
        """Write a record's entries for the users of some lanes (a mask)."""
        stored = self.shards[step.shard]
        row = stored.records.get(record.seq)
        if row is None:
            row = MailboxRecord(_shared(step, record))
            stored.records[record.seq] = row
        entry = Entry(record.seq, record.ref)
        for block in record.blocks:
            if lanes >> block.lane & 1:
                for user in block.users:
                    owner = UserKey(record.ref.key.tenant, user)
                    insort(self.entries.setdefault(owner, []), entry, key=_seq_of)
                    row.users[owner] = block.lane

    def expire(self, shard: int, term: int, floor: MailboxSeq, limit: int) -> Outcome[int]:
        """See `ports.mailbox.MailboxStore.expire_buckets`."""
        held = self.held(shard, term)
        if not isinstance(held, Applied):
            return held
        stored = held.value
        stored.floor = max(stored.floor, floor)
        gone = list(islice((seq for seq in sorted(stored.records) if seq <= stored.floor), limit))
        for seq in gone:
            for user in stored.records.pop(seq).users:
                self.leave(user, seq)
        return Applied(len(gone))

    def collect(self, shard: int, term: int, through: MailboxSeq, limit: int) -> Outcome[Collected]:
        """See `ports.mailbox.MailboxStore.collect_progress`."""
        held = self.held(shard, term)
        if not isinstance(held, Applied):
            return held
        stored = held.value
        there = (MailboxSeq(seq - 1) for seq in stored.records)
        bound = min(through, stored.floor, lowest_watermark(stored.state(shard)), *there)
        in_order = sorted(stored.progress.items(), key=lambda item: item[1].first)
        gone = [name for name, progress in in_order if progress.last <= bound]
        for name in gone[:limit]:
            del stored.progress[name]
        return Applied(Collected(min(len(gone), limit), more=len(gone) > limit))

    def leave(self, user: UserKey, seq: MailboxSeq) -> None:
        """Drop the user's entry at a seq."""
        self.entries[user] = [one for one in self.entries[user] if one.seq != seq]

    def keep(self, shard: int, term: int, records: Sequence[KeptRecord]) -> Outcome[None]:
        """See `ports.mailbox.MailboxStore.keep_records`."""
        held = self.held(shard, term)
        if not isinstance(held, Applied):
            return held
        for record in records:
            held.value.kept.setdefault(record.seq, record)
        return Applied(None)

    def drop_kept(self, shard: int, term: int, through: MailboxSeq) -> Outcome[int]:
        """See `ports.mailbox.MailboxStore`."""
        held = self.held(shard, term)
        if not isinstance(held, Applied):
            return held
        gone = [seq for seq in held.value.kept if seq <= through]
        for seq in gone:
            del held.value.kept[seq]
        return Applied(len(gone))

    def held(self, shard: int, term: int) -> Outcome[MailboxShard]:
        """The shard, for the owner of this term."""
        stored = self.shards.get(shard)
        if stored is None:
            return _NO_SHARD
        return Applied(stored) if stored.term == term else _STALE_TERM

    def range_of(self, user: UserKey, after: MailboxSeq, through: MailboxSeq) -> Sequence[Entry]:
        """A user's entries in (after, through]."""
        entries = self.entries.get(user, [])
        first = bisect_right(entries, after, key=_seq_of)
        return entries[first : bisect_right(entries, through, key=_seq_of)]


def _shared(step: ApplyStep, record: RecordStep) -> MaterialisedRecord:
    return MaterialisedRecord(
        shard=step.shard,
        seq=record.seq,
        ref=record.ref,
        dispatch_id=record.dispatch_id,
        fencing_epoch=record.fencing_epoch,
        chunk_index=record.chunk_index,
        chunk_count=record.chunk_count,
        at_ms=step.at_ms,
    )


class MemoryMailboxStore:
    """`ports.mailbox.MailboxStore`."""

    def __init__(self, disk: MailboxDisk, wire: Wire) -> None:
        self._disk = disk
        self._wire = wire

    @property
    def restarts(self) -> int:
        return self._disk.restarts

    # the shard's steps

    async def open_shard(self, shard: int, term: int, first: EpochBoundary) -> Outcome[ShardState]:
        return await self._wire.step(
            "open_shard", shard, lambda: self._disk.open_shard(shard, term, first)
        )

    async def apply(self, step: ApplyStep) -> Outcome[Sequence[RecordVerdict]]:
        return await self._wire.step("apply", step.shard, lambda: self._disk.apply(step), step)

    async def fold_marks(self, shard: int, term: int, below: MailboxSeq) -> Outcome[int]:
        def effect() -> Outcome[int]:
            held = self._disk.held(shard, term)
            if not isinstance(held, Applied):
                return held
            return Applied(sum(held.value.fold(key, below) for key in held.value.marks))

        return await self._wire.step("fold_marks", shard, effect)

    async def expire_buckets(
        self, shard: int, term: int, floor: MailboxSeq, limit: int
    ) -> Outcome[int]:
        return await self._wire.step(
            "expire_buckets", shard, lambda: self._disk.expire(shard, term, floor, limit)
        )

    async def collect_progress(
        self, shard: int, term: int, through: MailboxSeq, limit: int
    ) -> Outcome[Collected]:
        return await self._wire.step(
            "collect_progress", shard, lambda: self._disk.collect(shard, term, through, limit)
        )

    async def begin_epoch(
        self, shard: int, term: int, boundary: EpochBoundary
    ) -> Outcome[ShardState]:
        return await self._wire.step(
            "begin_epoch", shard, lambda: self._disk.begin_epoch(shard, term, boundary)
        )

    # records of lagging lanes

    async def keep_records(
        self, shard: int, term: int, records: Sequence[KeptRecord]
    ) -> Outcome[None]:
        return await self._wire.step(
            "keep_records", shard, lambda: self._disk.keep(shard, term, records)
        )

    async def kept_records(self, shard: int, after: MailboxSeq, limit: int) -> Sequence[KeptRecord]:
        def effect() -> Sequence[KeptRecord]:
            stored = self._disk.shards.get(shard)
            kept = {} if stored is None else stored.kept
            return [kept[seq] for seq in sorted(seq for seq in kept if seq > after)[:limit]]

        return await self._wire.read("kept_records", shard, effect)

    async def drop_kept(self, shard: int, term: int, through: MailboxSeq) -> Outcome[int]:
        return await self._wire.step(
            "drop_kept", shard, lambda: self._disk.drop_kept(shard, term, through)
        )

    # the shard's reads

    async def shard_state(self, shard: int) -> ShardState | None:
        def effect() -> ShardState | None:
            stored = self._disk.shards.get(shard)
            return None if stored is None else stored.state(shard)

        return await self._wire.read("shard_state", shard, effect)

    async def epoch_marks(
        self, shard: int, keys: Sequence[ConversationKey]
    ) -> Mapping[ConversationKey, Sequence[EpochMark]]:
        def effect() -> Mapping[ConversationKey, Sequence[EpochMark]]:
            stored = self._disk.shards.get(shard)
            marks = {} if stored is None else stored.marks
            return {key: tuple(marks[key]) for key in keys if key in marks}

        return await self._wire.read("epoch_marks", shard, effect)

    async def records_of(self, event_id: EventId) -> Sequence[MaterialisedRecord]:
        return await self._wire.read("records_of", None, lambda: self._records_of(event_id))

    def _records_of(self, event_id: EventId) -> Sequence[MaterialisedRecord]:
        return [
            row.shared
            for shard in sorted(self._disk.shards)
            for _, row in sorted(self._disk.shards[shard].records.items())
            if row.shared.ref.event_id == event_id
        ]

    async def records_after(
        self, shard: int, after: MailboxSeq, limit: int
    ) -> Sequence[MaterialisedRecord]:
        def effect() -> Sequence[MaterialisedRecord]:
            stored = self._disk.shards.get(shard)
            records = {} if stored is None else stored.records
            above = sorted(seq for seq in records if seq > after)
            return [records[seq].shared for seq in above[:limit]]

        return await self._wire.read("records_after", shard, effect)

    async def dispatch_counts(
        self, event_ids: Sequence[EventId]
    ) -> Mapping[EventId, tuple[int, int]]:
        def effect() -> Mapping[EventId, tuple[int, int]]:
            counts: dict[EventId, tuple[int, int]] = {}
            for event_id in event_ids:
                records = self._records_of(event_id)
                if records:
                    dispatches = dict.fromkeys(record.dispatch_id for record in records)
                    counts[event_id] = (len(dispatches), records[0].chunk_count)
            return counts

        return await self._wire.read("dispatch_counts", None, effect)

    # a user's reads

    async def entries(
        self, user: UserKey, after: MailboxSeq, through: MailboxSeq, limit: int
    ) -> Sequence[Entry]:
        return await self._wire.read(
            "entries", user, lambda: self._disk.range_of(user, after, through)[:limit]
        )

    async def entry_seqs(
        self, user: UserKey, key: ConversationKey, from_seq: int, through_seq: int
    ) -> Mapping[int, MailboxSeq]:
        def effect() -> Mapping[int, MailboxSeq]:
            return {
                entry.ref.conversation_seq: entry.seq
                for entry in self._disk.entries.get(user, [])
                if entry.ref.key == key and from_seq <= entry.ref.conversation_seq <= through_seq
            }

        return await self._wire.read("entry_seqs", user, effect)

    # devices

    async def open_device(self, device: DeviceKey, floor: MailboxSeq) -> Outcome[DeviceState]:
        def effect() -> Outcome[DeviceState]:
            return Applied(self._disk.devices.setdefault(device, DeviceState(floor, floor)))

        return await self._wire.step("open_device", device, effect)

    async def ack(
        self, device: DeviceKey, position: MailboxSeq, handed: MailboxSeq
    ) -> Outcome[DeviceState]:
        def effect() -> Outcome[DeviceState]:
            stored = self._disk.devices.get(device)
            if stored is None:
                return NotApplied(Refusal.NOT_FOUND, "the device was never opened")
            risen = DeviceState(max(stored.acked, position), max(stored.handed, handed))
            self._disk.devices[device] = risen
            return Applied(risen)

        return await self._wire.step("ack", device, effect)
