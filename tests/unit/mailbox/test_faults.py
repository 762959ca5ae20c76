"""Start gates, faults of the log, and the operator's way out."""

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.mailbox.world import WINDOW_MS, Serving, World, device, user_in_lane

from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import UserId
from qimd.core.outcome import Applied
from qimd.core.parameters import (
    BUCKET_DAYS_KEPT,
    LOG_IDENTITY_CHECK_INTERVAL_S,
    MAILBOX_BATCH_RECORDS_MAX,
)
from qimd.core.seq import epoch_of, mailbox_seq
from qimd.ports.log import LogSettings, Reader
from qimd.ports.mailbox import REBUILD_IDENTITY, ApplyStep
from qimd.ports.services import Page, Rebased, RebasePlan
from qimd.ports.store import key_of

DAY_MS = 24 * 3600 * 1000


async def rebased(world: World, *, dry_run: bool = False) -> RebasePlan:
    plans: list[RebasePlan | QimError] = []

    async def ask() -> None:
        try:
            plans.append(await world.service.rebase(0, dry_run=dry_run))
        except QimError as error:
            plans.append(error)

    world.runtime.spawn(ask(), "operator")
    await world.runtime.until(lambda: bool(plans), 60)
    if isinstance(plans[0], QimError):
        raise plans[0]
    return plans[0]


async def runs(serving: Serving) -> None:
    await serving.world.runtime.until(lambda: serving.shard.fault is None, 60)
    await serving.reads()


# --- gates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retention_ms", "reason"),
    [
        (None, "retention_unknown"),
        (-1, "retention_unknown"),
        (WINDOW_MS - 1, "retention_short"),
    ],
)
async def test_a_log_that_may_forget_too_early_is_refused(
    retention_ms: int | None, reason: str
) -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        world.cluster.topic.settings = LogSettings(retention_ms, 1 << 20)
        async with world.serving() as serving:
            assert await serving.halts() == reason


async def test_a_retention_of_exactly_the_window_is_enough() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        world.cluster.topic.settings = LogSettings(WINDOW_MS, 1 << 20)
        async with world.serving() as serving:
            await serving.reads()
            assert serving.shard.fault is None


async def test_another_partition_count_is_refused() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime, shards=2)
        world.cluster.topic.recreate(4)
        async with world.serving() as serving:
            assert await serving.halts() == "partition_count"


async def test_a_missing_topic_is_refused() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        world.cluster.topic.delete()
        async with world.serving() as serving:
            assert await serving.halts() == "missing"
            with pytest.raises(QimError) as error:
                await rebased(world)
            assert error.value.code is ErrorCode.UNAVAILABLE


async def test_a_new_shard_behind_a_log_whose_begin_is_gone_is_refused() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        await world.chat("c", [user_in_lane(world.table, 3)], 2)
        world.cluster.topic.enforce_retention(runtime.wall_ms() + 30 * DAY_MS)
        async with world.serving() as serving:
            assert await serving.halts() == "out_of_range"


