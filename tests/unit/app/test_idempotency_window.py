"""For how long a SEND that is repeated is known again, with the chore that forgets."""

from collections.abc import AsyncIterator

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.writer.world import World, text

from qimd.app.housekeeping import expire_idempotency
from qimd.core.parameters import IDEMPOTENCY_WINDOW_MS
from qimd.core.records import Accepted

HOUR_S = 3600.0
WINDOW_S = IDEMPOTENCY_WINDOW_MS / 1000


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with ManualRuntime() as runtime:
        yield World(runtime)


@pytest.mark.parametrize(
    ("after_s", "known"), [(HOUR_S, True), (23 * HOUR_S, True), (WINDOW_S + 1, False)]
)
async def test_a_send_that_is_repeated_is_known_for_its_window(
    world: World, after_s: float, known: bool
) -> None:
    """WR-03, after 1 h: what forgets has had its turn meanwhile."""
    node = await world.node()
    await node.serve()
    await world.room(node)
    (first,) = await node.send(text("M"))
    assert isinstance(first, Accepted)
    world.runtime.step_wall(round(after_s * 1000))
    await expire_idempotency(node.backends.conversations, world.runtime).run()
    (again,) = await node.send(text("M"))
    assert isinstance(again, Accepted)
    assert again.duplicate is known
    assert (again.event_id == first.event_id) is known
