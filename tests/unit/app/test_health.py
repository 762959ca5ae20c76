"""Health per dependency: probed, timed out, remembered, and told where it changes."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.runtime import ManualRuntime

from qimd.app.health import PROBE_INTERVAL_S, PROBE_TIMEOUT_S, Health
from qimd.core.errors import unavailable
from qimd.ports.health import Dependency
from qimd.ports.log import LogFault, LogFaultKind
from qimd.telemetry.metrics import Metrics


class Engine:
    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hangs = False
        self.pings = 0

    async def ping(self) -> None:
        self.pings += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error


class World:
    def __init__(self, runtime: ManualRuntime) -> None:
        self.runtime = runtime
        self.redis, self.kafka = Engine(), Engine()
        self.metrics = Metrics()
        self.health = Health(
            [
                Dependency("redis", self.redis.ping, needed=True),
                Dependency("kafka", self.kafka.ping, needed=False),
            ],
            runtime,
            self.metrics,
        )
        self.told: list[tuple[str, bool]] = []
        self.health.start(self.tell)

    async def tell(self, name: str, up: bool) -> None:
        self.told.append((name, up))

    def up(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value("dependency_up", {"dependency": name})

    async def probe(self) -> None:
        await self.runtime.advance(PROBE_INTERVAL_S + PROBE_TIMEOUT_S)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with ManualRuntime() as runtime:
        yield World(runtime)


async def test_all_are_up_at_first_and_told_once(world: World) -> None:
    for _ in range(3):
        await world.probe()
    assert world.health.serves
    assert (list(world.health.failing), world.up("redis"), world.up("kafka")) == ([], 1, 1)
    assert sorted(world.told) == [("kafka", True), ("redis", True)]


async def test_one_that_is_away_is_named_with_its_reason_and_since_when(world: World) -> None:
    await world.probe()
    world.redis.error = unavailable("connection refused")
    await world.probe()
    (failing,) = world.health.failing
    since_ms = failing.since_ms
    assert str(failing).startswith("redis: connection refused, since 2025-06-15T")
    assert str(failing).endswith("Z")
    await world.probe()
    assert world.health.failing[0].since_ms == since_ms
    assert (world.up("redis"), world.up("kafka")) == (0, 1)


async def test_only_one_that_is_needed_ends_serving(world: World) -> None:
    world.kafka.error = LogFault(LogFaultKind.MISSING, "the topic is gone")
    await world.probe()
    assert world.health.serves
    world.redis.error = unavailable("connection refused")
    await world.probe()
    assert not world.health.serves
    assert [one.name for one in world.health.failing] == ["kafka", "redis"]


async def test_one_that_hangs_times_out_and_delays_no_other(world: World) -> None:
    world.redis.hangs = True
    await world.probe()
    assert world.health.failing[0].reason == f"no answer within {PROBE_TIMEOUT_S:g} s"
    assert world.kafka.pings >= 2


async def test_one_that_is_back_is_told(world: World) -> None:
    await world.probe()
    world.redis.error = unavailable("connection refused")
    await world.probe()
    world.redis.error = None
    await world.probe()
    assert world.health.serves
    assert [up for name, up in world.told if name == "redis"] == [True, False, True]


async def test_asking_probes_nothing(world: World) -> None:
    await world.probe()
    before = world.redis.pings
    for _ in range(100):
        assert world.health.serves
    assert world.redis.pings == before
