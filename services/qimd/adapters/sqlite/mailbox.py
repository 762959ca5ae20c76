"""Mailboxes: see `mailbox_shards`, `mailbox_apply` and `mailbox_reads`."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from qimd.adapters.sqlite import mailbox_kept as kept
from qimd.adapters.sqlite import mailbox_reads as reads
from qimd.adapters.sqlite import mailbox_shards as shards
from qimd.adapters.sqlite.engine import Engine
from qimd.adapters.sqlite.interning import Interner
from qimd.adapters.sqlite.mailbox_apply import apply
from qimd.core.ids import EventId
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.records import ConversationKey, DeviceKey, UserKey
from qimd.core.seq import MailboxSeq
from qimd.ports.mailbox import (
    ApplyStep,
    Collected,
    DeviceState,
    Entry,
    EpochBoundary,
    EpochMark,
    KeptRecord,
    MaterialisedRecord,
    RecordVerdict,
    ShardState,
)

ROWS_PER_RECORD: Final = 4
"""What a record adds to trees beside its entries: itself, two index rows, its progress."""

_NO_DEVICE: Final = NotApplied(Refusal.NOT_FOUND, "the device was never opened")

_OPEN_DEVICE = """
INSERT INTO devices (tenant, user, device, acked, handed) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, user, device) DO NOTHING
"""
_DEVICE = "SELECT acked, handed FROM devices WHERE tenant = ? AND user = ? AND device = ?"
_ACK = """
UPDATE devices SET acked = max(acked, ?), handed = max(handed, ?)
WHERE tenant = ? AND user = ? AND device = ?
"""


class SqliteMailboxStore:
    """`ports.mailbox.MailboxStore`."""

    def __init__(self, engine: Engine, interner: Interner) -> None:
        self._engine = engine
        self._interner = interner

    @property
    def restarts(self) -> int:
        """None takes anything back: a transaction is synced before it is answered."""
        return 0

    # the shard's steps

    async def open_shard(self, shard: int, term: int, first: EpochBoundary) -> Outcome[ShardState]:
        return await self._engine.write(lambda db: shards.open_shard(db, shard, term, first))

    async def apply(self, step: ApplyStep) -> Outcome[Sequence[RecordVerdict]]:
        entries = sum(len(block.users) for record in step.records for block in record.blocks)
        weight = 1 + entries + ROWS_PER_RECORD * len(step.records)
        return await self._engine.write(lambda db: apply(db, self._interner, step), weight=weight)

    async def fold_marks(self, shard: int, term: int, below: MailboxSeq) -> Outcome[int]:
        return await self._engine.write(lambda db: shards.fold_marks(db, shard, term, below))

    async def expire_buckets(
        self, shard: int, term: int, floor: MailboxSeq, limit: int
    ) -> Outcome[int]:
        return await self._engine.write(
            lambda db: shards.expire_buckets(db, shard, term, floor, limit), weight=limit
        )

    async def collect_progress(
        self, shard: int, term: int, through: MailboxSeq, limit: int
    ) -> Outcome[Collected]:
        return await self._engine.write(
            lambda db: shards.collect_progress(db, shard, term, through, limit), weight=limit
        )

    async def begin_epoch(
        self, shard: int, term: int, boundary: EpochBoundary
    ) -> Outcome[ShardState]:
        return await self._engine.write(lambda db: shards.begin_epoch(db, shard, term, boundary))

    # records of lagging lanes

    async def keep_records(
        self, shard: int, term: int, records: Sequence[KeptRecord]
    ) -> Outcome[None]:
        return await self._engine.write(
            lambda db: kept.keep_records(db, shard, term, records), weight=1 + len(records)
        )

    async def kept_records(self, shard: int, after: MailboxSeq, limit: int) -> Sequence[KeptRecord]:
        return await self._engine.read(lambda db: kept.kept_records(db, shard, after, limit))

    async def drop_kept(self, shard: int, term: int, through: MailboxSeq) -> Outcome[int]:
        return await self._engine.write(lambda db: kept.drop_kept(db, shard, term, through))

    # the shard's reads

    async def shard_state(self, shard: int) -> ShardState | None:
        stored = await self._engine.read(lambda db: shards.load_shard(db, shard))
        return None if stored is None else stored.state

    async def epoch_marks(
        self, shard: int, keys: Sequence[ConversationKey]
    ) -> Mapping[ConversationKey, Sequence[EpochMark]]:
        return await self._engine.read(lambda db: reads.epoch_marks(db, shard, keys))

    async def records_of(self, event_id: EventId) -> Sequence[MaterialisedRecord]:
        return await self._engine.read(lambda db: reads.records_of(db, event_id))

    async def records_after(
        self, shard: int, after: MailboxSeq, limit: int
    ) -> Sequence[MaterialisedRecord]:
        return await self._engine.read(lambda db: reads.records_after(db, shard, after, limit))

    async def dispatch_counts(
        self, event_ids: Sequence[EventId]
    ) -> Mapping[EventId, tuple[int, int]]:
        return await self._engine.read(lambda db: reads.dispatch_counts(db, event_ids))

    # a user's reads

    async def entries(
        self, user: UserKey, after: MailboxSeq, through: MailboxSeq, limit: int
    ) -> Sequence[Entry]:
        return await self._engine.read(lambda db: reads.entries(db, user, after, through, limit))

    async def entry_seqs(
        self, user: UserKey, key: ConversationKey, from_seq: int, through_seq: int
    ) -> Mapping[int, MailboxSeq]:
        return await self._engine.read(
            lambda db: reads.entry_seqs(db, user, key, from_seq, through_seq)
        )

    # devices

    async def open_device(self, device: DeviceKey, floor: MailboxSeq) -> Outcome[DeviceState]:
        def job(db: sqlite3.Connection) -> Outcome[DeviceState]:
            db.execute(_OPEN_DEVICE, (device.tenant, device.user, device.device, floor, floor))
            return _device(db, device)

        return await self._engine.write(job)

    async def ack(
        self, device: DeviceKey, position: MailboxSeq, handed: MailboxSeq
    ) -> Outcome[DeviceState]:
        def job(db: sqlite3.Connection) -> Outcome[DeviceState]:
            db.execute(_ACK, (position, handed, device.tenant, device.user, device.device))
            return _device(db, device)

        return await self._engine.write(job)


def _device(db: sqlite3.Connection, device: DeviceKey) -> Outcome[DeviceState]:
    row = db.execute(_DEVICE, (device.tenant, device.user, device.device)).fetchone()
    return _NO_DEVICE if row is None else Applied(DeviceState(*row))
