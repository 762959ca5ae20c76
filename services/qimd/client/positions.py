"""Where a device's position is kept between runs: what the application acknowledged, no more."""

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Final, Protocol

from qimd.client.model import Head, Position
from qimd.core.errors import ErrorCode, QimError
from qimd.core.parameters import EXACT_INTEGER_MAX
from qimd.core.seq import SEQ_MAX

_FORMAT: Final = 1


class PositionStore(Protocol):
    """Keeps the position of one device. Without one, the server's copy is where it starts."""

    async def load(self) -> Position | None:
        """The last saved position; None if there is none."""

    async def save(self, position: Position) -> None:
        """Keep it durably before returning."""


class MemoryPositions:
    """For one process's life. The server's stored position survives it."""

    def __init__(self, position: Position | None = None) -> None:
        self.position = position

    async def load(self) -> Position | None:
        return self.position

    async def save(self, position: Position) -> None:
        self.position = position


class FilePositions:
    """One small JSON file, replaced as a whole: a crash leaves the old one or the new one.

    mailbox_seq is text in it, since JSON numbers are doubles elsewhere.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    async def load(self) -> Position | None:
        """Raises QimError(INVALID_ARGUMENT) for a file that is not one: starting at another place
        without a word would show events twice or never.
        """
        return await asyncio.to_thread(self._load)

    async def save(self, position: Position) -> None:
        await asyncio.to_thread(self._save, position)

    def _load(self) -> Position | None:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            data = json.loads(content.decode())
            if data["format"] != _FORMAT:
                raise ValueError(f"format {data['format']!r}")
            heads = {name: _head(*head) for name, head in data["heads"].items()}
            return Position(_applied(data["applied_seq"]), heads)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise QimError(
                ErrorCode.INVALID_ARGUMENT,
                f"{self._path} is not a position file of this version",
                field="positions",
            ) from error

    def _save(self, position: Position) -> None:
        data = {
            "format": _FORMAT,
            "applied_seq": str(position.applied_seq),
            "heads": {name: [head.seq, head.member] for name, head in position.heads.items()},
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(data, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self._path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            # Without it the rename itself may be lost with the machine.
            os.fsync(folder)
        finally:
            os.close(folder)


def _applied(text: object) -> int:
    """A mailbox_seq, which is text. Raises ValueError."""
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()):
        raise ValueError("applied_seq is no number in text")
    seq = int(text)
    if seq > SEQ_MAX:
        raise ValueError("applied_seq is above every mailbox_seq")
    return seq


def _head(seq: object, member: object) -> Head:
    """How far a conversation has come. Raises ValueError."""
    # JSON's true is an int to Python, and 1e9 is a float: neither is a seq here.
    if type(seq) is not int or not 0 <= seq <= EXACT_INTEGER_MAX or not isinstance(member, bool):
        raise ValueError("a head is no conversation_seq")
    return Head(seq, member)
