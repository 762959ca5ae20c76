"""`ports.projection.ProjectionStore`, sentence by sentence, and against a plain recomputation."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import engines
from tests.contract.builders import (
    ANNA,
    BEN,
    CARL,
    ODD_IDS,
    RIVAL,
    START_MS,
    ids,
    key,
    refused,
    user,
    value,
)
from tests.contract.engines import Engine, opened

from qimd.core.ids import UserId
from qimd.core.outcome import Refusal
from qimd.core.records import ConversationKey, EventKind, UserKey
from qimd.ports.projection import (
    FORMAT_VERSION,
    CheckpointMeta,
    PagePosition,
    PartitionCheckpoint,
    ProjectedEvent,
    ProjectionGroup,
    ProjectionStore,
    ProjectStep,
    RestoredRow,
    RestoreStep,
    SessionRow,
)

ENGINES = ("memory", "sqlite", "redis")
HERE = [name for name in ENGINES if name not in engines.ENGINES or engines.address(name)]

META = CheckpointMeta(FORMAT_VERSION, "qim.dispatch", 4, "cluster", "topic")
INITIAL = PartitionCheckpoint(META, 0)
TERM = 1_700_000_000


def said(
    seq: int, sender: UserId | None = BEN, kind: int = EventKind.MESSAGE, at_ms: int = 0
) -> ProjectedEvent:
    return ProjectedEvent(seq, kind, sender, at_ms or START_MS + seq)


def group(
    *events: ProjectedEvent,
    users: Sequence[str] = (ANNA, BEN),
    conversation: ConversationKey | None = None,
) -> ProjectionGroup:
    return ProjectionGroup(conversation or key(), events, ids(users))


def project_step(
    expected: int, through: int, *groups: ProjectionGroup, term: int = TERM
) -> ProjectStep:
    return ProjectStep(0, term, expected, through, groups)


async def opened_store(engine: Engine) -> ProjectionStore:
    store = engine.backends.projection
    value(await store.open_partition(0, TERM, INITIAL))
    return store


async def project(store: ProjectionStore, *groups: ProjectionGroup) -> None:
    """One more step behind the last."""
    stored = await store.checkpoint(0)
    assert stored is not None
    here = stored.next_offset
    value(await store.project(project_step(here, here + len(groups), *groups)))


async def row_of(
    store: ProjectionStore, name: UserId = ANNA, of: ConversationKey | None = None
) -> SessionRow:
    row = await store.row(user(name), of or key())
    assert row is not None
    return row


# --- checkpoints ------------------------------------------------------------------------------


async def test_a_missing_checkpoint_is_none_and_opening_begins_it(engine: Engine) -> None:
    store = engine.backends.projection
    assert await store.checkpoint(0) is None
    initial = PartitionCheckpoint(META, 40)
    assert value(await store.open_partition(0, TERM, initial)) == initial
    assert await store.checkpoint(0) == initial
    assert await store.checkpoint(1) is None


async def test_opening_never_changes_a_checkpoint_that_is_there(engine: Engine) -> None:
    store = engine.backends.projection
    first = PartitionCheckpoint(META, 40)
    await store.open_partition(0, TERM, first)
    other = PartitionCheckpoint(replace(META, topic_id="another"), 7)
    for term in (TERM, TERM + 1):
        assert value(await store.open_partition(0, term, other)) == first
    assert await store.checkpoint(0) == first


async def test_an_older_term_never_opens_it(engine: Engine) -> None:
    store = await opened_store(engine)
    assert refused(await store.open_partition(0, TERM - 1, INITIAL)) is Refusal.STALE_EPOCH


async def test_a_step_moves_the_checkpoint(engine: Engine) -> None:
    store = await opened_store(engine)
    value(await store.project(project_step(0, 3, group(said(1)))))
    assert await store.checkpoint(0) == PartitionCheckpoint(META, 3)
    value(await store.project(project_step(3, 9)))
    assert await store.checkpoint(0) == PartitionCheckpoint(META, 9)


async def test_a_checkpoint_that_another_moved_refuses_the_step(engine: Engine) -> None:
    store = await opened_store(engine)
    value(await store.project(project_step(0, 3, group(said(1)))))
    before = await row_of(store)
    for expected in (0, 2, 4):
        late = await store.project(project_step(expected, 9, group(said(2))))
        assert refused(late) is Refusal.HEAD_MOVED
    assert await store.checkpoint(0) == PartitionCheckpoint(META, 3)
    assert await row_of(store) == before


async def test_a_step_that_was_applied_is_known_by_its_checkpoint(engine: Engine) -> None:
    """After a lost reply: repeated it is a moved head, and the checkpoint is where it ends."""
    store = await opened_store(engine)
    step = project_step(0, 3, group(said(1)))
    value(await store.project(step))
    assert refused(await store.project(step)) is Refusal.HEAD_MOVED
    assert await store.checkpoint(0) == PartitionCheckpoint(META, step.next_offset)
    assert (await row_of(store)).unread == 1


async def test_another_term_refuses_the_step(engine: Engine) -> None:
    store = await opened_store(engine)
    await store.open_partition(0, TERM + 5, INITIAL)
    for term in (TERM, TERM + 6):
        late = await store.project(project_step(0, 1, group(said(1)), term=term))
        assert refused(late) is Refusal.STALE_EPOCH
    assert await store.row(user(), key()) is None
    assert await store.checkpoint(0) == INITIAL


# --- rows -------------------------------------------------------------------------------------


async def test_others_messages_are_unread_and_own_ones_are_read(engine: Engine) -> None:
    """SES-01: unread = 0 for the sender on all devices, 3 for the other member."""
    store = await opened_store(engine)
    await project(store, group(said(1, ANNA), said(2, ANNA)), group(said(3, ANNA)))
    assert await row_of(store, ANNA) == SessionRow(key(), START_MS + 3, 3, 0, 3)
    assert await row_of(store, BEN) == SessionRow(key(), START_MS + 3, 3, 3, 0)


async def test_an_own_message_reads_nothing_that_stood_unread_before_it(engine: Engine) -> None:
    """SES-01: own 3 must not mark an earlier foreign 2 as read."""
    store = await opened_store(engine)
    await project(store, group(said(1, ANNA), said(2, BEN), said(3, ANNA)))
    assert await row_of(store, ANNA) == SessionRow(key(), START_MS + 3, 3, 1, 1)


async def test_reactions_and_memberships_never_count(engine: Engine) -> None:
    store = await opened_store(engine)
    await project(
        store,
        group(
            said(1, None, EventKind.MEMBERSHIP),
            said(2, BEN, EventKind.REACTION),
            said(3, BEN, 9),
            said(4, BEN),
        ),
    )
    assert await row_of(store, ANNA) == SessionRow(key(), START_MS + 4, 4, 1, 0)


async def test_activity_is_the_largest_time(engine: Engine) -> None:
    store = await opened_store(engine)
    await project(store, group(said(1, at_ms=500), said(2, at_ms=300)))
    assert (await row_of(store)).activity_ms == 500
    await project(store, group(said(3, at_ms=400)))
    assert (await row_of(store)).activity_ms == 500
    await project(store, group(said(4, at_ms=501)))
    assert (await row_of(store)).activity_ms == 501


async def test_a_replay_changes_nothing_whatever_its_bounds(engine: Engine) -> None:
    """SES-06: replaying the same events twice, in other batches, changes nothing."""
    store = await opened_store(engine)
    events = [said(n, (ANNA, BEN, CARL)[n % 3]) for n in range(1, 8)]
    await project(store, *(group(each) for each in events))
    before = [await row_of(store, name) for name in (ANNA, BEN)]
    await project(store, group(*events[:4]), group(*events[2:]))
    await project(store, group(*events))
    assert [await row_of(store, name) for name in (ANNA, BEN)] == before


async def test_a_batch_that_overlaps_counts_only_what_is_new_to_each_row(engine: Engine) -> None:
    store = await opened_store(engine)
    await project(store, group(said(1), said(2), users=[ANNA]))
    await project(store, group(said(1), said(2), said(3), users=[ANNA, CARL]))
    assert (await row_of(store, ANNA)).unread == 3
    assert (await row_of(store, CARL)).unread == 3


async def test_many_users_of_a_group_are_all_brought_up(engine: Engine) -> None:
    store = await opened_store(engine)
    names = [f"user-{n:04}" for n in range(1_000)]
    await project(store, group(said(1, UserId(names[7])), said(2), users=names))
    for name in names[::97]:
        assert (await row_of(store, UserId(name))).unread == 2
    sender = await row_of(store, UserId(names[7]))
    assert (sender.unread, sender.read_through) == (1, 1)


# --- read marks -------------------------------------------------------------------------------


async def test_reading_raises_the_mark_and_sets_unread(engine: Engine) -> None:
    """SES-02: the row stays listed, unread 0, same activity and order."""
    store = await opened_store(engine)
    await project(store, group(said(1), said(2), said(3)))
    read = value(await store.mark_read(user(), key(), 2, 3, 1))
    assert read == SessionRow(key(), START_MS + 3, 3, 1, 2)
    assert await row_of(store) == read
    assert value(await store.mark_read(user(), key(), 3, 3, 0)).unread == 0
    assert [row.key for row in await store.rows(user(), None, 10)] == [key()]


async def test_a_mark_only_rises_and_a_drifted_count_can_be_set(engine: Engine) -> None:
    store = await opened_store(engine)
    await project(store, group(said(1), said(2), said(3)))
    await store.mark_read(user(), key(), 2, 3, 1)
    again = value(await store.mark_read(user(), key(), 2, 3, 0))
    assert (again.read_through, again.unread) == (2, 0)
    assert await row_of(store) == again


async def test_a_count_from_a_mark_that_another_device_has_passed_is_refused(
    engine: Engine,
) -> None:
    """Two devices count, then mark: the slower one's count would bring back what was read."""
    store = await opened_store(engine)
    await project(store, group(said(1), said(2), said(3)))
    tablet = value(await store.mark_read(user(), key(), 3, 3, 0))
    assert refused(await store.mark_read(user(), key(), 2, 3, 1)) is Refusal.HEAD_MOVED
    assert await row_of(store) == tablet


