"""The projection against its log: gates, catch-up, faults, restarts, owners."""

from dataclasses import replace

import pytest
from tests.unit.session.world import TERM_S, WINDOW_MS, World, make_service, user, world

from qimd.adapters.memory import FaultPlan
from qimd.core.errors import ErrorCode
from qimd.core.lease import Term
from qimd.core.outcome import Refusal
from qimd.core.parameters import UNREAD_DRIFT_SAMPLE_INTERVAL_S
from qimd.core.records import Event
from qimd.ports.log import LogSettings, ProduceRecord
from qimd.telemetry.metrics import Metrics

P0 = {"partition": "0"}


async def test_own_messages_are_never_unread_and_others_are_counted() -> None:
    """SES-01: unread = 0 for u, who sent 1-3, on both devices; 3 for the other member."""
    async with world() as place:
        key = await place.chat.create("direct", "u", "v")
        for _ in range(3):
            await place.chat.say(key, "u")
        await place.settle()
        assert await place.unread("u") == {"direct": 0}
        assert await place.unread("v") == {"direct": 3}


async def test_an_own_message_does_not_mark_an_earlier_foreign_one_as_read() -> None:
    """SES-01: own 3 must not mark an earlier foreign 2 as read."""
    async with world() as place:
        key = await place.chat.create("direct", "u", "v")
        await place.chat.say(key, "v")
        await place.chat.say(key, "u")
        await place.settle()
        assert await place.unread("u") == {"direct": 1}


async def test_reactions_and_membership_changes_never_count() -> None:
    async with world() as place:
        key = await place.chat.create("c", "u", "v")
        await place.chat.say(key, "v")
        await place.chat.react(key, "v", 2)
        await place.chat.change(key, added=["w"])
        await place.settle()
        assert await place.unread("u") == {"c": 1}
        assert await place.unread("w") == {"c": 0}


async def test_every_restart_point_equals_a_replay_from_scratch() -> None:
    """SES-06: the row equals a from-scratch replay at every restart point; replaying the same
    events twice changes nothing."""
    async with world() as place:
        key = await place.chat.create("c", "u", "v")
        steps = [
            lambda: place.chat.say(key, "v"),
            lambda: place.chat.react(key, "v", 2),
            lambda: place.chat.change(key, added=["w"]),
            lambda: place.chat.say(key, "u"),
            lambda: place.chat.say(key, "v"),
        ]
        for step in steps:
            await step()
            await place.restart()
            kept = {name: await place.list_all(name) for name in ("u", "v", "w")}
            await place.stop()
            # From scratch: neither rows, nor checkpoint, nor marks.
            place.cluster.projection.partitions.clear()
            place.cluster.projection.read_marks.clear()
            await place.restart()
            assert {name: await place.list_all(name) for name in ("u", "v", "w")} == kept


async def test_a_step_whose_reply_is_lost_counts_once() -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.settle()
        for op in ("project", "project_rows"):
            rule = place.cluster.faults.lose_reply(op)
            await place.chat.say(key, "v")
            await place.runtime.advance(1)
            rule.stop()
        assert await place.unread("u") == {"c": 2}
        assert not place.dirty()


async def test_rows_written_before_a_crash_are_not_counted_again() -> None:
    """ZADD succeeded, the checkpoint did not move: the replay changes nothing (seed 004)."""
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.settle()
        rule = place.cluster.faults.refuse("project", refusal=Refusal.UNREACHABLE, times=None)
        await place.chat.say(key, "v")
        await place.settle()
        await place.stop()
        rule.stop()
        await place.restart()
        assert await place.unread("u") == {"c": 1}


@pytest.mark.parametrize("refusal", [Refusal.NO_SPACE, Refusal.UNREACHABLE])
async def test_a_full_or_absent_engine_is_waited_for_and_not_dirty(refusal: Refusal) -> None:
    """F22's kin: a disk that is full goes on by itself when there is room; the lag shows."""
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.settle()
        rule = place.cluster.faults.refuse("project_fence", refusal=refusal, times=None)
        for _ in range(3):
            await place.chat.say(key, "v")
        await place.runtime.advance(30)
        assert not place.dirty()
        assert await place.unread("u") == {"c": 0}
        assert place.value("projection_lag_seq", P0) == 3
        assert place.value("projection_lag_seconds", P0) > 20
        rule.stop()
        await place.runtime.advance(6)
        assert await place.unread("u") == {"c": 3}
        assert place.value("projection_lag_seq", P0) == 0
        assert place.value("projection_lag_seconds", P0) == 0


