"""A mailbox store and its shadow: one that lies, one that lags, one that dies; and the cut-over."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import pytest
from tests.contract.builders import ANNA, BEN, block, device, key, user, value
from tests.contract.engines import Engine, memory_engine
from tests.contract.owners import FIRST, TERM, Owner, at, record, seqs
from tests.support.runtime import ManualRuntime

from qimd.adapters.memory import FaultPlan, MemoryCluster
from qimd.adapters.memory.mailbox import MemoryMailboxStore
from qimd.adapters.memory.network import Graveyard, Wire
from qimd.adapters.shadow import NamedStore, ShadowMailboxStore
from qimd.adapters.shadow.shard import BACKLOG_MAX, RETRY_S
from qimd.adapters.shadow.store import SWITCH_WAIT_S
from qimd.core.errors import QimError
from qimd.core.outcome import Outcome, Refusal, Unknown
from qimd.core.records import DeviceKey, UserKey
from qimd.core.seq import SEQ_MAX, SEQ_NONE, MailboxSeq
from qimd.ports.mailbox import (
    ApplyStep,
    DeviceState,
    Entry,
    EpochBoundary,
    EpochMark,
    MailboxStore,
    RecordVerdict,
)
from qimd.ports.shadow import ShadowReport, ShadowSample


class LyingStore(MemoryMailboxStore):
    """An engine with defects, each of which a test switches on."""

    hides_entries = False
    doubles = False
    moves_devices = False

    async def entries(
        self, user: UserKey, after: MailboxSeq, through: MailboxSeq, limit: int
    ) -> Sequence[Entry]:
        found = await super().entries(user, after, through, limit)
        return found[:-1] if self.hides_entries else found

    async def apply(self, step: ApplyStep) -> Outcome[Sequence[RecordVerdict]]:
        outcome = await super().apply(step)
        if self.doubles:
            return replace(
                outcome,
                value=[RecordVerdict(one.applied | one.duplicate, 0) for one in value(outcome)],
            )
        return outcome

    async def ack(
        self, device: DeviceKey, position: MailboxSeq, handed: MailboxSeq
    ) -> Outcome[DeviceState]:
        outcome = await super().ack(device, position, handed)
        if self.moves_devices:
            return replace(outcome, value=replace(value(outcome), acked=handed))
        return outcome


@dataclass
class Disk:
    """One engine: what it keeps, and the network before it."""

    cluster: MemoryCluster
    faults: FaultPlan
    store: LyingStore


class World:
    """A process with a pair of engines; `restart` is another one after it, on the same two."""

    def __init__(self, runtime: ManualRuntime) -> None:
        self.runtime = runtime
        self.left, self.right = self._disk(), self._disk()
        self.told: list[ShadowSample] = []
        self._processes = 0
        self.start()

    def _disk(self) -> Disk:
        cluster = MemoryCluster(self.runtime)
        faults = FaultPlan(self.runtime)
        return Disk(cluster, faults, LyingStore(cluster.mailbox, Wire(faults, Graveyard())))

    async def restart(self) -> None:
        await self.process.cancel_all()
        self.start()

    def start(self, *, share: float = 1.0) -> None:
        self._processes += 1
        self.process = self.runtime.fork(self._processes)
        self.pair = ShadowMailboxStore(
            NamedStore("left", self.left.store),
            NamedStore("right", self.right.store),
            runtime=self.process,
            route=lambda _user: (0, 5),
            compared_share=share,
            on_mismatch=self.told.append,
        )
        base = memory_engine(self.runtime)
        self.engine: Engine = replace(base, backends=replace(base.backends, mailbox=self.pair))

    async def owner(self, term: int = TERM) -> Owner:
        owner = await Owner.of(self.engine, 0, term)
        owner.requests = 1_000 * self._processes
        return owner

    async def switch(self, primary: str) -> ShadowReport:
        switching = asyncio.ensure_future(self.pair.switch(primary, dry_run=False))
        await self.runtime.advance(SWITCH_WAIT_S + 1)
        return await switching

    async def both_have(self, *offsets: int, name: UserKey | None = None) -> bool:
        await self.runtime.settle()
        wanted = [at(offset) for offset in offsets]
        stores: list[MailboxStore] = [self.left.store, self.right.store]
        found = [await one.entries(name or user(), SEQ_NONE, SEQ_MAX, 1_000) for one in stores]
        return [[entry.seq for entry in entries] for entries in found] == [wanted, wanted]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with ManualRuntime() as runtime:
        made = World(runtime)
        yield made
        await made.process.cancel_all()
        assert made.process.failures == []


# --- following --------------------------------------------------------------------------------


async def test_the_shadow_takes_what_the_primary_applied(world: World) -> None:
    owner = await world.owner()
    await owner.apply([record(0, [block(5, ANNA)])], 0)
    await owner.apply([record(1, [block(5, ANNA)])], 3, lagging={9: at(2)})
    assert await world.both_have(0, 1)
    assert await world.right.store.shard_state(0) == owner.state
    report = world.pair.describe()
    assert (report.mismatches, report.obstacle) == (0, "")
    assert report.compared > 0


async def test_what_the_primary_refuses_never_reaches_the_shadow(world: World) -> None:
    owner = await world.owner()
    stale = replace(owner.step([record(0, [block(5, ANNA)])], 0), term=TERM - 1)
    await world.pair.apply(stale)
    assert await world.both_have()
    assert world.pair.describe().mismatches == 0


async def test_a_step_of_unknown_outcome_is_followed_when_it_is_settled(world: World) -> None:
    owner = await world.owner()
    world.left.faults.lose_reply("apply")
    step = owner.step([record(0, [block(5, ANNA)])], 0)
    assert isinstance(await world.pair.apply(step), Unknown)
    await world.runtime.settle()
    assert (await world.right.store.shard_state(0)) != await world.left.store.shard_state(0)
    await owner.take(step)
    assert await world.both_have(0)
    assert world.pair.describe().obstacle == ""


async def test_a_device_is_raised_in_the_shadow(world: World) -> None:
    await world.pair.open_device(device(), at(1))
    for position in (at(2), at(4)):
        await world.pair.ack(device(), position, at(5))
    await world.runtime.settle()
    found = value(await world.right.store.open_device(device(), SEQ_NONE))
    assert found == DeviceState(at(4), at(5))
    assert world.pair.describe().mismatches == 0


# --- a shadow that dies or lags -----------------------------------------------------------------


async def test_a_shadow_that_is_away_holds_nobody_up_and_catches_up(world: World) -> None:
    owner = await world.owner()
    await world.runtime.settle()
    away = world.right.faults.refuse(times=None)
    for offset in range(5):
        await owner.apply([record(offset, [block(5, ANNA)])], offset)
    await world.pair.open_device(device(), at(1))
    await world.runtime.settle()
    report = world.pair.describe()
    assert report.shards[0].waiting >= 5
    assert report.devices_waiting == 1
    assert "behind" in report.obstacle
    away.stop()
    await world.runtime.advance(RETRY_S)
    assert await world.both_have(0, 1, 2, 3, 4)
    assert world.pair.describe().obstacle == ""
    assert world.pair.describe().mismatches == 0


async def test_a_lost_reply_of_the_shadow_is_no_difference(world: World) -> None:
    owner = await world.owner()
    await world.runtime.settle()
    world.right.faults.lose_reply("apply")
    await owner.apply([record(0, [block(5, ANNA)])], 0)
    await world.runtime.advance(RETRY_S)
    assert await world.both_have(0)
    assert world.pair.describe().mismatches == 0


async def test_a_call_of_the_shadow_that_never_ends_holds_nobody_up(world: World) -> None:
    owner = await world.owner()
    await world.runtime.settle()
    world.right.faults.delay(1e9, times=None)
    await owner.apply([record(0, [block(5, ANNA)])], 0)
    await owner.apply([record(1, [block(5, ANNA)])], 1)
    assert await seqs(world.engine) == [at(0), at(1)]
    assert "behind" in world.pair.describe().obstacle


async def test_a_shadow_that_is_too_far_behind_is_given_up(world: World) -> None:
    owner = await world.owner()
    world.right.faults.refuse(times=None)
    crowd = [f"user-{number:05}" for number in range(BACKLOG_MAX // 3)]
    for offset in range(4):
        await owner.apply([record(offset, [block(5, *crowd)])], offset)
    report = world.pair.describe()
    assert (report.shards[0].waiting, report.shards[0].lost != "") == (0, True)
    with pytest.raises(QimError, match="lost"):
        await world.switch("right")


async def test_a_shadow_that_lacks_steps_is_lost(world: World) -> None:
    """As when a process dies between the two engines."""
    owner = await world.owner()
    await world.runtime.settle()
    world.right.faults.refuse(times=None)
    await owner.apply([record(0, [block(5, ANNA)])], 0)
    await world.restart()
    world.right.faults.heal()
    await world.owner(TERM + 1)
    await world.runtime.settle()
    assert world.pair.describe().shards[0].lost
    assert world.pair.describe().mismatches == 0


async def test_a_shadow_that_is_ahead_absorbs_what_it_has(world: World) -> None:
    """As when a process dies that had made the other engine the primary."""
    owner = await world.owner()
    await owner.apply([record(0, [block(5, ANNA)])], 0)
    ahead = owner.step([record(1, [block(5, ANNA)])], 3, lagging={9: at(1)})
    await world.runtime.settle()
    await world.right.store.apply(ahead)
    await world.restart()
    owner = await world.owner(TERM + 1)
    await owner.apply([record(1, [block(5, ANNA)])], 1)
    await owner.apply([record(2, [block(9, BEN)])], 4)
    assert await world.both_have(0, 1)
    assert await world.both_have(2, name=user(BEN))
    assert await world.right.store.shard_state(0) == owner.state
    assert world.pair.describe().obstacle == ""


async def test_another_process_takes_the_shard_and_its_follower_with_it(world: World) -> None:
    owner = await world.owner()
    await owner.apply([record(0, [block(5, ANNA)])], 0)
    await world.runtime.settle()
    first = world.pair
    held = world.right.faults.refuse("apply", times=None)
    await owner.apply([record(1, [block(5, ANNA)])], 1)
    for one in (world.left, world.right):
        value(await one.store.open_shard(0, TERM + 1, FIRST))
    held.stop()
    await world.runtime.advance(RETRY_S)
    assert first.describe().shards == []
    assert first.describe().mismatches == 0


# --- a shadow that lies -------------------------------------------------------------------------


async def test_an_entry_that_the_shadow_lacks_is_a_mismatch(world: World) -> None:
    owner = await world.owner()
    await owner.apply([record(0, [block(5, ANNA)])], 0)
    world.right.store.hides_entries = True
    assert await seqs(world.engine) == [at(0)]
    await world.runtime.settle()
    report = world.pair.describe()
    assert (report.mismatches, world.told) == (1, list(report.samples))
    (sample,) = report.samples
    assert "entries(" in sample.asked
    assert str(at(0)) in sample.primary
    assert str(at(0)) not in sample.shadow


async def test_a_duplicate_that_the_shadow_doubles_is_a_mismatch(world: World) -> None:
    owner = await world.owner()
    twice = record(0, [block(5, ANNA)])
    await owner.apply([twice], 0)
    await world.runtime.settle()
    world.right.store.doubles = True
    await owner.apply([replace(twice, seq=at(1))], 1)
    await world.runtime.settle()
    (sample,) = world.pair.describe().samples
    assert (sample.primary, sample.shadow) == ("[0].applied: 0", f"[0].applied: {1 << 5}")


async def test_a_position_that_the_shadow_moves_is_a_mismatch(world: World) -> None:
    world.right.store.moves_devices = True
    await world.pair.open_device(device(), at(1))
    await world.pair.ack(device(), at(2), at(9))
    await world.runtime.settle()
    assert world.pair.describe().mismatches == 1


async def test_a_step_that_the_shadow_refuses_is_a_mismatch(world: World) -> None:
    owner = await world.owner()
    await world.runtime.settle()
    world.right.faults.refuse("apply", refusal=Refusal.REJECTED)
    await owner.apply([record(0, [block(5, ANNA)])], 0)
    await world.runtime.settle()
    report = world.pair.describe()
    assert (report.mismatches, report.shards[0].lost) == (1, "it refused a step (rejected)")


async def test_only_the_share_that_was_asked_for_is_compared(world: World) -> None:
    world.start(share=0.0)
    owner = await world.owner()
    await owner.apply([record(0, [block(5, ANNA)])], 0)
    await world.runtime.settle()
    before = world.pair.describe().compared
    for _ in range(100):
        await seqs(world.engine)
    await world.runtime.settle()
    assert world.pair.describe().compared == before


async def test_a_read_amid_a_step_is_not_compared(world: World) -> None:
    owner = await world.owner()
    await world.runtime.settle()
    before = world.pair.describe().compared
    world.left.faults.delay(1.0, "apply")
    step = owner.step([record(0, [block(5, ANNA)])], 0)
    applying = asyncio.ensure_future(world.pair.apply(step))
    await world.runtime.settle()
    await world.pair.epoch_marks(0, [key()])
    await world.runtime.settle()
    assert world.pair.describe().compared == before
    await world.runtime.advance(1.0)
    await applying


# --- the cut-over -------------------------------------------------------------------------------


async def test_engines_change_places_and_back(world: World) -> None:
    owner = await world.owner()
    await owner.apply([record(0, [block(5, ANNA)])], 0)
    report = await world.switch("right")
    assert (report.primary, report.shadow) == ("right", "left")
    world.left.faults.refuse(times=None)
    await owner.apply([record(1, [block(5, ANNA)])], 1)
    assert await seqs(world.engine) == [at(0), at(1)]
    world.left.faults.heal()
    await world.runtime.advance(RETRY_S)
    await world.switch("left")
    await owner.apply([record(2, [block(5, ANNA)])], 2)
    assert await world.both_have(0, 1, 2)
    assert world.pair.describe().obstacle == ""


async def test_a_dry_run_changes_nothing(world: World) -> None:
    await world.owner()
    await world.runtime.settle()
    report = await world.pair.switch("right", dry_run=True)
    assert (report.primary, report.obstacle) == ("left", "")


async def test_a_mismatch_blocks_the_cut_over_and_never_the_way_back(world: World) -> None:
    owner = await world.owner()
    await owner.apply([record(0, [block(5, ANNA)])], 0)
    await world.switch("right")
    world.right.store.hides_entries = True
    await seqs(world.engine)
    await world.runtime.settle()
    assert world.pair.describe().mismatches == 1
    await world.switch("left")
    with pytest.raises(QimError, match="1 answers differ"):
        await world.switch("right")
    assert world.pair.describe().primary == "left"


async def test_a_shadow_that_stays_behind_blocks_it_and_the_steps_go_on(world: World) -> None:
    owner = await world.owner()
    await world.runtime.settle()
    world.right.faults.refuse(times=None)
    await owner.apply([record(0, [block(5, ANNA)])], 0)
    switching = asyncio.ensure_future(world.pair.switch("right", dry_run=False))
    await world.runtime.settle()
    applying = asyncio.ensure_future(owner.apply([record(1, [block(5, ANNA)])], 1))
    await world.runtime.settle()
    assert not applying.done()
    await world.runtime.advance(SWITCH_WAIT_S + 1)
    with pytest.raises(QimError, match="behind in shards 0"):
        await switching
    await applying
    assert await seqs(world.engine) == [at(0), at(1)]


async def test_a_cut_over_waits_for_the_step_that_is_under_way(world: World) -> None:
    owner = await world.owner()
    await world.runtime.settle()
    world.left.faults.delay(1.0, "apply")
    step = owner.step([record(0, [block(5, ANNA)])], 0)
    applying = asyncio.ensure_future(world.pair.apply(step))
    await world.runtime.settle()
    switching = asyncio.ensure_future(world.pair.switch("right", dry_run=False))
    await world.runtime.advance(1.5)
    await applying
    assert (await switching).primary == "right"
    assert await world.both_have(0)


async def test_an_engine_that_is_not_there_is_refused(world: World) -> None:
    with pytest.raises(QimError, match="left and right are there"):
        await world.pair.switch("middle", dry_run=True)


async def test_a_rebase_and_marks_are_followed(world: World) -> None:
    owner = await world.owner()
    marks = [(key(), EpochMark(epoch, at(epoch - 7))) for epoch in (7, 8)]
    await owner.take(owner.step([record(1, [block(5, ANNA)])], 1, marks=marks))
    value(await world.pair.fold_marks(0, TERM, at(1)))
    value(await world.pair.begin_epoch(0, TERM, EpochBoundary(2, 0, "cluster/other")))
    assert await world.pair.epoch_marks(0, [key()]) != {}
    await world.runtime.settle()
    state = await world.right.store.shard_state(0)
    assert state is not None
    assert (state.boundaries[-1].shard_epoch, world.pair.describe().obstacle) == (2, "")
    assert world.pair.describe().mismatches == 0
