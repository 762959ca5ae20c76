"""How far an outbox is said to have come: never past what the log has not got yet."""

from collections.abc import AsyncIterator

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.writer.world import ANN, BOB, World, text


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with ManualRuntime() as runtime:
        yield World(runtime)


async def test_progress_stops_at_what_is_durable_though_more_is_committed(world: World) -> None:
    """FAN-01, F05: 2 is in the log as its progress is stored, 3 is committed and is not; whoever
    comes next dispatches 3.
    """
    node = await world.node()
    await node.serve()
    await world.room(node)
    await node.until_dispatched()
    unheard = world.faults.refuse("advance", times=None)
    await node.send(text("2"))
    await world.runtime.advance(1)
    assert await world.delivered(ANN) == [1, 2]
    away = world.faults.refuse("produce", times=None)
    await node.send(text("3"))
    unheard.stop()
    await world.runtime.advance(3)
    assert (await node.state()).dispatched_through == 2
    node.backends.kill()
    away.stop()
    heir = await world.node()
    await heir.serve()
    await heir.until_dispatched()
    assert await world.delivered(BOB) == [1, 2, 3]
