"""A dispatch log that was made anew: its readers refuse, and the operator brings them back."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.support.dev import DevServer

from qimd.adapters.sqlite import open_sqlite
from qimd.app.folder import DATABASE_NAME
from qimd.app.runtime import AsyncioRuntime
from qimd.core.outcome import Applied
from qimd.ctl.exits import OK, REFUSED, TRY_AGAIN
from qimd.ctl.main import run
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


async def make_the_log_anew(data: Path) -> None:
    """What an accident with a topic leaves: the same name, another identity, no records."""
    runtime = AsyncioRuntime(Metrics())
    store = await open_sqlite(data / DATABASE_NAME, runtime, partitions=1, sole_owner=True)
    try:
        assert isinstance(await store.log.recreate_topic(), Applied)
    finally:
        await store.close()


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
