"""Accidents of the dispatch log, as an operator meets them: a log that was made anew, and a record
that nobody can read.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.support.dev import DevServer

from qimd.adapters.sqlite import SqliteBackends, open_sqlite
from qimd.app.folder import DATABASE_NAME
from qimd.app.runtime import AsyncioRuntime
from qimd.core.outcome import Applied
from qimd.ctl.exits import OK, REFUSED, TRY_AGAIN
from qimd.ctl.main import run
from qimd.ports.log import ProduceRecord
from qimd.telemetry.metrics import ZEROS, Metrics

Rows = list[dict[str, Any]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DevServer]:
    running = DevServer(tmp_path / "data", ("--mailbox-shards", "1"))
    with running:
        yield running


def ctl(server: DevServer, capsys: pytest.CaptureFixture[str], *arguments: str) -> Rows:
    code = run(["--data", str(server.data), *arguments, "-o", "jsonl"])
    shown = capsys.readouterr()
    assert code == OK, shown.err
    return [json.loads(line) for line in shown.out.splitlines()]


def until(
    server: DevServer, capsys: pytest.CaptureFixture[str], count: int, *arguments: str
) -> Rows:
    """The rows of a command once there are so many: materialising goes on beside the reader."""
    for _ in range(200):
        rows = ctl(server, capsys, *arguments)
        if len(rows) == count:
            return rows
    raise AssertionError(f"never {count} rows: {rows}")


@asynccontextmanager
async def stopped(data: Path) -> AsyncIterator[SqliteBackends]:
    """The engine of a server that does not run."""
    runtime = AsyncioRuntime(Metrics())
    store = await open_sqlite(data / DATABASE_NAME, runtime, partitions=1, sole_owner=True)
    try:
        yield store
    finally:
        await store.close()


async def make_the_log_anew(data: Path) -> None:
    """What an accident with a topic leaves: the same name, another identity, no records."""
    async with stopped(data) as store:
        assert isinstance(await store.log.recreate_topic(), Applied)


async def spoil_the_log(data: Path, value: bytes) -> int:
    """Append what is no record; its offset."""
    async with stopped(data) as store:
        offset = (await store.backends.log.watermarks(0)).high
        producer = await store.backends.log.open_producer()
        assert await producer.produce([ProduceRecord(0, value)]) == [Applied(None)]
        await producer.close()
        return offset


def unread_is(
    server: DevServer, capsys: pytest.CaptureFixture[str], unread: int, read_through: int = 0
) -> None:
    """Wait until bob's list, which is projected beside the reader, shows this."""
    for _ in range(200):
        (row,) = ctl(server, capsys, "sessions", "--user", "bob")
        if (row["unread"], row["read_through_seq"]) == (unread, read_through):
            return
    raise AssertionError(f"never {unread} unread above {read_through}: {row}")


def test_a_log_made_anew_is_refused_until_the_operator_rebases(
    server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """MBX-01: detected by the log's identity; the shard refuses, alarms, applies nothing. After the
    operator's rebase everything is materialised, and devices go on; the session list comes back by
    its own rebuild, with the read marks."""
    ctl(server, capsys, "conversation", "create", "c", "--member", "ann", "--member", "bob")
    for number in range(5):
        ctl(server, capsys, "send", "c", f"before {number}", "--user", "ann")
    pull = ("pull", "--no-ack", "--user", "bob")
    assert len(until(server, capsys, 6, *pull)) == 6
    unread_is(server, capsys, 5)
    ctl(server, capsys, "mark-read", "c", "3", "--user", "bob")
    for command, refusal in (("rebase", "the shard runs"), ("rebuild-projection", "not dirty")):
        assert run(["--data", str(server.data), command, "0", "--yes"]) == REFUSED
        assert refusal in capsys.readouterr().err

    assert server.stop() == 0
    asyncio.run(make_the_log_anew(server.data))
    server.start()
    mailbox, session = ctl(server, capsys, "shards")
    assert mailbox["state"] not in ("owned", "not owned here")
    assert "another log" in session["state"]
    assert run(["--data", str(server.data), *pull, "--timeout", "1"]) == TRY_AGAIN
    assert "identity_changed" in capsys.readouterr().err

    (plan,) = ctl(server, capsys, "rebase", "0", "--dry-run")
    assert (plan["dry_run"], plan["events"]) == (True, 6)
    (done,) = ctl(server, capsys, "rebase", "0", "--yes")
    assert done["log_epoch"] > mailbox["shard_epoch"]
    assert run(["--data", str(server.data), "sessions", "--user", "bob"]) == REFUSED
    assert "SESSION_PROJECTION_DIRTY" in capsys.readouterr().err
    (plan,) = ctl(server, capsys, "rebuild-projection", "0", "--dry-run")
    assert (plan["dry_run"], plan["events"], plan["rows"]) == (True, 6, 0)
    (done,) = ctl(server, capsys, "rebuild-projection", "0", "--yes")
    assert (done["events"], done["rows"]) == (6, 2)
    unread_is(server, capsys, 3, read_through=3)

    ctl(server, capsys, "send", "c", "after", "--user", "ann")
    rows = until(server, capsys, 7, *pull)
    assert [row["conversation_seq"] for row in rows] == list(range(1, 8))
    unread_is(server, capsys, 4, read_through=3)
    exposed = server.get("/metrics")
    for zero in ZEROS:
        assert f"\n{zero} 0.0\n" in exposed, zero


def test_a_record_that_nobody_can_read_is_parked_where_the_operator_sees_it(
    server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """FAN-04: what fails for good leaves an entry that an operator sees, by mailbox and session
    list alike, and holds nobody: every member has what came before it and what comes behind."""
    ctl(server, capsys, "conversation", "create", "c", "--member", "ann", "--member", "bob")
    ctl(server, capsys, "send", "c", "before", "--user", "ann")
    unread_is(server, capsys, 1)
    assert server.stop() == 0
    offset = asyncio.run(spoil_the_log(server.data, b"\xff\xff no record"))
    for _ in range(2):
        server.start()
        ctl(server, capsys, "send", "c", "behind", "--user", "ann", "--msg-id", "behind")
        pull = ("pull", "--no-ack", "--user", "bob")
        rows = until(server, capsys, 3, *pull)
        assert [row["conversation_seq"] for row in rows] == [1, 2, 3]
        unread_is(server, capsys, 2)
        (parked,) = ctl(server, capsys, "quarantine", "list")
        assert (parked["partition"], int(parked["offset"])) == (0, offset)
        assert server.stop() == 0
