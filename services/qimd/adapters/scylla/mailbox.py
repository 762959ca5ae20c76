"""`ports.mailbox.MailboxStore`: most steps here, what goes in `mailbox_expiry`, the reads in
`mailbox_reads`.
"""
# ruff: noqa: S608  (statements are put together from constants of this package alone)

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from qimd.adapters.scylla.conversation_rows import bucket_of, chunks
from qimd.adapters.scylla.mailbox_apply import (
    Done,
    Place,
    done_of,
    entry_writes,
    judge,
    mark_writes,
    moved,
    place_writes,
    places_of,
    progress_writes,
    verdicts_of,
)
from qimd.adapters.scylla.mailbox_expiry import MailboxExpiry
from qimd.adapters.scylla.mailbox_reads import marks_of
from qimd.adapters.scylla.mailbox_shards import Become, ShardRow, held
from qimd.adapters.scylla.rising import rising
from qimd.adapters.scylla.session import DECISIONS_MAX, Session, Write, begun, contended, step
from qimd.core.ids import DispatchId
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.parameters import LANES
from qimd.core.records import DeviceKey
from qimd.core.seq import SEQ_NONE, MailboxSeq, before_offset
from qimd.ports.mailbox import (
    ApplyStep,
    DeviceState,
    EpochBoundary,
    KeptRecord,
    RecordVerdict,
    ShardState,
)

KEPT_MAX: Final = 64
"""Kept records of one conditional write: with the largest records 5 MiB, below what an engine takes
as one mutation (16 MiB)."""

PLACED_MAX: Final = 65_536
"""Places of a shard that are remembered, about 10 MB; then it is begun anew."""

DROPS_MAX: Final = 1_000
"""Kept records that one conditional write drops."""

_DONE: Final = """
SELECT dispatch_id, seq, lanes, digest FROM mailbox_dispatches
WHERE deployment = ? AND event_id = ? AND shard = ?
"""
_DROP_MARK: Final = """
DELETE FROM mailbox_marks WHERE deployment = ? AND shard = ? AND bucket = ?
AND tenant = ? AND conversation = ? AND fencing_epoch = ? AND first_seq = ?
"""
_KEPT_SEQS: Final = """
SELECT seq FROM mailbox_shards WHERE deployment = ? AND shard = ? AND seq IN ?
"""
_KEPT_THROUGH: Final = """
SELECT seq FROM mailbox_shards WHERE deployment = ? AND shard = ? AND seq <= ? LIMIT ?
"""
_KEEP: Final = """
INSERT INTO mailbox_shards (deployment, shard, seq, behind, at_ms, value) VALUES (?, ?, ?, ?, ?, ?)
"""
_DROP_KEPT: Final = "DELETE FROM mailbox_shards WHERE deployment = ? AND shard = ? AND seq = ?"

_OF_DEVICE: Final = "WHERE deployment = ? AND tenant = ? AND user_id = ? AND device = ?"
_DEVICE: Final = f"SELECT acked, handed FROM devices {_OF_DEVICE}"
_ACKED: Final = f"UPDATE devices USING TIMESTAMP ? SET acked = ? {_OF_DEVICE}"
_HANDED: Final = f"UPDATE devices USING TIMESTAMP ? SET handed = ? {_OF_DEVICE}"


class Placed:
    """Places that are known to be stored: a user's next entry mostly goes where the last did."""

    def __init__(self) -> None:
        self._known: dict[int, set[Place]] = {}

    def missing(self, shard: int, places: set[Place]) -> set[Place]:
        """Those that are not known to be."""
        return places - self._known.get(shard, set())

    def add(self, shard: int, places: set[Place]) -> None:
        """They are stored."""
        known = self._known.setdefault(shard, set())
        if len(known) > PLACED_MAX:
            known.clear()
        known |= places