async def test_a_new_shard_whose_first_log_was_lost_is_refused_and_rebuilt_on_order() -> None:
    """A shard that nobody had opened yet must not take the next log for the first one."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        key, _ = await world.chat("c", [member], 4)
        world.cluster.topic.recreate()
        await world.dispatch(await world.send(key, "behind it", member))
        async with world.serving() as serving:
            assert await serving.halts() == "identity_changed"
            assert await world.seqs_of(member) == []
            await rebased(world)
            await runs(serving)
            assert await world.seqs_of(member) == [1, 2, 3, 4, 5, 6]


# --- a topic that was re-created --------------------------------------------------------------


async def test_a_recreated_topic_is_refused_and_rebased_on_order() -> None:
    """MBX-01: position 10, topic re-created, 5 records written: detected by its identity, nothing
    applied; after an operator's rebase (new epochs, boundaries, cursors served or rebased) all 5
    are materialised.
    """
    async with ManualRuntime() as runtime:
        world = World(runtime)
        members = [user_in_lane(world.table, lane) for lane in (3, 7)]
        owner = device(members[0])
        async with world.serving() as serving:
            key, _ = await world.chat("c", members, 9)
            await serving.reads()
            assert serving.state.next_offset == 10
            opened = await world.service.open_device(owner)
            before = await world.service.pull(owner, opened.cursor_token, 0, 0)
            assert isinstance(before, Page)
        world.cluster.topic.recreate()
        five = [await world.send(key, f"new {n}", members[0]) for n in range(5)]
        await world.dispatch(*five)
        async with world.serving() as serving:
            assert await serving.halts() == "identity_changed"
            assert await world.seqs_of(members[0]) == list(range(1, 11))
            assert world.counted("shard_halted", kind="mailbox", shard="0") == 1
            with pytest.raises(QimError) as error:
                await world.service.pull(owner, opened.cursor_token, 0, 0)
            assert error.value.code is ErrorCode.UNAVAILABLE

            stored = await world.stored()
            plan = await rebased(world, dry_run=True)
            assert (plan.fault, plan.rebuild_epoch, plan.log_epoch) == ("identity_changed", 2, 3)
            assert await world.stored() == stored

            await rebased(world)
            await runs(serving)
            for member in members:
                assert await world.seqs_of(member) == list(range(1, 16))
            assert world.counted("shard_halted", kind="mailbox", shard="0") == 0
            identity = (await world.backends.log.identity()).text
            boundaries = [(b.shard_epoch, b.log_identity) for b in serving.state.boundaries[1:]]
            assert boundaries == [(2, REBUILD_IDENTITY), (3, identity)]
            # The old cursor's entries are still there: it is served, and replaced.
            page = await world.service.pull(owner, opened.cursor_token, before.covered_through, 0)
            assert isinstance(page, Page)
            assert [one.encoded for one in page.events] == [one.encoded for one in five]
            assert page.cursor_token not in (b"", opened.cursor_token)
            assert world.zero("mailbox_seq_regression_count") == 0


async def test_a_cursor_of_an_older_epoch_whose_entries_are_gone_is_rebased() -> None:
    """MBX-08, for a cursor from an older epoch: the range is named before any event, across the
    epochs; the cursor that comes with it goes on behind the gap.
    """
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        owner = device(member)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 4)
            await serving.reads()
            opened = await world.service.open_device(owner)
        world.cluster.topic.recreate()
        async with world.serving() as serving:
            assert await serving.halts() == "identity_changed"
            await rebased(world)
            await runs(serving)
            runtime.step_wall((BUCKET_DAYS_KEPT + 2) * DAY_MS)
            late = await world.send(key, "late", member)
            await world.dispatch(late)
            await serving.reads()
            await runtime.advance(120)
            for after in (0, 1, mailbox_seq(1, 4)):
                answer = await world.service.pull(owner, opened.cursor_token, after, 0)
                assert isinstance(answer, Rebased)
                assert (answer.lost_from, answer.lost_through) == (after + 1, serving.shard.floor)
                assert epoch_of(answer.last_applied) > 1
                page = await world.service.pull(owner, answer.cursor_token, answer.last_applied, 0)
                assert isinstance(page, Page)
                assert [one.encoded for one in page.events] == [late.encoded]


async def test_a_topic_recreated_between_the_gates_and_the_reader_is_found_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gates proved the log before; its reader must be of the same one."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        log = world.backends.log
        opens = log.open_reader

        async def lost_first(partition: int, offset: int, log_identity: str) -> Reader:
            monkeypatch.undo()
            world.cluster.topic.recreate()
            return await opens(partition, offset, log_identity)

        monkeypatch.setattr(log, "open_reader", lost_first)
        async with world.serving() as serving:
            await runtime.until(lambda: serving.shard.fault is not None, within_s=1)
            assert await serving.halts() == "identity_changed"


async def test_a_topic_recreated_under_a_running_reader_is_found_within_an_interval() -> None:
    """F06: refused within one gate interval, zero records applied, alarm."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 2)
            await serving.reads()
            # The new topic ends exactly where the shard stands, so offsets alone tell nothing.
            world.cluster.topic.recreate(silently=True)
            await world.dispatch(*[await world.send(key, str(n), member) for n in range(3)])
            await runtime.advance(LOG_IDENTITY_CHECK_INTERVAL_S + 2)
            assert serving.shard.fault is not None
            assert serving.shard.fault.reason == "identity_changed"
            await world.dispatch(*[await world.send(key, str(n), member) for n in range(6)])
            await runtime.advance(60)
            assert await world.seqs_of(member) == [1, 2, 3]
            assert world.counted("shard_halted", kind="mailbox", shard="0") == 1


