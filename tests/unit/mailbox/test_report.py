"""What clients report: true ones are proved from the store, false ones count nothing."""

from dataclasses import replace

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.mailbox.world import ACME, Serving, World, user_in_lane

from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import UserId
from qimd.core.outcome import Outcome
from qimd.core.records import ConversationKey, UserKey
from qimd.core.seq import MailboxSeq
from qimd.mailbox.report import DISORDER, DOUBLE, GAP
from qimd.ports.mailbox import ApplyStep, Entry, RecordVerdict
from qimd.ports.services import GapReport


class Lossy:
    """A mailbox store that skips what it claims to have written, or answers reads otherwise."""

    def __init__(self, store: object) -> None:
        self._store = store
        self.skipped: list[bytes] = []
        self.shown: list[Entry] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def apply(self, step: ApplyStep) -> Outcome[list[RecordVerdict]]:
        kept = [record for record in step.records if record.ref.event_id not in self.skipped]
        outcome = await self._store.apply(replace(step, records=kept))  # type: ignore[attr-defined]
        verdicts = list(getattr(outcome, "value", []))
        full = [
            verdicts.pop(0) if record in kept else RecordVerdict(0, 0) for record in step.records
        ]
        return replace(outcome, value=full) if hasattr(outcome, "value") else outcome

    async def entries(self, *args: object) -> list[Entry]:
        found = await self._store.entries(*args)  # type: ignore[attr-defined]
        return sorted([*found, *self.shown], key=lambda entry: entry.seq)

    async def entry_seqs(self, *args: object) -> dict[int, MailboxSeq]:
        found = dict(await self._store.entry_seqs(*args))  # type: ignore[attr-defined]
        for entry in self.shown:
            found[entry.ref.conversation_seq] = entry.seq
        return found


def lossy(world: World) -> Lossy:
    store = Lossy(world.backends.mailbox)
    world.backends = replace(world.backends, mailbox=store)
    world.service = world.new_service()
    return store


async def reported(
    world: World,
    user: UserId,
    key: ConversationKey,
    covered: int,
    first: int,
    last: int,
    kind: int = GAP,
) -> bool:
    answers: list[bool | QimError] = []

    async def ask() -> None:
        report = GapReport(kind, key, first, last, MailboxSeq(covered))
        try:
            answers.append(await world.service.report(UserKey(ACME, user), report))
        except QimError as error:
            answers.append(error)

    world.runtime.spawn(ask(), "report")
    await world.runtime.until(lambda: bool(answers), 60)
    if isinstance(answers[0], QimError):
        raise answers[0]
    return answers[0]


async def with_a_hole(world: World, member: UserId, hole: int, serving: Serving) -> ConversationKey:
    """Five messages, of which the store skipped one."""
    store = world.backends.mailbox
    assert isinstance(store, Lossy)
    key, _ = await world.chat("c", [member], 0)
    events = [await world.send(key, str(n), member) for n in range(5)]
    store.skipped = [event.event_id for event in events if event.conversation_seq == hole]
    await world.dispatch(*events)
    await serving.reads()
    return key


@pytest.mark.parametrize("hole", [3, 6])
async def test_a_true_gap_below_covered_through_is_found_and_counted(hole: int) -> None:
    """covered_through_unmaterialized_total: W passed an event that was not materialised, in the
    middle of a conversation or at its end.
    """
    async with ManualRuntime() as runtime:
        world = World(runtime)
        lossy(world)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key = await with_a_hole(world, member, hole, serving)
            assert world.zero("covered_through_unmaterialized_total") == 0
            assert await reported(world, member, key, serving.w(member), hole, hole)
            assert world.zero("covered_through_unmaterialized_total") == 1
            assert world.counted("reports_total", kind="gap", confirmed="true") == 1


