"""Data on standard output: exact for programs, safe for terminals."""

import io
import json

import pytest

from qimd.ctl.output import Column, Output, Row, iso_time, safe

COLUMNS = (Column("name"), Column("body"), Column("at_ms", "at", time=True))


def shown(form: str, rows: list[Row], *, raw: bool = False) -> str:
    stream = io.StringIO()
    Output(form, raw=raw, stream=stream).rows(COLUMNS, rows)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ümläut 日本 👩‍👧 \u05e9", "plain ümläut 日本 👩‍👧 \u05e9"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\x00", "\\x00"),
        ("abc\u202egpj.exe", "abc\\u202egpj.exe"),
        ("\u2066x\u2069\u200f", "\\u2066x\\u2069\\u200f"),
        ("one\u2028two", "one\\u2028two"),
    ],
)
def test_what_could_drive_a_terminal_is_escaped(text: str, expected: str) -> None:
    assert safe(text) == expected


def test_raw_shows_text_as_it_is() -> None:
    row: Row = {"name": "a", "body": b"\x1b[31m"}
    assert "\x1b" not in shown("table", [row])
    assert "\x1b[31m" in shown("table", [row], raw=True)


def test_a_table_is_aligned_by_what_a_terminal_shows() -> None:
    rows: list[Row] = [{"name": "日本", "body": b"x"}, {"name": "abcd", "body": b"y"}]
    head, *lines = shown("table", rows).splitlines()
    assert head == "NAME  BODY  AT"
    assert lines == ["日本  x", "abcd  y"]


def test_jsonl_holds_every_value_exactly() -> None:
    body = "line\n\x1b[31m 日本 \u202e \u2028 \x9b".encode()
    text = shown("jsonl", [{"name": "a\x00", "body": body, "at_ms": 1}])
    assert json.loads(text) == {"name": "a\x00", "body": body.decode(), "at_ms": 1}
    assert all(character.isprintable() for character in text.rstrip("\n"))


def test_bytes_that_are_no_text_come_as_base64() -> None:
    row = json.loads(shown("jsonl", [{"name": "a", "body": b"\xff\x00"}]))
    assert row == {"name": "a", "body": None, "body_base64": "/wA="}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_json_is_one_array(count: int) -> None:
    rows: list[Row] = [{"name": str(n)} for n in range(count)]
    assert json.loads(shown("json", rows)) == [{"name": str(n)} for n in range(count)]


def test_a_stream_writes_each_row_at_once() -> None:
    stream = io.StringIO()
    with Output("jsonl", stream=stream).stream(COLUMNS) as emit:
        emit({"name": "first"})
        assert stream.getvalue() == '{"name": "first"}\n'


def test_one_record_is_one_object() -> None:
    stream = io.StringIO()
    Output("json", stream=stream).record(COLUMNS, {"name": "a", "at_ms": 5})
    assert json.loads(stream.getvalue()) == {"name": "a", "at_ms": 5}


def test_times_are_shown_in_utc_to_the_millisecond() -> None:
    assert iso_time(1_700_000_000_007) == "2023-11-14T22:13:20.007Z"
    assert iso_time(0) == ""
