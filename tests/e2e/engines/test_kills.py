"""Deaths of each role amid traffic: by SIGKILL, whose leases run out, and by SIGTERM, which hands
over. Nothing that was acknowledged is missing, nothing is there twice.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.engines.deployment import SEED_LEASE, Deployment, deployed, owned_by
from tests.e2e.engines.traffic import OWNING, served_by_roles

from qimd.app.demo_verdict import Verdict

DRAINED = '"reason": "drained"'


async def kill_each_role_and_hand_over(
    deployment: Deployment, shown: Callable[[Verdict], None]
) -> None:
    roles, heir, traffic = await served_by_roles(deployment)
    async with traffic.flowing():
        for name in OWNING:
            await traffic.more()
            await deployment.kill(roles[name])
            await owned_by(heir, name)
        await traffic.more()
        deployment.lead_to(heir)
        await deployment.kill(roles["connection"])
        await traffic.more()

        second = deployment.process("second", "all")
        await second.start()
        await traffic.more()
        deployment.lead_to(second)
        await deployment.stop(heir)
        # What it still owned was given up with nothing under way, which spares its heir the wait.
        # On a busy machine a term may just have ended by itself.
        given_up = [line for line in heir.told().splitlines() if DRAINED in line]
        assert given_up
        assert all('"settled": true' in line for line in given_up)
        await owned_by(second, *OWNING)
        await traffic.more()
    shown(await traffic.verify())


async def test_each_role_is_killed_and_all_handed_over_amid_traffic(
    deployment: Deployment, shown: Callable[[Verdict], None]
) -> None:
    await kill_each_role_and_hand_over(deployment, shown)


@pytest.mark.chaos
async def test_each_role_is_killed_and_all_handed_over_under_the_seeds_leases(
    tmp_path: Path, shown: Callable[[Verdict], None]
) -> None:
    async with deployed(tmp_path, lease=SEED_LEASE) as deployment:
        await kill_each_role_and_hand_over(deployment, shown)
