"""The data folder's files: each read or written whole, and what fails names the flag to blame."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from qimd.app.setting_kinds import SettingRefused

DATABASE_NAME: Final = "qim.sqlite3"


def prepare_folder(folder: Path) -> None:
    """Make the folder, for its owner alone. Raises SettingRefused."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingRefused("--data", f"{folder} can't be made: {error.strerror}") from None


def read_kept(path: Path) -> bytes | None:
    """A file that the first start wrote; None at the first start, which has no database yet.

    Raises SettingRefused for one that can't be read, and for one that is gone while the database
    is there: made anew, it would say something else than what the data was made with.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        if (path.parent / DATABASE_NAME).exists():
            raise SettingRefused(
                "--data", f"{path} is missing, and the data beside it was made with it; restore it"
            ) from None
        return None
    except OSError as error:
        raise SettingRefused("--data", f"{path} can't be read: {error.strerror}") from None


def write_private(path: Path, text: str, flag: str = "--data") -> None:
    """Replace a file atomically and durably; only its owner may read it. Raises SettingRefused."""
    try:
        _replace(path, text)
    except OSError as error:
        raise SettingRefused(flag, f"{path} can't be written: {error.strerror}") from None


class KeptFiles:
    """Files that must stay the ones that were opened, as long as the process runs.

    What is written to a file that somebody removed or replaced is gone with the process, and no
    write ever fails for it.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._seen = {path: _identity(path) for path in paths}

    def lost(self) -> Path | None:
        """A file that is not there any more, or is another one; None if all is well."""
        for path, seen in self._seen.items():
            if _identity(path) != seen:
                return path
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _replace(path: Path, text: str) -> None:
    scratch = path.with_name(f"{path.name}.new")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