async def test_a_count_that_an_event_has_overtaken_is_refused(engine: Engine) -> None:
    store = await opened_store(engine)
    await project(store, group(said(1), said(2)))
    await project(store, group(said(3)))
    before = await row_of(store)
    assert refused(await store.mark_read(user(), key(), 2, 2, 0)) is Refusal.HEAD_MOVED
    assert await row_of(store) == before


async def test_marks_are_each_users_own(engine: Engine) -> None:
    """SES-04: u.read = 5, unread = 4; peer.read = 9."""
    store = await opened_store(engine)
    await project(store, group(*(said(n, CARL) for n in range(1, 10))))
    value(await store.mark_read(user(ANNA), key(), 5, 9, 4))
    value(await store.mark_read(user(BEN), key(), 9, 9, 0))
    anna, ben = await row_of(store, ANNA), await row_of(store, BEN)
    assert (anna.read_through, anna.unread) == (5, 4)
    assert (ben.read_through, ben.unread) == (9, 0)


async def test_what_was_read_ahead_of_the_row_is_not_unread_again(engine: Engine) -> None:
    store = await opened_store(engine)
    await project(store, group(said(1)))
    await store.mark_read(user(), key(), 3, 1, 0)
    await project(store, group(said(2), said(3), said(4)))
    row = await row_of(store)
    assert (row.unread, row.read_through) == (1, 3)


