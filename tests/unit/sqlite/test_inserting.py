"""Any number of rows goes in, whole and once, by few different statements."""

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from qimd.adapters.sqlite.inserting import ROWS_PER_STATEMENT_MAX, insert_rows

ADD = "INSERT INTO rows (number, text, blob) VALUES (?, ?, ?) ON CONFLICT (number) DO NOTHING"


class Connection(sqlite3.Connection):
    """Keeps what it was asked to run."""

    asked: set[str]

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self.asked.add(sql)
        return super().execute(sql, *values)


@pytest.fixture
def db() -> Iterator[Connection]:
    opened = sqlite3.connect(":memory:", factory=Connection)
    opened.asked = set()
    opened.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, text TEXT, blob BLOB) STRICT")
    yield opened
    opened.close()


def row(number: int) -> tuple[int, str, bytes]:
    return number, f"(?, ?) {number}", bytes([number % 256, 0])


@pytest.mark.parametrize("count", [0, 1, 2, 3, 63, 64, 65, 256, 1_000])
def test_every_row_goes_in_as_it_is(db: Connection, count: int) -> None:
    rows = [row(number) for number in range(count)]
    assert insert_rows(db, ADD, rows) == count
    assert db.execute("SELECT * FROM rows ORDER BY number").fetchall() == rows


def test_only_what_was_added_counts(db: Connection) -> None:
    insert_rows(db, ADD, [row(3), row(70)])
    assert insert_rows(db, ADD, [row(number) for number in range(100)]) == 98
    assert insert_rows(db, ADD, [row(200), row(200)]) == 1


def test_few_statements_serve_every_count(db: Connection) -> None:
    db.asked.clear()
    for count in range(1, 4 * ROWS_PER_STATEMENT_MAX):
        insert_rows(db, ADD, [row(number) for number in range(count)])
    assert len(db.asked) == ROWS_PER_STATEMENT_MAX.bit_length()
