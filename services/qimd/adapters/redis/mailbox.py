"""Mailboxes in Redis. Every step is one script; `lua/mailbox_layout.lua` says what lies where.

What a restart of Redis may take back (the tail of its log under `appendfsync everysec`; nothing
under `always`) it takes back whole: a shard's position, entries, progress and marks lie in one
Redis and are written by one script, which the append-only file holds as one transaction. Owners see
the restart (`restarts`), serve no page and issue no step from what they believed before it, and
load the shard anew; the log gives back what is missing under the same seqs.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar

from qimd.adapters.redis import mailbox_packing as packing
from qimd.adapters.redis.engine import Arg, RedisEngine
from qimd.adapters.redis.keys import joined, owner
from qimd.adapters.redis.mailbox_packing import seq_bytes
from qimd.adapters.redis.mailbox_step import arguments
from qimd.adapters.redis.scripts import Script, load
from qimd.core.ids import EventId, event_id, join_key
from qimd.core.outcome import Applied, Outcome, Unknown
from qimd.core.records import ConversationKey, DeviceKey, UserKey
from qimd.core.seq import SEQ_NONE, MailboxSeq, before_offset
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

SWEEP_USERS_MAX: Final = 4_096
"""Users whose entries of an expired day go in one script: about 10 ms of Redis' time."""

FOLD_CONVERSATIONS: Final = 512
"""Conversations whose marks are folded by one script, about."""

DROP_KEPT_MAX: Final = 4_096
"""Kept records dropped by one script."""

ENTRY_SEQS_MAX: Final = 1_000
"""Events looked for by one script."""

T = TypeVar("T")


def _script(name: str, *using: str) -> Script:
    return load(f"mailbox_{name}", using=("mailbox_layout", *(f"mailbox_{one}" for one in using)))


_OPEN_SHARD: Final = _script("open_shard", "state")
_APPLY: Final = _script("apply", "seqs")
_FOLD_MARKS: Final = _script("fold_marks", "seqs")
_EXPIRE: Final = _script("expire", "seqs", "records")
_COLLECT: Final = _script("collect", "seqs", "records")
_BEGIN_EPOCH: Final = _script("begin_epoch", "state")
_KEEP: Final = _script("keep")
_KEPT: Final = _script("kept")
_DROP_KEPT: Final = _script("drop_kept")
_SHARD_STATE: Final = _script("shard_state", "state")
_RECORDS_OF: Final = _script("records_of")
_RECORDS_AFTER: Final = _script("records_after", "seqs", "records")
_ENTRIES: Final = _script("entries", "seqs", "records")
_ENTRY_SEQS: Final = _script("entry_seqs", "seqs")
_DEVICE: Final = _script("device", "seqs")


