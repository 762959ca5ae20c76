"""What goes from a mailbox: expired records with their entries, then the progress of dispatches.

An expired record leaves a row that says where its dispatch was seen, as each duplicate does when it
comes (`mailbox_apply`). So what can be collected is found in the order of seqs, and from the row's
`collected` on.
"""
# ruff: noqa: S608  (statements are put together from constants of this package alone)

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from qimd.adapters.scylla.mailbox_apply import Partitions, seen_write
from qimd.adapters.scylla.mailbox_reads import MailboxReads
from qimd.adapters.scylla.mailbox_records import segment_of, segments, span_of
from qimd.adapters.scylla.mailbox_shards import Become, ShardRow, held
from qimd.adapters.scylla.session import Write, begun, step
from qimd.core.ids import DispatchId, EventId, TenantId, UserId
from qimd.core.outcome import Applied, NotApplied, Outcome
from qimd.core.seq import SEQ_NONE, MailboxSeq
from qimd.ports.mailbox import Collected, MaterialisedRecord, lowest_watermark

_BLOCKS: Final = """
SELECT seq, lane, users FROM mailbox_blocks
WHERE deployment = ? AND shard = ? AND segment = ? AND seq >= ? AND seq <= ?
"""
_DROP_ENTRIES: Final = """
DELETE FROM mailbox_entries
WHERE deployment = ? AND shard = ? AND lane = ? AND span = ?
AND tenant = ? AND user_id = ? AND seq <= ?
"""
_DROP_PLACES: Final = """
DELETE FROM mailbox_places WHERE deployment = ? AND tenant = ? AND user_id = ? AND span < ?
"""
_IN_SEGMENT: Final = "WHERE deployment = ? AND shard = ? AND segment = ? AND seq <= ?"
_DROP_RECORDS: Final = f"DELETE FROM mailbox_records {_IN_SEGMENT}"
_DROP_BLOCKS: Final = f"DELETE FROM mailbox_blocks {_IN_SEGMENT}"
_DROP_SEEN: Final = f"DELETE FROM mailbox_seen {_IN_SEGMENT}"
_SEEN: Final = """
SELECT seq, event_id, dispatch_id FROM mailbox_seen
WHERE deployment = ? AND shard = ? AND segment = ? AND seq > ? AND seq <= ? LIMIT ?
"""
_OF_EVENT: Final = "WHERE deployment = ? AND event_id = ? AND shard = ?"
_PLACES_SEEN: Final = f"SELECT dispatch_id, seq FROM mailbox_dispatches {_OF_EVENT}"
_DROP_DISPATCH: Final = f"DELETE FROM mailbox_dispatches {_OF_EVENT} AND dispatch_id = ?"

Seen = tuple[MailboxSeq, EventId, DispatchId]


