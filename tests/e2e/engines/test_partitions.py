"""Engines that a process can't reach for a while: it stops in time, and goes on by itself."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests import engines
from tests.e2e.engines.deployment import deployed, owned_by, until
from tests.e2e.engines.traffic import Traffic
from tests.e2e.engines.wire import Wire

from qimd.app.demo_verdict import Verdict

pytestmark = pytest.mark.chaos


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
