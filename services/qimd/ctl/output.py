"""Data on standard output: as a table for people, as json or jsonl for programs.

Whatever others wrote is shown safely: control characters could drive the terminal, and direction
marks could make a line read as another. `--raw` shows them as they are.
"""

import base64
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol, TextIO

Value = str | int | float | bool | bytes | None | Sequence[str]
Row = Mapping[str, Value]

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def safe(text: str) -> str:
    """The text with what could drive or mislead a terminal shown as escapes."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def _json_safe(text: str) -> str:
    """JSON text whose strings hold no such character: every JSON reader reads it the same."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


@dataclass(frozen=True, slots=True)
class Column:
    """One value of a row in a table. `time`: milliseconds since the Unix epoch, shown in UTC."""

    key: str
    title: str = ""
    time: bool = False

    @property
    def heading(self) -> str:
        return self.title or self.key.replace("_", " ")


class Emit(Protocol):
    """Takes one row of a stream."""

    def __call__(self, row: Row) -> None: ...


class Output:
    """Writes rows in one format."""

    def __init__(self, form: str, *, raw: bool = False, stream: TextIO | None = None) -> None:
        self._form = form
        self._raw = raw
        self._stream = stream or sys.stdout

    def rows(self, columns: Sequence[Column], rows: Iterable[Row]) -> None:
        """All rows of something that ends."""
        if self._form != "table":
            with self.stream(columns) as emit:
                for row in rows:
                    emit(row)
            return
        cells = [[self._cell(row.get(column.key), column) for column in columns] for row in rows]
        heads = [column.heading.upper() for column in columns]
        width = _cell_width()
        widths = [max(map(width, column)) for column in zip(heads, *cells, strict=True)]
        for line in (heads, *cells):
            padded = [
                text + " " * (size - width(text)) for text, size in zip(line, widths, strict=True)
            ]
            self._line("  ".join(padded).rstrip())

    def record(self, columns: Sequence[Column], row: Row) -> None:
        """One thing: a table has a line for each value, json is one object."""
        if self._form != "table":
            self._line(_dumps(row))
            return
        width = max(len(column.heading) for column in columns)
        for column in columns:
            shown = self._cell(row.get(column.key), column)
            self._line(f"{column.heading:<{width}}  {shown}".rstrip())

    @contextmanager
    def stream(self, columns: Sequence[Column]) -> Iterator[Emit]:
        """Rows as they come: each is written at once."""
        first = True

        def emit(row: Row) -> None:
            nonlocal first
            if self._form == "table":
                cells = (self._cell(row.get(column.key), column) for column in columns)
                self._line("  ".join(cells).rstrip())
            elif self._form == "jsonl":
                self._line(_dumps(row))
            else:
                self._stream.write("[\n" if first else ",\n")
                self._stream.write(_dumps(row))
                self._stream.flush()
            first = False

        try:
            yield emit
        finally:
            if self._form == "json":
                self._line("[]" if first else "\n]")

    def text(self, text: str) -> None:
        """A text that is no data: the script of a completion, a token."""
        self._line(text)

    def _cell(self, value: Value, column: Column) -> str:
        if value is None:
            return ""
        if isinstance(value, bytes):
            text = value.decode("utf-8", "backslashreplace")
        elif isinstance(value, bool):
            text = "yes" if value else "no"
        elif isinstance(value, int) and column.time:
            text = iso_time(value)
        elif isinstance(value, str | int | float):
            text = str(value)
        else:
            text = ", ".join(value)
        return text if self._raw else safe(text)

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def _cell_width() -> "WidthOf":
    try:
        from rich.cells import cell_len
    except ModuleNotFoundError:
        return len
    return cell_len


class WidthOf(Protocol):
    """Columns of a terminal that a text takes."""

    def __call__(self, text: str, /) -> int: ...


def _dumps(row: Row) -> str:
    """One JSON object. Bytes are text where they are UTF-8, else `<key>_base64` holds them."""
    shown: dict[str, object] = {}
    for key, value in row.items():
        if not isinstance(value, bytes):
            shown[key] = value
            continue
        try:
            shown[key] = value.decode()
        except UnicodeDecodeError:
            shown[key] = None
            shown[f"{key}_base64"] = base64.b64encode(value).decode()
    return _json_safe(json.dumps(shown, ensure_ascii=False))


def iso_time(at_ms: int) -> str:
    """UTC, to the millisecond; empty for 0."""
    if not at_ms:
        return ""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def note(text: str) -> None:
    """Say something that is no data: on standard error, shown safely."""
    sys.stderr.write("\n".join(safe(line) for line in text.split("\n")) + "\n")