async def test_an_event_that_came_behind_a_later_one_is_a_true_gap() -> None:
    """covered_through_unmaterialized_total: it is in the mailbox, above a covered_through that
    already shows what came after it in the conversation.
    """
    async with ManualRuntime() as runtime:
        world = World(runtime)
        store = lossy(world)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, events = await world.chat("c", [member], 3)
            await serving.reads()
            covered = serving.w(member)
            await world.dispatch(await world.send(key, "next", member))
            await serving.reads()
            found = await store.entries(UserKey(ACME, member), 0, serving.w(member), 10)
            [third] = [one for one in found if one.ref.event_id == events[1].event_id]
            assert not await reported(world, member, key, covered, 3, 3)
            store.shown = [replace(third, seq=MailboxSeq(serving.w(member)))]
            assert await reported(world, member, key, covered, 3, 3)
            assert world.zero("covered_through_unmaterialized_total") == 1


async def test_a_false_gap_counts_nothing_whatever_the_client_says() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member, stranger = (user_in_lane(world.table, lane) for lane in (3, 7))
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 3)
            await serving.reads()
            w = serving.w(member)
            assert not await reported(world, member, key, w, 1, 4)
            # Beyond W nothing was promised.
            assert not await reported(world, member, key, w + 256, 1, 4)
            # Not a recipient; no such event; no such conversation.
            assert not await reported(world, stranger, key, w, 2, 2)
            assert not await reported(world, member, key, w, 500, 510)
            other = replace(key, conversation=type(key.conversation)("nowhere"))
            assert not await reported(world, member, other, w, 1, 3)
            # Committed, and not dispatched yet; then dispatched, above what the page covered.
            event = await world.send(key, "new", member)
            assert not await reported(world, member, key, w, 5, 5)
            await world.dispatch(event)
            assert not await reported(world, member, key, w, 5, 5)
            assert world.zero("covered_through_unmaterialized_total") == 0
            assert world.counted("reports_total", kind="gap", confirmed="false") == 7


async def test_what_a_lagging_lane_has_not_got_yet_is_no_gap() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        slow, other = user_in_lane(world.table, 3), user_in_lane(world.table, 7)
        async with world.serving() as serving:
            key, events = await world.chat("c", [slow, other], 2)
            world.cluster.faults.reject(
                "apply",
                lambda step: any(
                    record.ref.event_id == events[0].event_id
                    and any(block.lane == 3 for block in record.blocks)
                    for record in step.records  # type: ignore[attr-defined]
                ),
            )
            await serving.reads()
            assert not await reported(world, slow, key, serving.w(slow), 2, 3)
            assert world.zero("covered_through_unmaterialized_total") == 0


async def test_doubles_and_disorder_are_judged_from_the_entries() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        store = lossy(world)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 3)
            await serving.reads()
            w = serving.w(member)
            for kind in (DOUBLE, DISORDER):
                assert not await reported(world, member, key, w, 1, 4, kind)
            first = (await store.entries(UserKey(ACME, member), 0, w, 10))[0]
            store.shown = [replace(first, seq=MailboxSeq(w))]
            for kind in (DOUBLE, DISORDER):
                assert await reported(world, member, key, w, 1, 4, kind)


@pytest.mark.parametrize(
    ("kind", "first", "last", "field"),
    [
        (0, 1, 1, "kind"),
        (4, 1, 1, "kind"),
        (GAP, 0, 1, "from_seq"),
        (GAP, 2, 1, "from_seq"),
        (GAP, 1, 1001, "through_seq"),
    ],
)
async def test_a_report_outside_its_limits_is_refused_by_name(
    kind: int, first: int, last: int, field: str
) -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving():
            key = await world.conversation("c", [member])
            with pytest.raises(QimError) as error:
                await reported(world, member, key, 0, first, last, kind)
            assert (error.value.code, error.value.field) == (ErrorCode.INVALID_ARGUMENT, field)


async def test_what_went_to_a_log_that_nobody_reads_yet_was_not_passed() -> None:
    """The shard stands beyond the end of a log that was made anew, and has passed nothing of it."""
    async with ManualRuntime() as runtime:
        world = World(runtime)
        member = user_in_lane(world.table, 3)
        async with world.serving() as serving:
            key, _ = await world.chat("c", [member], 4)
            await serving.reads()
            world.cluster.topic.recreate(silently=True)
            newest = await world.send(key, "to the new log", member)
            await world.dispatch(newest)
            number = newest.conversation_seq
            assert not await reported(world, member, key, serving.w(member), number, number)
            assert world.zero("covered_through_unmaterialized_total") == 0
