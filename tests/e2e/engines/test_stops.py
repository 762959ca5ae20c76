"""Roles that are stopped for longer than they may own anything, and go on: others serve meanwhile
what they owned, and what they still believe moves nothing.
"""

import time
from collections.abc import Callable

import pytest
from tests.e2e.engines.deployment import Deployment, Process, owned_by, until
from tests.e2e.engines.traffic import OWNING, served_by_roles

from qimd.app.demo_verdict import Verdict


@pytest.mark.parametrize(
    "seconds", [pytest.param(0, id="beyond_its_lease"), pytest.param(30, marks=pytest.mark.chaos)]
)
async def test_each_role_is_stopped_amid_traffic_and_goes_on(
    seconds: int, deployment: Deployment, shown: Callable[[Verdict], None]
) -> None:
    roles, heir, traffic = await served_by_roles(deployment)

    async def until_over(since_s: float) -> None:
        await traffic.more()
        while time.monotonic() < since_s + seconds:
            await traffic.more(1)

    async with traffic.flowing():
        for role in OWNING:
            await traffic.more()
            stopped_s = time.monotonic()
            roles[role].pause()
            await owned_by(heir, role)
            await until_over(stopped_s)
            roles[role].resume()
            await gives_up(roles[role])
            await until_over(0)
        # Its clients find out by themselves that nobody answers, and come in by another door.
        stopped_s = time.monotonic()
        roles["connection"].pause()
        deployment.lead_to(heir)
        await until_over(stopped_s)
        roles["connection"].resume()
        await until_over(0)
    shown(await traffic.verify())


async def gives_up(process: Process) -> None:
    """Return once it knows that it owns nothing."""
    await until(lambda: process.total("epoch") == 0, f"{process.name} has given up")
