"""`ports.mailbox.MailboxStore`: what goes from a shard, and what outlives it."""

from dataclasses import replace

from tests.contract.builders import (
    ANNA,
    BEN,
    CARL,
    block,
    event,
    key,
    ref,
    refused,
    user,
    value,
)
from tests.contract.engines import Engine
from tests.contract.owners import FIRST, TERM, Owner, at, kept_record, record, seqs, ten_records

from qimd.core.ids import content_digest
from qimd.core.outcome import Refusal
from qimd.core.seq import (
    SEQ_NONE,
    before_offset,
)
from qimd.ports.mailbox import (
    Collected,
    DayBucket,
    EpochBoundary,
    EpochMark,
    KeptRecord,
    RecordStep,
    RecordVerdict,
    reach,
)

ENGINES = ("memory", "torn", "sqlite", "redis", "cassandra", "shadow")


# --- day buckets and the floor ----------------------------------------------------------------


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


# --- records of lagging lanes -----------------------------------------------------------------


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
