"""What is Cassandra's own about mailboxes: steps that are torn, and what an ended epoch left."""

from dataclasses import replace

import pytest
from tests.contract.builders import (
    ANNA,
    BEN,
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
from tests.contract.cassandra_engine import runs_here, shared_driver
from tests.contract.cassandra_faults import FaultySession, deployment

from qimd.adapters.scylla import ScyllaBackends
from qimd.adapters.scylla.mailbox_records import SPAN_BITS, segment_of, segments
from qimd.adapters.scylla.mailbox_shards import EpochEnd, ShardRow
from qimd.core.ids import content_digest, dispatch_id
from qimd.core.outcome import Refusal, Unknown
from qimd.core.records import LaneBlock
from qimd.core.seq import SEQ_MAX, SEQ_NONE, MailboxSeq, mailbox_seq
from qimd.ports.mailbox import ApplyStep, EpochBoundary, EpochMark, RecordStep, ShardState

FIRST = EpochBoundary(1, 0, "cluster/topic")


@pytest.fixture
async def session() -> FaultySession:
    return FaultySession(*shared_driver())


@pytest.fixture
async def backends(session: FaultySession) -> ScyllaBackends:
    return deployment(session)


def record(*blocks: LaneBlock) -> RecordStep:
    of = ref(event(1))
    return RecordStep(
        seq=mailbox_seq(1, 0),
        ref=of,
        dispatch_id=dispatch_id(of.event_id, 0, 0),
        content_digest=content_digest(b"content"),
        fencing_epoch=7,
        chunk_index=0,
        chunk_count=1,
        blocks=blocks,
    )


def first_step(state: ShardState) -> ApplyStep:
    """The shard's first record, for Anna and Ben."""
    return ApplyStep(
        request_id=b"request",
        shard=0,
        term=state.term,
        expected_position=state.position,
        records=[record(block(0, ANNA), block(63, BEN))],
        marks=[(key(), EpochMark(7, mailbox_seq(1, 0)))],
        buckets=[],
        next_offset=1,
        position=mailbox_seq(1, 0),
        lagging={},
        at_ms=START_MS,
    )


async def entries(backends: ScyllaBackends) -> int:
    """How many Anna and Ben have."""
    found = [
        await backends.mailbox.entries(user(name), SEQ_NONE, SEQ_MAX, 10) for name in (ANNA, BEN)
    ]
    return sum(map(len, found))


STAGES = (
    "INSERT INTO mailbox_marks",
    "INSERT INTO mailbox_places",
    "INSERT INTO mailbox_entries",
    "INSERT INTO mailbox_records",
    "INSERT INTO mailbox_blocks",
    "INSERT INTO mailbox_dispatches",
    "UPDATE mailbox_shards",
)


@runs_here
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", ["lose_reply", "land_late"])
async def test_a_step_that_was_torn_is_repeated_whole_and_doubles_nothing(
    backends: ScyllaBackends, session: FaultySession, stage: str, fault: str
) -> None:
    mailbox = backends.mailbox
    state = value(await mailbox.open_shard(0, 1, FIRST))
    one = first_step(state)
    cut = session.lose_reply(stage) if fault == "lose_reply" else session.land_late(stage)
    assert isinstance(await mailbox.apply(one), Unknown)
    (verdict,) = value(await mailbox.apply(one))
    assert (verdict.applied, verdict.duplicate) == (1 | 1 << 63, 0)
    if fault == "land_late":
        await cut.land()
    assert value(await mailbox.apply(one)) == (verdict,)
    assert await entries(backends) == 2
    of = event(1).event_id
    assert await mailbox.dispatch_counts([of]) == {of: (1, 1)}
    assert [each.seq for each in await mailbox.records_after(0, SEQ_NONE, 9)] == [one.position]
    twice = replace(
        one,
        request_id=b"another",
        expected_position=one.position,
        records=[replace(one.records[0], seq=mailbox_seq(1, 1))],
        position=mailbox_seq(1, 1),
        next_offset=2,
    )
    (verdict,) = value(await mailbox.apply(twice))
    assert (verdict.applied, verdict.duplicate) == (0, 1 | 1 << 63)
    assert await entries(backends) == 2


@runs_here
@pytest.mark.parametrize("stage", STAGES)
async def test_what_an_ended_epoch_left_above_w_shows_nowhere(
    backends: ScyllaBackends, session: FaultySession, stage: str
) -> None:
    """Cut before a stage, then the log is lost; and what is left of the step lands behind that."""
    mailbox = backends.mailbox
    left = first_step(value(await mailbox.open_shard(0, 1, FIRST)))
    cut = session.land_late(stage)
    assert isinstance(await mailbox.apply(left), Unknown)
    begun = value(await mailbox.begin_epoch(0, 1, EpochBoundary(2, 0, "rebuild")))
    await cut.land()
    of = event(1).event_id
    assert await entries(backends) == 0
    assert await mailbox.entry_seqs(user(), key(), 1, 9) == {}
    assert await mailbox.dispatch_counts([of]) == {}
    assert await mailbox.records_after(0, SEQ_NONE, 9) == []
    seq = mailbox_seq(2, 0)
    again = replace(
        left,
        request_id=b"again",
        expected_position=begun.position,
        records=[replace(left.records[0], seq=seq)],
        position=seq,
    )
    (verdict,) = value(await mailbox.apply(again))
    assert (verdict.applied, verdict.duplicate) == (1 | 1 << 63, 0)
    assert await entries(backends) == 2
    assert [each.seq for each in await mailbox.records_of(of)] == [seq]
    assert [each.seq for each in await mailbox.records_after(0, SEQ_NONE, 9)] == [seq]


@runs_here
async def test_what_an_ended_epoch_had_finished_still_counts_lane_by_lane(
    backends: ScyllaBackends,
) -> None:
    """A lane that lagged when its epoch ended had not: its user gets the event from the rebuild."""
    mailbox = backends.mailbox
    state = value(await mailbox.open_shard(0, 1, FIRST))
    whole = first_step(state)
    value(await mailbox.apply(replace(whole, lagging={63: state.position})))
    begun = value(await mailbox.begin_epoch(0, 1, EpochBoundary(2, 0, "rebuild")))
    again = replace(
        whole,
        request_id=b"again",
        expected_position=begun.position,
        records=[replace(whole.records[0], seq=mailbox_seq(2, 0))],
        position=mailbox_seq(2, 0),
    )
    (verdict,) = value(await mailbox.apply(again))
    assert (verdict.applied, verdict.duplicate) == (1 << 63, 1)
    for name, seq in ((ANNA, mailbox_seq(1, 0)), (BEN, mailbox_seq(2, 0))):
        found = await mailbox.entries(user(name), SEQ_NONE, SEQ_MAX, 10)
        assert [entry.seq for entry in found] == [seq]


@runs_here
async def test_entries_of_many_spans_are_one_mailbox(backends: ScyllaBackends) -> None:
    """A page begins with one span and takes more of them at a time; expiry goes across them."""
    mailbox = backends.mailbox
    one = first_step(value(await mailbox.open_shard(0, 1, FIRST)))
    seqs = [mailbox_seq(1, number << (SPAN_BITS - 8)) for number in range(70)]
    records = []
    for number, seq in enumerate(seqs, 1):
        of = ref(event(number))
        name = dispatch_id(of.event_id, 0, 0)
        records.append(replace(one.records[0], seq=seq, ref=of, dispatch_id=name))
    value(await mailbox.apply(replace(one, records=records, position=seqs[-1])))

    async def page(after: MailboxSeq, through: MailboxSeq, limit: int) -> list[MailboxSeq]:
        found = await mailbox.entries(user(BEN), after, through, limit)
        return [entry.seq for entry in found]

    assert await page(SEQ_NONE, SEQ_MAX, 1_000) == seqs
    assert await page(seqs[2], seqs[60], 1_000) == seqs[3:61]
    assert await page(seqs[2], seqs[60], 9) == seqs[3:12]
    assert await page(seqs[3], seqs[3], 9) == []
    found = await mailbox.entry_seqs(user(BEN), key(), 5, 66)
    assert found == {number: seqs[number - 1] for number in range(5, 67)}
    assert value(await mailbox.expire_buckets(0, 1, seqs[1], 9)) == 2
    assert await page(SEQ_NONE, SEQ_MAX, 1_000) == seqs[2:]


@runs_here
async def test_the_watermark_of_an_overtaken_owner_never_moves(
    backends: ScyllaBackends, session: FaultySession
) -> None:
    """Its entries are the ones that its successor writes."""
    mailbox = backends.mailbox
    one = first_step(value(await mailbox.open_shard(0, 1, FIRST)))
    late = session.land_late("UPDATE mailbox_shards")
    assert isinstance(await mailbox.apply(one), Unknown)
    value(await mailbox.open_shard(0, 2, FIRST))
    await late.land()
    state = await mailbox.shard_state(0)
    assert state is not None
    assert (state.term, state.position) == (2, one.expected_position)
    assert refused(await mailbox.apply(one)) is Refusal.STALE_EPOCH
    value(await mailbox.apply(replace(one, term=2)))
    assert await entries(backends) == 2


@runs_here
async def test_a_late_ack_never_lowers_a_device(
    backends: ScyllaBackends, session: FaultySession
) -> None:
    """MBX-06: 8 after 9 is a no-op, however late it comes."""
    mailbox, phone = backends.mailbox, device()
    value(await mailbox.open_device(phone, SEQ_NONE))
    late = session.land_late("UPDATE devices")
    eight, nine = mailbox_seq(1, 8), mailbox_seq(1, 9)
    assert isinstance(await mailbox.ack(phone, eight, eight), Unknown)
    risen = value(await mailbox.ack(phone, nine, nine))
    await late.land()
    assert value(await mailbox.open_device(phone, SEQ_NONE)) == risen


def test_segments_follow_the_epochs_and_skip_what_no_record_can_be_in() -> None:
    late = 5_000_000
    state = ShardState(
        shard=0,
        term=1,
        next_offset=0,
        position=mailbox_seq(2, late + 1_100),
        lagging={},
        floor=SEQ_NONE,
        lane_last=(),
        boundaries=(FIRST, EpochBoundary(2, late, "cluster/other")),
        buckets=(),
    )
    row = ShardRow(state, ends=(EpochEnd(1, mailbox_seq(1, 2_100), {}),))
    first = [segment_of(mailbox_seq(1, offset)) for offset in (0, 1_024, 2_048)]
    second = [segment_of(mailbox_seq(2, late)), segment_of(mailbox_seq(2, late + 1_100))]
    assert list(segments(row, SEQ_NONE, SEQ_MAX)) == first + second
    assert list(segments(row, mailbox_seq(1, 1_024) - 1, SEQ_MAX)) == first[1:] + second
    assert list(segments(row, mailbox_seq(1, 2_200), SEQ_MAX)) == second
    assert list(segments(row, SEQ_NONE, mailbox_seq(1, 1_500))) == first[:2]
