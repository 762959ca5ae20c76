"""What a file refuses to be opened as, and what it keeps over a restart."""

import importlib
import pkgutil
import re
import sqlite3
from pathlib import Path

import pytest
from tests.contract.builders import refused, value
from tests.support.runtime import ManualRuntime

from qimd.adapters import sqlite as package
from qimd.adapters.sqlite import (
    FormatTooNew,
    OpenRefused,
    PartitionCountDiffers,
    SqliteBackends,
    open_sqlite,
)
from qimd.adapters.sqlite.schema import FORMAT_VERSION
from qimd.core.outcome import Refusal
from qimd.ports.lease import LeaseView
from qimd.ports.store import ShardKind

WRITER = ShardKind.WRITER


def content(path: Path) -> bytes:
    return path.read_bytes()


async def test_a_newer_format_is_refused_and_left_as_it_is(
    path: Path, runtime: ManualRuntime
) -> None:
    await (await open_sqlite(path, runtime)).close()
    db = sqlite3.connect(path)
    db.execute("UPDATE meta SET value = ? WHERE name = 'format_version'", (FORMAT_VERSION + 1,))
    db.commit()
    db.close()
    before = content(path)
    with pytest.raises(FormatTooNew) as caught:
        await open_sqlite(path, runtime)
    assert caught.value.found == FORMAT_VERSION + 1
    assert content(path) == before


async def test_what_the_format_before_held_is_taken_over(
    path: Path, runtime: ManualRuntime
) -> None:
    """A dispatch that was done then is known for ever, since nobody can tell where it was seen."""
    await (await open_sqlite(path, runtime)).close()
    db = sqlite3.connect(path)
    db.execute("DROP TABLE mailbox_seen")
    db.execute("ALTER TABLE dispatch_progress DROP COLUMN seen_seq")
    db.execute("INSERT INTO dispatch_progress VALUES (x'01', 5, x'02')")
    db.execute("UPDATE meta SET value = 1 WHERE name = 'format_version'")
    db.commit()
    db.close()
    await (await open_sqlite(path, runtime)).close()
    db = sqlite3.connect(path)
    [(version,)] = db.execute("SELECT value FROM meta WHERE name = 'format_version'")
    assert version == FORMAT_VERSION
    assert db.execute("SELECT count(*) FROM mailbox_seen").fetchall() == [(0,)]
    [(mask, seen)] = db.execute("SELECT lane_mask, seen_seq FROM dispatch_progress")
    assert (mask, seen) == (5, (1 << 63) - 1)
    db.close()


async def test_a_database_of_something_else_is_refused(path: Path, runtime: ManualRuntime) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE notes (text)")
    db.close()
    with pytest.raises(OpenRefused):
        await open_sqlite(path, runtime)


@pytest.fixture
def letter(tmp_path: Path) -> Path:
    path = tmp_path / "letter.txt"
    path.write_text("something else entirely, and long enough to have a header " * 100)
    return path


async def test_a_file_that_is_no_database_is_refused(letter: Path, runtime: ManualRuntime) -> None:
    with pytest.raises(OpenRefused):
        await open_sqlite(letter, runtime)


async def test_another_partition_count_is_refused(path: Path, runtime: ManualRuntime) -> None:
    """FAN-03: a bare change of the topic's partition count is refused."""
    await (await open_sqlite(path, runtime, partitions=2)).close()
    with pytest.raises(PartitionCountDiffers) as caught:
        await open_sqlite(path, runtime, partitions=4)
    assert (caught.value.found, caught.value.wanted) == (2, 4)


async def test_the_logs_identity_survives_a_restart_and_a_re_creation_changes_it(
    path: Path, runtime: ManualRuntime
) -> None:
    store = await open_sqlite(path, runtime)
    first = await store.backends.log.identity()
    await store.close()
    store = await open_sqlite(path, runtime)
    assert await store.backends.log.identity() == first
    value(await store.log.recreate_topic())
    second = await store.backends.log.identity()
    assert second.cluster_id == first.cluster_id
    assert second.topic_id != first.topic_id
    await store.close()


async def test_leases_of_dead_owners_are_released_for_a_sole_owner_alone(
    path: Path, runtime: ManualRuntime
) -> None:
    store = await open_sqlite(path, runtime)
    value(await store.backends.lease.acquire(WRITER, 0, "first", 15.0))
    await store.close()

    store = await open_sqlite(path, runtime)
    lease = store.backends.lease
    assert await lease.view(WRITER, 0) == LeaseView("first", released=False)
    assert refused(await lease.acquire(WRITER, 0, "second", 15.0)) is Refusal.CONFLICT
    await store.close()

    store = await open_sqlite(path, runtime, sole_owner=True)
    lease = store.backends.lease
    assert await lease.view(WRITER, 0) == LeaseView("", released=True)
    assert await lease.view(WRITER, 1) == LeaseView("", released=True)
    value(await lease.acquire(WRITER, 0, "second", 15.0))
    assert await lease.view(WRITER, 0) == LeaseView("second", released=False)
    await store.close()


async def test_every_statement_of_the_package_finds_its_rows_by_a_key(
    store: SqliteBackends,
) -> None:
    """No table is ever walked from end to end, but the quarantine's list and the epochs."""
    walked = await store.engine.read(_walked)
    assert walked == {("_NEWEST", "SCAN quarantine")}


def _walked(db: sqlite3.Connection) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    statements = 0
    for module in pkgutil.iter_modules(package.__path__, "qimd.adapters.sqlite."):
        for name, text in vars(importlib.import_module(module.name)).items():
            if not isinstance(text, str) or not re.match(
                r"\s*(WITH|SELECT|INSERT|UPDATE|DELETE)\b.*\b(FROM|INTO|SET)\b", text, re.DOTALL
            ):
                continue
            statements += 1
            named = re.findall(r"(?<!:):([a-z_]+)", text)
            args = dict.fromkeys(named, "[]") if named else ["[]"] * text.count("?")
            for *_, detail in db.execute(f"EXPLAIN QUERY PLAN {text}", args):
                if re.match(r"SCAN (?!json_each|\w+ VIRTUAL|\(|oldest)", detail):
                    found.add((name, detail))
    assert statements > 50
    return found
