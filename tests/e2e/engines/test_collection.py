"""What the mailbox knows of dispatches goes under three conditions together, and else never."""

import asyncio
from typing import Final

from tests.e2e.engines.builds import step_clock
from tests.e2e.engines.deployment import Deployment, Process, owned_by, until
from tests.e2e.engines.dispatches import delete_records, inject, records
from tests.e2e.engines.traffic import Traffic

from qimd.contract import codec
from qimd.core.parameters import BUCKET_DAYS_KEPT
from qimd.mailbox.logic import DAY_MS
from qimd.ports.log import ProduceRecord

WINDOW_DAYS: Final = 2
"""No shorter than the deployments' recovery window."""

EXPIRED_DAYS: Final = BUCKET_DAYS_KEPT + 2


async def mailbox(deployment: Deployment, days: int, window_days: int | None) -> Process:
    """The mailbox of so many days later, under a replay safety window or none."""
    step_clock(deployment.folder, days * DAY_MS)
    flags: tuple[str, ...] = ()
    if window_days is not None:
        flags = ("--replay-safety-window-ms", str(window_days * DAY_MS))
        flags += ("--replay-safety-audit", "a test's own")
    name = f"mailbox-{len(deployment.processes)}"
    process = deployment.process(name, "mailbox", *flags, build=("stepped-clock",))
    await process.start()
    await owned_by(process, "mailbox")
    return process


async def comes_again(
    deployment: Deployment, process: Process, batch: list[ProduceRecord]
) -> tuple[bool, float]:
    """Dispatch it all once more: whether it was absorbed, else it is delivered; and how much the
    mailbox had forgotten when it came.
    """
    await inject(deployment, batch, process)
    found = await asyncio.to_thread(process.samples)
    absorbed = await asyncio.to_thread(process.total, "duplicates_total")
    entered = found.get('stage_entries_total{stage="mailbox"}', 0.0)
    assert (absorbed > 0) != (entered > 0), "all of it is known, or none"
    return absorbed > 0, found["dispatch_progress_collected_total"]


async def test_a_dispatch_is_forgotten_under_three_conditions_alone(deployment: Deployment) -> None:
    """A window that was named; every watermark and floor past the last place where it was seen;
    and that place older than the window. And never while the log holds it.
    """
    server = deployment.process("server", "all")
    await server.start()
    deployment.lead_to(server)
    traffic = Traffic(deployment)
    await traffic.set_up()
    await traffic.say()
    await traffic.verify()
    await deployment.stop(server)
    async with deployment.log() as log:
        real = await records(log)
    batch = [ProduceRecord(record.mailbox_shard, codec.encode(record)) for record in real]

    for days, window_days in (
        (1_000, None),
        (EXPIRED_DAYS - 5, WINDOW_DAYS),
        (EXPIRED_DAYS, EXPIRED_DAYS + 5),
        # The log still holds it.
        (EXPIRED_DAYS, WINDOW_DAYS),
    ):
        process = await mailbox(deployment, days, window_days)
        assert await comes_again(deployment, process, batch) == (True, 0), (days, window_days)
        await deployment.stop(process)

    async with deployment.log() as log:
        await delete_records(log)
    process = await mailbox(deployment, EXPIRED_DAYS, WINDOW_DAYS)
    name = "dispatch_progress_collected_total"
    await until(lambda: process.total(name) == len(batch), "all of it is forgotten")
    assert await comes_again(deployment, process, batch) == (False, len(batch))
    assert not any((await deployment.zeros()).values())