async def test_records_of_a_recreated_topic_are_refused_before_the_next_check() -> None:
    """F06: the position lies below the new end, so offsets alone would tell nothing."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 2)
            await serving.reads()
            world.cluster.topic.recreate(silently=True)
            await world.dispatch(*[await world.send(key, str(n), member) for n in range(6)])
            reason = await serving.halts()
            assert reason in ("foreign_record", "identity_changed")
            assert await world.seqs_of(member) == [1, 2, 3]
            await rebased(world)
            await runs(serving)
            assert await world.seqs_of(member) == list(range(1, 10))


async def test_records_under_the_old_identity_in_the_new_log_are_not_lost() -> None:
    """A producer that has not noticed the re-creation yet stamps the old identity."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 2)
            await serving.reads()
        old = (await world.backends.log.identity()).text
        world.cluster.topic.recreate()
        unaware = [await world.send(key, f"unaware {n}", member) for n in range(2)]
        for event in unaware:
            await world.produce(await world.records(event, log_identity=old))
        # Its progress is not stored yet: only the log knows of them.
        async with world.serving() as serving:
            assert await serving.halts() == "identity_changed"
            await rebased(world)
            await runs(serving)
            assert serving.state.boundaries[-1].first_offset == 2
            await world.progress(*unaware)
            await world.dispatch(await world.send(key, "aware", member))
            await serving.reads()
            assert await world.seqs_of(member) == [1, 2, 3, 4, 5, 6]


