"""A full disk, a failing disk, a killed process."""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.contract.builders import event, key, new, refused, step, value
from tests.support.disk import small_disk
from tests.support.runtime import ManualRuntime
from tests.unit.sqlite.scenes import held, message, owned, queued

from qimd.adapters.sqlite import SqliteBackends, open_sqlite
from qimd.core.outcome import Applied, Outcome, Refusal, Unknown
from qimd.core.records import UserKey
from qimd.core.seq import SEQ_MAX, SEQ_NONE

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def wal_takes_no_write(path: Path) -> Iterator[None]:
    """The process's descriptors of the WAL are read-only meanwhile: a write is an I/O error."""
    wal = os.path.realpath(f"{path}-wal")
    ours = [int(fd) for fd in os.listdir("/proc/self/fd") if _target(fd) == wal]
    assert ours
    kept = [(fd, os.dup(fd)) for fd in ours]
    other = os.open(wal, os.O_RDONLY)
    try:
        for fd in ours:
            os.dup2(other, fd)
        yield
    finally:
        for fd, copy in kept:
            os.dup2(copy, fd)
            os.close(copy)
        os.close(other)


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


async def test_a_commit_that_fails_on_the_disk_is_unknown_and_the_same_step_resolves_it(
    store: SqliteBackends, path: Path
) -> None:
    """WR-04: the step, issued again under its request id, is applied as 1 once."""
    epoch = await owned(store)
    conversations = store.backends.conversations
    with wal_takes_no_write(path):
        assert isinstance(await conversations.commit(message(epoch, 1)), Unknown)
    assert value(await conversations.commit(message(epoch, 1))).head_version == 1
    assert value(await conversations.commit(message(epoch, 1))).head_version == 1
    assert len(await conversations.outbox(key(), 0, 10)) == 1


async def test_a_file_at_its_limit_refuses_all_that_commit_together(
    store: SqliteBackends,
) -> None:
    epoch = await owned(store)
    conversations = store.backends.conversations

    def limit(pages: int) -> Callable[[sqlite3.Connection], Outcome[None]]:
        def job(db: sqlite3.Connection) -> Outcome[None]:
            (now,) = db.execute("PRAGMA page_count").fetchone()
            db.execute(f"PRAGMA max_page_count = {now + pages:d}")
            return Applied(None)

        return job

    value(await store.engine.write(limit(2)))
    async with held(store):
        small = asyncio.ensure_future(conversations.claim(0, epoch, key()))
        large = asyncio.ensure_future(conversations.commit(message(epoch, 1, size=100_000)))
        await queued(small, large)
    assert refused(await large) is Refusal.NO_SPACE
    assert refused(await small) is Refusal.NO_SPACE
    value(await store.engine.write(limit(10_000)))
    assert value(await conversations.commit(message(epoch, 1, size=100_000))).head_version == 1


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small") as made:
        yield made


async def test_a_full_disk_refuses_until_there_is_room_and_loses_nothing(
    disk: Path, runtime: ManualRuntime
) -> None:
    store = await open_sqlite(disk / "qim.db", runtime)
    conversations = store.backends.conversations
    epoch = await owned(store)
    ballast = disk / "ballast"
    ballast.write_bytes(b"b" * 8_000_000)
    head = 0
    outcome = await conversations.commit(message(epoch, 1, size=60_000))
    while isinstance(outcome, Applied):
        head = outcome.value.head_version
        outcome = await conversations.commit(message(epoch, head + 1, size=60_000))
    assert head > 0
    assert refused(outcome) is Refusal.NO_SPACE
    async with held(store):
        calls = [
            asyncio.ensure_future(conversations.commit(message(epoch, head + 1, size=500_000))),
            asyncio.ensure_future(conversations.create_conversation(0, epoch, key("other"), 1)),
        ]
        await queued(*calls)
    for refusal in await asyncio.gather(*calls):
        assert refused(refusal) is Refusal.NO_SPACE
    assert await conversations.conversation(key("other")) is None
    ballast.unlink()
    for _ in range(10):
        head = value(await conversations.commit(message(epoch, head + 1, size=60_000))).head_version
    found = await conversations.outbox(key(), 0, 1_000)
    assert [one.conversation_seq for one in found] == list(range(1, head + 1))
    assert all(one.encoded.endswith(b"x" * 60_000) for one in found)
    await store.close()


async def test_nothing_that_was_acknowledged_is_missing_after_a_kill(
    path: Path, runtime: ManualRuntime
) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.unit.sqlite.writing_child",
        str(path),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    acknowledged = 0
    while acknowledged < 150:
        line = await child.stdout.readline()
        assert line, "the child ended by itself"
        acknowledged = int(line)
    child.send_signal(signal.SIGKILL)
    rest = (await child.stdout.read()).split()
    await child.wait()
    acknowledged = max([acknowledged, *map(int, rest)])

    store = await open_sqlite(path, runtime, sole_owner=True)
    backends = store.backends
    found = await backends.conversations.outbox(key(), 0, 100_000)
    numbers = [one.conversation_seq for one in found]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= acknowledged
    assert (await backends.log.watermarks(0)).high >= acknowledged
    reader = await backends.log.open_reader(0, 0)
    values = [record.value for record in await reader.fetch(acknowledged, 0)]
    assert values == [f"record {number}".encode() for number in range(1, acknowledged + 1)]
    anna = UserKey(key().tenant, found[0].sender or pytest.fail("no sender"))
    entries = await backends.mailbox.entries(anna, SEQ_NONE, SEQ_MAX, 100_000)
    assert [entry.ref.conversation_seq for entry in entries][:acknowledged] == numbers[
        :acknowledged
    ]
    head = len(numbers)
    again = step(7, head, [new(event(head + 1))])
    assert value(await backends.conversations.commit(again)).head_version == head + 1
    await store.close()
