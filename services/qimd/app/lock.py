"""The data folder's lock: one process at a time, and a dead one can't hold it.

The kernel releases a `flock` with its process, whatever killed it, and keeps it for one that is
only stopped. That makes the lock the proof of the predecessor's end that lets `dev` take its
shards over at once (design section 5, takeover).
"""

import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from qimd.app.setting_kinds import SettingRefused
from qimd.core.errors import ErrorCode, QimError

LOCK_NAME: Final = "lock"


class FolderInUse(QimError):
    """Another process holds the data folder."""

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(
            ErrorCode.UNAVAILABLE,
            f"--data: {folder} is in use by {holder}; stop it, or choose another folder",
            field="--data",
        )


class FolderLock:
    """The lock, held from `FolderLock.take` until `release` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._since = datetime.now(UTC).isoformat(timespec="seconds")

    @classmethod
    def take(cls, folder: Path) -> "FolderLock":
        """Lock the folder. Raises FolderInUse, which names the holder, and SettingRefused."""
        path = folder / LOCK_NAME
        # Never unlinked: a second process could then lock a file that nobody else sees.
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingRefused("--data", f"{path} can't be opened: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise FolderInUse(folder, holder) from None
        except OSError as error:
            # A network file system without locks: nothing would keep a second server out.
            os.close(descriptor)
            raise SettingRefused("--data", f"{path} can't be locked: {error.strerror}") from None
        lock = cls(descriptor)
        lock.describe("")
        return lock

    def describe(self, address: str) -> None:
        """Say who holds it: for the message that a second start prints."""
        text = json.dumps({"pid": os.getpid(), "since": self._since, "address": address})
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def release(self) -> None:
        """Let another process have the folder."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def _holder(descriptor: int) -> str:
    """The holder in words; it may be just about to write its lines."""
    try:
        told = json.loads(os.pread(descriptor, 4096, 0))
        where = f" at {told['address']}" if told["address"] else ", which is starting"
        return f"process {int(told['pid'])}, since {told['since']}{where}"
    except (ValueError, KeyError, TypeError):
        return "a process that is just starting or ending"
