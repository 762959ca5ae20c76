"""The room on the embedded engine: the same promises where steps are rows and threads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.runtime import ManualRuntime
from tests.unit.mailbox.world import ACME, World, user_in_lane

from qim.mailbox.v1.mailbox_service_pb2 import DescribeShardsRequest, ReadMailboxRequest
from qimd.adapters.sqlite.backends import SqliteBackends, open_sqlite
from qimd.control.auditor import Auditor
from qimd.mailbox.handlers import MailboxHandlers
from qimd.mailbox.shard import Shard

WAIT_S = 30.0
DAY_MS = 24 * 3600 * 1000


class RealWaits(ManualRuntime):
    """The test's clock, for an engine whose threads take real time to answer.

    A wait on the manual clock would never end here, so what is awaited is awaited as it is.
    """

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)

    async def wait_for(self, coro, timeout_s: float):  # type: ignore[no-untyped-def]
        return await asyncio.wait_for(coro, timeout_s)


@asynccontextmanager
async def embedded(path: Path, runtime: RealWaits) -> AsyncIterator[tuple[World, SqliteBackends]]:
    engine = await open_sqlite(path / "qim.db", runtime, partitions=1, sole_owner=True)
    try:
        yield World(runtime, backends=engine.backends), engine
    finally:
        await engine.close()


async def settled(world: World) -> Shard:
    """The shard, once it has finished what is in the log, or has halted."""
    await asyncio.sleep(0)
    [shard] = world.service.shards()
    high = (await world.backends.log.watermarks(0)).high
    await asyncio.wait_for(shard.passed(high), WAIT_S)
    return shard


async def test_the_embedded_engine_keeps_order_dedupe_and_epochs_over_a_restart(
    tmp_path: Path,
) -> None:
    async with RealWaits() as runtime, embedded(tmp_path, runtime) as (world, _):
        members = [user_in_lane(world.table, lane) for lane in (3, 7, 9)]
        first = world.start()
        key, events = await world.chat("c", members, 50)
        await world.dispatch(*events[:5])
        await settled(world)
        first.term.end()
        await asyncio.wait_for(asyncio.shield(first.task), WAIT_S)
        old = world.epoch
        await world.take_over()
        await world.backends.conversations.claim(0, world.epoch, key)
        late = await world.send(key, "new owner", members[0])
        never = await world.send(key, "never by the old one", members[0])
        await world.dispatch(late)
        await world.inject(never, epoch=old)
        second = world.start()
        shard = await settled(world)
        assert shard.fault is None
        for member in members:
            assert await world.seqs_of(member) == list(range(1, 53))
        assert world.counted("stale_epoch_dispatch_dropped_total", shard="0") == 1
        assert world.counted("duplicates_total", shard="0") == 15
        second.term.end()
        await asyncio.wait_for(asyncio.shield(second.task), WAIT_S)


async def test_a_position_that_the_embedded_logs_retention_passed_is_refused_and_rebased(
    tmp_path: Path,
) -> None:
    """MBX-02, F09 on the embedded engine: out of range is explicit and jumps nowhere; the rebase
    rebuilds the gap from the store, and reading goes on at the low watermark.
    """
    async with RealWaits() as runtime, embedded(tmp_path, runtime) as (world, engine):
        members = [user_in_lane(world.table, lane) for lane in (3, 7)]
        first = world.start()
        key, _ = await world.chat("c", members, 9)
        await settled(world)
        first.term.end()
        await asyncio.wait_for(asyncio.shield(first.task), WAIT_S)
        await world.dispatch(*[await world.send(key, f"gone {n}", members[0]) for n in range(15)])
        runtime.step_wall(30 * DAY_MS)
        await world.dispatch(*[await world.send(key, f"there {n}", members[0]) for n in range(5)])
        assert await engine.log.enforce_retention(runtime.wall_ms()) == 25
        second = world.start()
        shard = await settled(world)
        assert shard.fault is not None
        assert shard.fault.reason == "out_of_range"
        assert (await world.stored()).next_offset == 10
        assert world.counted("shard_halted", kind="mailbox", shard="0") == 1
        for member in members:
            assert await world.seqs_of(member) == list(range(1, 11))
        plan = await asyncio.wait_for(world.service.rebase(0, dry_run=False), WAIT_S)
        assert plan.first_offset == 25
        await asyncio.wait_for(shard.until(lambda: shard.fault is None), WAIT_S)
        await settled(world)
        for member in members:
            assert await world.seqs_of(member) == list(range(1, 31))
        assert (await world.stored()).next_offset == 30
        second.term.end()
        await asyncio.wait_for(asyncio.shield(second.task), WAIT_S)


async def test_a_recreated_topic_of_the_embedded_log_is_refused_and_rebased(
    tmp_path: Path,
) -> None:
    """MBX-01 on the embedded engine; the auditor then finds everything delivered."""
    async with RealWaits() as runtime, embedded(tmp_path, runtime) as (world, engine):
        members = [user_in_lane(world.table, lane) for lane in (3, 7)]
        first = world.start()
        key, _ = await world.chat("c", members, 9)
        await settled(world)
        first.term.end()
        await asyncio.wait_for(asyncio.shield(first.task), WAIT_S)
        lost = [await world.send(key, f"lost {n}", members[0]) for n in range(3)]
        await world.dispatch(*lost)
        await engine.log.recreate_topic()
        await world.dispatch(*[await world.send(key, f"new {n}", members[0]) for n in range(5)])

        second = world.start()
        shard = await settled(world)
        assert shard.fault is not None
        assert shard.fault.reason == "identity_changed"
        plan = await asyncio.wait_for(world.service.rebase(0, dry_run=False), WAIT_S)
        assert plan.events == 18
        await asyncio.wait_for(shard.until(lambda: shard.fault is None), WAIT_S)
        await settled(world)
        for member in members:
            assert await world.seqs_of(member) == list(range(1, 19))
        audit = Auditor(
            table=world.table,
            conversations=world.backends.conversations,
            mailbox=world.backends.mailbox,
            log=world.backends.log,
            quarantine=world.backends.quarantine,
            runtime=runtime,
            metrics=world.metrics,
        )
        done = await audit.audit()
        assert (done.waiting, done.events, done.orphans) == (False, 18, 0)
        assert await world.backends.conversations.audit_ranges(10) == []

        handlers = MailboxHandlers(world.service, world.backends.log)
        [described] = (await handlers.DescribeShards(DescribeShardsRequest())).shards
        assert (described.shard_epoch, described.next_offset, described.fault) == (3, 5, "")
        assert (described.low_watermark, described.high_watermark) == (0, 5)
        page = await handlers.ReadMailbox(
            ReadMailboxRequest(tenant_id=ACME, user_id=members[0], limit=4)
        )
        assert [one.event.conversation_seq for one in page.events] == [1, 2, 3, 4]
        assert page.more
        assert page.covered_through_seq == page.events[-1].mailbox_seq
        second.term.end()
        await asyncio.wait_for(asyncio.shield(second.task), WAIT_S)
