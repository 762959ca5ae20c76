"""Trace, quarantine list, rebase and rebuild, as an operator sees them."""

from collections.abc import Sequence

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.mailbox.world import WINDOW_MS, World, user_in_lane

from qim.control.v1.control_service_pb2 import (
    ListQuarantineRequest,
    RebaseShardRequest,
    RebuildProjectionRequest,
    TraceEventRequest,
    TraceStep,
)
from qimd.control.handlers import ControlHandlers
from qimd.control.trace import Tracer
from qimd.core.errors import ErrorCode, QimError
from qimd.core.outcome import Applied
from qimd.core.records import Event
from qimd.core.seq import mailbox_seq
from qimd.ports.log import ProduceRecord
from qimd.ports.projection import (
    FORMAT_VERSION,
    CheckpointMeta,
    PartitionCheckpoint,
    ProjectStep,
)
from qimd.session.service import SessionService

COMMIT, DISPATCH, MAILBOX, SESSION = 1, 2, 3, 4
DONE, PENDING, DUPLICATE, STALE, QUARANTINED = 1, 2, 3, 4, 5


def session_room(world: World) -> SessionService:
    backends = world.backends
    return SessionService(
        projection=backends.projection,
        conversations=backends.conversations,
        log=backends.log,
        quarantine=backends.quarantine,
        table=world.table,
        runtime=world.runtime,
        metrics=world.metrics,
        recovery_window_ms=WINDOW_MS,
    )


def handlers(world: World, sessions: SessionService | None = None) -> ControlHandlers:
    backends = world.backends
    tracer = Tracer(
        table=world.table,
        conversations=backends.conversations,
        mailbox=backends.mailbox,
        projection=backends.projection,
        log=backends.log,
        quarantine=backends.quarantine,
    )
    return ControlHandlers(
        table=world.table,
        tracer=tracer,
        quarantine=backends.quarantine,
        mailbox=world.service,
        sessions=sessions or session_room(world),
    )


async def traced(world: World, event: Event) -> list[TraceStep]:
    response = await handlers(world).TraceEvent(TraceEventRequest(event_id=event.event_id))
    assert response.conversation_seq == event.conversation_seq
    assert (response.tenant_id, response.conversation_id) == (
        event.key.tenant,
        event.key.conversation,
    )
    return list(response.steps)


def brief(steps: Sequence[TraceStep]) -> list[tuple[int, int, int]]:
    return [(step.stage, step.verdict, step.offset) for step in steps]


async def project(world: World, next_offset: int) -> None:
    """Move the session projection's checkpoint."""
    identity = await world.backends.log.identity()
    meta = CheckpointMeta(
        FORMAT_VERSION,
        identity.topic,
        identity.partitions,
        identity.cluster_id,
        identity.topic_id,
    )
    opened = await world.backends.projection.open_partition(0, 1, PartitionCheckpoint(meta, 0))
    assert isinstance(opened, Applied)
    step = ProjectStep(0, 1, opened.value.next_offset, next_offset, [])
    assert isinstance(await world.backends.projection.project(step), Applied)


async def test_a_delivered_event_is_done_in_every_stage() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        members = [user_in_lane(world.table, lane) for lane in (3, 7)]
        async with world.serving() as serving:
            _, [event] = await world.chat("c", members, 1)
            await serving.reads()
            assert brief(await traced(world, event)) == [
                (COMMIT, DONE, 0),
                (DISPATCH, DONE, 1),
                (MAILBOX, DONE, 1),
                (SESSION, PENDING, 1),
            ]
            await project(world, 2)
            steps = await traced(world, event)
            assert brief(steps)[-1] == (SESSION, DONE, 1)
            assert all(step.fencing_epoch == world.epoch for step in steps)
            assert steps[2].mailbox_seq == mailbox_seq(1, 1)
            assert steps[2].recipients == 2
            assert steps[2].at_ms == runtime.wall_ms()


async def test_what_has_not_happened_yet_is_pending() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 1)
            await serving.reads()
        event = await world.send(key, "x", member)
        assert brief(await traced(world, event)) == [(COMMIT, DONE, 0), (DISPATCH, PENDING, 0)]
        await world.dispatch(event)
        assert brief(await traced(world, event))[:3] == [
            (COMMIT, DONE, 0),
            (DISPATCH, DONE, 2),
            (MAILBOX, PENDING, 2),
        ]


async def test_all_copies_are_found_with_the_verdict_that_the_mailbox_gave() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, [event] = await world.chat("c", [member], 1)
            old = world.epoch
            await world.inject(event, epoch=old)
            await world.inject(event, epoch=old + 1)
            await world.inject(event, epoch=old)
            stale = await world.send(key, "stale alone", member)
            await world.inject(stale, epoch=old)
            await serving.reads()
            mailbox = [step for step in await traced(world, event) if step.stage == MAILBOX]
            assert [(step.verdict, step.fencing_epoch - old) for step in mailbox] == [
                (DONE, 0),
                (DUPLICATE, 0),
                (DUPLICATE, 1),
                (STALE, 0),
            ]
            assert brief(await traced(world, stale)) == [
                (COMMIT, DONE, 0),
                (DISPATCH, DONE, 5),
                (MAILBOX, STALE, 5),
            ]
            assert world.counted("stale_epoch_dispatch_dropped_total", shard="0") == 2


