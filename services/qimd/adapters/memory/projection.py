"""The session projection in memory.

As in the weakest engine, a step is not one effect: rows land first, each group by itself, and the
checkpoint moves by a compare-and-set of its own. What makes that safe is each row's applied_seq.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from qimd.adapters.memory.network import Wire
from qimd.core.ids import UserId
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.records import ConversationKey, EventKind, UserKey
from qimd.ports.projection import (
    PagePosition,
    PartitionCheckpoint,
    ProjectedEvent,
    ProjectionGroup,
    ProjectStep,
    RestoredRow,
    RestoreStep,
    SessionRow,
)

_NO_PARTITION: Final = NotApplied(Refusal.NOT_FOUND, "the partition was never opened")
_STALE_TERM: Final = NotApplied(Refusal.STALE_EPOCH, "the partition's term is not the caller's")
_MOVED: Final = NotApplied(Refusal.HEAD_MOVED, "another owner moved the checkpoint")


@dataclass(slots=True)
class _Partition:
    term: int
    checkpoint: PartitionCheckpoint
    rows: dict[UserKey, dict[ConversationKey, SessionRow]] = field(default_factory=dict)


class ProjectionDisk:
    """What survives a process: partitions with their rows, and read marks in keys of their own."""

    def __init__(self) -> None:
        self.partitions: dict[int, _Partition] = {}
        self.read_marks: dict[tuple[UserKey, ConversationKey], int] = {}
        self.restarts = 0

    def copied(self) -> "ProjectionDisk":
        """As it is now, whatever comes."""
        other = ProjectionDisk()
        other.partitions = {
            number: replace(stored, rows={user: dict(rows) for user, rows in stored.rows.items()})
            for number, stored in self.partitions.items()
        }
        other.read_marks = dict(self.read_marks)
        return other

    def take_back(self, synced: "ProjectionDisk") -> None:
        """Start anew, as it was at the last sync."""
        self.restarts += 1
        before = synced.copied()
        self.partitions, self.read_marks = before.partitions, before.read_marks

    def find(self, user: UserKey, key: ConversationKey) -> SessionRow | None:
        """A row, in whichever partition it is."""
        for stored in self.partitions.values():
            row = stored.rows.get(user, {}).get(key)
            if row is not None:
                return row
        return None

    def put(self, user: UserKey, row: SessionRow) -> None:
        """Replace a row where it is."""
        for stored in self.partitions.values():
            rows = stored.rows.get(user, {})
            if row.key in rows:
                rows[row.key] = row

    def held(self, partition: int, term: int) -> Outcome[_Partition]:
        """The partition, for the owner of this term."""
        stored = self.partitions.get(partition)
        if stored is None:
            return _NO_PARTITION
        return Applied(stored) if stored.term == term else _STALE_TERM

    def fence(self, step: ProjectStep) -> Outcome[None]:
        """Whether a step can be taken."""
        held = self.held(step.partition, step.term)
        if not isinstance(held, Applied):
            return held
        return Applied(None) if held.value.checkpoint.next_offset == step.expected_next else _MOVED

    def project_group(self, partition: int, group: ProjectionGroup) -> Outcome[None]:
        """Bring the rows of a group's users up to its events."""
        rows = self.partitions[partition].rows
        for user in group.users:
            owner = UserKey(group.key.tenant, user)
            mine = rows.setdefault(owner, {})
            mark = (owner, group.key)
            row = mine.get(group.key) or SessionRow(
                group.key, 0, 0, 0, self.read_marks.get(mark, 0)
            )
            row = project_row(row, user, group.events)
            mine[group.key] = row
            self.read_marks[mark] = row.read_through
        return Applied(None)

    def restore(self, partition: int, rows: Sequence[RestoredRow]) -> Outcome[Sequence[int]]:
        """The rule of `ports.projection.RestoreStep`; the places of those with another mark."""
        kept: list[int] = []
        stored = self.partitions[partition].rows
        for index, restored in enumerate(rows):
            row = restored.row
            owner = UserKey(row.key.tenant, restored.user)
            if self.read_marks.get((owner, row.key), 0) != row.read_through:
                kept.append(index)
                continue
            mine = stored.setdefault(owner, {})
            if row.key not in mine or mine[row.key].applied_seq <= row.applied_seq:
                mine[row.key] = row
        return Applied(kept)

    def reset_checkpoint(
        self, partition: int, term: int, expected: PartitionCheckpoint, wanted: PartitionCheckpoint
    ) -> Outcome[None]:
        """See `ports.projection.ProjectionStore`."""
        held = self.held(partition, term)
        if not isinstance(held, Applied):
            return held
        if held.value.checkpoint not in (expected, wanted):
            return _MOVED
        held.value.checkpoint = wanted
        return Applied(None)

    def move_checkpoint(self, step: ProjectStep) -> Outcome[None]:
        """The compare-and-set that ends a step."""
        fenced = self.fence(step)
        if not isinstance(fenced, Applied):
            return fenced
        stored = self.partitions[step.partition]
        stored.checkpoint = replace(stored.checkpoint, next_offset=step.next_offset)
        return Applied(None)


