"""The embedded engine's one file: how it is made, opened, and refused."""

import os
import sqlite3
from pathlib import Path
from typing import Final

from qimd.adapters.sqlite.schema import ADD_SEEN_SEQ, FORMAT_VERSION, MAILBOX_SEEN, SCHEMA

BUSY_TIMEOUT_MS: Final = 5_000
"""How long a start waits for a backup or an inspection that holds the file."""

WAL_AUTOCHECKPOINT_PAGES: Final = 16_000
"""64 MB: a checkpoint then copies a page that many commits have changed once, not each time."""

WRITER_CACHE_KIB: Final = 64 * 1024
READER_CACHE_KIB: Final = 16 * 1024
STATEMENTS_CACHED: Final = 256
"""More than there are statements in this package: none is ever prepared twice."""


class OpenRefused(Exception):
    """The file can't be opened as it is; nothing was changed."""


class FormatTooNew(OpenRefused):
    """A newer build wrote the file."""

    def __init__(self, found: int) -> None:
        super().__init__(
            f"the data has format version {found}, this build reads up to {FORMAT_VERSION}; "
            f"start the build that wrote it, or a newer one"
        )
        self.found = found


class PartitionCountDiffers(OpenRefused):
    """The topic exists with another partition count, which is fixed for its life."""

    def __init__(self, found: int, wanted: int) -> None:
        super().__init__(
            f"the dispatch topic has {found} partitions and can't be opened with {wanted}: "
            f"mailbox_seq and routing depend on the count"
        )
        self.found = found
        self.wanted = wanted


def open_writer(path: Path) -> sqlite3.Connection:
    """The writing connection to the file, created with its tables if it is new.

    Raises OpenRefused if it is not this engine's file, or a newer format.
    """
    try:
        _make_private(path)
        db = _connect(path, "rw")
        try:
            _configure(db, WRITER_CACHE_KIB)
            _prepare(db)
        except (sqlite3.Error, OpenRefused):
            db.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise OpenRefused(f"{path.name} can't be opened as a qim database: {error}") from error
    return db


def open_reader(path: Path) -> sqlite3.Connection:
    """A read-only connection to a file that `open_writer` has opened."""
    db = _connect(path, "ro")
    _configure(db, READER_CACHE_KIB)
    return db


def _make_private(path: Path) -> None:
    """Create a file that is not there for its owner alone: it will hold message bodies, and the
    engine gives its own files beside it the same permissions.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # One thread uses it at a time (`engine`), only not the one that opens it.
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS_CACHED,
        timeout=BUSY_TIMEOUT_MS / 1000,
    )


def _configure(db: sqlite3.Connection, cache_kib: int) -> None:
    db.execute("PRAGMA foreign_keys = OFF")
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute(f"PRAGMA cache_size = -{cache_kib:d}")


def _prepare(db: sqlite3.Connection) -> None:
    version = _format_version(db)
    if version > FORMAT_VERSION:
        raise FormatTooNew(version)
    db.execute("PRAGMA journal_mode = WAL")
    # FULL in WAL mode syncs at each commit: an acknowledged write survives a power cut.
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA wal_autocheckpoint = {WAL_AUTOCHECKPOINT_PAGES:d}")
    if version == 0:
        db.executescript(SCHEMA)
        db.execute(MAILBOX_SEEN)
        db.execute("INSERT INTO meta VALUES ('format_version', ?)", (FORMAT_VERSION,))
        db.execute("COMMIT")
    elif version == 1:
        db.execute("BEGIN IMMEDIATE")
        db.execute(ADD_SEEN_SEQ)
        db.execute(MAILBOX_SEEN)
        db.execute("UPDATE meta SET value = ? WHERE name = 'format_version'", (FORMAT_VERSION,))
        db.execute("COMMIT")


def _format_version(db: sqlite3.Connection) -> int:
    """The file's version; 0 for an empty one."""
    tables = db.execute("SELECT count(*), sum(name = 'meta') FROM sqlite_schema").fetchone()
    if tables[0] == 0:
        return 0
    if not tables[1]:
        raise OpenRefused("the file is a database of something else")
    row = db.execute("SELECT value FROM meta WHERE name = 'format_version'").fetchone()
    if row is None or not isinstance(row[0], int):
        raise OpenRefused("the file names no format version")
    return row[0]
