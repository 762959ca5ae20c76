"""`ports.mailbox.MailboxStore`, sentence by sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from tests.contract.builders import (
    ACME,
    ANNA,
    BEN,
    CARL,
    DORA,
    ODD_IDS,
    RIVAL,
    START_MS,
    block,
    device,
    event,
    key,
    ref,
    refused,
    user,
    value,
)
from tests.contract.engines import Engine

from qimd.core.ids import UserId, content_digest, dispatch_id
from qimd.core.outcome import NotApplied, Refusal
from qimd.core.parameters import LANES
from qimd.core.records import ConversationKey, EventRef, LaneBlock, UserKey
from qimd.core.seq import (
    SEQ_MAX,
    SEQ_NONE,
    MailboxSeq,
    before_offset,
    epoch_of,
    mailbox_seq,
)
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
    reach,
)

ENGINES = ("memory", "torn", "sqlite", "redis", "cassandra", "shadow")

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


# --- opening ----------------------------------------------------------------------------------


async def test_a_new_shard_begins_at_its_first_boundary(engine: Engine) -> None:
    mailbox = engine.backends.mailbox
    assert await mailbox.shard_state(2) is None
    first = EpochBoundary(1, 40, "cluster/topic")
    state = value(await mailbox.open_shard(2, TERM, first))
    assert (state.shard, state.term, state.next_offset) == (2, TERM, 40)
    assert state.position == before_offset(1, 40)
    assert state.floor <= state.position
    assert dict(state.lagging) == {}
    assert tuple(state.lane_last) == (SEQ_NONE,) * LANES
    assert (tuple(state.boundaries), tuple(state.buckets)) == ((first,), ())
    assert await mailbox.shard_state(2) == state


async def test_opening_again_keeps_all_and_takes_the_term(engine: Engine) -> None:
    mailbox = engine.backends.mailbox
    owner = await Owner.of(engine)
    await owner.apply([record(0, [block(5, ANNA)])], 4, lagging={9: at(1)})
    other = EpochBoundary(1, 99, "another/topic")
    for term in (TERM, TERM + 3, TERM + 3):
        state = value(await mailbox.open_shard(0, term, other))
        assert state == replace(owner.state, term=term)


async def test_an_older_term_never_opens_it(engine: Engine) -> None:
    mailbox = engine.backends.mailbox
    owner = await Owner.of(engine)
    assert refused(await mailbox.open_shard(0, TERM - 1, FIRST)) is Refusal.STALE_EPOCH
    assert await mailbox.shard_state(0) == owner.state


# --- applying ---------------------------------------------------------------------------------


async def test_a_step_becomes_visible_whole(engine: Engine) -> None:
    mailbox = engine.backends.mailbox
    owner = await Owner.of(engine)
    first = record(0, [block(3, ANNA), block(63, BEN, CARL)])
    second = record(1, [block(3, ANNA)], chunk=1, chunks=2)
    mark = (key(), EpochMark(7, at(0)))
    bucket = DayBucket(19_675, at(0))
    verdicts = await owner.take(
        owner.step([first, second], 1, marks=[mark], buckets=[bucket], lagging={9: at(0)})
    )
    assert list(verdicts) == [RecordVerdict(1 << 3 | 1 << 63, 0), RecordVerdict(1 << 3, 0)]
    assert await seqs(engine, user(ANNA)) == [at(0), at(1)]
    assert await seqs(engine, user(BEN)) == await seqs(engine, user(CARL)) == [at(0)]
    state = owner.state
    assert (state.next_offset, state.position, dict(state.lagging)) == (2, at(1), {9: at(0)})
    assert (state.lane_last[3], state.lane_last[63], state.lane_last[0]) == (at(1), at(0), SEQ_NONE)
    assert tuple(state.buckets) == (bucket,)
    assert await mailbox.epoch_marks(0, [key()]) == {key(): (mark[1],)}


async def test_entries_are_references_with_all_that_a_page_needs(engine: Engine) -> None:
    owner = await Owner.of(engine)
    references = [
        ref(event(1)),
        ref(event(2, kind=9, sender=None)),
        ref(event(3, key("other"), created_at_ms=START_MS - 5)),
    ]
    steps = [record(n, [block(0, ANNA)], of=each) for n, each in enumerate(references)]
    await owner.apply(steps, 2)
    entries = await engine.backends.mailbox.entries(user(), SEQ_NONE, SEQ_MAX, 10)
    assert list(entries) == [Entry(at(n), each) for n, each in enumerate(references)]


@pytest.mark.parametrize("term", [TERM - 1, TERM + 1])
async def test_another_term_applies_nothing(engine: Engine, term: int) -> None:
    owner = await Owner.of(engine)
    before = await everything(engine)
    step = replace(owner.step([record(0, [block(0, ANNA)])], 0), term=term)
    assert refused(await engine.backends.mailbox.apply(step)) is Refusal.STALE_EPOCH
    assert await everything(engine) == before


async def test_another_position_applies_nothing(engine: Engine) -> None:
    owner = await Owner.of(engine)
    await owner.apply([], 5)
    before = await everything(engine)
    for expected in (at(4), at(6), before_offset(1, 0)):
        step = replace(owner.step([record(6, [block(0, ANNA)])], 6), expected_position=expected)
        assert refused(await engine.backends.mailbox.apply(step)) is Refusal.HEAD_MOVED
    assert await everything(engine) == before


async def test_no_watermark_is_ever_lowered(engine: Engine) -> None:
    """MBX-04: W is the highest contiguous applied position and never decreases."""
    owner = await Owner.of(engine)
    await owner.apply([], 5, lagging={9: at(3)})
    before = await everything(engine)
    lower_position = owner.step([], 4, lagging={9: at(3)})
    lower_lane = owner.step([], 6, lagging={9: at(2)})
    lower_other_lane = owner.step([], 6, lagging={9: at(3), 10: at(4)})
    for step in (lower_position, lower_lane, lower_other_lane):
        assert refused(await engine.backends.mailbox.apply(step)) is Refusal.HEAD_MOVED
        assert await everything(engine) == before
    await owner.apply([], 6, lagging={9: at(3), 10: at(5)})
    assert dict(owner.state.lagging) == {9: at(3), 10: at(5)}
    await owner.apply([], 6)
    assert (owner.state.position, dict(owner.state.lagging)) == (at(6), {})


async def test_the_same_request_again_gives_the_same_verdicts(engine: Engine) -> None:
    owner = await Owner.of(engine)
    await owner.apply([record(0, [block(0, ANNA)])], 0)
    again = record(0, [block(0, ANNA), block(1, BEN)])
    step = owner.step([replace(again, seq=at(1)), record(2, [block(0, ANNA)])], 2)
    verdicts = await owner.take(step)
    assert list(verdicts) == [RecordVerdict(1 << 1, 1 << 0), RecordVerdict(1, 0)]
    before = await everything(engine)
    for _ in range(2):
        again_given = value(await engine.backends.mailbox.apply(step))
        assert list(again_given) == list(verdicts)
    assert await everything(engine) == before


async def test_an_older_request_again_is_a_moved_head(engine: Engine) -> None:
    owner = await Owner.of(engine)
    step = owner.step([record(0, [block(0, ANNA)])], 0)
    await owner.take(step)
    await owner.apply([record(1, [block(0, ANNA)])], 1)
    assert refused(await engine.backends.mailbox.apply(step)) is Refusal.HEAD_MOVED
    assert await seqs(engine) == [at(0), at(1)]


async def test_a_duplicate_never_doubles_an_entry(engine: Engine) -> None:
    owner = await Owner.of(engine)
    once = record(0, [block(0, ANNA), block(1, BEN)])
    await owner.apply([once], 0)
    verdicts = await owner.apply([replace(once, seq=at(3), fencing_epoch=8)], 3)
    assert list(verdicts) == [RecordVerdict(0, 0b11)]
    assert await seqs(engine, user(ANNA)) == await seqs(engine, user(BEN)) == [at(0)]
    assert owner.state.lane_last[0] == at(0)


async def test_a_duplicate_within_one_step_never_doubles_an_entry(engine: Engine) -> None:
    owner = await Owner.of(engine)
    once = record(0, [block(0, ANNA), block(1, BEN)])
    verdicts = await owner.apply([once, replace(once, seq=at(1))], 1)
    assert list(verdicts) == [RecordVerdict(0b11, 0), RecordVerdict(0, 0b11)]
    assert await seqs(engine, user(ANNA)) == await seqs(engine, user(BEN)) == [at(0)]


async def test_blocks_that_were_left_out_are_applied_by_the_lanes_retry(engine: Engine) -> None:
    """A lane that failed comes back at the record's own seq, while the others went on."""
    owner = await Owner.of(engine)
    whole = record(0, [block(0, ANNA), block(1, BEN)])
    stuck = before_offset(1, 0)
    await owner.apply([replace(whole, blocks=[block(0, ANNA)])], 0, lagging={1: stuck})
    await owner.apply([record(1, [block(0, ANNA)])], 1, lagging={1: stuck})
    assert await seqs(engine, user(BEN)) == []
    verdicts = await owner.apply([replace(whole, blocks=[block(1, BEN)])], 1)
    assert list(verdicts) == [RecordVerdict(0b10, 0)]
    assert await seqs(engine, user(BEN)) == [at(0)]
    assert await seqs(engine, user(ANNA)) == [at(0), at(1)]
    records = await engine.backends.mailbox.records_after(0, SEQ_NONE, 10)
    assert [each.seq for each in records] == [at(0), at(1)]


