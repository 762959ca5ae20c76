"""What is read of mailboxes.

What an epoch left unfinished when it ended may still be written, even later, by steps under way
then. It is passed over here: a lane's watermark at the end of its epoch says what counts.
"""
# ruff: noqa: S608  (statements are put together from constants of this package alone)

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Final

from qimd.adapters.scylla.conversation_rows import BUCKETS, bucket_of
from qimd.adapters.scylla.mailbox_apply import unsigned
from qimd.adapters.scylla.mailbox_records import (
    RECORD_COLUMNS,
    epoch_of_span,
    record_of,
    segment_of,
    segments,
    span_of,
)
from qimd.adapters.scylla.mailbox_shards import ShardRow, Shards
from qimd.adapters.scylla.session import Row, Session
from qimd.core.ids import ConversationId, EventId, UserId, event_id
from qimd.core.parameters import LANES
from qimd.core.records import ConversationKey, EventRef, UserKey
from qimd.core.seq import SEQ_MAX, SEQ_NONE, MailboxSeq, epoch_of
from qimd.ports.mailbox import Entry, EpochMark, KeptRecord, MaterialisedRecord, ShardState
from qimd.ports.store import key_of

Place = tuple[int, int, int]
"""(span, shard, lane): where a user has entries."""

SPANS_AT_ONCE_MAX: Final = 64
"""Spans that one page reads side by side: a device that was away for a month takes few turns."""

_PLACES: Final = """
SELECT span, shard, lane FROM mailbox_places
WHERE deployment = ? AND tenant = ? AND user_id = ? AND span >= ? AND span <= ?
"""
_OF_USER: Final = """
SELECT seq, conversation, conversation_seq, event_kind, sender, at_ms FROM mailbox_entries
WHERE deployment = ? AND shard = ? AND lane = ? AND span = ? AND tenant = ? AND user_id = ?
"""
_ENTRIES: Final = f"{_OF_USER} AND seq > ? AND seq <= ? LIMIT ?"
# Filtered within what one user has in one span.
_OF_CONVERSATION: Final = f"""
{_OF_USER} AND conversation = ? AND conversation_seq >= ? AND conversation_seq <= ? ALLOW FILTERING
"""
_RECORDS: Final = f"""
SELECT seq, {RECORD_COLUMNS} FROM mailbox_records
WHERE deployment = ? AND shard = ? AND segment = ? AND seq > ? AND seq <= ? LIMIT ?
"""
_LANES: Final = """
SELECT lane FROM mailbox_blocks WHERE deployment = ? AND shard = ? AND segment = ? AND seq = ?
"""
_OF_EVENT: Final = f"""
SELECT shard, seq, lanes, {RECORD_COLUMNS} FROM mailbox_dispatches
WHERE deployment = ? AND event_id = ?
"""
_MARKS_OF: Final = """
SELECT fencing_epoch, first_seq FROM mailbox_marks
WHERE deployment = ? AND shard = ? AND bucket = ? AND tenant = ? AND conversation = ?
"""
_MARKS: Final = """
SELECT tenant, conversation, fencing_epoch, first_seq FROM mailbox_marks
WHERE deployment = ? AND shard = ? AND bucket = ?
"""
_KEPT: Final = """
SELECT behind, seq, at_ms, value FROM mailbox_shards
WHERE deployment = ? AND shard = ? AND seq > ? LIMIT ?
"""