async def test_an_event_whose_records_left_the_log_is_still_traced() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            _, [event] = await world.chat("c", [member], 1)
            await serving.reads()
            world.cluster.topic.enforce_retention(runtime.wall_ms() + 30 * 24 * 3600 * 1000)
            assert brief(await traced(world, event)) == [(COMMIT, DONE, 0), (MAILBOX, DONE, 1)]


async def test_a_garbled_dispatch_is_shown_as_quarantined() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 1)
            event = await world.send(key, "x", member)
            [record] = await world.records(event)
            await world.produce([ProduceRecord(0, record.value + b"\x08\x01")])
            await serving.reads()
            assert brief(await traced(world, event)) == [
                (COMMIT, DONE, 0),
                (DISPATCH, QUARANTINED, 2),
            ]
            listed = await handlers(world).ListQuarantine(ListQuarantineRequest())
            [kept] = listed.records
            assert (kept.partition, kept.offset, kept.source) == (0, 2, "mailbox")
            assert (kept.reason, kept.never_produced) == ("non_canonical", False)
            assert kept.size_bytes == len(record.value) + 2


async def test_an_unknown_event_and_a_wrong_id_are_typed() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        with pytest.raises(QimError) as error:
            await handlers(world).TraceEvent(TraceEventRequest(event_id=b"x" * 16))
        assert error.value.code is ErrorCode.NOT_FOUND
        with pytest.raises(QimError) as error:
            await handlers(world).TraceEvent(TraceEventRequest(event_id=b"x" * 15))
        assert (error.value.code, error.value.field) == (ErrorCode.INVALID_ARGUMENT, "event_id")
        with pytest.raises(QimError) as error:
            await handlers(world).ListQuarantine(ListQuarantineRequest(limit=1001))
        assert error.value.field == "limit"


async def test_an_operator_sees_what_a_rebase_touches_before_it_is_done() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 2)
            await serving.reads()
        world.cluster.topic.recreate()
        await world.dispatch(await world.send(key, "in the new log", member))
        async with world.serving() as serving:
            assert await serving.halts() == "identity_changed"
            control = handlers(world)
            answers = []

            async def ask(dry_run: bool) -> None:
                request = RebaseShardRequest(mailbox_shard_id=0, dry_run=dry_run)
                answers.append(await control.RebaseShard(request))

            runtime.spawn(ask(True), "dry run")
            await runtime.until(lambda: len(answers) == 1, 60)
            assert (await world.stored()).boundaries[-1].shard_epoch == 1
            runtime.spawn(ask(False), "rebase")
            await runtime.until(lambda: len(answers) == 2 and serving.shard.fault is None, 60)
            dry, done = answers
            assert (dry.dry_run, done.dry_run) == (True, False)
            assert (dry.rebuild_epoch, dry.log_epoch) == (done.rebuild_epoch, done.log_epoch)
            assert (dry.events, dry.conversations, dry.fault) == (4, 1, "identity_changed")
            await serving.reads()
            assert await world.seqs_of(member) == [1, 2, 3, 4]
            with pytest.raises(QimError) as error:
                await control.RebaseShard(RebaseShardRequest(mailbox_shard_id=1))
            assert error.value.field == "mailbox_shard_id"


async def test_a_rebuild_of_the_projection_tells_what_it_touches_and_does_it() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        await world.chat("c", [user_in_lane(world.table, lane) for lane in (3, 7)], 3)
        world.cluster.topic.enforce_retention(runtime.wall_ms() + 30 * 24 * 3_600_000)
        sessions = session_room(world)
        control, term = handlers(world, sessions), world.term()
        task = runtime.spawn(sessions.serve(term), "session 0")
        await runtime.settle()
        answers = []

        async def ask(dry_run: bool) -> None:
            request = RebuildProjectionRequest(partition=0, dry_run=dry_run)
            answers.append(await control.RebuildProjection(request))

        for dry_run in (True, False):
            runtime.spawn(ask(dry_run), "an operator")
            await runtime.settle()
        dry, done = answers
        assert (dry.dry_run, done.dry_run, dry.rows, done.rows) == (True, False, 0, 2)
        for answer in answers:
            assert (answer.partition, answer.next_offset) == (0, 4)
            assert (answer.conversations, answer.events) == (1, 4)
            assert answer.log_identity == world.cluster.topic.identity().text
            assert "no checkpoint" in answer.dirty
        assert [(one.ready, one.dirty) for one in sessions.describe()] == [(True, "")]
        with pytest.raises(QimError) as error:
            await control.RebuildProjection(RebuildProjectionRequest(partition=1))
        assert error.value.field == "partition"
        term.end()
        await runtime.until(task.done)