async def test_nothing_is_read_in_a_row_that_is_not_there(engine: Engine) -> None:
    store = await opened_store(engine)
    assert refused(await store.mark_read(user(), key(), 1, 1, 0)) in {
        Refusal.NOT_FOUND,
        Refusal.HEAD_MOVED,
    }
    assert await store.row(user(), key()) is None


# --- a rebuild --------------------------------------------------------------------------------


def restored(
    name: UserId, seq: int, unread: int, mark: int = 0, of: str = "standup"
) -> RestoredRow:
    return RestoredRow(name, SessionRow(key(of), START_MS + seq, seq, unread, mark))


def restore_step(*rows: RestoredRow, term: int = TERM) -> RestoreStep:
    return RestoreStep(0, term, rows)


async def test_restored_rows_are_added_and_take_the_place_of_older_ones(engine: Engine) -> None:
    store = await opened_store(engine)
    await project(store, group(said(1), said(2)))
    checkpoint = await store.checkpoint(0)
    step = restore_step(restored(ANNA, 7, 3), restored(CARL, 6, 1), restored(CARL, 2, 2, of="b"))
    for _ in range(2):
        assert list(value(await store.restore(step))) == []
        assert await row_of(store, ANNA) == SessionRow(key(), START_MS + 7, 7, 3, 0)
        assert await row_of(store, CARL) == SessionRow(key(), START_MS + 6, 6, 1, 0)
        assert [row.key for row in await store.rows(user(CARL), None, 9)] == [key(), key("b")]
        assert (await row_of(store, BEN)).applied_seq == 2
    assert await store.checkpoint(0) == checkpoint


