"""Sets of values in and out of one statement (see `engine` for why).

Rows go in as one JSON array; blobs, which JSON can't hold, go beside it end to end, each row naming
its span: `substr(:blobs, start, size)`. Rows come out the same way, the blobs joined by
`CAST(group_concat(blob, '') AS BLOB)`, which keeps every byte (a test holds it to that), and each
row telling its blob's length.
"""

import json
import sqlite3
from collections.abc import Iterable
from typing import Any


class Blobs:
    """Collects blobs end to end; `add` gives a blob's span: (start from 1, size)."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._next = 1

    def add(self, blob: bytes) -> tuple[int, int]:
        """Append a blob."""
        start = self._next
        self._parts.append(blob)
        self._next += len(blob)
        return start, len(blob)

    @property
    def data(self) -> bytes:
        """All of them."""
        return b"".join(self._parts)


def spans(blobs: Iterable[bytes]) -> tuple[str, bytes]:
    """(JSON array of spans, the blobs end to end)."""
    packed = Blobs()
    places = [packed.add(blob) for blob in blobs]
    return dumps(places), packed.data


def dumps(rows: object) -> str:
    """JSON as SQLite reads it."""
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def rows_of(cursor: sqlite3.Cursor) -> list[list[Any]]:
    """The rows of a statement that gives them as one JSON array in its one row and column."""
    rows: list[list[Any]] = json.loads(cursor.fetchone()[0])
    return rows


def rows_and_blobs_of(cursor: sqlite3.Cursor) -> tuple[list[list[Any]], memoryview]:
    """The rows of a statement that gives them as JSON, and their blobs end to end beside it."""
    text, blobs = cursor.fetchone()
    return json.loads(text), memoryview(blobs or b"")
