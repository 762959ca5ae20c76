"""orphan_dispatch_total: events without dispatches, dispatches without event, and nothing else."""

import asyncio
from dataclasses import replace

from tests.support.runtime import ManualRuntime
from tests.unit.mailbox.world import World, user_in_lane

from qimd.contract.events import encode_event
from qimd.control.auditor import Auditor
from qimd.core.ids import dispatch_id, event_id
from qimd.core.records import ConversationKey, Event, EventKind
from qimd.ports.log import ProduceRecord
from qimd.ports.mailbox import ApplyStep
from qimd.ports.quarantine import Quarantined, unproduced_offset


def auditor(world: World) -> Auditor:
    return Auditor(
        table=world.table,
        conversations=world.backends.conversations,
        mailbox=world.backends.mailbox,
        log=world.backends.log,
        quarantine=world.backends.quarantine,
        runtime=world.runtime,
        metrics=world.metrics,
    )


async def unaudited(world: World) -> list[tuple[ConversationKey, int]]:
    ranges = await world.backends.conversations.audit_ranges(100)
    return [(found.key, found.audited_through) for found in ranges]


async def test_what_was_delivered_is_audited_and_nothing_counts() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime, shards=2)
        members = [user_in_lane(world.table, 3, shard) for shard in (0, 1)]
        async with world.serving() as first, world.serving(1) as second:
            await world.chat("c", members, 5)
            await world.chat("d", members, 2)
            await first.reads()
            await second.reads()
            done = await auditor(world).audit()
            assert (done.waiting, done.events, done.orphans) == (False, 9, 0)
            assert done.records == 18
            assert await unaudited(world) == []
            assert world.zero("orphan_dispatch_total") == 0


async def test_it_waits_until_every_lane_of_every_shard_has_passed_the_logs_end() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime, shards=2)
        members = [user_in_lane(world.table, 3, shard) for shard in (0, 1)]
        audit = auditor(world)
        async with world.serving() as first:
            _, events = await world.chat("c", members, 5)
            await first.reads()
            assert (await audit.audit()).waiting
            assert len(await unaudited(world)) == 1

            def holds(step: object) -> bool:
                return isinstance(step, ApplyStep) and any(
                    record.ref.event_id == events[2].event_id for record in step.records
                )

            fault = world.cluster.faults.reject("apply", holds)
            async with world.serving(1) as second:
                await second.reads()
                assert second.state.lagging
                assert (await audit.audit()).waiting
                fault.stop()
                await runtime.until(lambda: not second.state.lagging)
                done = await audit.audit()
                assert (done.waiting, done.events, done.orphans) == (False, 6, 0)
                assert await unaudited(world) == []


async def test_events_dispatched_behind_the_rounds_begin_are_left_to_the_next() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        audit = auditor(world)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 1)
            await serving.reads()
        assert not (await audit.audit()).waiting
        await world.dispatch(await world.send(key, "one", member))
        assert (await audit.audit()).waiting
        # Under constant load the end moves on; the round's own end does not.
        await world.dispatch(await world.send(key, "two", member))
        async with world.serving() as serving:
            await serving.reads()
            assert (await audit.audit()).events == 1
            assert (await audit.audit()).events == 1
            assert await unaudited(world) == []


async def test_a_log_that_is_lost_while_its_ends_are_read_gives_no_ends() -> None:
    """The ends of the new log lie below everything: by them all that was dispatched is overdue."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        audit = auditor(world)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 1)
            await serving.reads()
        await world.dispatch(await world.send(key, "not read yet", member))
        world.cluster.faults.delay(1.0, "watermarks")
        under_way = asyncio.ensure_future(audit.audit())
        await runtime.settle()
        world.cluster.topic.recreate()
        await runtime.advance(1.0)
        assert (await under_way).waiting
        assert (await audit.audit()).waiting
        assert world.zero("orphan_dispatch_total") == 0


async def test_an_event_without_its_dispatch_counts_once_and_is_not_passed() -> None:
    """Progress was stored, and the dispatch never was: what must never happen."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        audit = auditor(world)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 1)
            lost = await world.send(key, "lost", member)
            await world.progress(lost)
            await world.dispatch(await world.send(key, "next", member))
            await serving.reads()
            for _ in range(3):
                await audit.audit()
            assert world.zero("orphan_dispatch_total") == 1
            assert await unaudited(world) == [(key, lost.conversation_seq - 1)]
            # Later events of the conversation are still looked at.
            second = await world.send(key, "lost too", member)
            await world.progress(second)
            for _ in range(3):
                await audit.audit()
            assert world.zero("orphan_dispatch_total") == 2