class MailboxReads:
    """The reading half of `ports.mailbox.MailboxStore`."""

    def __init__(self, session: Session, deployment: str) -> None:
        self._session = session
        self._deployment = deployment
        self._shards = Shards(session, deployment)

    @property
    def restarts(self) -> int:
        """None that counts: what a quorum has acknowledged outlives the start of a node."""
        return 0

    # --- a shard's ---

    async def shard_state(self, shard: int) -> ShardState | None:
        row = await self._shards.row(shard)
        return None if row is None else row.state

    async def kept_records(self, shard: int, after: MailboxSeq, limit: int) -> Sequence[KeptRecord]:
        rows = await self._session.rows(_KEPT, self._deployment, shard, after, limit)
        return [KeptRecord(*row) for row in rows]

    async def epoch_marks(
        self, shard: int, keys: Sequence[ConversationKey]
    ) -> Mapping[ConversationKey, Sequence[EpochMark]]:
        found = await self._session.rows_of_each(
            _MARKS_OF,
            (
                (self._deployment, shard, bucket_of(key), key.tenant, key.conversation)
                for key in keys
            ),
        )
        return {key: marks_of(rows) for key, rows in zip(keys, found, strict=True) if rows}

    async def all_marks(self, shard: int) -> Mapping[ConversationKey, Sequence[Row]]:
        """(fencing_epoch, first_seq) of all marks of a shard."""
        pages = await self._session.rows_of_each(
            _MARKS, ((self._deployment, shard, bucket) for bucket in range(BUCKETS))
        )
        found: dict[ConversationKey, list[Row]] = {}
        for rows in pages:
            for tenant, conversation, *mark in rows:
                found.setdefault(key_of(tenant, conversation), []).append(tuple(mark))
        return found

    async def records_after(
        self, shard: int, after: MailboxSeq, limit: int
    ) -> Sequence[MaterialisedRecord]:
        row = await self._shards.row(shard)
        if row is None:
            return []
        found: list[MaterialisedRecord] = []
        while len(found) < limit:
            records = await self.stored_records(row, after, SEQ_MAX, limit)
            found.extend([record for record in records if await self._counts(row, record)])
            if len(records) < limit:
                break
            after = records[-1].seq
        return found[:limit]

    async def stored_records(
        self, row: ShardRow, after: int, through: int, limit: int
    ) -> Sequence[MaterialisedRecord]:
        """Up to `limit` records in (after, through], those included that do not count."""
        shard, after = row.state.shard, max(after, row.gone)
        found: list[MaterialisedRecord] = []
        for segment in segments(row, after, through):
            place = (self._deployment, shard, segment)
            left = limit - len(found)
            rows = await self._session.rows(_RECORDS, *place, after, through, left)
            found.extend(record_of(shard, seq, tuple(columns)) for seq, *columns in rows)
            if len(found) == limit:
                break
        return found

    # --- an event's ---

    async def records_of(self, event_id: EventId) -> Sequence[MaterialisedRecord]:
        return (await self._records_of([event_id]))[0]

    async def dispatch_counts(
        self, event_ids: Sequence[EventId]
    ) -> Mapping[EventId, tuple[int, int]]:
        found = await self._records_of(event_ids)
        return {
            of: (len({record.dispatch_id for record in records}), records[0].chunk_count)
            for of, records in zip(event_ids, found, strict=True)
            if records
        }

    async def _records_of(
        self, event_ids: Sequence[EventId]
    ) -> Sequence[Sequence[MaterialisedRecord]]:
        """Of each event what counts and has not expired, in the order of shards and seqs."""
        pages = await self._session.rows_of_each(
            _OF_EVENT, ((self._deployment, of) for of in event_ids)
        )
        shards = await self._rows_of({shard for rows in pages for shard, *_ in rows})
        return [_records(shards, rows) for rows in pages]

    # --- a user's ---

    async def entries(
        self, user: UserKey, after: MailboxSeq, through: MailboxSeq, limit: int
    ) -> Sequence[Entry]:
        places = await self._places(user, span_of(after), span_of(through))
        shards = await self._ended(places, through)
        spans = [list(some) for _, some in groupby(places, key=itemgetter(0))]
        found: list[Entry] = []
        at_once = 1
        # A page is nearly always of one span; who was away for long has its entries in many.
        while spans and len(found) < limit:
            some, spans = spans[:at_once], spans[at_once:]
            pages = await asyncio.gather(
                *(
                    self._entries(user, place, shards.get(place[1]), after, through, limit)
                    for span in some
                    for place in span
                )
            )
            found.extend(sorted(chain(*pages), key=lambda entry: entry.seq))
            at_once = min(2 * at_once, SPANS_AT_ONCE_MAX)
        return found[:limit]

    async def _entries(
        self,
        user: UserKey,
        place: Place,
        shard: ShardRow | None,
        after: int,
        through: int,
        limit: int,
    ) -> list[Entry]:
        """Up to `limit` of one place that count: all do, unless its epoch has ended."""
        span, number, lane = place
        partition = (self._deployment, number, lane, span, user.tenant, user.user)
        found: list[Entry] = []
        while len(found) < limit:
            rows = await self._session.rows(_ENTRIES, *partition, after, through, limit)
            found.extend(
                _entry(user, row) for row in rows if shard is None or shard.counts(row[0], lane)
            )
            if len(rows) < limit:
                break
            after = rows[-1][0]
        return found

    async def entry_seqs(
        self, user: UserKey, key: ConversationKey, from_seq: int, through_seq: int
    ) -> Mapping[int, MailboxSeq]:
        if user.tenant != key.tenant:
            return {}
        places = await self._places(user, span_of(SEQ_NONE), span_of(SEQ_MAX))
        shards = await self._ended(places, SEQ_MAX)
        wanted = (user.tenant, user.user, key.conversation, from_seq, through_seq)
        pages = await self._session.rows_of_each(
            _OF_CONVERSATION,
            ((self._deployment, shard, lane, span, *wanted) for span, shard, lane in places),
        )
        return {
            conversation_seq: MailboxSeq(seq)
            for (_, shard, lane), rows in zip(places, pages, strict=True)
            for seq, _, conversation_seq, *_ in rows
            if shard not in shards or shards[shard].counts(seq, lane)
        }

    async def _places(self, user: UserKey, first: int, last: int) -> Sequence[Place]:
        """Where the user has entries, in the order of spans."""
        rows = await self._session.rows(
            _PLACES, self._deployment, user.tenant, user.user, first, last
        )
        return [(span, shard, lane) for span, shard, lane in rows]

    async def _ended(self, places: Sequence[Place], through: int) -> Mapping[int, ShardRow]:
        """The shards of which an epoch may have ended. That of a watermark `through` has not."""
        epoch = epoch_of(through)
        return await self._rows_of(
            {shard for span, shard, _ in places if epoch_of_span(span) < epoch}
        )

    # --- what they share ---

    async def _rows_of(self, shards: set[int]) -> Mapping[int, ShardRow]:
        """The shards that hold something, so each of them was opened."""
        numbers = sorted(shards)
        rows = await asyncio.gather(*(self._shards.row(shard) for shard in numbers))
        return {shard: row for shard, row in zip(numbers, rows, strict=True) if row is not None}

    async def _counts(self, row: ShardRow, record: MaterialisedRecord) -> bool:
        """Whether any lane of the record counts."""
        if all(row.counts(record.seq, lane) for lane in range(LANES)):
            return True
        place = (self._deployment, record.shard, segment_of(record.seq))
        lanes = await self._session.rows(_LANES, *place, record.seq)
        return any(row.counts(record.seq, lane) for (lane,) in lanes)


