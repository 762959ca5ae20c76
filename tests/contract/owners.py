"""A mailbox shard's owner, and records for it, as the suites of `ports.mailbox` use them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.contract.builders import (
    ANNA,
    BEN,
    CARL,
    DORA,
    START_MS,
    block,
    event,
    key,
    ref,
    user,
    value,
)
from tests.contract.engines import Engine

from qimd.core.ids import content_digest, dispatch_id
from qimd.core.records import ConversationKey, EventRef, LaneBlock, UserKey
from qimd.core.seq import (
    SEQ_MAX,
    SEQ_NONE,
    MailboxSeq,
    mailbox_seq,
)
from qimd.ports.mailbox import (
    ApplyStep,
    DayBucket,
    EpochBoundary,
    EpochMark,
    KeptRecord,
    RecordStep,
    RecordVerdict,
    ShardState,
)

FIRST = EpochBoundary(1, 0, "cluster/topic")
TERM = 1_700_000_000


def at(offset: int, epoch: int = 1) -> MailboxSeq:
    return mailbox_seq(epoch, offset)


def record(
    offset: int,
    blocks: Sequence[LaneBlock],
    *,
    of: EventRef | None = None,
    shard: int = 0,
    chunk: int = 0,
    chunks: int = 1,
    fencing_epoch: int = 7,
    epoch: int = 1,
) -> RecordStep:
    """A record at an offset; by default of the event whose number is the offset plus 1."""
    reference = of or ref(event(offset + 1))
    return RecordStep(
        seq=at(offset, epoch),
        ref=reference,
        dispatch_id=dispatch_id(reference.event_id, shard, chunk),
        content_digest=content_digest(reference.event_id, bytes([chunk])),
        fencing_epoch=fencing_epoch,
        chunk_index=chunk,
        chunk_count=chunks,
        blocks=blocks,
    )


@dataclass
class Owner:
    """Takes a shard's steps as its owner does: each from where the last one ended."""

    engine: Engine
    state: ShardState
    requests: int = 0

    @classmethod
    async def of(cls, engine: Engine, shard: int = 0, term: int = TERM) -> "Owner":
        return cls(engine, value(await engine.backends.mailbox.open_shard(shard, term, FIRST)))

    def step(
        self,
        records: Sequence[RecordStep],
        through: int,
        *,
        lagging: Mapping[int, MailboxSeq] | None = None,
        marks: Sequence[tuple[ConversationKey, EpochMark]] = (),
        buckets: Sequence[DayBucket] = (),
    ) -> ApplyStep:
        """A step that ends right after the record at offset `through`."""
        self.requests += 1
        return ApplyStep(
            request_id=f"request {self.requests:8}".encode(),
            shard=self.state.shard,
            term=self.state.term,
            expected_position=self.state.position,
            records=records,
            marks=marks,
            buckets=buckets,
            next_offset=through + 1,
            position=at(through),
            lagging=lagging or {},
            at_ms=START_MS,
        )

    async def take(self, step: ApplyStep) -> Sequence[RecordVerdict]:
        verdicts = value(await self.engine.backends.mailbox.apply(step))
        await self.reload()
        return verdicts

    async def apply(
        self,
        records: Sequence[RecordStep],
        through: int,
        *,
        lagging: Mapping[int, MailboxSeq] | None = None,
    ) -> Sequence[RecordVerdict]:
        return await self.take(self.step(records, through, lagging=lagging))

    async def reload(self) -> None:
        stored = await self.engine.backends.mailbox.shard_state(self.state.shard)
        assert stored is not None
        self.state = stored


async def seqs(engine: Engine, name: UserKey | None = None) -> list[MailboxSeq]:
    entries = await engine.backends.mailbox.entries(name or user(), SEQ_NONE, SEQ_MAX, 1_000)
    return [entry.seq for entry in entries]


async def everything(engine: Engine) -> object:
    """All that a step could touch, to show that it touched nothing."""
    mailbox = engine.backends.mailbox
    return (
        await mailbox.shard_state(0),
        list(await mailbox.records_after(0, SEQ_NONE, 1_000)),
        [await seqs(engine, user(name)) for name in (ANNA, BEN, CARL, DORA)],
        dict(await mailbox.epoch_marks(0, [key()])),
    )


async def ten_records(engine: Engine) -> Owner:
    owner = await Owner.of(engine)
    await owner.apply([record(n, [block(0, ANNA), block(1, BEN)]) for n in range(10)], 9)
    return owner


def kept_record(offset: int, after: int, value: bytes = b"record") -> KeptRecord:
    return KeptRecord(at(after), at(offset), START_MS + offset, value)
