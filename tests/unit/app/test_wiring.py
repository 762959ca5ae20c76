"""A whole node on engines in memory, on a clock that the test moves."""

from collections.abc import AsyncIterator

import pytest
from tests.support.runtime import ManualRuntime

from qimd.adapters.memory import MemoryBackends, MemoryCluster
from qimd.app.wiring import Node
from qimd.contract.cursor import CursorKeys
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import ConversationId, DeviceId, TenantId, UserId
from qimd.core.outcome import Applied
from qimd.core.parameters import LeaseParameters
from qimd.core.records import Accepted, ConversationKey, Draft, EventKind, UserKey
from qimd.core.routing import RoutingTable
from qimd.ports.services import Commit
from qimd.ports.store import ShardKind, TenantRecord
from qimd.telemetry.metrics import ZEROS, Metrics

TENANT = TenantId("t")
KEY = ConversationKey(TENANT, ConversationId("c"))
ALICE, BOB = UserId("alice"), UserId("bob")
TABLE = RoutingTable(version=1, mailbox_shards=2, writer_shards=2)


class Process:
    """One node of a deployment."""

    def __init__(
        self, cluster: MemoryCluster, runtime: ManualRuntime, owner: str, *, sole: bool = False
    ) -> None:
        self.runtime = runtime
        self.metrics = Metrics()
        self.backends: MemoryBackends = cluster.open(runtime)
        self.node = Node(
            table=TABLE,
            backends=self.backends,
            cursor_keys=CursorKeys("1", {"1": b"k" * 32}),
            runtime=runtime,
            metrics=self.metrics,
            recovery_window_ms=3_600_000,
            audit_interval_s=10.0,
            owner=owner,
            sole=sole,
        )
        self.drained = False

    async def start(self) -> "Process":
        self.node.start()
        await self.runtime.until(lambda: self.node.is_ready, within_s=120)
        return self

    async def drain(self) -> None:
        self.runtime.spawn(self._drain(), "drain")
        await self.runtime.until(lambda: self.drained, within_s=60)

    async def _drain(self) -> None:
        await self.node.drain()
        self.drained = True

    async def found(self) -> None:
        """Make the tenant and the conversation."""
        record = TenantRecord(TENANT, {}, self.runtime.wall_ms())
        assert isinstance(await self.backends.tenants.create_tenant(record), Applied)
        await self.node.writer.create_conversation(TENANT, KEY.conversation, [ALICE, BOB])

    async def send(self, *numbers: int) -> list[int]:
        drafts = [Draft(f"m{number}", EventKind.MESSAGE, b"text") for number in numbers]
        results = await self.node.writer.commit(Commit(KEY, ALICE, DeviceId("d"), drafts))
        assert all(isinstance(result, Accepted) for result in results)
        return [result.conversation_seq for result in results if isinstance(result, Accepted)]

    async def mailbox(self, user: UserId, count: int) -> list[int]:
        """How many events the mailbox holds, once it holds `count`."""
        key = UserKey(TENANT, user)
        for _ in range(100):
            page = await self.node.mailbox.read(key, 0, 500)
            if len(page.events) >= count:
                break
            await self.runtime.advance(0.1)
        seqs = [event.seq for event in page.events]
        assert seqs == sorted(set(seqs))
        return seqs


@pytest.fixture
async def runtime() -> AsyncIterator[ManualRuntime]:
    async with ManualRuntime() as manual:
        yield manual


@pytest.fixture
def cluster(runtime: ManualRuntime) -> MemoryCluster:
    return MemoryCluster(runtime, partitions=TABLE.mailbox_shards)


async def test_a_message_reaches_every_members_mailbox_once(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    process = await Process(cluster, runtime, "a", sole=True).start()
    await process.found()
    assert await process.send(1, 2, 3) == [2, 3, 4]
    for user in (ALICE, BOB):
        assert len(await process.mailbox(user, 4)) == 4
    await runtime.advance(1.0)
    samples = next(
        family.samples
        for family in process.metrics.registry.collect()
        if family.name == "fanout_entries_per_sec"
    )
    # Four events for two members, over a window of ten seconds.
    assert sum(sample.value for sample in samples) == pytest.approx(0.8)


async def test_what_a_killed_node_acknowledged_its_successor_delivers(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    """WR-01, WR-03: taken over by epoch, delivered once, and sent again under the same seqs."""
    first = await Process(cluster, runtime, "a", sole=True).start()
    await first.found()
    seqs = await first.send(1, 2, 3)
    first.backends.kill()
    second = await Process(cluster, runtime.fork(2), "b").start()
    assert await second.send(1, 2, 3) == seqs
    assert await second.send(4) == [5]
    for user in (ALICE, BOB):
        assert len(await second.mailbox(user, 5)) == 5
    for name in ZEROS:
        assert second.metrics.registry.get_sample_value(name) == 0


async def test_a_stopped_node_that_wakes_up_can_write_nothing(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    """WR-01: beyond the self-fence its rooms refuse, whatever it believed before."""
    process = await Process(cluster, runtime, "a", sole=True).start()
    await process.found()
    await process.send(1)
    lease = LeaseParameters()
    cluster.faults.refuse("renew", times=None)
    cluster.faults.refuse("acquire", times=None)
    await runtime.advance(lease.writer_self_fence_deadline_s + 1.0)
    with pytest.raises(QimError) as refused:
        await process.send(2)
    assert refused.value.code in {ErrorCode.NOT_OWNER, ErrorCode.UNAVAILABLE}
    assert not process.node.is_ready


async def test_a_drain_releases_every_lease_so_that_a_successor_need_not_wait(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    first = await Process(cluster, runtime, "a", sole=True).start()
    await first.found()
    seqs = await first.send(1)
    await first.drain()
    for kind in ShardKind:
        for shard in range(2):
            assert (await first.backends.lease.view(kind, shard)).released
    assert not first.node.is_ready
    began_s = runtime.monotonic_s()
    second = await Process(cluster, runtime.fork(2), "b").start()
    assert runtime.monotonic_s() - began_s < 1.0
    assert await second.send(1) == seqs


async def test_a_halted_mailbox_shard_does_not_hold_up_the_node(
    runtime: ManualRuntime, cluster: MemoryCluster
) -> None:
    first = await Process(cluster, runtime, "a", sole=True).start()
    await first.found()
    await first.mailbox(BOB, 1)
    await first.drain()
    cluster.topic.recreate()
    second = await Process(cluster, runtime.fork(2), "b").start()
    assert all(shard.fault is not None for shard in second.node.mailbox.shards())
    with pytest.raises(QimError) as refused:
        await second.node.mailbox.read(UserKey(TENANT, BOB), 0, 10)
    assert refused.value.code is ErrorCode.UNAVAILABLE