async def test_a_restored_row_mends_a_count_of_the_same_events(engine: Engine) -> None:
    store = await opened_store(engine)
    await project(store, group(said(1), said(2)))
    await store.mark_read(user(), key(), 0, 2, 9)
    value(await store.restore(restore_step(restored(ANNA, 2, 2))))
    assert (await row_of(store)).unread == 2


async def test_a_restored_row_never_takes_events_back(engine: Engine) -> None:
    """A repetition that lands late, behind what was projected since."""
    store = await opened_store(engine)
    late = restore_step(restored(ANNA, 2, 2))
    value(await store.restore(late))
    await project(store, group(said(3)))
    assert list(value(await store.restore(late))) == []
    assert await row_of(store) == SessionRow(key(), START_MS + 3, 3, 3, 0)


async def test_a_row_counted_from_another_read_mark_is_left_out_and_told(engine: Engine) -> None:
    store = await opened_store(engine)
    await project(store, group(*(said(n, CARL) for n in range(1, 6))))
    value(await store.mark_read(user(BEN), key(), 3, 5, 2))
    places = [(user(name), key()) for name in (ANNA, BEN, CARL)]
    assert list(await store.read_marks(places)) == [0, 3, 0]
    stale = restore_step(restored(ANNA, 8, 8), restored(BEN, 8, 8), restored(CARL, 8, 0, mark=1))
    assert list(value(await store.restore(stale))) == [1, 2]
    assert await row_of(store, BEN) == SessionRow(key(), START_MS + 5, 5, 2, 3)
    assert await store.row(user(CARL), key()) is None
    assert list(value(await store.restore(restore_step(restored(BEN, 8, 5, mark=3))))) == []
    assert await row_of(store, BEN) == SessionRow(key(), START_MS + 8, 8, 5, 3)
    assert list(await store.read_marks(places)) == [0, 3, 0]


async def test_read_marks_of_odd_ids_never_meet(engine: Engine) -> None:
    store = await opened_store(engine)
    groups = [group(said(1), users=[name], conversation=key(name)) for name in ODD_IDS]
    await project(store, *groups)
    for number, name in enumerate(ODD_IDS):
        value(await store.mark_read(user(name), key(name), number + 1, 1, 0))
    places = [(user(name), key(name)) for name in reversed(ODD_IDS)]
    numbers = [number + 1 for number in reversed(range(len(ODD_IDS)))]
    assert list(await store.read_marks([*places, (user(), key(ODD_IDS[0]))])) == [*numbers, 0]


async def test_another_term_restores_nothing(engine: Engine) -> None:
    store = engine.backends.projection
    step = restore_step(restored(ANNA, 1, 1))
    assert refused(await store.restore(step)) is Refusal.NOT_FOUND
    value(await store.open_partition(0, TERM + 1, INITIAL))
    assert refused(await store.restore(step)) is Refusal.STALE_EPOCH
    assert await store.row(user(), key()) is None