async def test_a_known_dispatch_with_other_content_applies_nothing(engine: Engine) -> None:
    owner = await Owner.of(engine)
    once = record(0, [block(0, ANNA)])
    await owner.apply([once], 0)
    other = replace(
        once, seq=at(1), content_digest=b"another content.", blocks=[block(0, ANNA), block(1, BEN)]
    )
    good = record(2, [block(1, BEN)])
    verdicts = await owner.apply([other, good], 2)
    assert list(verdicts) == [RecordVerdict(0, 0, digest_differs=True), RecordVerdict(0b10, 0)]
    assert await seqs(engine, user(ANNA)) == [at(0)]
    assert await seqs(engine, user(BEN)) == [at(2)]


async def test_chunks_of_one_event_are_dispatches_of_their_own(engine: Engine) -> None:
    owner = await Owner.of(engine)
    of = ref(event(1))
    chunks = [
        record(n, [block(0, name)], of=of, chunk=n, chunks=2) for n, name in enumerate((ANNA, BEN))
    ]
    assert [verdict.applied for verdict in await owner.apply(chunks, 1)] == [1, 1]
    assert await seqs(engine, user(ANNA)) == [at(0)]
    assert await seqs(engine, user(BEN)) == [at(1)]
    mailbox = engine.backends.mailbox
    assert await mailbox.dispatch_counts([of.event_id]) == {of.event_id: (2, 2)}


