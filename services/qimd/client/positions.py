"""Where a device's position is kept between runs: what the application acknowledged, no more."""

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Final, Protocol

from qimd.client.model import Head, Position
from qimd.core.errors import ErrorCode, QimError

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
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            data = json.loads(text)
            if data["format"] != _FORMAT:
                raise ValueError(f"format {data['format']!r}")
            heads = {
                str(name): Head(int(seq), bool(member))
                for name, (seq, member) in data["heads"].items()
            }
            return Position(int(data["applied_seq"]), heads)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
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
