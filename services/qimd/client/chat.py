"""Chats to replay: read from a file, or made up from a seed.

A file has one JSON object a line: `n` (1, 2, …), `kind` (`message`, `action`, `rename`), `user`,
`text`. Each message or action is a SEND by its user; the conversation's order must be that of `n`.
One conversation is numbered by arrival, so whoever speaks next waits for the last one's SEND_ACK;
consecutive lines of one speaker travel in one SEND.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from qimd.client.model import as_body
from qimd.core.errors import QimError, invalid
from qimd.core.ids import id_problem
from qimd.core.parameters import BODY_BYTES_MAX, EXACT_INTEGER_MAX, SEND_EVENTS_MAX

SPOKEN: Final = frozenset({"message", "action"})

TURN_BYTES_MAX: Final = 1024 * 1024
"""Keeps a turn of large bodies within one SEND frame."""


@dataclass(frozen=True, slots=True)
class Line:
    """What somebody said: the n-th row of its file."""

    n: int
    user: str
    body: bytes = field(repr=False)


def read_chat(path: Path) -> list[Line]:
    """The messages and actions of a file, in order.

    Raises QimError(INVALID_ARGUMENT) that names the line at fault.
    """
    lines: list[Line] = []
    # As bytes, only \n ends a row: the text may hold other characters that Python takes for line
    # ends, and one row that is not UTF-8 has its number.
    with path.open("rb") as file:
        for number, row in enumerate(file, 1):
            line = _line(path, number, row)
            if line is None:
                continue
            if lines and line.n <= lines[-1].n:
                raise _bad(path, number, f"n is {line.n} after {lines[-1].n}")
            lines.append(line)
    if not lines:
        raise invalid(f"{path} holds no message", "file")
    return lines


def _line(path: Path, number: int, row: bytes) -> Line | None:
    try:
        # Not left to the parser, which would guess UTF-16 from zero bytes.
        data = json.loads(row.decode())
    except UnicodeDecodeError:
        raise _bad(path, number, "it is not UTF-8") from None
    except (ValueError, RecursionError):
        # Nested JSON exhausts the parser's stack.
        raise _bad(path, number, "it is not JSON") from None
    if not isinstance(data, dict):
        raise _bad(path, number, "it is not an object")
    kind, n, user, text = (data.get(name) for name in ("kind", "n", "user", "text"))
    if not isinstance(kind, str):
        raise _bad(path, number, "kind is missing or of another type")
    if kind not in SPOKEN:
        return None
    # JSON's true is an int to Python.
    if type(n) is not int or not isinstance(user, str) or not isinstance(text, str):
        raise _bad(path, number, "n, user or text is missing or of another type")
    if not 1 <= n <= EXACT_INTEGER_MAX:
        raise _bad(path, number, f"n is outside 1 to {EXACT_INTEGER_MAX}")
    if problem := id_problem(user):
        raise _bad(path, number, f"its user {problem}")
    body = as_body(text)
    if len(body) > BODY_BYTES_MAX:
        raise _bad(path, number, f"its text has {len(body)} bytes, more than {BODY_BYTES_MAX}")
    return Line(n, user, body)


def _bad(path: Path, number: int, problem: str) -> QimError:
    return invalid(f"{path}, line {number}: {problem}", "file")


def speakers(lines: Sequence[Line]) -> list[str]:
    """Everybody who speaks, in the order of their first line."""
    return list(dict.fromkeys(line.user for line in lines))


def turns(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    """Cut into runs of one speaker, each fit for one SEND."""
    start, size = 0, 0
    for index, line in enumerate(lines):
        full = index - start == SEND_EVENTS_MAX or size + len(line.body) > TURN_BYTES_MAX
        if index > start and (full or line.user != lines[start].user):
            yield lines[start:index]
            start, size = index, 0
        size += len(line.body)
    if lines:
        yield lines[start:]


_SAMPLES: Final = (
    "see you at the harbour at nine",
    "日本語のメッセージと中文消息",
    "مرحبا بالعالم \u200f— שלום עולם",
    "👩‍👩‍👧‍👦 🏴󠁧󠁢󠁳󠁣󠁴󠁿 e\u0301 🇸🇪",
    "a\x00b\x1b[31m\ufeff\ufffd\u202e",
    "line one\nline two\r\n\ttabbed",
)


def generated_chat(members: Sequence[str], messages: int, seed: int) -> list[Line]:
    """A seeded chat: runs of one speaker, many scripts, and the extremes of a body."""
    chance = random.Random(seed)  # noqa: S311 - reproducible on purpose
    lines: list[Line] = []
    # Everybody gets to speak before anybody speaks again.
    order = chance.sample(members, len(members))
    while len(lines) < messages:
        # As in real chat, a few speak most.
        user = order.pop() if order else members[int(len(members) * chance.random() ** 3)]
        for _ in range(min(chance.choice((1, 1, 2, 3, 8)), messages - len(lines))):
            lines.append(Line(len(lines) + 1, user, _body(chance)))
    return lines


def _body(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.02:
        return b""
    if kind < 0.025:
        return chance.randbytes(BODY_BYTES_MAX)
    if kind < 0.05:
        return b"\x00" * chance.randint(1, 16)
    return f"{chance.choice(_SAMPLES)} {chance.randint(0, 1 << 30)}".encode()