async def test_all_sixty_four_lanes_have_their_own_bit(engine: Engine) -> None:
    owner = await Owner.of(engine)
    blocks = [block(lane, f"user-{lane:02}") for lane in range(LANES)]
    all_lanes = (1 << LANES) - 1
    assert list(await owner.apply([record(0, blocks)], 0)) == [RecordVerdict(all_lanes, 0)]
    again = replace(record(0, blocks), seq=at(1))
    assert list(await owner.apply([again], 1)) == [RecordVerdict(0, all_lanes)]
    assert tuple(owner.state.lane_last) == (at(0),) * LANES


async def test_a_large_record_reaches_everybody_once(engine: Engine) -> None:
    owner = await Owner.of(engine)
    names = [[f"user-{lane:02}-{n:02}" for n in range(8)] for lane in range(LANES)]
    blocks = [block(lane, *members) for lane, members in enumerate(names)]
    steps = [record(offset, blocks) for offset in range(4)]
    await owner.apply(steps, 3)
    for members in names:
        for name in members:
            assert await seqs(engine, user(name)) == [at(n) for n in range(4)]


async def test_the_largest_seq_comes_back_exactly(engine: Engine) -> None:
    """Above 2^53 a double would round it."""
    boundary = EpochBoundary(4095, (1 << 43) - 4, "cluster/topic")
    owner = Owner(engine, value(await engine.backends.mailbox.open_shard(0, TERM, boundary)))
    offset = (1 << 43) - 2
    last = at(offset, 4095)
    step = replace(
        owner.step([record(offset, [block(0, ANNA)], epoch=4095, of=ref(event(1)))], 0),
        position=last,
        next_offset=offset + 1,
    )
    await owner.take(step)
    assert await seqs(engine) == [last]
    assert await engine.backends.mailbox.entries(user(), MailboxSeq(last - 1), last, 1)
    assert not await engine.backends.mailbox.entries(user(), last, SEQ_MAX, 1)
    assert (owner.state.position, owner.state.lane_last[0]) == (last, last)
    assert epoch_of(owner.state.position) == 4095


async def test_seqs_that_a_double_can_not_tell_apart_stay_apart(engine: Engine) -> None:
    """Neighbours near 2^63, in everything that compares them."""
    first = (1 << 43) - 10
    seqs_ = [at(first + n, 4095) for n in range(6)]
    assert len(set(map(float, seqs_))) < 4
    mailbox = engine.backends.mailbox
    boundary = EpochBoundary(4095, first, "cluster/topic")
    owner = Owner(engine, value(await mailbox.open_shard(0, TERM, boundary)))
    records = [
        record(first + n, [block(0, ANNA)], epoch=4095, of=ref(event(n + 1))) for n in range(6)
    ]
    marks = [(key(), EpochMark(7 + n, seq)) for n, seq in enumerate(seqs_[:3])]
    step = owner.step(records, first + 5, lagging={9: seqs_[2]}, marks=marks)
    await owner.take(replace(step, position=seqs_[5]))
    assert (owner.state.position, dict(owner.state.lagging)) == (seqs_[5], {9: seqs_[2]})
    lower = replace(step, request_id=b"another request.", records=(), lagging={9: seqs_[1]})
    lower = replace(lower, expected_position=seqs_[5], position=seqs_[5])
    assert refused(await mailbox.apply(lower)) is Refusal.HEAD_MOVED
    for n in range(6):
        for end in range(n, 6):
            page = await mailbox.entries(user(), seqs_[n], seqs_[end], 9)
            assert [entry.seq for entry in page] == seqs_[n + 1 : end + 1]
    assert await mailbox.entry_seqs(user(), key(), 2, 4) == {n + 1: seqs_[n] for n in (1, 2, 3)}
    assert value(await mailbox.fold_marks(0, TERM, seqs_[1])) == 1
    assert (await mailbox.epoch_marks(0, [key()]))[key()] == (marks[1][1], marks[2][1])
    value(await mailbox.open_device(device(), seqs_[1]))
    assert value(await mailbox.ack(device(), seqs_[0], seqs_[2])) == DeviceState(seqs_[1], seqs_[2])
    assert value(await mailbox.ack(device(), seqs_[2], seqs_[1])) == DeviceState(seqs_[2], seqs_[2])
    value(await mailbox.keep_records(0, TERM, [KeptRecord(s, s, 1, b"") for s in seqs_]))
    assert [one.seq for one in await mailbox.kept_records(0, seqs_[1], 9)] == seqs_[2:]
    assert value(await mailbox.drop_kept(0, TERM, seqs_[3])) == 4
    assert value(await mailbox.expire_buckets(0, TERM, seqs_[1], 9)) == 2
    assert [one.seq for one in await mailbox.records_after(0, seqs_[2], 9)] == seqs_[3:]
    assert await seqs(engine) == seqs_[2:]


async def test_entries_are_in_order_however_the_recipients_of_a_step_overlap(
    engine: Engine,
) -> None:
    owner = await Owner.of(engine)
    audiences = {
        "all": [block(0, ANNA, BEN), block(7, CARL)],
        "some": [block(0, BEN)],
        "others": [block(7, CARL, DORA)],
        "rivals": [block(0, ANNA, BEN)],
    }
    order = ["all", "some", "all", "rivals", "others", "some", "all", "all", "others", "rivals"]
    steps = [
        record(
            n,
            audiences[name],
            of=ref(event(n + 1, key(name, RIVAL if name == "rivals" else ACME))),
        )
        for n, name in enumerate(order)
    ]
    await owner.apply(steps, len(steps) - 1)
    mailbox = engine.backends.mailbox
    for tenant in (ACME, RIVAL):
        for name in (ANNA, BEN, CARL, DORA):
            expected = [
                each.seq
                for each in steps
                if each.ref.key.tenant == tenant and any(name in b.users for b in each.blocks)
            ]
            for after in (SEQ_NONE, *expected):
                page = await mailbox.entries(user(name, tenant), after, SEQ_MAX, 9)
                assert [one.seq for one in page] == [seq for seq in expected if seq > after]