async def test_a_log_that_does_not_answer_for_a_while_is_waited_for() -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        rule = place.cluster.faults.refuse("fetch", times=None)
        await place.chat.say(key, "v")
        await place.runtime.advance(20)
        rule.stop()
        await place.runtime.advance(6)
        assert await place.unread("u") == {"c": 1}
        assert not place.dirty()


async def test_what_the_engine_refuses_for_its_content_is_dirty_until_a_restart() -> None:
    """A running error marks it dirty: the list fails closed until a restart (seed 004)."""
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.settle()
        rule = place.cluster.faults.reject("project_rows", lambda _: True)
        await place.chat.say(key, "v")
        await place.runtime.advance(1)
        assert (await place.refusal()).code is ErrorCode.SESSION_PROJECTION_DIRTY
        assert place.value("shard_halted", {"kind": "session", "shard": "0"}) == 1
        rule.stop()
        await place.runtime.advance(60)
        assert (await place.refusal()).code is ErrorCode.SESSION_PROJECTION_DIRTY
        await place.restart()
        assert await place.unread("u") == {"c": 1}
        assert place.value("shard_halted", {"kind": "session", "shard": "0"}) == 0


async def test_an_error_that_no_rule_foresees_is_dirty_until_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script that meets a key of another type, say: the next term of the process refuses, too."""
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.settle()

        async def fails(_self: object, _step: object) -> None:
            raise RuntimeError("WRONGTYPE")

        with monkeypatch.context() as broken:
            broken.setattr(type(place.backends.projection), "project", fails)
            await place.chat.say(key, "v")
            await place.settle()
        assert "WRONGTYPE" in repr(place.runtime.failures)
        place.runtime.failures.clear()
        place.serve()
        await place.settle()
        assert (await place.refusal()).code is ErrorCode.SESSION_PROJECTION_DIRTY
        assert "RuntimeError" in place.dirty()
        await place.restart()
        assert await place.unread("u") == {"c": 1}


async def test_nothing_is_served_before_every_partition_has_caught_up_to_the_start() -> None:
    async with world() as place:
        key = await place.chat.create("c", *(f"u{index}" for index in range(8)))
        await place.chat.say(key, "u0")
        await place.stop()
        await place.restart(serve=False)
        assert (await place.refusal("u1")).code is ErrorCode.NOT_OWNER
        held = place.cluster.faults.refuse("fetch", times=None)
        place.serve()
        await place.settle()
        assert (await place.refusal("u1")).code is ErrorCode.UNAVAILABLE
        assert not any(status.ready for status in place.service.describe())
        held.stop()
        await place.runtime.advance(6)
        assert all(status.ready for status in place.service.describe())
        assert await place.unread("u1") == {"c": 1}


async def start_is_dirty(place: World, word: str) -> None:
    await place.restart()
    assert word in place.dirty()
    assert (await place.refusal()).code is ErrorCode.SESSION_PROJECTION_DIRTY
    # It keeps refusing, and nothing is applied meanwhile.
    await place.runtime.advance(30)
    assert (await place.refusal()).code is ErrorCode.SESSION_PROJECTION_DIRTY


async def test_a_re_created_topic_that_still_covers_the_offset_is_refused() -> None:
    """F06: the UUID changed, low and high still cover the old offset: dirty, nothing applied."""
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.chat.say(key, "v")
        await place.settle()
        await place.stop()
        place.cluster.topic.recreate()
        for _ in range(5):
            await place.chat.say(key, "v")
        await start_is_dirty(place, "another log")


async def test_a_new_partition_whose_first_log_was_lost_is_refused() -> None:
    async with world(partitions=1, serve=False) as place:
        key = await place.chat.create("c", "u", "v")
        before = (await place.backends.log.identity()).text
        await place.backends.conversations.note_first_log(before)
        place.cluster.topic.recreate()
        await place.chat.say(key, "v")
        await start_is_dirty(place, "another log before")


async def test_a_topic_re_created_under_a_running_reader_is_refused_within_an_interval() -> None:
    """F06: the consumer refuses within one gate interval, with nothing of the new log applied."""
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.chat.say(key, "v")
        await place.runtime.advance(11)
        place.cluster.topic.recreate(silently=True)
        for _ in range(9):
            await place.chat.say(key, "v")
        await place.runtime.advance(11)
        assert place.dirty()
        assert (await place.refusal()).code is ErrorCode.SESSION_PROJECTION_DIRTY
        stored = place.cluster.projection.partitions[0]
        assert stored.rows[user("u")][key].unread == 1


async def test_a_topic_re_created_at_the_very_position_is_refused_though_nothing_comes() -> None:
    """F06: no record tells of it, the identity that is asked again does."""
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.runtime.advance(11)
        place.cluster.topic.recreate(silently=True)
        await place.chat.say(key, "v")
        await place.runtime.advance(11)
        assert "identity" in place.dirty()


async def test_a_topic_re_created_between_inspection_and_readiness_is_refused() -> None:
    """Identity is read again at readiness; a change refuses before anything is answered."""
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.settle()
        place.cluster.faults.delay(5.0, "open_reader")
        await place.restart()
        place.cluster.topic.recreate(silently=True)
        await place.chat.say(key, "v")
        await place.runtime.advance(5.0)
        assert "identity" in place.dirty()


async def test_a_gap_between_checkpoint_and_log_is_refused() -> None:
    """F09: a checkpoint below the low watermark is dirty; it never jumps to what is there."""
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.settle()
        await place.stop()
        for _ in range(3):
            await place.chat.say(key, "v")
        place.cluster.topic.enforce_retention(place.runtime.wall_ms() + 30 * 24 * 3_600_000)
        await start_is_dirty(place, "outside")


async def test_a_missing_checkpoint_is_refused_once_the_log_has_lost_its_beginning() -> None:
    async with world(partitions=1, serve=False) as place:
        await place.chat.create("c", "u", "v")
        place.cluster.topic.enforce_retention(place.runtime.wall_ms() + 30 * 24 * 3_600_000)
        await start_is_dirty(place, "no checkpoint")


@pytest.mark.parametrize("retention_ms", [None, -1, WINDOW_MS - 1])
async def test_a_retention_that_can_t_cover_the_window_is_refused(retention_ms: int | None) -> None:
    async with world(partitions=1, serve=False) as place:
        place.cluster.topic.settings = LogSettings(retention_ms, None)
        await start_is_dirty(place, "retention")


async def test_another_partition_count_is_refused() -> None:
    async with world(partitions=2, serve=False) as place:
        place.cluster.topic.recreate(partitions=4)
        await start_is_dirty(place, "partitions")


async def test_a_missing_topic_is_refused() -> None:
    async with world(partitions=1, serve=False) as place:
        place.cluster.topic.delete()
        await start_is_dirty(place, "missing")


async def test_a_hole_in_the_log_halts_instead_of_being_jumped() -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.settle()
        await place.stop()
        for _ in range(3):
            await place.chat.say(key, "v")
        del place.cluster.topic.partition(0).records[2]
        await place.restart()
        assert "offset 2 is missing" in place.dirty()
        assert place.cluster.projection.partitions[0].rows[user("u")][key].applied_seq == 2


async def test_what_can_t_be_decoded_is_quarantined_before_it_is_passed() -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.settle()
        rule = place.cluster.faults.refuse("quarantine", times=None)
        await place.chat.produce(ProduceRecord(0, b"\xff\xff junk"))
        await place.chat.say(key, "v")
        await place.runtime.advance(5)
        assert await place.unread("u") == {"c": 0}
        assert place.value("quarantined_total", {"stage": "session"}) == 0
        rule.stop()
        await place.runtime.advance(6)
        assert await place.unread("u") == {"c": 1}
        (kept,) = await place.backends.quarantine.quarantined(10)
        assert (kept.partition, kept.offset, kept.value) == (0, 1, b"\xff\xff junk")
        assert place.value("quarantined_total", {"stage": "session"}) == 1


async def test_a_record_for_a_newer_reader_halts_and_is_not_quarantined() -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        event = await place.chat.say(key, "v")
        await place.settle()
        (record,) = place.chat.records(event, place.chat.members[key])
        # Field 17, min_reader_version, raised from 1 to 2.
        newer = record.value.replace(b"\x88\x01\x01", b"\x88\x01\x02")
        assert newer != record.value
        await place.chat.produce(ProduceRecord(0, newer))
        await place.settle()
        assert "reader" in place.dirty()
        assert not await place.backends.quarantine.quarantined(10)


async def test_a_record_in_the_wrong_partition_halts() -> None:
    async with world(partitions=2) as place:
        key = await place.chat.create("c", "u", "v")
        event = await place.chat.say(key, "v")
        (record, *_) = place.chat.records(event, place.chat.members[key])
        await place.chat.produce(replace(record, partition=1 - record.partition))
        await place.settle()
        assert "mailbox shard" in place.dirty()


async def test_copies_of_two_owners_are_counted_once_whoever_projects_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An owner that was replaced dispatches on for a while, and the projection moves meanwhile."""
    async with world(partitions=1) as place:
        chat = place.chat
        key = await chat.create("c", "u", "v")

        async def nothing(*records: ProduceRecord) -> None:
            return None

        monkeypatch.setattr(chat, "produce", nothing)
        first, second, third = [await chat.say(key, "v") for _ in range(3)]
        monkeypatch.undo()
        old = chat.epoch
        await chat.start()
        new = chat.epoch

        async def dispatch(epoch: int, *events: Event) -> None:
            for event in events:
                records = chat.records(event, chat.members[key], fencing_epoch=epoch)
                await chat.produce(*records)
            await place.settle()

        await dispatch(new, first)
        await dispatch(old, first, second)
        await place.restart()
        await dispatch(old, third)
        await dispatch(new, second, third)
        assert await place.unread("u") == {"c": 3}


