"""Rows of many columns into a table, by few statements.

A statement a row lets go of the interpreter each time (see `engine`); one JSON array for all of
them (see `packing`) is parsed again for each column: 36 µs a row of 15 columns, where a row that is
bound takes 9. So rows are bound, in each statement as many as the largest power of two that is
left: seven statements a table are all that is ever prepared.
"""

import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Final

Row = tuple[str | int | bytes | None, ...]

ROWS_PER_STATEMENT_MAX: Final = 64
"""1,024 values of 16 columns: the engine takes 32,766."""

_ROW: Final = re.compile(r"\(\?(, \?)*\)")


def insert_rows(db: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> int:
    """Insert rows by a `statement` that inserts one; how many were added."""
    added = start = 0
    while left := len(rows) - start:
        count = min(ROWS_PER_STATEMENT_MAX, 1 << left.bit_length() - 1)
        values = tuple(chain.from_iterable(rows[start : start + count]))
        added += db.execute(_repeated(statement, count), values).rowcount
        start += count
    return added


@cache
def _repeated(statement: str, count: int) -> str:
    """The statement with the place of one row `count` times."""
    return _ROW.sub(lambda row: ", ".join([row[0]] * count), statement, count=1)