async def test_a_step_on_a_shard_that_was_never_opened_applies_nothing(engine: Engine) -> None:
    owner = await Owner.of(engine)
    step = replace(owner.step([record(0, [block(0, ANNA)])], 0), shard=3)
    assert isinstance(await engine.backends.mailbox.apply(step), NotApplied)
    assert await seqs(engine) == []


# --- marks ------------------------------------------------------------------------------------


async def test_marks_stand_by_first_seq_and_a_known_epoch_keeps_its_first(engine: Engine) -> None:
    owner = await Owner.of(engine)
    marks = [(key(), EpochMark(7, at(0))), (key("other"), EpochMark(5, at(1)))]
    await owner.take(owner.step([], 1, marks=marks))
    later = [(key(), EpochMark(9, at(3))), (key(), EpochMark(7, at(4)))]
    await owner.take(owner.step([], 4, marks=later))
    found = await engine.backends.mailbox.epoch_marks(0, [key(), key("other"), key("none")])
    assert {of: tuple(marks) for of, marks in found.items()} == {
        key(): (EpochMark(7, at(0)), EpochMark(9, at(3))),
        key("other"): (EpochMark(5, at(1)),),
    }


async def test_old_marks_fold_into_the_largest_epochs(engine: Engine) -> None:
    owner = await Owner.of(engine)
    mine = [EpochMark(7, at(0)), EpochMark(9, at(2)), EpochMark(12, at(6))]
    theirs = [EpochMark(3, at(1))]
    marks = [(key(), mark) for mark in mine] + [(key("other"), mark) for mark in theirs]
    await owner.take(owner.step([], 6, marks=marks))
    mailbox = engine.backends.mailbox
    assert value(await mailbox.fold_marks(0, TERM, at(4))) == 1
    assert value(await mailbox.fold_marks(0, TERM, at(4))) == 0
    found = await mailbox.epoch_marks(0, [key(), key("other")])
    assert tuple(found[key()]) == (EpochMark(9, at(2)), EpochMark(12, at(6)))
    assert tuple(found[key("other")]) == tuple(theirs)


async def test_folding_uncovers_no_mark_that_came_while_its_epoch_had_one(engine: Engine) -> None:
    owner = await Owner.of(engine)
    mine = [EpochMark(7, at(0)), EpochMark(9, at(2))]
    await owner.take(owner.step([], 2, marks=[(key(), mark) for mark in mine]))
    await owner.take(owner.step([], 5, marks=[(key(), EpochMark(7, at(5)))]))
    mailbox = engine.backends.mailbox
    assert value(await mailbox.fold_marks(0, TERM, at(3))) == 1
    assert tuple((await mailbox.epoch_marks(0, [key()]))[key()]) == (EpochMark(9, at(2)),)


async def test_marks_are_a_shards_own_and_folding_is_fenced(engine: Engine) -> None:
    owner = await Owner.of(engine)
    other = await Owner.of(engine, shard=1)
    marks = [(key(), EpochMark(7, at(0))), (key(), EpochMark(9, at(1)))]
    await owner.take(owner.step([], 1, marks=marks))
    await other.take(other.step([], 1, marks=marks[:1]))
    mailbox = engine.backends.mailbox
    assert refused(await mailbox.fold_marks(0, TERM - 1, at(9))) is Refusal.STALE_EPOCH
    assert len((await mailbox.epoch_marks(0, [key()]))[key()]) == 2
    assert len((await mailbox.epoch_marks(1, [key()]))[key()]) == 1


# --- day buckets and the floor ----------------------------------------------------------------


async def ten_records(engine: Engine) -> Owner:
    owner = await Owner.of(engine)
    await owner.apply([record(n, [block(0, ANNA), block(1, BEN)]) for n in range(10)], 9)
    return owner


async def test_the_floor_rises_before_anything_goes(engine: Engine) -> None:
    owner = await ten_records(engine)
    mailbox = engine.backends.mailbox
    assert value(await mailbox.expire_buckets(0, TERM, at(5), 4)) == 4
    await owner.reload()
    assert owner.state.floor == at(5)
    assert await seqs(engine) == [at(n) for n in range(4, 10)]
    assert value(await mailbox.expire_buckets(0, TERM, at(5), 4)) == 2
    assert value(await mailbox.expire_buckets(0, TERM, at(5), 4)) == 0
    assert await seqs(engine, user(BEN)) == [at(n) for n in range(6, 10)]
    records = await mailbox.records_after(0, SEQ_NONE, 100)
    assert [each.seq for each in records] == [at(n) for n in range(6, 10)]


async def test_the_floor_only_rises_and_only_under_the_term(engine: Engine) -> None:
    owner = await ten_records(engine)
    mailbox = engine.backends.mailbox
    assert refused(await mailbox.expire_buckets(0, TERM - 1, at(5), 9)) is Refusal.STALE_EPOCH
    await mailbox.expire_buckets(0, TERM, at(5), 100)
    await mailbox.expire_buckets(0, TERM, at(2), 100)
    await owner.reload()
    assert owner.state.floor == at(5)
    assert await seqs(engine) == [at(n) for n in range(6, 10)]