async def test_another_owner_s_term_makes_it_step_down_and_not_dirty() -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.settle()
        checkpoint = await place.backends.projection.checkpoint(0)
        assert checkpoint is not None
        await place.backends.projection.open_partition(0, place.epoch + 7, checkpoint)
        await place.chat.say(key, "v")
        await place.settle()
        assert place.terms[0].ended
        assert (await place.refusal()).code is ErrorCode.NOT_OWNER
        assert not place.dirty()


async def test_an_owner_that_slept_through_its_succession_is_not_dirty() -> None:
    """It read the log's end, stopped, and finds its successor's checkpoint beyond that end."""
    async with world(partitions=1, serve=False) as place:
        key = await place.chat.create("c", "u", "v")
        slow = FaultPlan(place.runtime)
        sleeper = make_service(
            place.cluster.open(place.runtime, slow), place.table, place.runtime, Metrics()
        )
        # The second look is the one that proves readiness.
        asleep = slow.delay(5.0, "checkpoint", skip=1)
        term = Term(0, place.epoch, "sleeper", TERM_S, place.runtime.monotonic_s())
        place.tasks.append(place.runtime.spawn(sleeper.serve(term), "sleeper"))
        await place.settle()
        assert asleep.hits == 1
        place.epoch += 1
        place.serve()
        await place.chat.say(key, "v")
        await place.settle()
        assert await place.unread("u") == {"c": 1}
        await place.runtime.advance(6.0)
        await place.chat.say(key, "v")
        await place.runtime.advance(1.0)
        assert [status.dirty for status in sleeper.describe() if status.dirty] == []
        assert term.ended
        assert await place.unread("u") == {"c": 2}


