"""The way out of dirty: rows recounted from the store, whatever the log lost."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from tests.contract.builders import event
from tests.unit.session.world import World, make_service, user, world

from qimd.adapters.memory.projection import MemoryProjectionStore
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import UserId
from qimd.core.outcome import Applied, Outcome, Refusal
from qimd.core.records import ConversationKey, EventKind, SessionItem, UserKey
from qimd.ports.projection import RestoreStep, SessionRow
from qimd.ports.runtime import Task
from qimd.ports.services import RebuildPlan
from qimd.ports.store import key_of
from qimd.session import rebuild as rebuild_module
from qimd.session.recount import Recount

NAMES = ("u", "v", "w", "x")
MONTH_MS = 30 * 24 * 3_600_000


@dataclass
class Operator:
    """Somebody who asks for a rebuild, and what they are answered."""

    task: Task
    answers: list[RebuildPlan | QimError]

    @classmethod
    def asks(cls, place: World, partition: int = 0, *, dry_run: bool = False) -> "Operator":
        answers: list[RebuildPlan | QimError] = []

        async def ask() -> None:
            try:
                answers.append(await place.service.rebuild(partition, dry_run=dry_run))
            except QimError as error:
                answers.append(error)

        return cls(place.runtime.spawn(ask(), "an operator"), answers)

    @property
    def answer(self) -> RebuildPlan | QimError:
        [answer] = self.answers
        return answer


async def asked(place: World, partition: int = 0, *, dry_run: bool = False) -> RebuildPlan:
    """Ask for a rebuild, and let it be done."""
    operator = Operator.asks(place, partition, dry_run=dry_run)
    await place.runtime.until(operator.task.done, 60.0)
    if isinstance(operator.answer, QimError):
        raise operator.answer
    await place.settle()
    return operator.answer


def refused(operator: Operator) -> ErrorCode:
    assert isinstance(operator.answer, QimError)
    return operator.answer.code


async def recomputed(place: World, name: str) -> list[SessionRow]:
    """The user's rows as the store and the read marks say they must be, by the plainest way."""
    rows: list[SessionRow] = []
    for key, events in place.chat.events.items():
        intervals = await place.backends.conversations.intervals(key, UserId(name))
        seen = [e for e in events if any(one.sees(e.conversation_seq) for one in intervals)]
        if not seen:
            continue
        mark = place.cluster.projection.read_marks.get((user(name), key), 0)
        unread = sum(
            one.kind == EventKind.MESSAGE and one.sender != name and one.conversation_seq > mark
            for one in seen
        )
        last = seen[-1]
        rows.append(SessionRow(key, last.created_at_ms, last.conversation_seq, unread, mark))
    return sorted(rows, key=lambda row: (row.activity_ms, row.key.conversation), reverse=True)


async def shown(place: World, name: str) -> Sequence[SessionRow]:
    return await place.backends.projection.rows(user(name), None, 100)


async def equals_a_recomputation(place: World) -> None:
    for name in NAMES:
        assert list(await shown(place, name)) == await recomputed(place, name), name
        items: list[SessionItem] = await place.list_all(name)
        assert all(item.last_event is not None for item in items)


async def lose_the_log(place: World) -> ConversationKey:
    """Some is projected and marked as read, more is committed, and then the topic is made anew."""
    key = await place.chat.create("c", "u", "v")
    await place.chat.say(key, "v")
    await place.chat.say(key, "v")
    await place.settle()
    await place.service.mark_read(user("u"), key, 2)
    await place.stop()
    await place.chat.say(key, "v")
    await place.chat.say(key, "u")
    await place.chat.change(key, added=["w"])
    await place.chat.say(key, "v")
    place.cluster.topic.recreate()
    await place.restart()
    assert "another log" in place.dirty()
    return key