async def test_what_expired_is_still_known_as_done(engine: Engine) -> None:
    """DispatchProgress outlives the entries: a late duplicate brings nothing back."""
    owner = await ten_records(engine)
    await engine.backends.mailbox.expire_buckets(0, TERM, at(5), 100)
    await owner.reload()
    late = replace(record(2, [block(0, ANNA), block(1, BEN)]), seq=at(10))
    assert list(await owner.apply([late], 10)) == [RecordVerdict(0, 0b11)]
    assert await seqs(engine) == [at(n) for n in range(6, 10)]


# --- the progress of dispatches ---------------------------------------------------------------


def again(offset: int, of: int) -> RecordStep:
    """The dispatch of `ten_records` at an offset, as a later record brings it once more."""
    return replace(record(of, [block(0, ANNA), block(1, BEN)]), seq=at(offset))


NEW, KNOWN = RecordVerdict(0b11, 0), RecordVerdict(0, 0b11)


async def test_progress_goes_with_what_has_expired_and_only_so_far(engine: Engine) -> None:
    owner = await ten_records(engine)
    mailbox = engine.backends.mailbox
    assert value(await mailbox.collect_progress(0, TERM, at(9), 9)).forgotten == 0
    assert value(await mailbox.expire_buckets(0, TERM, at(5), 4)) == 4
    # Two records below the floor are there yet.
    assert value(await mailbox.collect_progress(0, TERM, at(2), 9)).forgotten == 3
    assert value(await mailbox.collect_progress(0, TERM, at(9), 9)).forgotten == 1
    assert value(await mailbox.collect_progress(0, TERM, at(9), 9)).forgotten == 0
    assert value(await mailbox.expire_buckets(0, TERM, at(5), 9)) == 2
    assert value(await mailbox.collect_progress(0, TERM, at(9), 1)).forgotten == 1
    await owner.reload()
    found = await owner.apply([again(10 + n, n) for n in range(10)], 19)
    assert list(found) == [NEW] * 5 + [KNOWN] * 5
    assert await seqs(engine) == [at(n) for n in range(6, 15)]


async def test_progress_stays_while_a_duplicate_was_seen_of_late(engine: Engine) -> None:
    owner = await ten_records(engine)
    mailbox = engine.backends.mailbox
    other = replace(again(12, 2), content_digest=content_digest(b"another"))
    seen = [again(10, 0), again(11, 1), other, record(13, []), record(14, [])]
    assert [one.digest_differs for one in await owner.apply(seen, 14)][:3] == [False, False, True]
    assert value(await mailbox.expire_buckets(0, TERM, at(10), 99)) == 10
    assert value(await mailbox.collect_progress(0, TERM, at(10), 99)).forgotten == 8
    await owner.reload()
    found = await owner.apply([again(15 + n, n) for n in range(4)], 18)
    assert list(found) == [NEW, KNOWN, KNOWN, NEW]
    # Of those that came again only the last place counts; two were seen and had no blocks.
    assert value(await mailbox.expire_buckets(0, TERM, at(17), 99)) == 1
    assert value(await mailbox.collect_progress(0, TERM, at(17), 99)).forgotten == 3 + 2
    await owner.reload()
    found = await owner.apply([again(19 + n, n) for n in range(4)], 22)
    assert list(found) == [NEW, NEW, NEW, KNOWN]


async def test_progress_goes_in_portions_that_tell_whether_there_is_more(engine: Engine) -> None:
    owner = await ten_records(engine)
    mailbox = engine.backends.mailbox
    await owner.apply([again(10, 3), again(11, 3)], 11)
    value(await mailbox.expire_buckets(0, TERM, at(9), 99))
    portions = []
    while not portions or portions[-1].more:
        portions.append(value(await mailbox.collect_progress(0, TERM, at(9), 4)))
        assert len(portions) < 9
    assert sum(portion.forgotten for portion in portions) == 9
    value(await mailbox.expire_buckets(0, TERM, at(11), 99))
    assert value(await mailbox.collect_progress(0, TERM, at(11), 9)) == Collected(1, more=False)


async def test_a_place_that_is_left_over_drops_no_progress_that_came_since(engine: Engine) -> None:
    owner = await Owner.of(engine)
    mailbox = engine.backends.mailbox
    parts = [again(0, 0), record(1, [block(0, ANNA)]), again(2, 0), again(3, 0)]
    # Its lanes come one by one, so that two records of it expire; the third one is a duplicate.
    parts[0] = replace(parts[0], blocks=parts[0].blocks[:1])
    verdicts = await owner.apply(parts, 10)
    assert list(verdicts)[2:] == [RecordVerdict(0b10, 0b01), KNOWN]
    value(await mailbox.expire_buckets(0, TERM, at(10), 99))
    while value(await mailbox.collect_progress(0, TERM, at(10), 1)).forgotten == 0:
        pass
    # In an engine's order of places, dispatch 0 may have gone now, by the first of two.
    await owner.reload()
    first = list(await owner.apply([again(11, 0)], 11))
    while value(await mailbox.collect_progress(0, TERM, at(10), 1)).more:
        pass
    await owner.reload()
    assert first in ([NEW], [KNOWN])
    assert list(await owner.apply([again(12, 0)], 12)) == [KNOWN]


