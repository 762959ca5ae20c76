"""R-1: a writer that was stopped beyond its succession and goes on, and never learns of it.

Its self-fence and its lease's loss are taken from it (`builds`), so that the two checkpoints alone
stand between it and the mailboxes. Each is then switched off, to see that the test would notice.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.e2e.engines.builds import journal, throw
from tests.e2e.engines.deployment import (
    SEED_LEASE,
    SHARDS,
    STEADY_LEASE,
    Deployment,
    Process,
    deployed,
    owned_by,
)
from tests.e2e.engines.dispatches import STRANGERS, forged, inject, records
from tests.e2e.engines.traffic import ROOMS, Traffic, push, served

from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch
from qimd.app.demo_verdict import Verdict

INJECTED = 20
"""A half before the mailbox is restarted, a half behind it."""


def since(deployment: Deployment, start_s: float) -> Counter[tuple[str, str]]:
    """(step, outcome) of the old writer's conditional writes that began after a time. What it had
    asked for before it was stopped may have been done before its succession.
    """
    return Counter(
        (line["step"], line["outcome"])
        for line in journal(deployment.folder)
        if line["began_s"] > start_s
    )


def counted(process: Process) -> tuple[float, float]:
    """(stale dispatches dropped, entries written) by a process."""
    found = process.samples()
    return (
        process.total("stale_epoch_dispatch_dropped_total"),
        found.get('stage_entries_total{stage="mailbox"}', 0.0),
    )


async def stopped_beyond_succession(
    deployment: Deployment, rooms_taken: Sequence[str]
) -> tuple[Process, Process, Traffic]:
    """An old writer, stopped, that will go on as if nothing had been, its heir, and what was sent
    through both.

    The heir has written to `rooms_taken` alone.
    """
    build = ("believes", "journal", "checkpoint-1-switch")
    old = deployment.process("old", "writer", build=build)
    heir = deployment.process("heir", "all", build=("checkpoint-2-switch",))
    traffic = await served(deployment, old, heir)
    await traffic.say()
    await traffic.settle()
    assert await asyncio.to_thread(old.owns, "writer")
    old.pause()
    await owned_by(heir, "writer")
    await traffic.say(*rooms_taken)
    return old, heir, traffic


async def every_write_is_refused(
    deployment: Deployment, old: Process, rooms: Sequence[str]
) -> None:
    start_s = time.monotonic()
    old.resume()
    for room in rooms:
        assert await asyncio.to_thread(push, old, deployment, room) != "accepted"
    steps = since(deployment, start_s)
    assert steps["commit", "NotApplied"] + steps["claim", "NotApplied"] >= len(rooms)
    assert {outcome for _, outcome in steps} == {"NotApplied"}, steps


async def every_record_is_dropped(
    deployment: Deployment, heir: Process, old_epoch: int, real: Sequence[GroupDispatch]
) -> None:
    batch = forged(real, old_epoch, INJECTED)
    for number, half in enumerate((batch[: INJECTED // 2], batch[INJECTED // 2 :])):
        if number:
            # What it knows of epochs is durable, or the second half would be taken.
            await deployment.stop(heir)
            await heir.start()
            deployment.lead_to(heir)
        dropped, entries = await asyncio.to_thread(counted, heir)
        await inject(deployment, half, heir)
        assert await asyncio.to_thread(counted, heir) == (dropped + len(half), entries)


async def test_both_checkpoints_stop_a_writer_that_was_stopped_and_goes_on(
    steady: Deployment, shown: Callable[[Verdict], None]
) -> None:
    taken, untouched = ROOMS[:3], ROOMS[3:]
    old, heir, traffic = await stopped_beyond_succession(steady, taken)
    await every_write_is_refused(steady, old, (*taken, *untouched))

    await traffic.say()
    await traffic.settle()
    async with steady.log() as log:
        real = await records(log)
    epochs = sorted({record.fencing_epoch for record in real})
    assert len(epochs) == 2 * SHARDS, "each writer shard had two owners"
    oldest = epochs[0]
    newest = {(r.conversation_id, r.mailbox_shard): r for r in real if r.fencing_epoch > epochs[1]}
    await every_record_is_dropped(steady, heir, oldest, list(newest.values()))
    for stranger in STRANGERS:
        async with traffic.client(stranger, "phone") as client:
            assert [event async for event in client.events(until_caught_up=True)] == []
    shown(await traffic.verify())

    # Without checkpoint 2 a record of the old epoch has an entry.
    throw(steady.folder, "checkpoint-2-off")
    dropped, entries = await asyncio.to_thread(counted, heir)
    await inject(steady, forged(list(newest.values()), oldest, INJECTED + 1)[-1:], heir)
    after = await asyncio.to_thread(counted, heir)
    assert (after[0], after[1] > entries) == (dropped, True)

    # Without checkpoint 1 a write of the old writer lands.
    throw(steady.folder, "checkpoint-1-off")
    start_s = time.monotonic()
    assert await asyncio.to_thread(push, old, steady, untouched[0]) == "accepted"
    assert since(steady, start_s)["commit", "Applied"] == 1


@pytest.mark.parametrize(
    ("store", "lease"), [("redis", SEED_LEASE), ("scylla", STEADY_LEASE)], ids=["redis", "scylla"]
)
async def test_every_write_of_a_writer_that_was_stopped_is_refused(
    store: str, lease: tuple[str, ...], tmp_path: Path, shown: Callable[[Verdict], None]
) -> None:
    """On Redis under the seed's times. On Cassandra a head is fenced by its first use, so all of
    them are used (docs/engines.md).
    """
    async with deployed(tmp_path, store=store, lease=lease) as deployment:
        old, _, traffic = await stopped_beyond_succession(deployment, ROOMS)
        await every_write_is_refused(deployment, old, ROOMS)
        await traffic.say()
        shown(await traffic.verify())