async def test_a_log_made_anew_is_left_behind_and_read_marks_are_kept() -> None:
    async with world(partitions=1) as place:
        key = await lose_the_log(place)
        assert (await place.refusal()).code is ErrorCode.SESSION_PROJECTION_DIRTY
        plan = await asked(place)
        assert (plan.conversations, plan.events, plan.rows, plan.next_offset) == (1, 7, 3, 0)
        assert "another log" in plan.dirty
        assert not place.dirty()
        assert place.value("shard_halted", {"kind": "session", "shard": "0"}) == 0
        await equals_a_recomputation(place)
        assert [(item.read_through, item.unread) for item in await place.list_all("u")] == [(2, 3)]
        await place.chat.say(key, "v")
        await place.settle()
        await equals_a_recomputation(place)
        assert await place.unread("u") == {"c": 4}
        await place.restart()
        assert not place.dirty()
        await equals_a_recomputation(place)


async def test_a_log_that_no_longer_covers_the_checkpoint_is_read_on_from_its_end() -> None:
    async with world(partitions=1) as place:
        key = await place.chat.create("c", "u", "v")
        await place.settle()
        await place.stop()
        for _ in range(3):
            await place.chat.say(key, "v")
        place.cluster.topic.enforce_retention(place.runtime.wall_ms() + MONTH_MS)
        await place.restart()
        assert "outside" in place.dirty()
        assert (await asked(place)).next_offset == 4
        await place.chat.say(key, "v")
        await place.settle()
        assert await place.unread("u") == {"c": 4}
        await equals_a_recomputation(place)


async def test_a_projection_that_never_had_a_checkpoint_begins_at_the_log_s_end() -> None:
    async with world(partitions=1, serve=False) as place:
        await place.chat.create("c", "u", "v")
        place.cluster.topic.enforce_retention(place.runtime.wall_ms() + MONTH_MS)
        place.serve()
        await place.settle()
        assert "no checkpoint" in place.dirty()
        rule = place.cluster.faults.refuse("restore", refusal=Refusal.NO_SPACE, times=None)
        operator = Operator.asks(place)
        await place.runtime.advance(1)
        assert rule.hits
        await place.stop()
        await place.runtime.until(operator.task.done)
        assert refused(operator) is ErrorCode.NOT_OWNER
        rule.stop()
        # Cut short, it must not pass for a projection that has begun.
        await place.restart()
        assert place.dirty()
        await asked(place)
        await equals_a_recomputation(place)


async def test_a_rebuild_that_is_cut_short_leaves_it_dirty_and_may_be_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rebuild_module, "ROWS_MAX", 1)
    async with world(partitions=1) as place:
        await lose_the_log(place)
        for op in ("restore", "reset_checkpoint"):
            skip = 1 if op == "restore" else 0
            rule = place.cluster.faults.refuse(op, skip=skip, times=None)
            operator = Operator.asks(place)
            await place.runtime.advance(1)
            assert rule.hits
            await place.stop()
            await place.runtime.until(operator.task.done)
            assert refused(operator) is ErrorCode.NOT_OWNER
            rule.stop()
            await place.restart()
            assert "another log" in place.dirty()
            assert (await place.refusal()).code is ErrorCode.SESSION_PROJECTION_DIRTY
        await asked(place)
        await equals_a_recomputation(place)


