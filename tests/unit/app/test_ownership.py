"""Ownership: leases, terms, the self-fence and takeover, on a clock that the test moves."""

import asyncio
from itertools import pairwise

import pytest
from tests.support.runtime import ManualRuntime

from qimd.adapters.memory import MemoryBackends, MemoryCluster
from qimd.app.ownership import BACKOFF_MAX_S, ShardOwner, backoff_s
from qimd.core.errors import unavailable
from qimd.core.lease import Term
from qimd.core.outcome import Applied, Refusal
from qimd.core.parameters import LeaseParameters
from qimd.ports.store import ShardKind
from qimd.telemetry.metrics import Metrics

LEASE = LeaseParameters()
KIND = ShardKind.WRITER


class Room:
    """A room that notes its terms and serves until each has ended."""

    def __init__(self, runtime: ManualRuntime, name: str = "room") -> None:
        self.runtime = runtime
        self.name = name
        self.terms: list[Term] = []
        self.log: list[str] = []
        self.fails: list[Exception] = []
        self.linger = asyncio.Event()
        self.linger.set()

    async def serve(self, term: Term) -> None:
        self.terms.append(term)
        self.log.append(f"{self.name} serves {term.epoch}")
        if self.fails:
            raise self.fails.pop(0)
        while not term.ended:
            await self.runtime.sleep(0.01)
        await self.linger.wait()
        self.log.append(f"{self.name} returns")

    @property
    def term(self) -> Term:
        return self.terms[-1]


class Process:
    """One process that owns shard 0, on a deployment it may share with others."""

    def __init__(
        self,
        cluster: MemoryCluster,
        runtime: ManualRuntime,
        owner: str = "a",
        *,
        sole: bool = False,
        rooms: tuple[Room, ...] = (),
        parameters: LeaseParameters = LEASE,
    ) -> None:
        self.backends: MemoryBackends = cluster.open(runtime)
        self.runtime = runtime
        self.rooms = rooms or (Room(runtime),)
        self.room = self.rooms[0]
        self.metrics = Metrics()
        self.ended = False
        self.owner = ShardOwner(
            kind=KIND,
            shard=0,
            rooms=self.rooms,
            lease=self.backends.lease,
            epochs=self.backends.epochs,
            runtime=runtime,
            metrics=self.metrics,
            owner=owner,
            parameters=parameters,
            sole=sole,
        )

    def start(self) -> "Process":
        self.runtime.spawn(self._run(), "owner")
        return self

    async def _run(self) -> None:
        await self.owner.run()
        self.ended = True


@pytest.fixture
async def runtime() -> object:
    async with ManualRuntime() as manual:
        yield manual


@pytest.fixture
def cluster(runtime: ManualRuntime) -> MemoryCluster:
    return MemoryCluster(runtime)


async def owning(process: Process) -> Process:
    await process.runtime.until(lambda: process.owner.owned, within_s=60)
    return process