async def test_a_run_that_a_lost_log_cut_in_two_stays_in_order() -> None:
    """Its first event went to the old log; the second, under the old identity, to the new one."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 1)
            await serving.reads()
        run = [await world.send(key, f"text {n}", member) for n in (3, 4)]
        before = (await world.backends.log.identity()).text
        await world.produce(await world.records(run[0]))
        world.cluster.topic.recreate()
        await world.produce(await world.records(run[1], log_identity=before))
        async with world.serving() as serving:
            assert await serving.halts() == "identity_changed"
            await rebased(world)
            await runs(serving)
            # No progress was stored, so its producer's successor sends the whole run again.
            await world.dispatch(*run)
            await serving.reads()
            assert await world.seqs_of(member) == [1, 2, 3, 4]
            assert world.zero("mailbox_seq_regression_count") == 0


# --- a log that no longer covers the position -------------------------------------------------


async def behind_retention(world: World, members: list[UserId]) -> None:
    """Position 10; 20 more events were dispatched and the first 15 of them have left the log."""
    runtime = world.runtime
    async with world.serving() as serving:
        key, _ = await world.chat("c", members, 9)
        await serving.reads()
    await world.dispatch(*[await world.send(key, f"gone {n}", members[0]) for n in range(15)])
    runtime.step_wall(8 * DAY_MS)
    await world.dispatch(*[await world.send(key, f"there {n}", members[0]) for n in range(5)])
    world.cluster.topic.enforce_retention(runtime.wall_ms())
    watermarks = await world.backends.log.watermarks(0)
    assert (watermarks.low, watermarks.high) == (25, 30)


async def test_a_position_below_the_log_is_refused_and_the_gap_rebuilt_on_order() -> None:
    """MBX-02, F09: an explicit out-of-range fault, never a jump; the rebase rebuilds the gap from
    the store's events under a new shard_epoch, and reading goes on at the low watermark.
    """
    async with ManualRuntime() as runtime:
        world = World(runtime)
        members = [user_in_lane(world.table, lane) for lane in (3, 7)]
        await behind_retention(world, members)
        async with world.serving() as serving:
            assert await serving.halts() == "out_of_range"
            await runtime.advance(300)
            assert (await world.stored()).next_offset == 10
            plan = await rebased(world)
            assert (plan.first_offset, plan.fault) == (25, "out_of_range")
            await runs(serving)
            assert serving.state.next_offset == 30
            for member in members:
                assert await world.seqs_of(member) == list(range(1, 31))
                assert len(await world.pull_all(member)) == 30
            entries = [epoch_of(event.seq) for event in (await page_of(world, members[0])).events]
            assert entries == [1] * 10 + [2] * 20
            assert world.zero("mailbox_seq_regression_count") == 0


async def page_of(world: World, user: UserId) -> Page:
    opened = await world.service.open_device(device(user))
    page = await world.service.pull(device(user), opened.cursor_token, 0, 0)
    assert isinstance(page, Page)
    return page


async def test_a_rebuild_that_is_cut_short_goes_on_and_gives_no_number_twice() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        members = [user_in_lane(world.table, lane) for lane in (3, 7)]
        await behind_retention(world, members)
        await world.chat("d", members, MAILBOX_BATCH_RECORDS_MAX)
        async with world.serving() as serving:
            assert await serving.halts() == "out_of_range"
            # The first portion of the manifest lands; then its owner dies.
            blocked = world.cluster.faults.refuse("apply", times=None, skip=1)
            runtime.spawn(_ignored(world), "operator")
            await runtime.until(lambda: blocked.hits > 0)
        cut = await world.stored()
        assert cut.boundaries[-1].log_identity == REBUILD_IDENTITY
        assert cut.next_offset > 0
        blocked.stop()
        async with world.serving() as serving:
            await runtime.until(lambda: serving.shard.state is not None, 60)
            await runtime.until(
                lambda: serving.state.boundaries[-1].log_identity != REBUILD_IDENTITY, 60
            )
            await runs(serving)
            for member in members:
                pulled = await page_of(world, member)
                seqs = [one.seq for one in pulled.events]
                assert seqs == sorted(set(seqs))
                assert len(seqs) == 30 + 1 + MAILBOX_BATCH_RECORDS_MAX


@pytest.mark.parametrize("step", ["apply_entries", "apply_progress", "apply_watermark"])
async def test_a_rebuild_that_is_cut_short_within_a_step_doubles_nothing(step: str) -> None:
    """The engine's step is several effects: entries are there whose progress is not. What the next
    owner finds in the store by then is another list: some of it was audited meanwhile.
    """
    async with ManualRuntime() as runtime:
        world = World(runtime, torn=True)
        members = [user_in_lane(world.table, lane) for lane in (3, 7)]
        await behind_retention(world, members)
        async with world.serving() as serving:
            assert await serving.halts() == "out_of_range"
            blocked = world.cluster.faults.refuse(step, times=None)
            runtime.spawn(_ignored(world), "operator")
            await runtime.until(lambda: blocked.hits > 0)
        blocked.stop()
        assert isinstance(
            await world.backends.conversations.set_audited(key_of("acme", "c"), 12), Applied
        )
        async with world.serving() as serving:
            await runtime.until(lambda: serving.shard.caught_up, 60)
            for member in members:
                assert await world.seqs_of(member) == list(range(1, 31))
            assert world.zero("mailbox_seq_regression_count") == 0


async def test_a_rebuild_whose_block_is_refused_halts_and_goes_on_once_it_is_taken() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        members = [user_in_lane(world.table, lane) for lane in (3, 7)]
        await behind_retention(world, members)
        gone = (await world.backends.conversations.outbox(key_of("acme", "c"), 14, 1))[0]

        def holds(step: object) -> bool:
            return isinstance(step, ApplyStep) and any(
                record.ref.event_id == gone.event_id and block.lane == 3
                for record in step.records
                for block in record.blocks
            )

        fault = world.cluster.faults.reject("apply", holds)
        async with world.serving() as serving:
            assert await serving.halts() == "out_of_range"
            with pytest.raises(QimError) as error:
                await rebased(world)
            assert error.value.code is ErrorCode.UNAVAILABLE
            assert await serving.halts() == "rebuild_rejected"
        fault.stop()
        async with world.serving() as serving:
            await runtime.until(lambda: serving.shard.caught_up, 60)
            for member in members:
                assert await world.seqs_of(member) == list(range(1, 31))
            assert world.zero("mailbox_seq_regression_count") == 0


async def _ignored(world: World) -> None:
    with pytest.raises(QimError):
        await world.service.rebase(0, dry_run=False)


async def test_a_stale_record_behind_a_rebuilt_gap_is_still_dropped() -> None:
    """The gap took the new owner's first records with it: the manifest restores the mark."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 2)
            await serving.reads()
        old = world.epoch
        await world.take_over()
        await world.backends.conversations.claim(0, world.epoch, key)
        await world.dispatch(await world.send(key, "in the gap", member))
        runtime.step_wall(8 * DAY_MS)
        never = await world.send(key, "not yet", member)
        await world.inject(never, epoch=old)
        world.cluster.topic.enforce_retention(runtime.wall_ms())
        async with world.serving() as serving:
            assert await serving.halts() == "out_of_range"
            await rebased(world)
            await runs(serving)
            assert await world.seqs_of(member) == [1, 2, 3, 4]
            assert world.counted("stale_epoch_dispatch_dropped_total", shard="0") == 1