async def test_progress_stays_while_a_lane_lags_behind_it(engine: Engine) -> None:
    owner = await Owner.of(engine)
    mailbox = engine.backends.mailbox
    records = [record(n, [block(0, ANNA), block(1, BEN)]) for n in range(4)]
    firsts = [replace(one, blocks=one.blocks[:1]) for one in records]
    await owner.take(owner.step(firsts, 3, lagging={1: at(1)}))
    assert value(await mailbox.expire_buckets(0, TERM, at(3), 99)) == 4
    assert value(await mailbox.collect_progress(0, TERM, at(9), 99)).forgotten == 2
    await owner.reload()
    lates = [replace(one, blocks=one.blocks[1:]) for one in records[2:]]
    verdicts = await owner.take(owner.step(lates, 3))
    assert list(verdicts) == [RecordVerdict(0b10, 0)] * 2
    await mailbox.expire_buckets(0, TERM, at(3), 99)
    assert value(await mailbox.collect_progress(0, TERM, at(9), 99)).forgotten == 2


async def test_progress_goes_only_under_the_term_and_of_the_shard(engine: Engine) -> None:
    owner = await ten_records(engine)
    other = await Owner.of(engine, shard=1)
    mailbox = engine.backends.mailbox
    await other.apply([record(n, [block(0, CARL)], shard=1) for n in range(3)], 2)
    for shard in (0, 1):
        await mailbox.expire_buckets(shard, TERM, at(2), 99)
    stale = await mailbox.collect_progress(0, TERM - 1, at(2), 99)
    assert refused(stale) is Refusal.STALE_EPOCH
    assert refused(await mailbox.collect_progress(7, TERM, at(2), 99)) is Refusal.NOT_FOUND
    assert value(await mailbox.collect_progress(0, TERM, at(2), 99)).forgotten == 3
    await owner.reload()
    await other.reload()
    assert list(await owner.apply([again(10, 0)], 10)) == [NEW]
    late = replace(record(0, [block(0, CARL)], shard=1), seq=at(3))
    assert list(await other.apply([late], 3)) == [RecordVerdict(0, 0b1)]


async def test_progress_of_an_epoch_before_goes_like_any(engine: Engine) -> None:
    owner = await ten_records(engine)
    mailbox = engine.backends.mailbox
    value(await mailbox.begin_epoch(0, TERM, EpochBoundary(2, 0, "cluster/another")))
    await owner.reload()
    seen = replace(again(0, 1), seq=at(0, epoch=2))
    assert list(await owner.take(replace(owner.step([seen], 0), position=seen.seq))) == [KNOWN]
    assert value(await mailbox.expire_buckets(0, TERM, at(9), 99)) == 10
    assert value(await mailbox.collect_progress(0, TERM, at(9, epoch=2), 99)).forgotten == 9


async def test_days_are_read_across_and_go_one_by_one(engine: Engine) -> None:
    """A day turns within a step, and a lane that lags writes into the days that are behind; one of
    its records was for nobody else.
    """
    owner = await Owner.of(engine)
    anna, ben = block(0, ANNA), block(1, BEN)
    behind = before_offset(1, 0)
    days = [DayBucket(100, at(0)), DayBucket(101, at(3)), DayBucket(102, at(5))]
    others = [record(n, [anna]) for n in range(8) if n != 1]
    await owner.take(owner.step(others[:4], 4, buckets=days[:2], lagging={1: behind}))
    await owner.take(owner.step(others[4:], 7, buckets=days[2:], lagging={1: behind}))
    late = [record(n, [ben]) for n in range(8)]
    await owner.take(owner.step(late[:4], 7, lagging={1: at(3)}))
    await owner.take(owner.step(late[4:], 7))
    mailbox = engine.backends.mailbox
    received = {ANNA: [0, 2, 3, 4, 5, 6, 7], BEN: list(range(8))}
    for name, offsets in received.items():
        assert await seqs(engine, user(name)) == [at(n) for n in offsets]
        page = await mailbox.entries(user(name), at(1), at(6), 4)
        assert [entry.seq for entry in page] == [at(n) for n in offsets if 1 < n <= 6][:4]
    for first in range(8):
        records = await mailbox.records_after(0, at(first), 9)
        assert [one.seq for one in records] == [at(n) for n in range(first + 1, 8)]
    for floor, limit, gone in ((2, 9, 3), (4, 1, 1), (4, 9, 1), (7, 9, 3)):
        assert value(await mailbox.expire_buckets(0, TERM, at(floor), limit)) == gone
    assert await seqs(engine, user(ANNA)) == await seqs(engine, user(BEN)) == []
    assert list(await mailbox.records_after(0, SEQ_NONE, 9)) == []
    assert list(await mailbox.records_of(others[0].ref.event_id)) == []
    await owner.reload()
    # The last day goes on.
    await owner.apply([record(8, [anna, ben])], 8)
    assert await seqs(engine, user(ANNA)) == await seqs(engine, user(BEN)) == [at(8)]


async def test_buckets_accumulate_in_order(engine: Engine) -> None:
    owner = await Owner.of(engine)
    days = [DayBucket(100, at(0)), DayBucket(101, at(4)), DayBucket(103, at(8))]
    await owner.take(owner.step([], 4, buckets=days[:2]))
    await owner.take(owner.step([], 9, buckets=days[2:]))
    assert tuple(owner.state.buckets) == tuple(days)


# --- a new epoch of the shard -----------------------------------------------------------------


