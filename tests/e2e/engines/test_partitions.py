"""Engines that a process can not reach, that go back on their word, or that it must not use."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aetcd import Client
from tests import engines
from tests.e2e.engines.builds import journal, throw
from tests.e2e.engines.deployment import SHARDS, Deployment, Process, deployed, owned_by, until
from tests.e2e.engines.traffic import OWNING, Traffic, served
from tests.engines.kafka import Kafka
from tests.engines.redis import Redis
from tests.support.wire import Wire

from qimd.app.demo_verdict import Verdict

AT_ONCE_S = 0.5
"""From the answer to the owner's end, which a busy machine may hold up."""
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
        heir = deployment.process("heir", "all")
        traffic = await served(deployment, cut_off, heir)
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
    traffic = await served(deployment, first, second)
    async with traffic.flowing():
        await traffic.more()
        before = await asyncio.to_thread(epochs, first, second)
        assert len(before) == len(OWNING) * deployment.mailbox_shards
        await revoke_every_lease(deployment)
        await traffic.more()
        await until(lambda: newer(before, first, second), "each shard has another term")
        await traffic.more()
    assert "the lease was lost" in first.told()
    shown(await traffic.verify())


def epochs(*processes: Process) -> dict[str, float]:
    """By shard: the highest under which one of them owns it."""
    found: dict[str, float] = {}
    for process in processes:
        for sample, epoch in process.samples().items():
            if sample.startswith("epoch{"):
                found[sample] = max(epoch, found.get(sample, 0))
    return found


def newer(before: dict[str, float], *processes: Process) -> bool:
    """Whether each shard has another term than before."""
    now = epochs(*processes)
    return all(now.get(shard, 0) > epoch for shard, epoch in before.items())


async def test_an_owner_whose_keepalive_comes_too_late_writes_nothing_from_then_on(
    deployment: Deployment, shown: Callable[[Verdict], None]
) -> None:
    """F15: etcd answers the keepalive without an error, and with a time to live of 0."""
    late = deployment.process("late", "writer", build=("journal", "late-keepalives"))
    heir = deployment.process("heir", "all")
    traffic = await served(deployment, late, heir)
    async with traffic.flowing():
        await traffic.more()
        assert await asyncio.to_thread(late.owns, "writer")
        before = await asyncio.to_thread(epochs, late)
        throw(deployment.folder, "late")
        await until(lambda: len(keepalives(deployment)) >= SHARDS, "each lease was lost")
        throw(deployment.folder, "late", on=False)
        await until(lambda: newer(before, late, heir), "each shard has another term")
        await traffic.more()
    lost = keepalives(deployment)
    assert {line["ttl_s"] for line in lost} == {0}
    told_s = max(line["at_s"] for line in lost[:SHARDS])
    under_old = [
        line for line in journal(deployment.folder) if line.get("epoch") in before.values()
    ]
    assert [line for line in under_old if line["began_s"] < told_s]
    assert [line for line in under_old if line["began_s"] > told_s + AT_ONCE_S] == []
    shown(await traffic.verify())


def keepalives(deployment: Deployment) -> list[dict[str, Any]]:
    """Those that came too late, in order."""
    return [line for line in journal(deployment.folder) if line["step"] == "keepalive"]


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
        traffic = await served(deployment, server)
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


async def test_dispatches_whose_acknowledgement_is_lost_reach_each_member_once(
    tmp_path: Path, shown: Callable[[Verdict], None]
) -> None:
    """F03: they are in the log, and again by the producer that replaced theirs."""
    async with behind_a_wire(tmp_path) as (_, wire, server, traffic):
        async with traffic.flowing():
            await traffic.more()
            lost = wire.lose_reply(traffic.rooms[0].encode(), times=sys.maxsize)
            await until(lambda: FAILED[0] in server.told(), "a producer is given up")
            lost.times = 0
            await traffic.more()
        shown(await traffic.verify())
        assert await asyncio.to_thread(server.total, "duplicates_total") > 0


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