class MailboxExpiry(MailboxReads):
    """The part of `ports.mailbox.MailboxStore` that lets go."""

    @step
    async def expire_buckets(
        self, shard: int, term: int, floor: MailboxSeq, limit: int
    ) -> Outcome[int]:
        def raise_floor(row: ShardRow | None) -> Become[ShardRow] | Outcome[ShardRow]:
            held_row = held(row, term)
            if isinstance(held_row, NotApplied):
                return held_row
            if floor <= held_row.state.floor:
                return Applied(held_row)
            risen = replace(held_row, state=replace(held_row.state, floor=floor))
            return Become(risen, risen)

        raised = await self._shards.change(shard, raise_floor)
        if not isinstance(raised, Applied):
            return raised
        return await self._drop_below(raised.value, limit)

    @begun
    async def _drop_below(self, row: ShardRow, limit: int) -> Outcome[int]:
        """Drop up to `limit` records at or below the floor; how many went."""
        floor, term = row.state.floor, row.state.term
        records = await self.stored_records(row, SEQ_NONE, floor, limit)
        gone = records[-1].seq if len(records) == limit else floor
        # The entries first: a record that is still there brings whoever goes on back to them.
        for drops in (
            await self._entry_drops(records),
            self._seen(records),
            self._record_drops(records),
        ):
            dropped = await self._session.write_all(drops)
            if not isinstance(dropped, Applied):
                return dropped

        def note_gone(now: ShardRow | None) -> Become[int] | Outcome[int]:
            held_row = held(now, term)
            if isinstance(held_row, NotApplied):
                return held_row
            if gone <= held_row.gone:
                return Applied(len(records))
            return Become(replace(held_row, gone=gone), len(records))

        return await self._shards.change(row.state.shard, note_gone)

    async def _entry_drops(self, records: Sequence[MaterialisedRecord]) -> Partitions:
        """A drop for each user of the records in each place: of all up to the last record, since
        they go in order.
        """
        by_segment: dict[int, list[MaterialisedRecord]] = {}
        for record in records:
            by_segment.setdefault(segment_of(record.seq), []).append(record)
        found: set[tuple[tuple[str, int, int, int], TenantId, UserId]] = set()
        for segment, some in by_segment.items():
            shard, tenants = some[0].shard, {one.seq: one.ref.key.tenant for one in some}
            bounds = (self._deployment, shard, segment, some[0].seq, some[-1].seq)
            for seq, lane, users in await self._session.rows(_BLOCKS, *bounds):
                place = (self._deployment, shard, lane, span_of(seq))
                found.update((place, tenants[seq], user) for user in users if seq in tenants)
        drops: dict[object, list[Write]] = {}
        for place, tenant, user in found:
            last = records[-1].seq
            write = Write(_DROP_ENTRIES, (*place, tenant, user, last))
            drops.setdefault(place, []).append(write)
            behind = Write(_DROP_PLACES, (self._deployment, tenant, user, span_of(last)))
            drops[tenant, user] = [behind]
        return list(drops.values())

    def _seen(self, records: Sequence[MaterialisedRecord]) -> Partitions:
        by_segment: dict[int, list[Write]] = {}
        for one in records:
            write = seen_write(self._deployment, one)
            by_segment.setdefault(segment_of(one.seq), []).append(write)
        return list(by_segment.values())

    def _record_drops(self, records: Sequence[MaterialisedRecord]) -> Partitions:
        drops: list[list[Write]] = []
        lasts = {segment_of(record.seq): record for record in records}
        for segment, last in lasts.items():
            place = (self._deployment, last.shard, segment, last.seq)
            drops += [[Write(_DROP_RECORDS, place)], [Write(_DROP_BLOCKS, place)]]
        return drops

    @step
    async def collect_progress(
        self, shard: int, term: int, through: MailboxSeq, limit: int
    ) -> Outcome[Collected]:
        row = held(await self._shards.decided_row(shard), term)
        if isinstance(row, NotApplied):
            return row
        bound = min(through, row.state.floor, row.gone, lowest_watermark(row.state))
        return await self._collect(row, bound, limit)

    @begun
    async def _collect(self, row: ShardRow, bound: MailboxSeq, limit: int) -> Outcome[Collected]:
        shard = row.state.shard
        seen = await self._seen_through(row, bound, limit)
        last = seen[-1][0] if len(seen) == limit else bound
        dispatches = await self._unseen_above(shard, bound, seen)
        segment_ends = {segment_of(seq): seq for seq, *_ in seen}
        for drops in (
            [
                [Write(_DROP_DISPATCH, (self._deployment, event, shard, dispatch))]
                for event, dispatch in dispatches
            ],
            # Behind them: whoever goes on with a part of it finds what is left.
            [
                [Write(_DROP_SEEN, (self._deployment, shard, segment, seq))]
                for segment, seq in segment_ends.items()
            ],
        ):
            dropped = await self._session.write_all(drops)
            if not isinstance(dropped, Applied):
                return dropped

        done = Collected(len(dispatches), more=len(seen) == limit)

        def note_collected(now: ShardRow | None) -> Become[Collected] | Outcome[Collected]:
            held_row = held(now, row.state.term)
            if isinstance(held_row, NotApplied):
                return held_row
            if last <= held_row.collected:
                return Applied(done)
            return Become(replace(held_row, collected=last), done)

        return await self._shards.change(shard, note_collected)

    async def _seen_through(self, row: ShardRow, bound: MailboxSeq, limit: int) -> list[Seen]:
        """Up to `limit` places above what was collected before, in order."""
        shard, after = row.state.shard, row.collected
        found: list[Seen] = []
        for segment in segments(row, after, bound):
            place = (self._deployment, shard, segment)
            rows = await self._session.rows(_SEEN, *place, after, bound, limit - len(found))
            found.extend(
                (MailboxSeq(seq), EventId(event), DispatchId(dispatch))
                for seq, event, dispatch in rows
            )
            if len(found) == limit:
                break
        return found

    async def _unseen_above(
        self, shard: int, bound: MailboxSeq, seen: Iterable[Seen]
    ) -> set[tuple[EventId, DispatchId]]:
        """Their dispatches, but for those that were seen again above the bound: they go with that
        place.
        """
        asked = {(event, dispatch) for _, event, dispatch in seen}
        events = list({event for event, _ in asked})
        pages = await self._session.rows_of_each(
            _PLACES_SEEN, ((self._deployment, event, shard) for event in events)
        )
        later = {
            (event, DispatchId(dispatch))
            for event, rows in zip(events, pages, strict=True)
            for dispatch, seq in rows
            if seq > bound
        }
        return asked - later