async def test_a_new_epoch_moves_the_position_and_keeps_what_is_there(engine: Engine) -> None:
    """MBX-01: after an operator's rebase, the new log is read under a new shard_epoch."""
    owner = await ten_records(engine)
    await owner.take(owner.step([], 12, lagging={4: at(10)}, marks=[(key(), EpochMark(7, at(0)))]))
    mailbox = engine.backends.mailbox
    boundary = EpochBoundary(2, 6, "cluster/another")
    before = owner.state
    for _ in range(2):
        state = value(await mailbox.begin_epoch(0, TERM, boundary))
        assert state == replace(
            before,
            boundaries=(FIRST, boundary),
            next_offset=6,
            position=before_offset(2, 6),
            lagging={},
        )
    assert await seqs(engine) == [at(n) for n in range(10)]
    assert (await mailbox.epoch_marks(0, [key()]))[key()]
    await owner.reload()
    new = record(6, [block(0, ANNA)], of=ref(event(50)), epoch=2)
    step = replace(owner.step([new], 6), position=at(6, 2))
    await owner.take(step)
    assert await seqs(engine) == [*(at(n) for n in range(10)), at(6, 2)]


async def test_epochs_follow_one_another_under_the_term(engine: Engine) -> None:
    owner = await Owner.of(engine)
    mailbox = engine.backends.mailbox
    second = EpochBoundary(2, 0, "cluster/another")
    assert refused(await mailbox.begin_epoch(0, TERM - 1, second)) is Refusal.STALE_EPOCH
    assert refused(await mailbox.begin_epoch(3, TERM, second)) is Refusal.NOT_FOUND
    for wrong in (1, 3):
        conflict = await mailbox.begin_epoch(0, TERM, replace(second, shard_epoch=wrong))
        assert refused(conflict) is Refusal.CONFLICT
    assert await mailbox.shard_state(0) == owner.state
    value(await mailbox.begin_epoch(0, TERM, second))
    other = replace(second, first_offset=9)
    assert refused(await mailbox.begin_epoch(0, TERM, other)) is Refusal.CONFLICT
    value(await mailbox.begin_epoch(0, TERM, replace(other, shard_epoch=3)))


# --- reading ----------------------------------------------------------------------------------


async def test_pages_hold_what_lies_after_and_through_their_bounds(engine: Engine) -> None:
    await ten_records(engine)
    mailbox = engine.backends.mailbox

    async def page(after: int, through: int, limit: int) -> list[int]:
        found = await mailbox.entries(user(), MailboxSeq(after), MailboxSeq(through), limit)
        return [entry.ref.conversation_seq - 1 for entry in found]

    assert await page(SEQ_NONE, SEQ_MAX, 100) == list(range(10))
    assert await page(at(2), at(5), 100) == [3, 4, 5]
    assert await page(at(2) - 1, at(5) - 1, 100) == [2, 3, 4]
    assert await page(at(2), at(2), 100) == []
    assert await page(SEQ_NONE, SEQ_MAX, 3) == [0, 1, 2]
    assert await page(at(2), SEQ_MAX, 3) == [3, 4, 5]
    assert await page(at(9), SEQ_MAX, 3) == []


async def test_entries_of_a_conversation_are_found_by_its_numbers(engine: Engine) -> None:
    owner = await Owner.of(engine)
    other = key("other")
    steps = [
        record(0, [block(0, ANNA)], of=ref(event(4))),
        record(1, [block(0, ANNA)], of=ref(event(4, other))),
        record(2, [block(1, BEN)], of=ref(event(5))),
        record(3, [block(0, ANNA)], of=ref(event(6))),
    ]
    await owner.apply(steps, 3)
    mailbox = engine.backends.mailbox
    assert await mailbox.entry_seqs(user(), key(), 1, 9) == {4: at(0), 6: at(3)}
    assert await mailbox.entry_seqs(user(), key(), 5, 6) == {6: at(3)}
    assert await mailbox.entry_seqs(user(), other, 1, 9) == {4: at(1)}
    assert await mailbox.entry_seqs(user(DORA), key(), 1, 9) == {}


async def test_an_events_records_are_found_in_all_shards(engine: Engine) -> None:
    of = ref(event(1))
    for shard, name in ((0, ANNA), (1, BEN)):
        owner = await Owner.of(engine, shard)
        one = record(shard + 4, [block(0, name)], of=of, shard=shard, chunks=3, fencing_epoch=11)
        await owner.apply([one], 9)
    mailbox = engine.backends.mailbox
    expected = [
        MaterialisedRecord(
            shard, at(shard + 4), of, dispatch_id(of.event_id, shard, 0), 11, 0, 3, START_MS
        )
        for shard in (0, 1)
    ]
    assert list(await mailbox.records_of(of.event_id)) == expected
    assert list(await mailbox.records_of(event(2).event_id)) == []
    counts = await mailbox.dispatch_counts([of.event_id, event(2).event_id])
    assert counts == {of.event_id: (2, 3)}


async def test_records_page_in_order(engine: Engine) -> None:
    await ten_records(engine)
    mailbox = engine.backends.mailbox
    seen: list[MailboxSeq] = []
    while page := await mailbox.records_after(0, seen[-1] if seen else SEQ_NONE, 4):
        seen.extend(each.seq for each in page)
    assert seen == [at(n) for n in range(10)]
    assert list(await mailbox.records_after(1, SEQ_NONE, 4)) == []


# --- records of lagging lanes -----------------------------------------------------------------


def kept_record(offset: int, after: int, value: bytes = b"record") -> KeptRecord:
    return KeptRecord(at(after), at(offset), START_MS + offset, value)


