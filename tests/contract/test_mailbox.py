"""`ports.mailbox.MailboxStore`, sentence by sentence: steps, reads, devices."""

from dataclasses import replace

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
from tests.contract.owners import FIRST, TERM, Owner, at, everything, record, seqs, ten_records

from qimd.core.ids import UserId, dispatch_id
from qimd.core.outcome import NotApplied, Refusal
from qimd.core.parameters import LANES
from qimd.core.seq import (
    SEQ_MAX,
    SEQ_NONE,
    MailboxSeq,
    before_offset,
    epoch_of,
)
from qimd.ports.mailbox import (
    DayBucket,
    DeviceState,
    Entry,
    EpochBoundary,
    EpochMark,
    KeptRecord,
    MaterialisedRecord,
    RecordVerdict,
)

ENGINES = ("memory", "torn", "sqlite", "redis", "cassandra", "shadow")


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