def project_row(row: SessionRow, user: UserId, events: Sequence[ProjectedEvent]) -> SessionRow:
    """The rule of `ports.projection.ProjectStep` for one user, event by event."""
    for event in events:
        row = replace(row, activity_ms=max(row.activity_ms, event.created_at_ms))
        if event.conversation_seq <= row.applied_seq:
            continue
        unread, read_through = row.unread, row.read_through
        if event.sender == user:
            if unread == 0:
                read_through = max(read_through, event.conversation_seq)
        elif event.kind == EventKind.MESSAGE and event.conversation_seq > read_through:
            unread += 1
        row = replace(
            row, applied_seq=event.conversation_seq, unread=unread, read_through=read_through
        )
    return row


def _place(row: SessionRow) -> tuple[int, str]:
    return row.activity_ms, row.key.conversation


class MemoryProjectionStore:
    """`ports.projection.ProjectionStore`."""

    def __init__(self, disk: ProjectionDisk, wire: Wire) -> None:
        self._disk = disk
        self._wire = wire

    @property
    def restarts(self) -> int:
        return self._disk.restarts

    async def checkpoint(self, partition: int) -> PartitionCheckpoint | None:
        def effect() -> PartitionCheckpoint | None:
            stored = self._disk.partitions.get(partition)
            return None if stored is None else stored.checkpoint

        return await self._wire.read("checkpoint", partition, effect)

    async def open_partition(
        self, partition: int, term: int, initial: PartitionCheckpoint
    ) -> Outcome[PartitionCheckpoint]:
        def effect() -> Outcome[PartitionCheckpoint]:
            stored = self._disk.partitions.setdefault(partition, _Partition(term, initial))
            if stored.term > term:
                return _STALE_TERM
            stored.term = term
            return Applied(stored.checkpoint)

        return await self._wire.step("open_partition", partition, effect)

    async def project(self, step: ProjectStep) -> Outcome[None]:
        restarts = self.restarts
        fenced = await self._wire.step(
            "project_fence", step.partition, lambda: self._disk.fence(step)
        )
        if not isinstance(fenced, Applied):
            return fenced
        for done, group in enumerate(step.groups):
            outcome = await self._project_group(step.partition, group)
            if not isinstance(outcome, Applied):
                return _partly(outcome) if done else outcome
            if self.restarts != restarts:
                return Unknown("the engine was started anew amid the step")
        outcome = await self._wire.step(
            "project", step.partition, lambda: self._disk.move_checkpoint(step), step
        )
        return _partly(outcome) if step.groups else outcome

    async def _project_group(self, partition: int, group: ProjectionGroup) -> Outcome[None]:
        return await self._wire.step(
            "project_rows",
            (partition, group.key),
            lambda: self._disk.project_group(partition, group),
            group,
        )

    async def read_marks(self, places: Sequence[tuple[UserKey, ConversationKey]]) -> Sequence[int]:
        return await self._wire.read(
            "read_marks", None, lambda: [self._disk.read_marks.get(place, 0) for place in places]
        )

    async def restore(self, step: RestoreStep) -> Outcome[Sequence[int]]:
        fenced = await self._wire.step(
            "restore_fence", step.partition, lambda: self._disk.held(step.partition, step.term)
        )
        if not isinstance(fenced, Applied):
            return fenced
        return await self._wire.step(
            "restore", step.partition, lambda: self._disk.restore(step.partition, step.rows), step
        )

    async def reset_checkpoint(
        self, partition: int, term: int, expected: PartitionCheckpoint, wanted: PartitionCheckpoint
    ) -> Outcome[None]:
        return await self._wire.step(
            "reset_checkpoint",
            partition,
            lambda: self._disk.reset_checkpoint(partition, term, expected, wanted),
        )

    async def rows(
        self, user: UserKey, below: PagePosition | None, limit: int
    ) -> Sequence[SessionRow]:
        def effect() -> Sequence[SessionRow]:
            mine = [
                row
                for stored in self._disk.partitions.values()
                for row in stored.rows.get(user, {}).values()
            ]
            mine.sort(key=_place, reverse=True)
            if below is not None:
                bound = (below.activity_ms, below.conversation)
                return list(islice((row for row in mine if _place(row) < bound), limit))
            return mine[:limit]

        return await self._wire.read("rows", user, effect)

    async def row(self, user: UserKey, key: ConversationKey) -> SessionRow | None:
        return await self._wire.read("row", user, lambda: self._disk.find(user, key))

    async def mark_read(
        self, user: UserKey, key: ConversationKey, read_through: int, applied_seq: int, unread: int
    ) -> Outcome[SessionRow]:
        def effect() -> Outcome[SessionRow]:
            row = self._disk.find(user, key)
            if row is None:
                return NotApplied(Refusal.NOT_FOUND, "no such row")
            if row.applied_seq != applied_seq:
                return NotApplied(Refusal.HEAD_MOVED, "the row has newer events")
            if row.read_through > read_through:
                return NotApplied(Refusal.HEAD_MOVED, "another device has read further")
            row = replace(row, read_through=read_through, unread=unread)
            self._disk.put(user, row)
            self._disk.read_marks[(user, key)] = row.read_through
            return Applied(row)

        return await self._wire.step("mark_read", user, effect)


def _partly(outcome: Outcome[None]) -> Outcome[None]:
    """What a step with some rows written says: certainly refused is no longer certain."""
    if isinstance(outcome, NotApplied) and outcome.refusal not in {
        Refusal.STALE_EPOCH,
        Refusal.HEAD_MOVED,
    }:
        return Unknown(outcome.detail)
    return outcome