async def test_kept_records_are_read_in_order_and_stay_as_they_were_first_kept(
    engine: Engine,
) -> None:
    await Owner.of(engine)
    await Owner.of(engine, shard=1)
    mailbox = engine.backends.mailbox
    records = [kept_record(n, n - 1, bytes([n]) * (n % 3)) for n in range(1, 8)]
    value(await mailbox.keep_records(0, TERM, records[4:]))
    value(await mailbox.keep_records(0, TERM, records[:5]))
    value(await mailbox.keep_records(0, TERM, [kept_record(3, 0, b"other")]))
    value(await mailbox.keep_records(1, TERM, [kept_record(3, 0, b"of another shard")]))
    seen: list[KeptRecord] = []
    while page := await mailbox.kept_records(0, seen[-1].seq if seen else SEQ_NONE, 3):
        assert len(page) <= 3
        seen.extend(page)
    assert seen == records
    assert list(await mailbox.kept_records(1, at(2), 9)) == [kept_record(3, 0, b"of another shard")]


async def test_kept_records_are_dropped_up_to_a_seq(engine: Engine) -> None:
    await Owner.of(engine)
    await Owner.of(engine, shard=1)
    mailbox = engine.backends.mailbox
    records = [kept_record(n, n - 1) for n in range(1, 6)]
    for shard in (0, 1):
        value(await mailbox.keep_records(shard, TERM, records))
    assert value(await mailbox.drop_kept(0, TERM, at(3))) == 3
    assert value(await mailbox.drop_kept(0, TERM, at(3))) == 0
    assert list(await mailbox.kept_records(0, SEQ_NONE, 9)) == records[3:]
    assert list(await mailbox.kept_records(1, SEQ_NONE, 9)) == records


async def test_another_term_keeps_and_drops_nothing(engine: Engine) -> None:
    mailbox = engine.backends.mailbox
    records = [kept_record(1, 0)]
    assert refused(await mailbox.keep_records(0, TERM, records)) is Refusal.NOT_FOUND
    assert refused(await mailbox.drop_kept(0, TERM, at(1))) is Refusal.NOT_FOUND
    await Owner.of(engine)
    value(await mailbox.keep_records(0, TERM, records))
    for term in (TERM - 1, TERM + 1):
        late = await mailbox.keep_records(0, term, [kept_record(2, 1)])
        assert refused(late) is Refusal.STALE_EPOCH
        assert refused(await mailbox.drop_kept(0, term, at(1))) is Refusal.STALE_EPOCH
    assert list(await mailbox.kept_records(0, SEQ_NONE, 9)) == records


def test_what_is_kept_reaches_up_to_its_first_gap() -> None:
    chain = [kept_record(3, 1), kept_record(4, 3), kept_record(9, 2), kept_record(12, 10)]
    assert reach(chain, at(1)) == at(9)
    assert reach(chain, at(2)) == at(9)
    assert reach(chain, at(0)) == at(0)
    assert reach(chain[3:], at(11)) == at(12)
    assert reach([], at(5)) == at(5)


# --- devices ----------------------------------------------------------------------------------


async def test_a_new_device_begins_at_the_floor(engine: Engine) -> None:
    mailbox = engine.backends.mailbox
    state = value(await mailbox.open_device(device(), at(5)))
    assert state == DeviceState(at(5), at(5))
    assert value(await mailbox.open_device(device(), at(9))) == state


async def test_acks_only_rise(engine: Engine) -> None:
    """MBX-06: 8 after 9 is a no-op."""
    mailbox = engine.backends.mailbox
    await mailbox.open_device(device(), SEQ_NONE)
    assert value(await mailbox.ack(device(), at(9), at(12))) == DeviceState(at(9), at(12))
    assert value(await mailbox.ack(device(), at(8), at(11))) == DeviceState(at(9), at(12))
    assert value(await mailbox.ack(device(), at(8), at(14))) == DeviceState(at(9), at(14))
    assert value(await mailbox.ack(device(), at(10), at(11))) == DeviceState(at(10), at(14))
    assert value(await mailbox.open_device(device(), SEQ_NONE)) == DeviceState(at(10), at(14))


async def test_devices_of_a_user_have_positions_of_their_own(engine: Engine) -> None:
    mailbox = engine.backends.mailbox
    devices = [device(name, odd, tenant) for name, odd, tenant in
               [(ANNA, "phone", ACME), (ANNA, "tablet", ACME), (BEN, "phone", ACME),
                (ANNA, "phone", RIVAL), *((odd, odd, odd) for odd in ODD_IDS)]]  # fmt: skip
    for number, each in enumerate(devices):
        await mailbox.open_device(each, SEQ_NONE)
        value(await mailbox.ack(each, at(number), at(number + 1)))
    for number, each in enumerate(devices):
        stored = value(await mailbox.open_device(each, SEQ_NONE))
        assert stored == DeviceState(at(number), at(number + 1))


# --- ids and tenants --------------------------------------------------------------------------


async def test_odd_ids_and_two_tenants_never_meet(engine: Engine) -> None:
    owner = await Owner.of(engine)
    keys = [key(name, tenant) for tenant in (ACME, RIVAL, *ODD_IDS) for name in ODD_IDS[:4]]
    everybody = block(0, *ODD_IDS)
    steps = [
        record(offset, [everybody], of=ref(event(1, conversation, sender=UserId(ODD_IDS[7]))))
        for offset, conversation in enumerate(keys)
    ]
    await owner.apply(steps, len(keys) - 1)
    mailbox = engine.backends.mailbox
    for tenant in (ACME, RIVAL, *ODD_IDS):
        expected = [Entry(each.seq, each.ref) for each in steps if each.ref.key.tenant == tenant]
        for name in ODD_IDS:
            found = await mailbox.entries(user(name, tenant), SEQ_NONE, SEQ_MAX, 1_000)
            assert list(found) == expected
