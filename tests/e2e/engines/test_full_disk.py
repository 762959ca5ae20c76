"""The disk under the log is full: messages are acknowledged meanwhile, and arrive once there is
room again.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.engines.deployment import deployed, until
from tests.e2e.engines.traffic import Traffic
from tests.engines.kafka import Kafka
from tests.support.disk import fill, small_disk

from qimd.app.demo_verdict import Verdict

LEFT = 100_000
"""What the ballast leaves: some hundred dispatches."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Kafka]:
    with small_disk(tmp_path / "small", 40) as disk, Kafka(disk / "kafka") as started:
        yield started


async def test_a_full_disk_under_the_log_delays_and_loses_nothing(
    broker: Kafka, tmp_path: Path, shown: Callable[[Verdict], None]
) -> None:
    async with deployed(tmp_path, at={"kafka": broker.address}) as deployment:
        server = deployment.process("server", "all")
        await server.start()
        deployment.lead_to(server)
        traffic = Traffic(deployment)
        await traffic.set_up()
        async with traffic.flowing():
            await traffic.more()
            ballast = fill(broker.folder.parent, LEFT)
            await until(lambda: not broker.running().alive(), "the broker has ended by itself")
            await traffic.more()
            ballast.unlink()
            broker.start()
            await asyncio.to_thread(broker.wait)
            await traffic.more()
        shown(await traffic.verify())