async def test_a_checkpoint_is_reset_from_the_one_that_is_expected_alone(engine: Engine) -> None:
    store = engine.backends.projection
    wanted = PartitionCheckpoint(replace(META, topic_id="another"), 3)
    assert refused(await store.reset_checkpoint(0, TERM, INITIAL, wanted)) is Refusal.NOT_FOUND
    value(await store.open_partition(0, TERM, PartitionCheckpoint(META, 9)))
    for expected, term, refusal in (
        (PartitionCheckpoint(META, 8), TERM, Refusal.HEAD_MOVED),
        (PartitionCheckpoint(wanted.meta, 9), TERM, Refusal.HEAD_MOVED),
        (PartitionCheckpoint(META, 9), TERM + 1, Refusal.STALE_EPOCH),
    ):
        assert refused(await store.reset_checkpoint(0, term, expected, wanted)) is refusal
    for _ in range(2):
        value(await store.reset_checkpoint(0, TERM, PartitionCheckpoint(META, 9), wanted))
        assert await store.checkpoint(0) == wanted
    # What lands late, behind a step from there, takes nothing back.
    value(await store.project(project_step(3, 5, group(said(1)))))
    late = await store.reset_checkpoint(0, TERM, PartitionCheckpoint(META, 9), wanted)
    assert refused(late) is Refusal.HEAD_MOVED
    assert await store.checkpoint(0) == PartitionCheckpoint(wanted.meta, 5)


# --- lists ------------------------------------------------------------------------------------


async def test_a_list_is_by_activity_then_conversation_the_largest_first(engine: Engine) -> None:
    store = await opened_store(engine)
    times = {"a": 300, "b": 500, "z": 400, "é": 400, "🦜": 400, "c": 100}
    for name, at_ms in times.items():
        await project(store, group(said(1, at_ms=at_ms), conversation=key(name)))
    names = [row.key.conversation for row in await store.rows(user(), None, 10)]
    assert names == ["b", "🦜", "é", "z", "a", "c"]
    paged: list[str] = []
    below: PagePosition | None = None
    while page := await store.rows(user(), below, 2):
        paged.extend(row.key.conversation for row in page)
        below = PagePosition(page[-1].activity_ms, page[-1].key.conversation)
    assert paged == names


async def test_odd_ids_and_two_tenants_never_meet(engine: Engine) -> None:
    store = await opened_store(engine)
    tenants = (RIVAL, *ODD_IDS)
    for number, tenant in enumerate(tenants):
        for name in ODD_IDS:
            events = [said(seq, UserId(ODD_IDS[0])) for seq in range(1, number + 2)]
            await project(store, group(*events, users=ODD_IDS, conversation=key(name, tenant)))
    for number, tenant in enumerate(tenants):
        for name in ODD_IDS:
            rows = await store.rows(user(name, tenant), None, 100)
            assert sorted(row.key.conversation for row in rows) == sorted(ODD_IDS)
            own = name == ODD_IDS[0]
            assert {row.key.tenant for row in rows} == {tenant}
            assert {row.unread for row in rows} == {0 if own else number + 1}
            assert {row.read_through for row in rows} == {number + 1 if own else 0}


# --- against a plain recomputation ------------------------------------------------------------

NAMES = ids(["u0", "u1", "u2"])
CONVERSATIONS = (key("c0"), key("c1"))


@dataclass(frozen=True)
class Logged:
    """A record of the log: an event of a conversation for some users."""

    of: ConversationKey
    event: ProjectedEvent
    users: tuple[UserId, ...]


@dataclass
class Model:
    """What a row must be: recomputed from all that the user has received, one by one."""

    received: list[ProjectedEvent] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)
    read: int = 0

    def receive(self, name: UserId, event: ProjectedEvent) -> None:
        if self.received and event.conversation_seq <= self.received[-1].conversation_seq:
            return
        self.received.append(event)
        if event.sender == name:
            if not self.unread:
                self.read = max(self.read, event.conversation_seq)
        elif event.kind == EventKind.MESSAGE and event.conversation_seq > self.read:
            self.unread.append(event.conversation_seq)

    def mark(self, through: int) -> None:
        self.read = max(self.read, through)
        self.unread = [seq for seq in self.unread if seq > self.read]

    def row(self, of: ConversationKey) -> SessionRow:
        return SessionRow(
            of,
            max(event.created_at_ms for event in self.received),
            self.received[-1].conversation_seq,
            len(self.unread),
            self.read,
        )