class RedisMailboxStore:
    """`ports.mailbox.MailboxStore`."""

    def __init__(self, engine: RedisEngine) -> None:
        self._engine = engine
        self._prefix = engine.keys.prefix("mailbox")

    @property
    def restarts(self) -> int:
        return self._engine.restarts

    async def _step(self, script: Script, answer: Callable[..., T], *args: Arg) -> Outcome[T]:
        """Run a step; what it answered, as a value of the port."""
        outcome = await self._engine.run(script, (), (self._prefix, *args))
        return Applied(answer(*outcome.value)) if isinstance(outcome, Applied) else outcome

    async def _read(self, script: Script, *args: Arg) -> Any:
        return await self._engine.read(script, (), (self._prefix, *args))

    # the shard's steps

    async def open_shard(self, shard: int, term: int, first: EpochBoundary) -> Outcome[ShardState]:
        return await self._step(
            _OPEN_SHARD,
            lambda stored: packing.state_of(shard, stored),
            shard,
            term,
            *_standing_before(first),
            seq_bytes(SEQ_NONE),
            packing.NO_LANES,
        )

    async def apply(self, step: ApplyStep) -> Outcome[Sequence[RecordVerdict]]:
        return await self._step(_APPLY, packing.verdicts_of, *arguments(step))

    async def fold_marks(self, shard: int, term: int, below: MailboxSeq) -> Outcome[int]:
        folded, cursor = 0, b"0"
        while True:
            outcome = await self._step(
                _FOLD_MARKS, _pair, shard, term, seq_bytes(below), cursor, FOLD_CONVERSATIONS
            )
            if not isinstance(outcome, Applied):
                return _behind(folded, outcome)
            cursor, gone = outcome.value
            folded += gone
            if cursor == b"0":
                return Applied(folded)

    async def expire_buckets(
        self, shard: int, term: int, floor: MailboxSeq, limit: int
    ) -> Outcome[int]:
        dropped = 0
        while True:
            outcome = await self._step(
                _EXPIRE, _pair, shard, term, seq_bytes(floor), limit - dropped, SWEEP_USERS_MAX
            )
            if not isinstance(outcome, Applied):
                return _behind(dropped, outcome)
            gone, more = outcome.value
            dropped += gone
            if not more:
                return Applied(dropped)

    async def collect_progress(
        self, shard: int, term: int, through: MailboxSeq, limit: int
    ) -> Outcome[Collected]:
        return await self._step(_COLLECT, _collected, shard, term, seq_bytes(through), limit)

    async def begin_epoch(
        self, shard: int, term: int, boundary: EpochBoundary
    ) -> Outcome[ShardState]:
        return await self._step(
            _BEGIN_EPOCH,
            lambda stored: packing.state_of(shard, stored),
            shard,
            term,
            *_standing_before(boundary),
        )

    # records of lagging lanes

    async def keep_records(
        self, shard: int, term: int, records: Sequence[KeptRecord]
    ) -> Outcome[None]:
        kept = [part for one in records for part in (seq_bytes(one.seq), packing.pack_kept(one))]
        return await self._step(_KEEP, lambda: None, shard, term, *kept)

    async def kept_records(self, shard: int, after: MailboxSeq, limit: int) -> Sequence[KeptRecord]:
        seqs, kept = await self._read(_KEPT, shard, seq_bytes(after), limit)
        return [
            packing.kept_of(seq, one) for seq, one in zip(packing.seqs_of(seqs), kept, strict=True)
        ]

    async def drop_kept(self, shard: int, term: int, through: MailboxSeq) -> Outcome[int]:
        dropped = 0
        while True:
            outcome = await self._step(
                _DROP_KEPT, int, shard, term, seq_bytes(through), DROP_KEPT_MAX
            )
            if not isinstance(outcome, Applied):
                return _behind(dropped, outcome)
            dropped += outcome.value
            if outcome.value < DROP_KEPT_MAX:
                return Applied(dropped)

    # the shard's reads

    async def shard_state(self, shard: int) -> ShardState | None:
        stored = await self._read(_SHARD_STATE, shard)
        return None if stored is None else packing.state_of(shard, stored)

    async def epoch_marks(
        self, shard: int, keys: Sequence[ConversationKey]
    ) -> Mapping[ConversationKey, Sequence[EpochMark]]:
        if not keys:
            return {}
        marks = b"%bmarks:%d" % (self._prefix, shard)
        [stored] = await self._engine.fetch([["HMGET", marks, *map(joined, keys)]])
        return {
            key: packing.marks_of(marks)
            for key, marks in zip(keys, stored, strict=True)
            if marks is not None
        }

    async def records_of(self, event_id: EventId) -> Sequence[MaterialisedRecord]:
        return await self._records_of([event_id])

    async def _records_of(self, event_ids: Sequence[EventId]) -> list[MaterialisedRecord]:
        places, records = await self._read(_RECORDS_OF, b"".join(event_ids))
        found = [
            shared.at(*place)
            for place, shared in zip(
                packing.places_of(places), packing.shared_of(records), strict=True
            )
        ]
        found.sort(key=attrgetter("shard", "seq"))
        return found

    async def records_after(
        self, shard: int, after: MailboxSeq, limit: int
    ) -> Sequence[MaterialisedRecord]:
        seqs, records = await self._read(_RECORDS_AFTER, shard, seq_bytes(after), limit)
        return [
            shared.at(shard, seq)
            for seq, shared in zip(packing.seqs_of(seqs), packing.shared_of(records), strict=True)
        ]

    async def dispatch_counts(
        self, event_ids: Sequence[EventId]
    ) -> Mapping[EventId, tuple[int, int]]:
        dispatches: dict[EventId, dict[bytes, int]] = {}
        for record in await self._records_of(event_ids):
            of = dispatches.setdefault(record.ref.event_id, {})
            of[record.dispatch_id] = record.chunk_count
        return {event: (len(of), max(of.values())) for event, of in dispatches.items()}

    # a user's reads

    async def entries(
        self, user: UserKey, after: MailboxSeq, through: MailboxSeq, limit: int
    ) -> Sequence[Entry]:
        seqs, records = await self._read(
            _ENTRIES, owner(user), seq_bytes(after), seq_bytes(through), limit
        )
        found = [
            Entry(seq, shared.ref)
            for seq, shared in zip(packing.seqs_of(seqs), packing.shared_of(records), strict=True)
        ]
        # A user is known to one shard; the order is for one that moved, whose old entries are read
        # too.
        found.sort(key=attrgetter("seq"))
        return found[:limit]

    async def entry_seqs(
        self, user: UserKey, key: ConversationKey, from_seq: int, through_seq: int
    ) -> Mapping[int, MailboxSeq]:
        """An event's id is a function of its place, so the index by event finds the range too."""
        if user.tenant != key.tenant:
            return {}
        found: dict[int, MailboxSeq] = {}
        for first in range(from_seq, through_seq + 1, ENTRY_SEQS_MAX):
            numbers = range(first, min(first + ENTRY_SEQS_MAX, through_seq + 1))
            events = b"".join(event_id(key.tenant, key.conversation, seq) for seq in numbers)
            places = await self._read(_ENTRY_SEQS, owner(user), events)
            found.update(
                (first + place, MailboxSeq(seq)) for place, seq in packing.places_of(places)
            )
        return found

    # devices

    async def open_device(self, device: DeviceKey, floor: MailboxSeq) -> Outcome[DeviceState]:
        return await self._device(device, "open", floor, floor)

    async def ack(
        self, device: DeviceKey, position: MailboxSeq, handed: MailboxSeq
    ) -> Outcome[DeviceState]:
        return await self._device(device, "raise", position, handed)

    async def _device(
        self, device: DeviceKey, step: str, acked: MailboxSeq, handed: MailboxSeq
    ) -> Outcome[DeviceState]:
        name = join_key(device.tenant, device.user, device.device)
        return await self._step(
            _DEVICE, packing.device_of, name, step, seq_bytes(acked), seq_bytes(handed)
        )


def _standing_before(boundary: EpochBoundary) -> tuple[bytes, int, bytes]:
    """(the boundary packed, next_offset, position) of a shard that begins with its epoch."""
    position = before_offset(boundary.shard_epoch, boundary.first_offset)
    return packing.pack_boundary(boundary), boundary.first_offset, seq_bytes(position)


def _pair(one: T, other: int) -> tuple[T, int]:
    return one, other


def _collected(forgotten: int, more: int) -> Collected:
    return Collected(forgotten, bool(more))


def _behind(done: int, outcome: Outcome[Any]) -> Outcome[Any]:
    """What a call in parts says of a part that was not applied: refused behind others is no longer
    certainly nothing.
    """
    return outcome if done == 0 else Unknown("a part of it was done before")