async def test_an_absent_key_is_taken_over_only_after_the_absence_wait(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    began_s = runtime.monotonic_s()
    await owning(Process(cluster, runtime).start())
    waited_s = runtime.monotonic_s() - began_s
    assert LEASE.absence_wait_s <= waited_s < LEASE.absence_wait_s + 1.1


async def test_a_successor_waits_for_natural_expiry_and_then_for_the_absence(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    """WR-01: the successor's epoch is above; the stopped owner's term may write no longer."""
    first = await owning(Process(cluster, runtime, "a").start())
    stopped_at_s = runtime.monotonic_s()
    first.backends.kill()
    second = await owning(Process(cluster, runtime.fork(2), "b").start())
    assert runtime.monotonic_s() - stopped_at_s >= LEASE.absence_wait_s
    assert second.room.term.epoch > first.room.term.epoch
    assert not first.room.term.may_write(runtime.monotonic_s())


async def test_the_two_terms_never_may_write_at_one_instant(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    first = await owning(Process(cluster, runtime, "a").start())
    second = Process(cluster, runtime.fork(2), "b").start()
    await runtime.advance(7.5)
    first.backends.kill()
    while not second.owner.owned:
        await runtime.advance(0.25)
    assert not first.room.term.may_write(runtime.monotonic_s())


async def test_a_released_key_is_taken_without_waiting(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    first = await owning(Process(cluster, runtime, "a").start())
    first.owner.drain()
    await runtime.until(lambda: first.ended)
    began_s = runtime.monotonic_s()
    second = await owning(Process(cluster, runtime.fork(2), "b").start())
    assert runtime.monotonic_s() == began_s
    assert second.room.term.epoch > first.room.term.epoch


async def test_the_only_process_of_a_locked_folder_does_not_wait(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    began_s = runtime.monotonic_s()
    first = await owning(Process(cluster, runtime, "folder", sole=True).start())
    first.backends.kill()
    second = await owning(Process(cluster, runtime.fork(2), "folder", sole=True).start())
    assert runtime.monotonic_s() == began_s
    assert second.room.term.epoch > first.room.term.epoch


async def test_a_key_that_reappears_starts_the_wait_again(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    process = Process(cluster, runtime, "a").start()
    await runtime.advance(LEASE.absence_wait_s - 0.5)
    other = cluster.open(runtime)
    assert await other.lease.acquire(KIND, 0, "x", 2.0) == Applied(None)
    began_s = runtime.monotonic_s()
    await owning(process)
    assert runtime.monotonic_s() - began_s >= 2.0 + LEASE.absence_wait_s


async def test_a_lease_that_cannot_be_seen_is_not_taken_for_absent(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    process = Process(cluster, runtime).start()
    await runtime.advance(LEASE.absence_wait_s - 0.5)
    cluster.faults.refuse("view")
    began_s = runtime.monotonic_s()
    await owning(process)
    assert runtime.monotonic_s() - began_s >= LEASE.absence_wait_s


async def test_renewals_come_every_interval_and_keep_the_term(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    process = await owning(Process(cluster, runtime).start())
    renewed = [process.room.term.renewed_at_s]
    for _ in range(4):
        await runtime.advance(LEASE.lease_renew_interval_s)
        renewed.append(process.room.term.renewed_at_s)
    steps = [later - earlier for earlier, later in pairwise(renewed)]
    assert steps == [pytest.approx(LEASE.lease_renew_interval_s)] * 4
    assert len(process.room.terms) == 1


@pytest.mark.parametrize("retry_s", [1.0, 0.9])
async def test_the_self_fence_falls_at_the_deadline_to_the_tick(
    runtime: ManualRuntime, cluster: MemoryCluster, retry_s: float
) -> None:
    """Also where no renewal is due at that instant."""
    parameters = LeaseParameters(lease_renew_retry_s=retry_s)
    process = await owning(Process(cluster, runtime, parameters=parameters).start())
    term = process.room.term
    cluster.faults.refuse("renew", times=None)
    left_s = term.renewed_at_s + LEASE.writer_self_fence_deadline_s - runtime.monotonic_s()
    await runtime.advance(left_s - 0.001)
    assert not term.ended
    assert term.may_write(runtime.monotonic_s())
    await runtime.advance(0.001)
    assert term.ended
    assert not term.may_write(runtime.monotonic_s())


async def test_a_failed_renewal_is_tried_again_every_second_and_counts_from_before_it_was_sent(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    process = await owning(Process(cluster, runtime).start())
    term = process.room.term
    rule = cluster.faults.refuse("renew", times=3)
    began_s = term.renewed_at_s
    await runtime.advance(LEASE.lease_renew_interval_s + 2.5)
    assert rule.hits == 3
    assert term.renewed_at_s == began_s
    cluster.faults.heal()
    cluster.faults.delay(0.75, "renew")
    await runtime.advance(0.5 + 0.75)
    assert term.renewed_at_s == pytest.approx(began_s + LEASE.lease_renew_interval_s + 3.0)
    assert not term.ended


async def test_a_renewal_without_answer_does_not_outlast_the_self_fence(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    process = await owning(Process(cluster, runtime).start())
    term = process.room.term
    cluster.faults.delay(600.0, "renew")
    await runtime.advance(LEASE.writer_self_fence_deadline_s)
    assert term.ended


async def test_a_lease_that_the_engine_ended_early_ends_the_term_at_once(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    """F15: a keepalive that says the lease is gone (TTL = 0) → fence at once, no write after,
    although the self-fence is still seconds away.
    """
    process = await owning(Process(cluster, runtime).start())
    term = process.room.term
    cluster.leases.end_early(KIND, 0)
    await runtime.advance(LEASE.lease_renew_interval_s - 0.001)
    assert term.may_write(runtime.monotonic_s()), "it can't know before it asks"
    await runtime.advance(0.001)
    assert term.ended
    assert not term.may_write(runtime.monotonic_s())
    assert runtime.monotonic_s() < term.renewed_at_s + LEASE.writer_self_fence_deadline_s
    await owning(process)
    assert process.room.term.epoch > term.epoch


async def test_a_lost_reply_of_the_epoch_is_resolved_by_the_same_nonce(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    rule = cluster.faults.lose_reply("raise_epoch")
    now_s = runtime.wall_ms() // 1000
    process = await owning(Process(cluster, runtime, sole=True).start())
    assert rule.hits == 1
    assert process.room.term.epoch == now_s


async def test_an_epoch_that_another_owner_raised_since_is_not_served(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    """WR-01, STALE_EPOCH: the loser gives the key back and serves only under a newer epoch."""
    rule = cluster.faults.lose_reply("raise_epoch")
    process = Process(cluster, runtime, sole=True).start()
    await runtime.settle()
    assert rule.hits == 1
    other = cluster.open(runtime)
    raised = await other.epochs.raise_epoch(KIND, 0, b"n" * 16, runtime.wall_ms() // 1000)
    assert isinstance(raised, Applied)
    await owning(process)
    assert [term.epoch > raised.value for term in process.room.terms] == [True]


async def test_a_lost_reply_of_acquire_counts_the_lease_from_the_first_call(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    cluster.faults.lose_reply("acquire")
    began_s = runtime.monotonic_s()
    process = await owning(Process(cluster, runtime, sole=True).start())
    assert runtime.monotonic_s() > began_s
    assert process.room.term.renewed_at_s == began_s


async def test_rooms_of_a_shard_serve_one_term_in_the_order_of_the_role(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    log: list[str] = []
    rooms = (Room(runtime, "fanout"), Room(runtime, "writer"))
    for room in rooms:
        room.log = log
    process = await owning(Process(cluster, runtime, sole=True, rooms=rooms).start())
    await runtime.settle()
    epoch = process.room.term.epoch
    assert log == [f"fanout serves {epoch}", f"writer serves {epoch}"]
    assert rooms[0].term is rooms[1].term


async def test_a_drain_releases_only_after_the_rooms_have_returned(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    process = await owning(Process(cluster, runtime, sole=True).start())
    await runtime.settle()
    process.room.linger.clear()
    process.owner.drain()
    await runtime.advance(1.0)
    assert process.room.term.ended
    assert (await process.backends.lease.view(KIND, 0)).holder == "a"
    process.room.linger.set()
    await runtime.until(lambda: process.ended)
    view = await process.backends.lease.view(KIND, 0)
    assert (view.holder, view.released) == ("", True)


async def test_a_room_that_does_not_return_is_cancelled_and_its_key_left_to_expire(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    process = await owning(Process(cluster, runtime, sole=True).start())
    await runtime.settle()
    process.room.linger.clear()
    process.owner.drain()
    await runtime.until(lambda: process.ended, within_s=60)
    view = await process.backends.lease.view(KIND, 0)
    assert (view.holder, view.released) == ("a", False)


@pytest.mark.parametrize(
    ("error", "defects"), [(RuntimeError("broken"), 1.0), (unavailable("the engine is away"), 0.0)]
)
async def test_a_room_that_fails_is_served_again_under_a_new_term_after_a_back_off(
    runtime: ManualRuntime, cluster: MemoryCluster, error: Exception, defects: float
) -> None:
    process = Process(cluster, runtime, sole=True)
    process.room.fails = [error]
    process.start()
    await runtime.until(lambda: len(process.room.terms) == 2)
    first, second = process.room.terms
    assert first.ended
    assert second.epoch > first.epoch
    labels = {"task": "serve-writer"}
    counted = process.metrics.registry.get_sample_value("defects_total", labels) or 0.0
    assert counted == defects


async def test_a_failing_room_takes_its_neighbour_down_with_it(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    rooms = (Room(runtime, "fanout"), Room(runtime, "writer"))
    rooms[1].fails = [RuntimeError("broken")]
    process = Process(cluster, runtime, sole=True, rooms=rooms).start()
    await runtime.until(lambda: len(rooms[1].terms) == 2)
    assert rooms[0].terms[0].ended
    assert rooms[0].term is rooms[1].term
    assert process.owner.owned


async def test_a_room_that_ends_its_term_steps_down_and_the_key_is_released(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    process = await owning(Process(cluster, runtime, sole=True).start())
    await runtime.settle()
    process.room.term.end()
    await runtime.until(lambda: len(process.room.terms) == 2)
    assert process.room.terms[1].epoch > process.room.terms[0].epoch


async def test_a_hand_over_lets_another_process_have_the_shard(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    first = await owning(Process(cluster, runtime, "a").start())
    second = Process(cluster, runtime.fork(2), "b").start()
    await runtime.advance(1.0)
    first.owner.hand_over()
    await runtime.until(lambda: second.owner.owned, within_s=2.0)
    assert [term.ended for term in first.room.terms] == [True]


async def test_a_shard_handed_over_that_nobody_takes_is_owned_again(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    process = await owning(Process(cluster, runtime).start())
    process.owner.hand_over()
    await runtime.until(lambda: len(process.room.terms) == 2, within_s=30)
    assert process.owner.owned


async def test_an_owner_that_drains_while_it_waits_ends_at_once(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    process = Process(cluster, runtime).start()
    await runtime.advance(3.2)
    began_s = runtime.monotonic_s()
    process.owner.drain()
    await runtime.until(lambda: process.ended)
    assert runtime.monotonic_s() == began_s
    assert process.room.terms == []


async def test_a_release_that_is_refused_is_tried_again(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    process = await owning(Process(cluster, runtime, sole=True).start())
    rule = cluster.faults.refuse("release", refusal=Refusal.UNREACHABLE, times=2)
    process.owner.drain()
    await runtime.until(lambda: process.ended)
    assert rule.hits == 2
    assert (await process.backends.lease.view(KIND, 0)).released


async def test_the_epoch_metric_tells_the_term_owned_here(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    process = await owning(Process(cluster, runtime, sole=True).start())
    await runtime.settle()
    labels = {"kind": "writer", "shard": "0"}
    value = process.metrics.registry.get_sample_value("epoch", labels)
    assert value == process.room.term.epoch
    process.owner.drain()
    await runtime.until(lambda: process.ended)
    assert process.metrics.registry.get_sample_value("epoch", labels) == 0


def test_the_back_off_grows_and_stays_within_its_bounds() -> None:
    waits = [backoff_s(failures, 0.0) for failures in range(1, 40)]
    assert waits == sorted(waits)
    assert waits[0] > 0
    assert max(backoff_s(failures, 0.999) for failures in range(1, 40)) <= BACKOFF_MAX_S