def marks_of(rows: Sequence[Row]) -> Sequence[EpochMark]:
    """The first mark of each epoch, by increasing first_seq."""
    firsts: dict[int, MailboxSeq] = {}
    for fencing_epoch, first_seq in rows:
        firsts[fencing_epoch] = min(first_seq, firsts.get(fencing_epoch, first_seq))
    marks = [EpochMark(fencing_epoch, first) for fencing_epoch, first in firsts.items()]
    return tuple(sorted(marks, key=lambda mark: mark.first_seq))


def _records(shards: Mapping[int, ShardRow], rows: Sequence[Row]) -> list[MaterialisedRecord]:
    """One for each seq at which lanes were done that count."""
    found = {
        (shard, seq): record_of(shard, seq, tuple(columns))
        for shard, seq, lanes, *columns in rows
        if seq > shards[shard].gone and shards[shard].counted(seq, unsigned(lanes))
    }
    return [found[place] for place in sorted(found)]


def _entry(user: UserKey, row: Row) -> Entry:
    seq, conversation, conversation_seq, kind, sender, at_ms = row
    key = ConversationKey(user.tenant, ConversationId(conversation))
    identity = event_id(user.tenant, key.conversation, conversation_seq)
    reference = EventRef(
        key, conversation_seq, identity, kind, UserId(sender) if sender else None, at_ms
    )
    return Entry(MailboxSeq(seq), reference)
