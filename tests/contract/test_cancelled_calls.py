"""F23 for the engines besides Redis (`test_redis_faults.py`): calls given up by the thousand.

A caller that goes away takes nothing back, and what it was sent must reach nobody else.
"""

import asyncio
import random
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests import engines
from tests.contract.builders import START_MS, value
from tests.contract.cassandra_engine import runs_here, shared_driver
from tests.contract.cassandra_faults import deployment
from tests.contract.kafka_engine import own_topic
from tests.engines.etcd import Etcd
from tests.engines.process import HOST
from tests.support.sockets import connections_to

from qimd.adapters.etcd import open_etcd
from qimd.adapters.scylla.session import Session
from qimd.app.runtime import AsyncioRuntime
from qimd.core.errors import QimError
from qimd.core.ids import TenantId
from qimd.core.outcome import Applied
from qimd.ports.log import ProduceRecord
from qimd.ports.store import ShardKind, TenantRecord
from qimd.telemetry.metrics import Metrics

CANCELS = 1_000
AT_ONCE = 16
KEYS = 4
"""What is asked for, each with an answer of its own."""

Ask = Callable[[int], Awaitable[object]]


async def cancel_a_thousand(ask: Ask, answers: list[object]) -> None:
    """Ask for one thing and another, and give every other call up at some point of its way."""
    chance = random.Random(23)

    async def check(number: int) -> None:
        assert await ask(number) == answers[number]

    cancelled = 0
    while cancelled < CANCELS:
        calls = [asyncio.ensure_future(check(n % KEYS)) for n in range(AT_ONCE)]
        for _ in range(chance.randint(0, 12)):
            await asyncio.sleep(0)
        for call in chance.sample(calls, AT_ONCE // 2):
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        cancelled += sum(isinstance(result, asyncio.CancelledError) for result in results)
        # A machine that is out of breath may answer nothing in time, but never a wrong thing.
        answered = [result for result in results if not isinstance(result, QimError)]
        assert {type(result) for result in answered} <= {type(None), asyncio.CancelledError}
    for _ in range(10):
        await asyncio.gather(*(check(n) for n in range(KEYS)))


@runs_here
async def test_cassandra_gives_nobody_anothers_answer_and_is_idle_again() -> None:
    """F23: the driver takes each answer to a statement that nobody waits for any more."""
    _, driver = shared_driver()
    backends = deployment(Session(*shared_driver()))
    tenants = [TenantId(f"tenant-{number}") for number in range(KEYS)]
    records = [TenantRecord(tenant, {"k": tenant.encode()}, START_MS) for tenant in tenants]
    for record in records:
        value(await backends.tenants.create_tenant(record))
    await cancel_a_thousand(lambda number: backends.tenants.tenant(tenants[number]), [*records])
    async with asyncio.timeout(30):
        while any(sum(pool["in_flights"]) for pool in driver.get_pool_state().values()):
            # Each look is a round trip: what was sent before it is answered by then.
            await backends.tenants.tenant(tenants[0])


@pytest.fixture
async def runtime() -> AsyncIterator[AsyncioRuntime]:
    made = AsyncioRuntime(Metrics())
    yield made
    await made.cancel_all()


@pytest.mark.skipif(engines.address("kafka") is None, reason="Kafka does not run here")
async def test_kafka_gives_nobody_anothers_answer_and_is_idle_again(
    runtime: AsyncioRuntime,
) -> None:
    """F23: a reply to a request that was given up is dropped, and the next one is matched."""
    async with own_topic(runtime) as log:
        producer = await log.open_producer()
        for partition in range(KEYS):
            batch = [ProduceRecord(partition, b"x")] * (partition + 1)
            assert {type(one) for one in await producer.produce(batch)} == {Applied}
        await producer.close()

        async def high(partition: int) -> int:
            return (await log.watermarks(partition)).high

        def under_way() -> int:
            return sum(len(each._requests) for each in log.brokers._connections.values())

        await cancel_a_thousand(high, [1, 2, 3, 4])
        async with asyncio.timeout(30):
            while under_way():
                # Each look is a round trip: what was sent before it is answered by then.
                await high(0)
        assert connections_to(engines.address("kafka") or "") == len(log.brokers._connections) == 1


@pytest.mark.skipif(engines.address("etcd") is None, reason="etcd does not run here")
async def test_etcd_gives_nobody_anothers_answer_and_is_idle_again(tmp_path: Path) -> None:
    """F23: each call is a stream of its own on the one connection. etcd counts them."""
    with Etcd(tmp_path / "etcd") as server:
        lease = open_etcd(HOST, server.port, "/qim")
        owners = [f"owner-{shard}" for shard in range(KEYS)]
        for shard, owner in enumerate(owners):
            value(await lease.acquire(ShardKind.WRITER, shard, owner, 120))

        async def holder(shard: int) -> str:
            return (await lease.view(ShardKind.WRITER, shard)).holder

        await cancel_a_thousand(holder, [*owners])
        async with asyncio.timeout(30):
            while await asyncio.to_thread(calls_under_way, server):
                await holder(0)
        assert connections_to(server.address) == 1
        for shard, owner in enumerate(owners):
            value(await lease.release(ShardKind.WRITER, shard, owner))
        await lease.close()


def calls_under_way(server: Etcd) -> float:
    """What the server has begun and not ended, of the calls that a lease's owner makes."""
    with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    begun = ended = 0.0
    for line in lines:
        if 'grpc_service="etcdserverpb.' in line and 'grpc_type="unary"' in line:
            number = float(line.rpartition(" ")[2])
            begun += number if line.startswith("grpc_server_started_total") else 0
            ended += number if line.startswith("grpc_server_handled_total") else 0
    assert begun > CANCELS / 2
    return begun - ended
