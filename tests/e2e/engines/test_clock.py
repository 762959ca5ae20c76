"""A wall clock that steps back: a little is evened out, more stops the writer until it is right."""

import asyncio
from collections.abc import Callable

from tests.e2e.engines.builds import step_clock
from tests.e2e.engines.deployment import Deployment
from tests.e2e.engines.traffic import MEMBERS, ROOMS, push, served

from qimd.app.demo_verdict import Verdict
from qimd.client import Event
from qimd.core.parameters import CLOCK_REGRESSION_REJECT_MS

BEYOND_MS = 5 * CLOCK_REGRESSION_REJECT_MS


async def test_a_clock_that_steps_back_gives_no_time_twice_and_stops_a_writer_beyond_the_limit(
    deployment: Deployment, shown: Callable[[Verdict], None]
) -> None:
    server = deployment.process("server", "all", build=("stepped-clock",))
    traffic = await served(deployment, server)
    await traffic.say()
    step_clock(deployment.folder, -CLOCK_REGRESSION_REJECT_MS // 2)
    await traffic.say()
    step_clock(deployment.folder, -BEYOND_MS)
    before = traffic.acknowledged
    refused = asyncio.create_task(traffic.say())
    for room in ROOMS:
        assert await asyncio.to_thread(push, server, deployment, room) == "UNAVAILABLE"
    assert (refused.done(), traffic.acknowledged) == (False, before)
    step_clock(deployment.folder, 0)
    # Sent again by the SDK until it was taken.
    await refused
    times: dict[str, list[int]] = {room: [] for room in ROOMS}
    async with traffic.client(MEMBERS[1], "reader") as client:
        async for event in client.events(until_caught_up=True):
            assert isinstance(event, Event)
            times[event.conversation].append(event.created_at_ms)
    assert all(found == sorted(found) for found in times.values())
    shown(await traffic.verify())
