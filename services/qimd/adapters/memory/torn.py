"""A mailbox engine whose step is several effects, in Scylla's order: marks, entries, progress, W.

The first three carry no condition: their keys are a function of the log, so whoever writes them,
and however often, writes the same (design section 7). The term and the position are looked at
before them, where a step that has come too late ends, and bind in the watermark's own effect alone:
an owner that is overtaken in between still writes what its successor writes. What a crash leaves in
between is entries above W, which no page shows, and progress that a repetition must not take for
somebody else's: a block counts as done by another record only if it is, not if this very record's
entries are there already.

An epoch that begins ends the one before where its watermarks stand. What lies above them is of
steps that nobody will finish: it goes, and what lands later has no effect. (An engine can do so by
the timestamps of its writes, or by looking only at what the watermarks of each epoch cover.)
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from qimd.adapters.memory.mailbox import (
    MailboxDisk,
    MailboxRecord,
    MailboxShard,
    MemoryMailboxStore,
)
from qimd.core.ids import DispatchId
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.records import UserKey, lane_mask
from qimd.core.seq import MailboxSeq, epoch_of
from qimd.ports.mailbox import (
    ApplyStep,
    EpochBoundary,
    RecordStep,
    RecordVerdict,
    ShardState,
    watermark,
)

T = TypeVar("T")

Verdicts = tuple[RecordVerdict, ...]


class TornMailboxStore(MemoryMailboxStore):
    """`ports.mailbox.MailboxStore`, without atomicity beyond one effect."""

    async def apply(self, step: ApplyStep) -> Outcome[Sequence[RecordVerdict]]:
        restarts = self.restarts
        fenced = await self._wire.step("apply_fence", step.shard, lambda: fence(self._disk, step))
        if not isinstance(fenced, Applied):
            return fenced
        if fenced.value is not None:
            return Applied(fenced.value)
        if step.marks:
            marked = await self._part(
                restarts, "apply_marks", step.shard, lambda: write_marks(self._disk, step), step
            )
            if not isinstance(marked, Applied):
                return marked
        entered = await self._part(
            restarts, "apply_entries", step.shard, lambda: write_entries(self._disk, step), step
        )
        if not isinstance(entered, Applied):
            # Marks alone decide nothing before the position has passed their records.
            return entered
        verdicts = entered.value
        if step.records:
            progressed = await self._part(
                restarts,
                "apply_progress",
                step.shard,
                lambda: write_progress(self._disk, step, verdicts),
            )
            if not isinstance(progressed, Applied):
                return Unknown("entries are written, their progress may not be")
        moved = await self._part(
            restarts, "apply_watermark", step.shard, lambda: move(self._disk, step, verdicts), step
        )
        if isinstance(moved, NotApplied) and moved.refusal not in _FENCES:
            return Unknown(moved.detail)
        return moved

    async def _part(
        self,
        restarts: int,
        op: str,
        shard: int,
        effect: Callable[[], Outcome[T]],
        content: object = None,
    ) -> Outcome[T]:
        """An effect of a step that began when `restarts` was so much: it goes on over no restart,
        which may have taken its first ones back.
        """
        if self.restarts != restarts:
            return Unknown("the engine was started anew amid the step")
        return await self._wire.step(op, shard, effect, content)

    async def begin_epoch(
        self, shard: int, term: int, boundary: EpochBoundary
    ) -> Outcome[ShardState]:
        return await self._wire.step(
            "begin_epoch", shard, lambda: begin_epoch(self._disk, shard, term, boundary)
        )


_FENCES = frozenset({Refusal.STALE_EPOCH, Refusal.HEAD_MOVED})


def fence(disk: MailboxDisk, step: ApplyStep) -> Outcome[Sequence[RecordVerdict] | None]:
    """Whether the step may begin: None, or its verdicts if it was applied before."""
    answered = disk.judge(step)
    if answered is None:
        return Applied(None)
    return Applied(answered.value) if isinstance(answered, Applied) else answered


def begin_epoch(
    disk: MailboxDisk, shard: int, term: int, boundary: EpochBoundary
) -> Outcome[ShardState]:
    """See `ports.mailbox.MailboxStore`: the epoch before ends where its watermarks stand."""
    stored = disk.shards.get(shard)
    before = None if stored is None else stored.state(shard)
    begun = disk.begin_epoch(shard, term, boundary)
    if stored is not None and before is not None and isinstance(begun, Applied):
        for seq, row in list(stored.records.items()):
            if epoch_of(seq) < boundary.shard_epoch:
                _end(disk, stored, row, before)
    return begun


def _end(disk: MailboxDisk, stored: MailboxShard, row: MailboxRecord, before: ShardState) -> None:
    """Drop what the record holds above its lanes' watermarks."""
    seq, progress = row.shared.seq, stored.progress.get(row.shared.dispatch_id)
    for owner, lane in list(row.users.items()):
        if seq > watermark(before, lane):
            disk.leave(owner, seq)
            del row.users[owner]
            if progress is not None:
                progress.done &= ~(1 << lane)
    if not row.users:
        del stored.records[seq]