class ScyllaMailboxStore(MailboxExpiry):
    """`ports.mailbox.MailboxStore`."""

    def __init__(self, session: Session, deployment: str) -> None:
        super().__init__(session, deployment)
        self._placed = Placed()

    # --- the shard's steps ---

    @step
    async def open_shard(self, shard: int, term: int, first: EpochBoundary) -> Outcome[ShardState]:
        def open_it(row: ShardRow | None) -> Become[ShardState] | Outcome[ShardState]:
            if row is None:
                row = ShardRow(_new_shard(shard, term, first))
            elif row.state.term > term:
                return NotApplied(Refusal.STALE_EPOCH, "the shard's term is above the caller's")
            elif row.state.term == term:
                return Applied(row.state)
            state = replace(row.state, term=term)
            return Become(replace(row, state=state), state)

        return await self._shards.change(shard, open_it)

    @step
    async def apply(self, step: ApplyStep) -> Outcome[Sequence[RecordVerdict]]:
        row, done = await asyncio.gather(self._shards.row(step.shard), self._done(step))
        if row is None or judge(row, step) is not None:
            # What was read may be older than a try of this very step that has landed since.
            row = await self._shards.decided_row(step.shard)
            answered = judge(row, step)
            if answered is not None or row is None:
                return answered or contended()
            done = await self._done(step)
        verdicts = verdicts_of(row, step, done)
        places = places_of(step, verdicts)
        for writes in (
            mark_writes(self._deployment, step),
            place_writes(self._deployment, step.shard, self._placed.missing(step.shard, places)),
            entry_writes(self._deployment, step, verdicts),
        ):
            written = await self._session.write_all(writes)
            if not isinstance(written, Applied):
                return written
        self._placed.add(step.shard, places)
        progressed = await self._session.write_all(
            progress_writes(self._deployment, step, verdicts)
        )
        if not isinstance(progressed, Applied):
            return Unknown("entries are written, their progress may not be")
        return await self._shards.change(step.shard, lambda now: moved(now, step, verdicts), row)

    async def _done(self, step: ApplyStep) -> dict[DispatchId, list[Done]]:
        events = dict.fromkeys(record.ref.event_id for record in step.records)
        pages = await self._session.rows_of_each(
            _DONE, ((self._deployment, of, step.shard) for of in events)
        )
        found: dict[DispatchId, list[Done]] = {}
        for rows in pages:
            for name, *done in rows:
                found.setdefault(DispatchId(name), []).append(done_of(tuple(done)))
        return found

    @step
    async def begin_epoch(
        self, shard: int, term: int, boundary: EpochBoundary
    ) -> Outcome[ShardState]:
        def begin(row: ShardRow | None) -> Become[ShardState] | Outcome[ShardState]:
            held_row = held(row, term)
            if isinstance(held_row, NotApplied):
                return held_row
            last = held_row.state.boundaries[-1].shard_epoch
            if boundary == held_row.state.boundaries[-1]:
                return Applied(held_row.state)
            if boundary.shard_epoch != last + 1:
                return NotApplied(Refusal.CONFLICT, f"the last shard_epoch is {last}")
            begun = held_row.begun(boundary)
            return Become(begun, begun.state)

        return await self._shards.change(shard, begin)

    @step
    async def fold_marks(self, shard: int, term: int, below: MailboxSeq) -> Outcome[int]:
        row = held(await self._shards.decided_row(shard), term)
        if isinstance(row, NotApplied):
            return row
        return await self._fold(shard, below)

    @begun
    async def _fold(self, shard: int, below: MailboxSeq) -> Outcome[int]:
        partitions: dict[int, list[Write]] = {}
        folded = 0
        for key, marks in (await self.all_marks(shard)).items():
            old = [mark for mark in marks_of(marks) if mark.first_seq <= below]
            if len(old) < 2:
                continue
            folded += len(old) - 1
            gone = {mark.fencing_epoch for mark in old} - {max(mark.fencing_epoch for mark in old)}
            bucket = bucket_of(key)
            place = (self._deployment, shard, bucket, key.tenant, key.conversation)
            partitions.setdefault(bucket, []).extend(
                Write(_DROP_MARK, (*place, *mark))
                for mark in marks
                # Its later ones too, which counted for nothing while it was there.
                if mark[0] in gone
            )
        dropped = await self._session.write_all(list(partitions.values()))
        return Applied(folded) if isinstance(dropped, Applied) else dropped

    # --- records of lagging lanes ---

    @step
    async def keep_records(
        self, shard: int, term: int, records: Sequence[KeptRecord]
    ) -> Outcome[None]:
        first, *others = list(chunks(records, KEPT_MAX)) or [[]]
        kept = await self._keep(shard, term, first)
        for some in others:
            if not isinstance(kept, Applied):
                break
            kept = await begun(self._keep)(shard, term, some)
        return kept

    async def _keep(self, shard: int, term: int, records: Sequence[KeptRecord]) -> Outcome[None]:
        place = (self._deployment, shard)
        for _ in range(DECISIONS_MAX):
            row = held(await self._shards.decided_row(shard), term)
            if isinstance(row, NotApplied):
                return row
            seqs = [record.seq for record in records]
            there = {seq for (seq,) in await self._session.rows(_KEPT_SEQS, *place, seqs)}
            new = [
                Write(_KEEP, (*place, one.seq, one.after, one.timestamp_ms, one.value))
                for one in records
                if one.seq not in there
            ]
            swapped = await self._shards.swap(row, new)
            if not isinstance(swapped, Applied):
                return swapped
            if swapped.value:
                return Applied(None)
        return contended()

    @step
    async def drop_kept(self, shard: int, term: int, through: MailboxSeq) -> Outcome[int]:
        dropped = 0
        outcome = await self._drop_kept(shard, term, through)
        while isinstance(outcome, Applied) and outcome.value:
            dropped += outcome.value
            outcome = await begun(self._drop_kept)(shard, term, through)
        return Applied(dropped) if isinstance(outcome, Applied) else outcome

    async def _drop_kept(self, shard: int, term: int, through: MailboxSeq) -> Outcome[int]:
        """Drop some of them; how many, 0 if none is left."""
        place = (self._deployment, shard)
        for _ in range(DECISIONS_MAX):
            row = held(await self._shards.decided_row(shard), term)
            if isinstance(row, NotApplied):
                return row
            seqs = await self._session.rows(_KEPT_THROUGH, *place, through, DROPS_MAX)
            if not seqs:
                return Applied(0)
            drops = [Write(_DROP_KEPT, (*place, seq)) for (seq,) in seqs]
            swapped = await self._shards.swap(row, drops)
            if not isinstance(swapped, Applied):
                return swapped
            if swapped.value:
                return Applied(len(seqs))
        return contended()

    # --- devices ---

    @step
    async def open_device(self, device: DeviceKey, floor: MailboxSeq) -> Outcome[DeviceState]:
        stored = await self._device(device)
        if stored is not None:
            return Applied(stored)
        return await self._raise_device(device, DeviceState(floor, floor))

    @step
    async def ack(
        self, device: DeviceKey, position: MailboxSeq, handed: MailboxSeq
    ) -> Outcome[DeviceState]:
        stored = await self._device(device)
        if stored is None:
            return NotApplied(Refusal.NOT_FOUND, "the device was never opened")
        risen = DeviceState(max(stored.acked, position), max(stored.handed, handed))
        return Applied(stored) if risen == stored else await self._raise_device(device, risen)

    async def _device(self, device: DeviceKey) -> DeviceState | None:
        for acked, handed in await self._session.rows(_DEVICE, *self._place(device)):
            return DeviceState(acked, handed)
        return None

    async def _raise_device(self, device: DeviceKey, state: DeviceState) -> Outcome[DeviceState]:
        place = self._place(device)
        raised = await self._session.write(
            [
                Write(_HANDED, (rising(state.handed), state.handed, *place)),
                Write(_ACKED, (rising(state.acked), state.acked, *place)),
            ]
        )
        return Applied(state) if isinstance(raised, Applied) else raised

    def _place(self, device: DeviceKey) -> tuple[str, str, str, str]:
        return self._deployment, device.tenant, device.user, device.device


def _new_shard(shard: int, term: int, first: EpochBoundary) -> ShardState:
    return ShardState(
        shard=shard,
        term=term,
        next_offset=first.first_offset,
        position=before_offset(first.shard_epoch, first.first_offset),
        lagging={},
        floor=SEQ_NONE,
        lane_last=(SEQ_NONE,) * LANES,
        boundaries=(first,),
        buckets=(),
    )