async def test_a_lane_that_the_log_no_longer_covers_is_rebuilt_on_order() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow, other = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        async with world.serving() as serving:
            key, events = await world.chat("c", [slow, other], 3)

            def holds(step: object) -> bool:
                return isinstance(step, ApplyStep) and any(
                    record.ref.event_id == events[0].event_id and block.lane == 3
                    for record in step.records
                    for block in record.blocks
                )

            fault = world.cluster.faults.reject("apply", holds)
            await serving.reads()
            runtime.step_wall(8 * DAY_MS)
            world.cluster.topic.enforce_retention(runtime.wall_ms())
            await world.dispatch(await world.send(key, "later", other))
            await serving.reads()
            fault.stop()
            await runtime.advance(60)
            assert await world.seqs_of(slow) == [1]
            assert await world.seqs_of(other) == [1, 2, 3, 4, 5]
            await rebased(world)
            await runs(serving)
            assert await world.seqs_of(slow) == [1, 2, 3, 4, 5]
            assert await world.seqs_of(other) == [1, 2, 3, 4, 5]


async def test_a_shard_with_nothing_to_mend_is_not_rebased() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        async with world.serving() as serving:
            await serving.reads()
            stored = await world.stored()
            with pytest.raises(QimError) as error:
                await rebased(world)
            assert error.value.code is ErrorCode.INVALID_ARGUMENT
            assert await world.stored() == stored


# --- a position that moved --------------------------------------------------------------------


async def test_a_step_that_landed_before_it_was_refused_is_found_and_not_a_fault() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        user = user_in_lane(world.table, 0)
        async with world.serving() as serving:
            lost = world.cluster.faults.lose_reply("apply")
            refused = world.cluster.faults.reject("apply", lambda _: True, times=1)
            await world.chat("room", [user], 3)
            await serving.reads()
            await runtime.until(lambda: serving.shard.caught_up, 60)
            assert (lost.hits, refused.hits) == (1, 1)
            assert serving.shard.fault is None
            assert await world.seqs_of(user) == [1, 2, 3, 4]


async def test_a_store_that_was_taken_back_is_loaded_again_and_read_from_the_log() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        user = user_in_lane(world.table, 0)
        async with world.serving() as serving:
            key, _ = await world.chat("room", [user], 2)
            await serving.reads()
            world.cluster.sync()
            await world.dispatch(await world.send(key, "lost with the tail", user))
            await serving.reads()
            before = await world.seqs_of(user)
            world.cluster.lose_tail()
            await world.dispatch(await world.send(key, "and one more", user))
            await serving.reads()
            assert before == [1, 2, 3, 4]
            assert serving.shard.fault is None
            assert await world.seqs_of(user) == [1, 2, 3, 4, 5]


# --- a store that starts anew without its end -------------------------------------------------


async def test_what_a_restart_of_the_store_took_back_is_no_page_before_it_is_read_again() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        anna = user_in_lane(world.table, 3)
        key = await world.conversation("standup", [anna])
        async with world.serving() as serving:
            await world.dispatch(await world.send(key, "kept", anna))
            await serving.reads()
            world.cluster.sync()
            await world.dispatch(await world.send(key, "lost", anna))
            await serving.reads()
            told = await world.pull_all(anna)
            world.cluster.lose_tail()
            with pytest.raises(QimError, match="started anew") as refused:
                await world.pull_all(anna)
            assert refused.value.code is ErrorCode.UNAVAILABLE
            await runtime.until(lambda: serving.shard.caught_up and _is_ready(serving), 60)
            assert await world.pull_all(anna) == told
            assert await world.seqs_of(anna) == [2, 3]


def _is_ready(serving: Serving) -> bool:
    try:
        serving.shard.ready()
    except QimError:
        return False
    return True
