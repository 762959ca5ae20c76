"""R-2: the outbox's progress is stored behind the durable dispatches, and nothing else orders them.

Killed between the two, the next owner dispatches again: absorbed, nothing missing. While a part of
a batch is not durable, progress does not move at all.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from aiokafka.protocol.admin import AlterConfigsRequest
from tests.e2e.engines.builds import journal, throw
from tests.e2e.engines.deployment import (
    STEADY_LEASE,
    TENANT,
    Deployment,
    Process,
    deployed,
    owned_by,
    until,
)
from tests.e2e.engines.traffic import served

from qimd.adapters.kafka import KafkaLog
from qimd.adapters.kafka.configs import Configs, Resource, describe
from qimd.adapters.kafka.gates import TOPIC_SETTINGS
from qimd.app.demo_verdict import Verdict

BATCH_RECORDS = 50
CROWDED = "crowded"
CROWD = tuple(f"{number:03}-{'x' * 100}" for number in range(100))
"""10 kB of recipients, where everybody else's record is below one."""
BATCH_BYTES = 2_000
LIMIT = "max.message.bytes"
SERVICES = Path(__file__).parents[3] / "services"


async def test_killed_between_durable_dispatches_and_progress_nothing_is_missing(
    steady: Deployment, shown: Callable[[Verdict], None]
) -> None:
    writer = steady.process("writer", "writer", build=("dies-before-progress",))
    heir = steady.process("heir", "all")
    traffic = await served(steady, writer, heir)
    async with traffic.flowing():
        await traffic.more()
        await steady.count(writer)
        throw(steady.folder, "die")
        await writer.ended()
        await owned_by(heir, "writer")
        await traffic.more()
    shown(await traffic.verify())
    assert journal(steady.folder)[-1]["rooms"]
    # Those events were in the log already, and came once more.
    assert heir.total("duplicates_total") > 0


async def test_what_a_dead_writer_had_committed_is_delivered_before_its_successors_traffic(
    deployment: Deployment, shown: Callable[[Verdict], None]
) -> None:
    """F17: a writer dies between commit and dispatch, and its successor has new traffic at once."""
    writer = deployment.process("writer", "writer", build=("dies-before-dispatch",))
    heir = deployment.process("heir", "all")
    traffic = await served(deployment, writer, heir)
    async with traffic.flowing():
        await traffic.more()
        throw(deployment.folder, "die")
        await writer.ended()
        await owned_by(heir, "writer")
        await traffic.more()
    died = [line for line in journal(deployment.folder) if line["step"] == "died"]
    assert len(died) == 1
    shown(await traffic.verify())


async def test_progress_does_not_move_while_a_part_of_a_batch_is_not_durable(
    steady: Deployment, shown: Callable[[Verdict], None]
) -> None:
    build = ("half-dispatches", "journal")
    writer = steady.process("writer", "writer", build=build)
    heir = steady.process("heir", "all")
    traffic = await served(steady, writer, heir)
    await traffic.settle()
    throw(steady.folder, "half")
    # Acknowledged, since it is committed: that is all a sender is told.
    await traffic.say()
    noted = journal(steady.folder)
    heads = {line["room"] for line in noted if line["step"] == "commit"}
    assert heads == set(traffic.rooms)

    def half_tries() -> int:
        tries = [line for line in journal(steady.folder) if line["step"] == "half"]
        return sum(line["records"] > 1 for line in tries)

    await until(lambda: half_tries() >= 3, "a part of a batch fails again and again")
    behind = journal(steady.folder)[_first_half(steady) :]
    assert not [line for line in behind if line["step"] == "advance"]
    await steady.kill(writer)
    behind = journal(steady.folder)[_first_half(steady) :]
    assert not [line for line in behind if line["step"] == "advance"]
    await owned_by(heir, "writer")
    shown(await traffic.verify())
    # The first record of each try was in the log.
    assert heir.total("duplicates_total") > 0


def _first_half(steady: Deployment) -> int:
    steps = [line["step"] for line in journal(steady.folder)]
    return steps.index("half")


async def test_one_refused_record_in_a_batch_of_fifty_is_kept_and_holds_nobody(
    tmp_path: Path, shown: Callable[[Verdict], None]
) -> None:
    """It is in quarantine, and progress passes it; the others land, in order."""
    async with deployed(tmp_path, lease=STEADY_LEASE, mailbox_shards=1) as deployment:
        flags = ("--writer-shards", "1")
        server = deployment.process("server", "all", *flags, build=("half-dispatches",))
        # One mailbox shard, so that an event is one record.
        rooms = [f"room-{number}" for number in range(BATCH_RECORDS - 1)]
        traffic = await served(deployment, server, rooms=rooms)
        await deployment.administrate(
            lambda admin: admin.create_conversation(TENANT, CROWDED, CROWD)
        )
        await until(lambda: is_dispatched(deployment, server), "the crowd is told of its room")
        await traffic.settle()
        async with deployment.log() as log:
            limit = await limit_batches(log, BATCH_BYTES)
        throw(deployment.folder, "half")
        await traffic.say()
        async with traffic.client(CROWD[0], "speaker") as client:
            await client.send(CROWDED, b"too large to dispatch")
        await until(lambda: _tried(deployment, BATCH_RECORDS), "all fifty are one batch")
        assert not await asyncio.to_thread(is_dispatched, deployment, server)
        throw(deployment.folder, "half", on=False)
        await until(lambda: is_dispatched(deployment, server), "progress passes what is kept")
        [kept] = await deployment.administrate(lambda admin: admin.quarantine())
        assert (kept.source, kept.never_produced) == (f"outbox {TENANT}/{CROWDED} seq 2", True)
        found = await asyncio.to_thread(server.samples)
        assert found['quarantined_total{stage="dispatch"}'] == 1

        await deployment.stop(server)
        async with deployment.log() as log:
            await limit_batches(log, limit)
        await server.start()
        deployment.lead_to(server)
        assert await deployment.administrate(lambda admin: admin.quarantine()) == [kept]
        shown(await traffic.verify())


def _tried(deployment: Deployment, records: int) -> bool:
    """Whether so many records were one batch that did not go through."""
    tries = [line["records"] for line in journal(deployment.folder) if line["step"] == "half"]
    return records in tries


def is_dispatched(deployment: Deployment, process: Process) -> bool:
    """Whether the crowded room's progress has reached what was committed."""
    with deployment.admin_of(process) as admin:
        found = admin.get_conversation(TENANT, CROWDED)
    return found.dispatched_through == found.head_version


async def limit_batches(log: KafkaLog, batch_bytes: int) -> int:
    """Set the topic's limit, which no start would let through, under running producers. Gives the
    one before.
    """

    async def settings() -> Configs:
        return await describe(log.brokers, Resource.TOPIC, log.topic, TOPIC_SETTINGS)

    before = await settings()
    wanted = {**before, LIMIT: str(batch_bytes)}
    request = AlterConfigsRequest([(Resource.TOPIC, log.topic, list(wanted.items()))], False)
    assert [code for code, *_ in (await log.brokers.ask_any(request)).resources] == [0]
    while (await settings())[LIMIT] != str(batch_bytes):
        pass
    return int(before[LIMIT] or 0)


async def test_nothing_asks_for_a_transactional_id() -> None:
    """All processes of these tests start without one: `Process.spawn` clears QIM_ variables."""
    asked = [
        str(path.relative_to(SERVICES))
        for path in SERVICES.rglob("*")
        if path.suffix in {".py", ".lua", ".md"}
        and "transactional_id" in path.read_text().lower().replace(".", "_").replace("-", "_")
    ]
    assert asked == []