async def test_an_event_with_some_of_its_dispatches_counts() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime, shards=2)
        members = [user_in_lane(world.table, 3, shard) for shard in (0, 1)]
        async with world.serving() as first, world.serving(1) as second:
            key, _ = await world.chat("c", members, 1)
            half = await world.send(key, "half", members[0])
            await world.produce((await world.records(half))[:1])
            await world.progress(half)
            await first.reads()
            await second.reads()
            assert (await auditor(world).audit()).orphans == 1
            assert world.zero("orphan_dispatch_total") == 1


async def test_a_dispatch_whose_event_is_not_in_the_store_counts_once() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        audit = auditor(world)
        async with world.serving() as serving:
            key, [event] = await world.chat("c", [member], 1)
            await world.inject(never_committed(key, event), epoch=world.epoch)
            await serving.reads()
            for _ in range(2):
                await audit.audit()
            assert world.zero("orphan_dispatch_total") == 1


def never_committed(key: ConversationKey, like: Event) -> Event:
    own = event_id(key.tenant, key.conversation, 99)
    return replace(
        like,
        conversation_seq=99,
        event_id=own,
        encoded=encode_event(
            key=key,
            conversation_seq=99,
            event_id=own,
            kind=EventKind.MESSAGE,
            sender=like.sender,
            sender_device=like.sender_device,
            created_at_ms=like.created_at_ms,
            client_msg_id="m99",
            membership_version=1,
            body=b"ghost",
        ),
    )


async def test_quarantined_dispatches_are_no_orphans() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        audit = auditor(world)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 1)
            garbled, unproduced = [await world.send(key, text, member) for text in "ab"]
            [record] = await world.records(garbled)
            await world.produce([ProduceRecord(0, record.value + b"\x08\x01")])
            await world.backends.quarantine.quarantine(
                [
                    Quarantined(
                        log_identity="any",
                        partition=0,
                        offset=unproduced_offset(dispatch_id(unproduced.event_id, 0, 0)),
                        source="outbox",
                        reason="too large",
                        at_ms=1,
                        value=b"",
                    )
                ]
            )
            await world.progress(garbled, unproduced)
            await serving.reads()
            done = await audit.audit()
            assert (done.events, done.orphans) == (4, 0)
            assert world.zero("orphan_dispatch_total") == 0
            assert await unaudited(world) == []


async def test_an_event_for_nobody_is_no_orphan() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        async with world.serving() as serving:
            key = await world.conversation("empty", [])
            [first] = await world.backends.conversations.outbox(key, 0, 1)
            await world.progress(first)
            await serving.reads()
            assert (await auditor(world).audit()).orphans == 0
            assert await unaudited(world) == []


async def test_a_rebase_starts_the_round_anew_and_finds_all_delivered() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        audit = auditor(world)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 3)
            await serving.reads()
        await world.dispatch(await world.send(key, "taken by the topic", member))
        assert (await audit.audit()).waiting
        world.cluster.topic.recreate()
        async with world.serving() as serving:
            await serving.halts()
            assert (await audit.audit()).waiting
            plans: list[object] = []

            async def rebase() -> None:
                plans.append(await world.service.rebase(0, dry_run=False))

            runtime.spawn(rebase(), "operator")
            await runtime.until(lambda: bool(plans) and serving.shard.fault is None, 60)
            for _ in range(4):
                await audit.audit()
            assert await unaudited(world) == []
            assert world.zero("orphan_dispatch_total") == 0
