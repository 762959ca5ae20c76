"""SQLite itself, set up as the embedded engine sets it up: what the engine is compared with."""

import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from qimd.adapters.sqlite.file import (
    STATEMENTS_CACHED,
    WAL_AUTOCHECKPOINT_PAGES,
    WRITER_CACHE_KIB,
)

ADD_ENTRIES: Final = """
INSERT INTO mailbox_entries (user_id, seq)
SELECT u.value, s.value FROM json_each(:users) AS u CROSS JOIN json_each(:seqs) AS s
"""
"""The fastest way in that is known from Python: two JSON arrays, crossed in the tree's order."""


def connect(path: Path) -> sqlite3.Connection:
    """A connection with the engine's pragmas: WAL, a sync at each commit, the same cache."""
    db = sqlite3.connect(path, isolation_level=None, cached_statements=STATEMENTS_CACHED)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute(f"PRAGMA wal_autocheckpoint = {WAL_AUTOCHECKPOINT_PAGES:d}")
    db.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB:d}")
    return db


def commits_s(db: sqlite3.Connection, count: int) -> list[float]:
    """Seconds of each of some transactions of one small row."""
    db.execute("CREATE TABLE IF NOT EXISTS one_row (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    times = []
    for _ in range(count):
        began = time.perf_counter()
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO one_row (body) VALUES (?)", (b"x" * 200,))
        db.execute("COMMIT")
        times.append(time.perf_counter() - began)
    return times


Transaction = Sequence[tuple[Sequence[int], Sequence[int]]]
"""(user ids, seqs) of records that share their recipients: each user gets an entry at each seq."""


def insert_entries(db: sqlite3.Connection, transactions: Sequence[Transaction]) -> float:
    """Seconds to insert entries. What they are made of is packed before the clock runs."""
    packed = [
        [{"users": json.dumps(users), "seqs": json.dumps(seqs)} for users, seqs in transaction]
        for transaction in transactions
    ]
    began = time.perf_counter()
    for transaction in packed:
        db.execute("BEGIN IMMEDIATE")
        for crossed in transaction:
            db.execute(ADD_ENTRIES, crossed)
        db.execute("COMMIT")
    return time.perf_counter() - began
