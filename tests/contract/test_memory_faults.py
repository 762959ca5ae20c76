"""The seam for faults: what each planned fault does to the state, and what its caller is told."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from tests.contract.builders import (
    ACME,
    ANNA,
    BEN,
    START_MS,
    block,
    device,
    event,
    ids,
    key,
    new,
    ref,
    refused,
    step,
    user,
    value,
)
from tests.support.runtime import ManualRuntime

from qimd.adapters.memory import FaultPlan, MemoryBackends, MemoryCluster
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import content_digest, dispatch_id
from qimd.core.outcome import Applied, Outcome, Refusal, Unknown
from qimd.core.records import LaneBlock
from qimd.core.seq import SEQ_MAX, SEQ_NONE, before_offset, mailbox_seq
from qimd.ports.log import LogFault, LogFaultKind, ProduceRecord
from qimd.ports.mailbox import ApplyStep, EpochBoundary, RecordStep, ShardState
from qimd.ports.projection import (
    FORMAT_VERSION,
    CheckpointMeta,
    PartitionCheckpoint,
    ProjectedEvent,
    ProjectionGroup,
    ProjectStep,
)
from qimd.ports.store import ConversationState, Progress, ShardKind, TenantRecord


@pytest.fixture
async def runtime() -> AsyncIterator[ManualRuntime]:
    async with ManualRuntime() as made:
        yield made


@pytest.fixture
def cluster(runtime: ManualRuntime) -> MemoryCluster:
    return MemoryCluster(runtime)


@pytest.fixture
def process(cluster: MemoryCluster, runtime: ManualRuntime) -> MemoryBackends:
    return cluster.open(runtime)


async def conversation(process: MemoryBackends, nonce: bytes = b"n" * 16) -> int:
    epochs = process.epochs
    epoch = value(await epochs.raise_epoch(ShardKind.WRITER, 0, nonce, START_MS // 1000))
    value(await process.conversations.create_conversation(0, epoch, key(), START_MS))
    return epoch


async def head(process: MemoryBackends) -> int:
    state = await process.conversations.conversation(key())
    assert state is not None
    return state.head_version


# --- Unknown, and how it is resolved ----------------------------------------------------------


async def test_a_lost_reply_is_unknown_and_the_step_was_applied(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    """WR-04: the same step again answers; one row, never two."""
    epoch = await conversation(process)
    lost = cluster.faults.lose_reply("commit")
    one = step(epoch, 0, [new(event(1))])
    assert isinstance(await process.conversations.commit(one), Unknown)
    assert await head(process) == 1
    assert value(await process.conversations.commit(one)).head_version == 1
    assert len(await process.conversations.outbox(key(), 0, 10)) == 1
    assert lost.hits == 1


async def test_a_read_that_finds_nothing_proves_nothing(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    """WR-04: the first try lands after the read, and after the second try: it is applied once."""
    epoch = await conversation(process)
    late = cluster.faults.land_late("commit")
    one = step(epoch, 0, [new(event(1))])
    assert isinstance(await process.conversations.commit(one), Unknown)
    assert await head(process) == 0
    assert value(await process.conversations.commit(one)).head_version == 1
    assert late.land() == 1
    assert late.held == 0
    assert len(await process.conversations.outbox(key(), 0, 10)) == 1


async def test_a_late_commit_lands_on_a_head_that_no_successor_has_claimed(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    """The weakest engine compares the shard's epoch as the step is issued, the head as it lands."""
    old = await conversation(process)
    late = cluster.faults.land_late("commit")
    assert isinstance(await process.conversations.commit(step(old, 0, [new(event(1))])), Unknown)
    epoch = value(
        await process.epochs.raise_epoch(ShardKind.WRITER, 0, b"m" * 16, START_MS // 1000)
    )
    late.land()
    state = value(await process.conversations.claim(0, epoch, key()))
    assert (state.head_version, state.fencing_epoch) == (1, epoch)
    assert [each.key for each in await process.conversations.pending(0)] == [key()]


async def test_a_late_commit_never_lands_on_a_claimed_head(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    """WR-01: exactly one seq 1."""
    old = await conversation(process)
    late = cluster.faults.land_late("commit")
    await process.conversations.commit(step(old, 0, [new(event(1, text="late"))]))
    epoch = value(
        await process.epochs.raise_epoch(ShardKind.WRITER, 0, b"m" * 16, START_MS // 1000)
    )
    value(await process.conversations.claim(0, epoch, key()))
    late.land()
    assert await head(process) == 0
    mine = event(1, text="the successor's")
    value(await process.conversations.commit(step(epoch, 0, [new(mine)], request_id=b"r")))
    late.land()
    assert list(await process.conversations.outbox(key(), 0, 10)) == [mine]


async def test_late_progress_of_an_old_owner_is_fenced_by_the_claimed_head(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    old = await conversation(process)
    value(await process.conversations.commit(step(old, 0, [new(event(1))])))
    late = cluster.faults.land_late("advance")
    (outcome,) = await process.conversations.advance(0, old, [Progress(key(), 1)])
    assert isinstance(outcome, Unknown)
    epoch = value(
        await process.epochs.raise_epoch(ShardKind.WRITER, 0, b"m" * 16, START_MS // 1000)
    )
    value(await process.conversations.claim(0, epoch, key()))
    late.land()
    (pending,) = await process.conversations.pending(0)
    assert pending.dispatched_through == 0


async def test_an_epoch_whose_reply_was_lost_is_drawn_once(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    cluster.faults.lose_reply("raise_epoch")
    epochs = process.epochs
    assert isinstance(await epochs.raise_epoch(ShardKind.WRITER, 0, b"n" * 16, 100), Unknown)
    assert value(await epochs.raise_epoch(ShardKind.WRITER, 0, b"n" * 16, 100)) == 100
    assert value(await epochs.raise_epoch(ShardKind.WRITER, 1, b"m" * 16, 100)) == 101


async def test_a_late_effect_lands_at_its_instant(
    cluster: MemoryCluster, process: MemoryBackends, runtime: ManualRuntime
) -> None:
    epoch = await conversation(process)
    cluster.faults.land_late("commit", after_s=3)
    await process.conversations.commit(step(epoch, 0, [new(event(1))]))
    await runtime.advance(2.9)
    assert await head(process) == 0
    await runtime.advance(0.1)
    assert await head(process) == 1


# --- certain refusals -------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [Refusal.UNREACHABLE, Refusal.NO_SPACE])
async def test_what_is_refused_had_no_effect_and_never_will(
    cluster: MemoryCluster, process: MemoryBackends, refusal: Refusal
) -> None:
    epoch = await conversation(process)
    cluster.faults.refuse("commit", refusal=refusal, times=2)
    one = step(epoch, 0, [new(event(1))])
    for _ in range(2):
        assert refused(await process.conversations.commit(one)) is refusal
    assert await head(process) == 0
    assert value(await process.conversations.commit(one)).head_version == 1


async def test_a_content_can_be_refused_for_good(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    state = value(await process.mailbox.open_shard(0, 1, EpochBoundary(1, 0, "cluster/topic")))
    bens_lane = cluster.faults.reject(
        "apply",
        lambda step: (
            isinstance(step, ApplyStep)
            and any(block.lane == 1 for record in step.records for block in record.blocks)
        ),
    )
    whole = apply_step(state, [block(0, ANNA), block(1, BEN)])
    for _ in range(2):
        assert refused(await process.mailbox.apply(whole)) is Refusal.REJECTED
    assert await entries(process) == 0
    value(await process.mailbox.apply(apply_step(state, [block(0, ANNA)])))
    assert await entries(process) == 1
    assert bens_lane.hits == 2


def apply_step(state: ShardState, blocks: Sequence[LaneBlock]) -> ApplyStep:
    record = RecordStep(
        seq=mailbox_seq(1, 0),
        ref=ref(event(1)),
        dispatch_id=dispatch_id(event(1).event_id, 0, 0),
        content_digest=content_digest(b"content"),
        fencing_epoch=1,
        chunk_index=0,
        chunk_count=1,
        blocks=blocks,
    )
    return ApplyStep(
        request_id=b"request",
        shard=0,
        term=1,
        expected_position=state.position,
        records=[record],
        marks=[],
        buckets=[],
        next_offset=1,
        position=mailbox_seq(1, 0),
        lagging={1: before_offset(1, 0)},
        at_ms=START_MS,
    )


async def entries(process: MemoryBackends) -> int:
    return len(await process.mailbox.entries(user(), SEQ_NONE, SEQ_MAX, 10))


async def test_a_late_step_of_a_mailbox_behind_its_retry_doubles_nothing(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    state = value(await process.mailbox.open_shard(0, 1, EpochBoundary(1, 0, "cluster/topic")))
    late = cluster.faults.land_late("apply")
    one = apply_step(state, [block(0, ANNA)])
    assert isinstance(await process.mailbox.apply(one), Unknown)
    assert await entries(process) == 0
    verdicts = value(await process.mailbox.apply(one))
    late.land()
    assert await entries(process) == 1
    assert value(await process.mailbox.apply(one)) == verdicts


@pytest.mark.parametrize("landed", ["before", "behind"])
async def test_what_an_ended_epoch_left_above_w_shows_nowhere(
    runtime: ManualRuntime, landed: str
) -> None:
    """An engine of several effects: entries without progress, or progress without W, and then the
    log is lost. What lands behind the new epoch's begin is of no owner any more either.
    """
    cluster = MemoryCluster(runtime, torn_mailbox=True)
    process = cluster.open(runtime)
    state = value(await process.mailbox.open_shard(0, 1, EpochBoundary(1, 0, "cluster/topic")))
    left = apply_step(state, [block(0, ANNA), block(1, BEN)])
    cut = cluster.faults.land_late("apply_entries" if landed == "behind" else "apply_watermark")
    assert isinstance(await process.mailbox.apply(left), Unknown)
    begun = value(await process.mailbox.begin_epoch(0, 1, EpochBoundary(2, 0, "rebuild")))
    cut.land()
    assert await entries(process) == 0
    assert await process.mailbox.dispatch_counts([event(1).event_id]) == {}
    [record] = left.records
    again = replace(
        left,
        request_id=b"again",
        expected_position=begun.position,
        records=[replace(record, seq=mailbox_seq(2, 0))],
        position=mailbox_seq(2, 0),
        lagging={},
    )
    [verdict] = value(await process.mailbox.apply(again))
    assert (verdict.applied, verdict.duplicate) == (0b11, 0)
    assert await entries(process) == 1


async def test_a_late_ack_never_lowers_a_device(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    """MBX-06: 8 after 9 is a no-op, however late it comes."""
    phone = device()
    value(await process.mailbox.open_device(phone, SEQ_NONE))
    late = cluster.faults.land_late("ack")
    eight, nine = mailbox_seq(1, 8), mailbox_seq(1, 9)
    assert isinstance(await process.mailbox.ack(phone, eight, eight), Unknown)
    risen = value(await process.mailbox.ack(phone, nine, nine))
    late.land()
    assert value(await process.mailbox.open_device(phone, SEQ_NONE)) == risen


async def test_a_late_renewal_takes_no_lost_lease_again(
    cluster: MemoryCluster, process: MemoryBackends, runtime: ManualRuntime
) -> None:
    value(await process.lease.acquire(ShardKind.WRITER, 0, "a", 15))
    late = cluster.faults.land_late("renew")
    assert isinstance(await process.lease.renew(ShardKind.WRITER, 0, "a", 15), Unknown)
    await runtime.advance(15)
    value(await process.lease.acquire(ShardKind.WRITER, 0, "b", 15))
    late.land()
    assert (await process.lease.view(ShardKind.WRITER, 0)).holder == "b"


async def test_reads_that_are_not_answered_are_unavailable(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    await conversation(process)
    for plan in (cluster.faults.refuse, cluster.faults.lose_reply, cluster.faults.land_late):
        plan("conversation")
        with pytest.raises(QimError) as failure:
            await process.conversations.conversation(key())
        assert failure.value.code is ErrorCode.UNAVAILABLE
    assert await head(process) == 0


async def test_every_call_of_a_partitioned_process_fails_until_it_heals(
    cluster: MemoryCluster, process: MemoryBackends, runtime: ManualRuntime
) -> None:
    plan = FaultPlan(runtime)
    cut_off = cluster.open(runtime, plan)
    plan.refuse(times=None)
    tenant = TenantRecord(ACME, {}, START_MS)
    assert refused(await cut_off.tenants.create_tenant(tenant)) is Refusal.UNREACHABLE
    with pytest.raises(QimError):
        await cut_off.log.identity()
    value(await process.tenants.create_tenant(tenant))
    plan.heal()
    assert await cut_off.tenants.tenant(ACME) == tenant


async def test_a_rule_skips_counts_and_stops(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    rule = cluster.faults.refuse("view", times=None, skip=1)
    await process.lease.view(ShardKind.WRITER, 0)
    for _ in range(3):
        with pytest.raises(QimError):
            await process.lease.view(ShardKind.WRITER, 0)
    rule.stop()
    await process.lease.view(ShardKind.WRITER, 0)
    assert rule.hits == 3


async def test_equal_seeds_make_equal_deployments() -> None:
    made = [await MemoryCluster(rt := ManualRuntime(3)).open(rt).log.identity() for _ in range(2)]
    assert made[0] == made[1]


# --- delays and dead processes ----------------------------------------------------------------


async def test_a_delayed_call_takes_effect_though_its_caller_gave_up(
    cluster: MemoryCluster, process: MemoryBackends, runtime: ManualRuntime
) -> None:
    epoch = await conversation(process)
    cluster.faults.delay(5, "commit")
    commit = process.conversations.commit(step(epoch, 0, [new(event(1))]))
    caller = asyncio.ensure_future(runtime.wait_for(commit, 2))
    await runtime.advance(2)
    with pytest.raises(TimeoutError):
        await caller
    assert await head(process) == 0
    await runtime.advance(3)
    assert await head(process) == 1


async def test_a_delayed_fault_of_the_log_reaches_its_caller(
    cluster: MemoryCluster, process: MemoryBackends, runtime: ManualRuntime
) -> None:
    cluster.topic.delete()
    cluster.faults.delay(1, "identity")
    caller = asyncio.ensure_future(process.log.identity())
    await runtime.advance(1)
    with pytest.raises(LogFault) as fault:
        await caller
    assert fault.value.kind is LogFaultKind.MISSING


async def test_a_killed_process_hears_of_nothing_and_its_call_still_lands(
    cluster: MemoryCluster, process: MemoryBackends, runtime: ManualRuntime
) -> None:
    epoch = await conversation(process)
    victim = cluster.open(runtime)
    heard: list[object] = []

    async def commit() -> None:
        outcome: Outcome[ConversationState] = await victim.conversations.commit(
            step(epoch, 0, [new(event(1))])
        )
        heard.append(outcome)

    async def read() -> None:
        reader = await victim.log.open_reader(0, 0)
        heard.append(await reader.fetch(10, 2))

    cluster.faults.delay(5, "commit")
    runtime.spawn(commit(), "under way")
    runtime.spawn(read(), "waiting for the log")
    await runtime.advance(1)
    victim.kill()
    runtime.spawn(commit(), "after its death")
    await runtime.advance(60)
    assert heard == []
    assert await head(process) == 1


async def test_what_a_killed_process_wrote_is_there_for_the_next(
    cluster: MemoryCluster, runtime: ManualRuntime
) -> None:
    first = cluster.open(runtime)
    epoch = await conversation(first)
    value(await first.conversations.commit(step(epoch, 0, [new(event(1))])))
    first.kill()
    second = cluster.open(runtime.fork(seed=2))
    assert await head(second) == 1
    assert await conversation(second, b"m" * 16) == epoch + 1


# --- the log ----------------------------------------------------------------------------------


async def produced(process: MemoryBackends, partition: int = 0) -> list[bytes]:
    reader = await process.log.open_reader(partition, 0)
    return [record.value for record in await reader.fetch(100, 0)]


def run(*values: bytes, partition: int = 0) -> list[ProduceRecord]:
    return [ProduceRecord(partition, each) for each in values]


async def test_of_a_torn_batch_a_prefix_lands_a_partition(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    """R-2: a partial failure; the run is sent again whole, by a new producer, in order."""
    producer = await process.log.open_producer()
    cluster.faults.refuse(
        "produce",
        skip=1,
        where=lambda record: isinstance(record, ProduceRecord) and record.partition == 0,
    )
    batch = run(b"a") + run(b"x", partition=1) + run(b"b", b"c") + run(b"y", partition=1)
    outcomes = await producer.produce(batch)
    assert [isinstance(each, Applied) for each in outcomes] == [True, True, False, False, True]
    assert (await produced(process), await produced(process, 1)) == ([b"a"], [b"x", b"y"])
    assert refused((await producer.produce(run(b"z")))[0]) is Refusal.UNREACHABLE
    again = await process.log.open_producer()
    for outcome in await again.produce(run(b"a", b"b", b"c")):
        value(outcome)
    assert await produced(process) == [b"a", b"a", b"b", b"c"]


async def test_a_lost_acknowledgement_stops_the_run_behind_it(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    producer = await process.log.open_producer()
    cluster.faults.lose_reply("produce", skip=1)
    first, second, third = await producer.produce(run(b"a", b"b", b"c"))
    value(first)
    assert isinstance(second, Unknown)
    assert refused(third) is Refusal.UNREACHABLE
    assert await produced(process) == [b"a", b"b"]


async def test_a_silently_recreated_topic_reads_on_as_kafkas_does(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    """MBX-01: only the identity tells."""
    producer = await process.log.open_producer()
    await producer.produce(run(b"old"))
    reader = await process.log.open_reader(0, 1)
    identity = await process.log.identity()
    cluster.topic.recreate(silently=True)
    await producer.produce(run(b"new 0", b"new 1"))
    assert [record.value for record in await reader.fetch(10, 0)] == [b"new 1"]
    assert await process.log.identity() != identity


async def test_a_producer_by_id_appends_nothing_to_a_recreated_topic(
    runtime: ManualRuntime,
) -> None:
    cluster = MemoryCluster(runtime, produces_by_id=True)
    process = cluster.open(runtime)
    producer = await process.log.open_producer()
    value((await producer.produce(run(b"old")))[0])
    cluster.topic.recreate()
    outcomes = await producer.produce(run(b"late", b"later"))
    assert [refused(each) for each in outcomes] == [Refusal.UNREACHABLE] * 2
    value((await (await process.log.open_producer()).produce(run(b"new")))[0])
    assert await produced(process) == [b"new"]


async def test_a_deleted_topic_is_missing(cluster: MemoryCluster, process: MemoryBackends) -> None:
    reader = await process.log.open_reader(0, 0)
    producer = await process.log.open_producer()
    cluster.topic.delete()
    for call in (process.log.identity(), process.log.watermarks(0), reader.fetch(1, 0)):
        with pytest.raises(LogFault) as fault:
            await call
        assert fault.value.kind is LogFaultKind.MISSING
    assert refused((await producer.produce(run(b"a")))[0]) is Refusal.NOT_FOUND


# --- leases -----------------------------------------------------------------------------------


async def test_an_engine_may_end_a_lease_early(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    value(await process.lease.acquire(ShardKind.WRITER, 0, "a", 15))
    cluster.leases.end_early(ShardKind.WRITER, 0)
    assert (await process.lease.view(ShardKind.WRITER, 0)).holder == ""
    assert refused(await process.lease.renew(ShardKind.WRITER, 0, "a", 15)) is Refusal.NOT_FOUND


async def test_an_engine_may_end_a_lease_late(
    cluster: MemoryCluster, process: MemoryBackends, runtime: ManualRuntime
) -> None:
    value(await process.lease.acquire(ShardKind.WRITER, 0, "a", 15))
    cluster.leases.end_late(ShardKind.WRITER, 0, 15)
    await runtime.advance(29)
    assert (await process.lease.view(ShardKind.WRITER, 0)).holder == "a"
    await runtime.advance(1)
    assert (await process.lease.view(ShardKind.WRITER, 0)).holder == ""


async def test_every_lease_may_start_over_with_the_time_that_it_was_taken_for(
    cluster: MemoryCluster, process: MemoryBackends, runtime: ManualRuntime
) -> None:
    for shard, ttl_s in enumerate((15, 5, 30)):
        value(await process.lease.acquire(ShardKind.WRITER, shard, "a", ttl_s))
    await runtime.advance(10)
    cluster.leases.start_over()
    held = [(await process.lease.view(ShardKind.WRITER, shard)).holder for shard in range(3)]
    assert held == ["a", "", "a"]
    await runtime.advance(15)
    assert (await process.lease.view(ShardKind.WRITER, 0)).holder == ""
    assert (await process.lease.view(ShardKind.WRITER, 2)).holder == "a"


async def test_every_lease_may_be_lost_and_every_mark_of_release_with_it(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    value(await process.lease.acquire(ShardKind.WRITER, 0, "a", 15))
    value(await process.lease.acquire(ShardKind.WRITER, 1, "a", 15))
    value(await process.lease.release(ShardKind.WRITER, 1, "a"))
    cluster.leases.lose()
    for shard in range(2):
        view = await process.lease.view(ShardKind.WRITER, shard)
        assert (view.holder, view.released) == ("", False)
    assert refused(await process.lease.renew(ShardKind.WRITER, 0, "a", 15)) is Refusal.NOT_FOUND


# --- the projection ---------------------------------------------------------------------------

META = CheckpointMeta(FORMAT_VERSION, "qim.dispatch", 2, "cluster", "topic")


def project_step(expected_next: int) -> ProjectStep:
    groups = [
        ProjectionGroup(key(name), [ProjectedEvent(1, 1, BEN, START_MS)], ids([ANNA]))
        for name in ("first", "second")
    ]
    return ProjectStep(0, 1, expected_next, 2, groups)


async def unread(process: MemoryBackends) -> dict[str, int]:
    rows = await process.projection.rows(user(), None, 10)
    return {row.key.conversation: row.unread for row in rows}


async def test_a_step_torn_between_rows_and_checkpoint_is_counted_once(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    """SES-06: rows first, then the checkpoint; the same step again changes no row."""
    value(await process.projection.open_partition(0, 1, PartitionCheckpoint(META, 0)))
    cluster.faults.refuse("project_rows", skip=1)
    assert isinstance(await process.projection.project(project_step(0)), Unknown)
    assert await unread(process) == {"first": 1}
    cluster.faults.refuse("project")
    assert isinstance(await process.projection.project(project_step(0)), Unknown)
    assert await unread(process) == {"first": 1, "second": 1}
    stored = await process.projection.checkpoint(0)
    assert stored is not None
    assert stored.next_offset == 0
    value(await process.projection.project(project_step(0)))
    assert await unread(process) == {"first": 1, "second": 1}


async def test_a_step_whose_reply_was_lost_is_a_moved_checkpoint_when_repeated(
    cluster: MemoryCluster, process: MemoryBackends
) -> None:
    value(await process.projection.open_partition(0, 1, PartitionCheckpoint(META, 0)))
    cluster.faults.lose_reply("project")
    one = project_step(0)
    assert isinstance(await process.projection.project(one), Unknown)
    assert refused(await process.projection.project(one)) is Refusal.HEAD_MOVED
    stored = await process.projection.checkpoint(0)
    assert stored is not None
    assert stored.next_offset == one.next_offset
    value(await process.projection.project(replace(one, expected_next=2, next_offset=4)))
    assert await unread(process) == {"first": 1, "second": 1}