async def test_nothing_is_written_once_the_term_may_not_write() -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.settle()
        place.terms[0].self_fence_deadline_s = 0
        await place.chat.say(key, "v")
        await place.runtime.advance(2)
        assert place.cluster.projection.partitions[0].rows[user("u")][key].unread == 0
        assert place.terms[0].ended


async def test_the_drift_sampler_sees_a_count_that_is_wrong() -> None:
    """A detector that fires: a row whose unread was falsified raises the ratio above 0."""
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.chat.say(key, "v")
        await place.runtime.advance(UNREAD_DRIFT_SAMPLE_INTERVAL_S + 1)
        assert place.value("unread_drift_ratio") == 0
        rows = place.cluster.projection.partitions[0].rows
        for name in ("u", "v"):
            row = rows[user(name)][key]
            rows[user(name)][key] = replace(row, unread=row.unread + 5)
        await place.runtime.advance(UNREAD_DRIFT_SAMPLE_INTERVAL_S)
        assert place.value("unread_drift_ratio") == pytest.approx(0.5)


async def test_a_row_that_moves_while_it_is_recounted_is_no_drift() -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.chat.say(key, "v")
        await place.runtime.advance(UNREAD_DRIFT_SAMPLE_INTERVAL_S - 1)
        place.cluster.faults.delay(2.0, "count_unread", times=None)
        await place.runtime.advance(2)
        await place.chat.say(key, "v")
        await place.runtime.advance(30)
        assert await place.unread("u") == {"c": 2}
        assert place.value("unread_drift_ratio") == 0
