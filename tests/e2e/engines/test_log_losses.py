"""What a mailbox had yet to read is gone from the log: it says so, takes nothing in its place, and
waits for the operator, whose rebase gives each member what it lacks.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.e2e.engines.builds import journal, throw
from tests.e2e.engines.deployment import SHARDS, Deployment, Process, until
from tests.e2e.engines.dispatches import append, delete_records, forged, high, records
from tests.e2e.engines.traffic import served

from qimd.adapters.kafka import delete_topic
from qimd.app.demo_verdict import Verdict
from qimd.core.parameters import LOG_IDENTITY_CHECK_INTERVAL_S
from qimd.ctl.exits import OK
from qimd.ctl.main import run

BUSY_S = 5.0
"""By which a busy machine may be late."""


async def make_topic_anew(deployment: Deployment) -> None:
    """The same name, and more records than before, each of which would be an entry."""
    async with deployment.log() as log:
        old = await records(log)
        ends = [await high(log, partition) for partition in range(SHARDS)]
        await delete_topic(log)
        await deployment.make_topic()
        newest = max(record.fencing_epoch for record in old)
        await append(log, forged(old, newest, 2 * len(old)))
        assert all([await high(log, shard) > end for shard, end in enumerate(ends)])


async def retention_passes(deployment: Deployment) -> None:
    """All that there is goes."""
    async with deployment.log() as log:
        await delete_records(log)


def entries(process: Process) -> float:
    """How many a process has written."""
    return process.samples()['stage_entries_total{stage="mailbox"}']


def halted(process: Process) -> bool:
    """Whether the process alarms for every mailbox shard."""
    found = process.samples()
    names = (f'shard_halted{{kind="mailbox",shard="{shard}"}}' for shard in range(SHARDS))
    return all(found[name] == 1 for name in names)


@pytest.mark.parametrize(
    ("accident", "reason"),
    [(make_topic_anew, "identity_changed"), (retention_passes, "out_of_range")],
)
async def test_a_mailbox_whose_log_lost_what_it_had_yet_to_read_waits_for_a_rebase(
    accident: Callable[[Deployment], Awaitable[None]],
    reason: str,
    steady: Deployment,
    shown: Callable[[Verdict], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """F06: the topic is made anew, the position below the new end. F09: the position is below the
    log's beginning. Refused within an interval of the check, with an alarm; nothing is applied.
    """
    server = steady.process("server", "all", build=("held-log",))

    def ctl(*arguments: str) -> list[dict[str, Any]]:
        """What an operator is told."""
        how = ("--address", server.grpc, "--admin-token", steady.admin_token)
        code = run([*how, *arguments, "-o", "jsonl"])
        told = capsys.readouterr()
        assert code == OK, told.err
        return [json.loads(line) for line in told.out.splitlines()]

    def mailbox_shards() -> list[dict[str, Any]]:
        return [row for row in ctl("shards") if row["kind"] == "mailbox"]

    traffic = await served(steady, server)
    await traffic.say()
    await traffic.settle()
    throw(steady.folder, "hold-fetch")
    # Of the mailbox and of the session list.
    await until(lambda: len(journal(steady.folder)) >= 2 * SHARDS, "nobody reads")
    await traffic.say()
    await traffic.settle()
    before, written = mailbox_shards(), await asyncio.to_thread(entries, server)
    assert all(row["next_offset"] < row["high_watermark"] for row in before)
    await accident(steady)
    began_s = time.monotonic()
    throw(steady.folder, "hold-fetch", on=False)
    await until(lambda: halted(server), "every shard alarms")
    assert time.monotonic() - began_s < LOG_IDENTITY_CHECK_INTERVAL_S + BUSY_S
    after = mailbox_shards()
    assert all(reason in row["state"] for row in after), after
    assert [row["position_seq"] for row in after] == [row["position_seq"] for row in before]
    assert await asyncio.to_thread(entries, server) == written

    for shard in range(SHARDS):
        ctl("rebase", str(shard), "--yes")
    # Dispatching to another topic takes a restart with open eyes.
    await steady.stop(server)
    await server.start()
    steady.lead_to(server)
    for partition in range(SHARDS):
        ctl("rebuild-projection", str(partition), "--yes")
    await traffic.say()
    shown(await traffic.verify())