async def test_a_store_that_starts_anew_amid_a_rebuild_leaves_it_dirty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that the restart took back would be missing below the checkpoint that moves last."""
    monkeypatch.setattr(rebuild_module, "ROWS_MAX", 1)
    async with world(partitions=1) as place:
        await lose_the_log(place)
        place.cluster.sync()
        rule = place.cluster.faults.refuse("restore", skip=2, times=None)
        operator = Operator.asks(place)
        await place.runtime.advance(1)
        assert rule.hits
        place.cluster.lose_tail()
        rule.stop()
        await place.runtime.until(operator.task.done, 60.0)
        assert refused(operator) is ErrorCode.UNAVAILABLE
        assert "another log" in place.dirty()
        await asked(place)
        await equals_a_recomputation(place)


@pytest.mark.parametrize("op", ["open_partition", "restore", "reset_checkpoint"])
async def test_a_lost_reply_or_a_late_landing_changes_nothing(op: str) -> None:
    async with world(partitions=1) as place:
        key = await lose_the_log(place)
        lost = place.cluster.faults.lose_reply(op)
        late = place.cluster.faults.land_late(op)
        await asked(place)
        assert (lost.hits, late.hits) == (1, 1)
        await place.chat.say(key, "v")
        await place.settle()
        rows = [await shown(place, name) for name in NAMES]
        checkpoint = await place.backends.projection.checkpoint(0)
        assert late.land() == 1
        assert [await shown(place, name) for name in NAMES] == rows
        assert await place.backends.projection.checkpoint(0) == checkpoint
        await place.chat.say(key, "v")
        await place.settle()
        assert not place.dirty()
        await equals_a_recomputation(place)


async def test_what_is_sent_during_a_rebuild_is_counted_once() -> None:
    async with world(partitions=1) as place:
        key = await lose_the_log(place)
        for op in ("conversation_page", "outbox", "read_marks", "restore", "reset_checkpoint"):
            place.cluster.faults.delay(1.0, op, times=None)
        operator = Operator.asks(place)
        sent = 0
        while not operator.task.done():
            await place.chat.say(key, "v")
            sent += 1
            if sent == 3:
                # A conversation that its page has passed, or not.
                other = await place.chat.create("a new one", "u", "x")
                await place.chat.say(other, "x")
            await place.runtime.advance(0.5)
        assert sent > 6
        place.cluster.faults.heal()
        await place.settle()
        assert not place.dirty()
        await equals_a_recomputation(place)
        assert await place.unread("u") == {"a new one": 1, "c": 3 + sent}


class MarksBehindTheReader(MemoryProjectionStore):
    """A read mark lands between the read of the marks and the rows that were counted from them."""

    marked: tuple[UserKey, ConversationKey, int] | None = None

    async def restore(self, step: RestoreStep) -> Outcome[Sequence[int]]:
        if self.marked is not None:
            (owner, key, through), self.marked = self.marked, None
            row = await self.row(owner, key)
            assert row is not None
            outcome = await self.mark_read(owner, key, through, row.applied_seq, 0)
            assert isinstance(outcome, Applied)
        return await super().restore(step)


async def test_a_mark_that_lands_late_is_counted_from() -> None:
    async with world(partitions=1) as place:
        key = await lose_the_log(place)
        await place.stop()
        projection = MarksBehindTheReader(place.cluster.projection, place.backends.wire)
        projection.marked = (user("u"), key, 3)
        place.backends = replace(place.backends, projection=projection)
        place.service = make_service(place.backends, place.table, place.runtime, place.metrics)
        place.epoch += 1
        place.serve()
        await place.settle()
        await asked(place)
        assert [(item.read_through, item.unread) for item in await place.list_all("u")] == [(3, 2)]
        await equals_a_recomputation(place)


async def test_a_dry_run_tells_and_changes_nothing() -> None:
    async with world(partitions=1) as place:
        await lose_the_log(place)
        before = place.cluster.projection.copied()
        plan = await asked(place, dry_run=True)
        assert (plan.conversations, plan.events, plan.rows) == (1, 7, 0)
        assert plan.log_identity == place.cluster.topic.identity().text
        assert place.cluster.projection.partitions == before.partitions
        assert "another log" in place.dirty()


async def test_only_a_dirty_partition_of_this_process_is_rebuilt() -> None:
    async with world(partitions=1) as place:
        for partition, code in ((0, ErrorCode.INVALID_ARGUMENT), (1, ErrorCode.NOT_OWNER)):
            operator = Operator.asks(place, partition)
            await place.runtime.until(operator.task.done)
            assert refused(operator) is code


async def test_who_asks_while_it_is_rebuilt_is_told_that_there_is_nothing_left() -> None:
    async with world(partitions=1) as place:
        await lose_the_log(place)
        first, second = Operator.asks(place), Operator.asks(place)
        await place.runtime.until(second.task.done, 60.0)
        assert isinstance(first.answer, RebuildPlan)
        assert refused(second) is ErrorCode.INVALID_ARGUMENT
        await place.settle()
        assert not place.dirty()
        await equals_a_recomputation(place)


async def test_a_log_that_can_t_be_used_is_no_ground_for_a_rebuild() -> None:
    async with world(partitions=1) as place:
        await lose_the_log(place)
        place.cluster.topic.delete()
        for dry_run in (True, False):
            with pytest.raises(QimError, match="the log can't be used") as refusal:
                await asked(place, dry_run=dry_run)
            assert refusal.value.code is ErrorCode.UNAVAILABLE
        place.cluster.topic.recreate()
        rule = place.cluster.faults.delay(5.0, "restore")
        operator = Operator.asks(place)
        await place.runtime.until(lambda: bool(rule.hits))
        place.cluster.topic.recreate(silently=True)
        await place.runtime.until(operator.task.done, 60.0)
        assert refused(operator) is ErrorCode.UNAVAILABLE
        assert place.dirty()


async def test_each_partition_is_rebuilt_by_itself() -> None:
    async with world(partitions=2) as place:
        names = [f"user {number}" for number in range(40)]
        key = await place.chat.create("c", *names)
        await place.settle()
        await place.stop()
        await place.chat.say(key, names[0])
        place.cluster.topic.recreate()
        await place.restart()
        first = await asked(place, 0)
        assert (await place.refusal(names[0])).code is ErrorCode.SESSION_PROJECTION_DIRTY
        second = await asked(place, 1)
        assert first.rows + second.rows == len(names)
        assert min(first.rows, second.rows) > 0
        unread = [await place.unread(name) for name in names]
        assert unread == [{"c": 0}] + [{"c": 1}] * 39


@pytest.mark.parametrize("seed", range(8))
async def test_any_history_is_rebuilt_as_a_plain_recomputation_gives_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild_module, "ROWS_MAX", 3)
    monkeypatch.setattr(rebuild_module, "EVENTS_MAX", 4)
    monkeypatch.setattr(rebuild_module, "CONVERSATIONS_MAX", 2)
    chance = random.Random(seed)
    async with world(partitions=1) as place:
        for number in range(5):
            await talk(place, chance, f"conversation {number}")
        await place.settle()
        for name in NAMES:
            for item in await place.list_all(name):
                through = chance.randrange(len(place.chat.events[item.key]) + 1)
                await place.service.mark_read(user(name), item.key, through)
        await place.stop()
        for key in place.chat.events:
            await go_on(place, chance, key, chance.randrange(8))
        place.cluster.topic.recreate()
        await place.restart()
        await asked(place)
        await equals_a_recomputation(place)
        for key in place.chat.events:
            await go_on(place, chance, key, 3)
        await place.settle()
        assert not place.dirty()
        # From here on own messages move the marks, as the projection has it: unread says the same.
        for name in NAMES:
            rows = await recomputed(place, name)
            assert list(await shown(place, name)) == rows


async def talk(place: World, chance: random.Random, conversation: str) -> None:
    first = chance.sample(NAMES, chance.randint(1, len(NAMES)))
    key = await place.chat.create(conversation, *first)
    await go_on(place, chance, key, chance.randrange(12))


async def go_on(place: World, chance: random.Random, key: ConversationKey, events: int) -> None:
    for _ in range(events):
        members = place.chat.members[key]
        outside = [name for name in NAMES if name not in members]
        match chance.randrange(4):
            case 0 if outside:
                await place.chat.change(key, added=chance.sample(outside, 1))
            case 1 if len(members) > 1:
                await place.chat.change(key, removed=chance.sample(members, 1))
            case 2:
                await place.chat.react(key, chance.choice(members), 1)
            case _:
                await place.chat.say(key, chance.choice(members))
        await place.runtime.advance(0.01)


def test_a_recount_takes_no_event_out_of_order() -> None:
    key = key_of("acme", "c")
    recount = Recount(key, lambda _user: True)
    with pytest.raises(ValueError, match="does not follow"):
        recount.take(event(2, key))
