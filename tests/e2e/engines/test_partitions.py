"""Engines that a process can not reach, that go back on their word, or that it must not use."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aetcd import Client
from tests import engines
from tests.e2e.engines.deployment import Deployment, Process, deployed, owned_by, until
from tests.e2e.engines.traffic import Traffic
from tests.engines.kafka import Kafka
from tests.engines.redis import Redis
from tests.support.wire import Wire

from qimd.app.demo_verdict import Verdict

OWNING = ("writer", "mailbox", "session")
DEAD_S = 600.0
"""Of a log, in the long form."""
FAILED = ("a batch of dispatches failed", "dispatching waits")
"""What a writer tells that has run into every timeout there is, with a producer and without."""
BROKER_UP_WITHIN_S = 120.0


async def test_a_writer_that_can_not_reach_etcd_gives_way_and_comes_back(
    tmp_path: Path, shown: Callable[[Verdict], None]
) -> None:
    async with AsyncExitStack() as stack:
        wire = await stack.enter_async_context(Wire(engines.address("etcd") or ""))
        deployment = await stack.enter_async_context(deployed(tmp_path))
        cut_off = deployment.process("cut-off", "writer", "--etcd", wire.address)
        await cut_off.start()
        heir = deployment.process("heir", "all")
        await heir.start()
        deployment.lead_to(heir)
        traffic = Traffic(deployment)
        await traffic.set_up()
        async with traffic.flowing():
            await traffic.more()
            wire.cut()
            await owned_by(heir, "writer")
            await until(lambda: cut_off.total("epoch") == 0, "it has stopped writing by itself")
            assert "self-fenced" in cut_off.told()
            await traffic.more()
            wire.mend()
            # It was not restarted, and is good for the next succession.
            await deployment.stop(heir)
            await owned_by(cut_off, "writer")
            await heir.start()
            deployment.lead_to(heir)
            await traffic.more()
        shown(await traffic.verify())


async def test_owners_whose_leases_are_revoked_stop_at_their_next_renewal(
    deployment: Deployment, shown: Callable[[Verdict], None]
) -> None:
    first, second = deployment.process("first", "all"), deployment.process("second", "all")
    await first.start()
    await second.start()
    deployment.lead_to(second)
    traffic = Traffic(deployment)
    await traffic.set_up()

    def epochs() -> dict[str, float]:
        """By shard: the highest under which either owns it."""
        found: dict[str, float] = {}
        for process in (first, second):
            for sample, epoch in process.samples().items():
                if sample.startswith("epoch{"):
                    found[sample] = max(epoch, found.get(sample, 0))
        return found

    async with traffic.flowing():
        await traffic.more()
        before = await asyncio.to_thread(epochs)
        assert len(before) == len(OWNING) * deployment.mailbox_shards
        await revoke_every_lease(deployment)
        await traffic.more()
        await until(
            lambda: all(epoch > before[shard] for shard, epoch in epochs().items()),
            "each shard has another term",
        )
        await traffic.more()
    assert "the lease was lost" in first.told()
    shown(await traffic.verify())


async def revoke_every_lease(deployment: Deployment) -> None:
    """As etcd's operator may, at any time."""
    host, _, port = deployment.at("etcd").rpartition(":")
    async with Client(host, int(port), timeout=5) as client:
        held = await client.get_prefix(f"{deployment.name}/leases/".encode())
        for lease in {each.lease for each in held if each.lease}:
            await client.revoke_lease(lease)


# --- the log ----------------------------------------------------------------------------------


@asynccontextmanager
async def behind_a_wire(tmp_path: Path) -> AsyncIterator[tuple[Kafka, Wire, Process, Traffic]]:
    """A broker of the test's own, the way to it, a server that goes it, and who sends."""
    async with AsyncExitStack() as stack:
        wire = await stack.enter_async_context(Wire())
        broker = Kafka(tmp_path / "kafka", {"advertised.listeners": f"PLAINTEXT://{wire.address}"})
        wire.target = broker.address
        await asyncio.to_thread(broker.start)
        stack.callback(broker.kill)
        await asyncio.to_thread(broker.wait, BROKER_UP_WITHIN_S)
        deployment = await stack.enter_async_context(deployed(tmp_path, at={"kafka": wire.address}))
        server = deployment.process("server", "all")
        await server.start()
        deployment.lead_to(server)
        traffic = Traffic(deployment)
        await traffic.set_up()
        yield broker, wire, server, traffic


async def test_a_log_out_of_reach_or_stopped_delays_what_was_acknowledged(
    tmp_path: Path, shown: Callable[[Verdict], None]
) -> None:
    async with behind_a_wire(tmp_path) as (broker, wire, server, traffic):

        def failures() -> int:
            return sum(map(server.told().count, FAILED))

        async with traffic.flowing():
            for take, give in ((wire.cut, wire.mend), (broker.pause, broker.resume)):
                await traffic.more()
                before = failures()
                take()
                await until(lambda so_far=before: failures() >= so_far + 2, "dispatching fails")  # type: ignore[misc]
                await traffic.more()
                give()
                await traffic.more()
        shown(await traffic.verify())


@pytest.mark.chaos
async def test_a_log_that_is_dead_for_ten_minutes_delays_what_was_acknowledged(
    tmp_path: Path, shown: Callable[[Verdict], None]
) -> None:
    async with behind_a_wire(tmp_path) as (broker, _, _, traffic):
        await traffic.say()
        broker.kill()
        ends_s = time.monotonic() + DEAD_S
        while time.monotonic() < ends_s:
            await traffic.say()
            # Slow enough for the outbox, which holds 10,000 events a shard.
            await asyncio.sleep(1)
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(broker.wait, BROKER_UP_WITHIN_S)
        shown(await traffic.verify())


async def test_a_redis_cluster_is_refused(tmp_path: Path, deployment: Deployment) -> None:
    with Redis(tmp_path / "cluster", "--cluster-enabled", "yes") as cluster:
        server = deployment.process("server", "all", "--redis", cluster.address)
        told = await server.refuses()
        assert server.exit_status == 2
        assert "--redis" in told
        assert "cluster" in told.lower()