@dataclass(frozen=True)
class Stride:
    """A step over records[begin:end], begun anew or going on, and what is read after it."""

    begin: int
    end: int
    reads: tuple[UserId, ConversationKey, int] | None


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Logged], list[Stride]]:
    """A log of two conversations, and the steps through it, which may start before the last's end.

    All of it is drawn before the test begins: a case that hypothesis gives up amid a draw would
    take the event loop's task with it.
    """
    seqs = dict.fromkeys(CONVERSATIONS, 0)
    records = []
    for _ in range(draw(st.integers(1, 14))):
        of = draw(st.sampled_from(CONVERSATIONS))
        seqs[of] += 1
        event = ProjectedEvent(
            seqs[of],
            draw(st.sampled_from([1, 1, 1, 2, 3])),
            draw(st.sampled_from([*NAMES, None])),
            START_MS + draw(st.integers(0, 5)),
        )
        users = draw(st.sampled_from([NAMES, NAMES, NAMES[:2], NAMES[1:]]))
        records.append(Logged(of, event, users))
    reads = st.tuples(st.sampled_from(NAMES), st.sampled_from(CONVERSATIONS), st.integers(0, 14))
    strides: list[Stride] = []
    done = 0
    while done < len(records):
        end = draw(st.integers(done + 1, len(records)))
        strides.append(Stride(draw(st.integers(0, done)), end, draw(st.none() | reads)))
        done = end
    return records, strides


def groups_of(records: Sequence[Logged]) -> list[ProjectionGroup]:
    """Neighbours of a conversation with the same users fold into one group."""
    folded: list[ProjectionGroup] = []
    for record in records:
        last = folded[-1] if folded else None
        if last and last.key == record.of and last.users == record.users:
            folded[-1] = replace(last, events=[*last.events, record.event])
        else:
            folded.append(ProjectionGroup(record.of, [record.event], record.users))
    return folded


@pytest.mark.parametrize("name", HERE)
@settings(max_examples=40)
@given(history=histories())
async def test_any_batches_with_replays_equal_a_plain_recomputation(
    name: str, history: tuple[list[Logged], list[Stride]]
) -> None:
    """SES-06: the row equals a from-scratch replay at every restart point."""
    records, strides = history
    with tempfile.TemporaryDirectory() as folder:
        async with opened(name, Path(folder)) as engine:
            store = await opened_store(engine)
            models = {(who, of): Model() for who in NAMES for of in CONVERSATIONS}
            done = 0
            for stride in strides:
                groups = groups_of(records[stride.begin : stride.end])
                value(await store.project(project_step(done, stride.end, *groups)))
                for record in records[done : stride.end]:
                    for who in record.users:
                        models[who, record.of].receive(who, record.event)
                done = stride.end
                if stride.reads:
                    await read(store, models, *stride.reads)
                await check(store, models)


Models = dict[tuple[UserId, ConversationKey], Model]


async def read(
    store: ProjectionStore, models: Models, who: UserId, of: ConversationKey, up_to: int
) -> None:
    """One user reads what there is up to somewhere, with the count that its room would make."""
    model = models[who, of]
    if not model.received:
        return
    applied = model.received[-1].conversation_seq
    model.mark(min(up_to, applied))
    row = await store.mark_read(UserKey(of.tenant, who), of, model.read, applied, len(model.unread))
    assert value(row) == model.row(of)


async def check(store: ProjectionStore, models: Models) -> None:
    for who in NAMES:
        expected = [models[who, of].row(of) for of in CONVERSATIONS if models[who, of].received]
        expected.sort(key=lambda row: (row.activity_ms, row.key.conversation), reverse=True)
        assert list(await store.rows(user(who), None, 10)) == expected