def write_marks(disk: MailboxDisk, step: ApplyStep) -> Outcome[None]:
    """The epoch marks, each at its own seq; one that is there already stays."""
    stored = disk.shards.get(step.shard)
    if stored is None:
        return NotApplied(Refusal.NOT_FOUND, "the shard was never opened")
    for key, mark in step.marks:
        stored.mark(key, mark)
    return Applied(None)


def write_entries(disk: MailboxDisk, step: ApplyStep) -> Outcome[Verdicts]:
    """The entries of the blocks that no other record has entered."""
    stored = disk.shards.get(step.shard)
    if stored is None:
        return NotApplied(Refusal.NOT_FOUND, "the shard was never opened")
    verdicts: list[RecordVerdict] = []
    pending: dict[DispatchId, int] = {}
    for record in step.records:
        if _has_ended(stored, record):
            verdicts.append(RecordVerdict(0, 0))
            continue
        progress = stored.progress.get(record.dispatch_id)
        if progress is not None and progress.digest != record.content_digest:
            verdicts.append(RecordVerdict(0, 0, digest_differs=True))
            continue
        asked = lane_mask(record.blocks)
        own = _own_lanes(disk, record)
        done = 0 if progress is None else progress.done & ~own
        new = asked & ~done & ~pending.get(record.dispatch_id, 0)
        if new & ~own:
            disk.enter(step, record, new & ~own)
        pending[record.dispatch_id] = pending.get(record.dispatch_id, 0) | new
        verdicts.append(RecordVerdict(new, asked & ~new))
    return Applied(tuple(verdicts))


def write_progress(disk: MailboxDisk, step: ApplyStep, verdicts: Verdicts) -> Outcome[None]:
    """The persistent dedupe, behind the entries."""
    stored = disk.shards[step.shard]
    for record, verdict in zip(step.records, verdicts, strict=True):
        if not _has_ended(stored, record):
            stored.see(record).done |= verdict.applied
    return Applied(None)


def move(
    disk: MailboxDisk, step: ApplyStep, verdicts: Verdicts
) -> Outcome[Sequence[RecordVerdict]]:
    """The watermarks, under the term and from the position that the step names."""
    answered = disk.judge(step)
    if answered is not None:
        return answered
    stored = disk.shards[step.shard]
    for record, verdict in zip(step.records, verdicts, strict=True):
        stored.raise_lane_last(record, verdict.applied)
    stored.move(step, verdicts)
    return Applied(verdicts)


def _has_ended(stored: MailboxShard, record: RecordStep) -> bool:
    """Whether the record's epoch is over: its write has come late."""
    return epoch_of(record.seq) < stored.boundaries[-1].shard_epoch


def _own_lanes(disk: MailboxDisk, record: RecordStep) -> int:
    """The lanes (a mask) whose entries this very record has made before."""
    mask = 0
    for block in record.blocks:
        user = UserKey(record.ref.key.tenant, block.users[0])
        if disk.range_of(user, MailboxSeq(record.seq - 1), record.seq):
            mask |= 1 << block.lane
    return mask
