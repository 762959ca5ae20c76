"""A disk of a few megabytes, which a test can fill."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, megabytes: int = 12) -> Iterator[Path]:
    """A new folder that is a file system of its own.

    Skips where none can be mounted, which `make test` tells at its end; in CI that is a failure.
    """
    folder.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        text = "mounting a small file system takes root"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)
    try:
        yield folder
    finally:
        # Lazily: a test that failed may have left files open.
        subprocess.run(("umount", "--lazy", str(folder)), check=True)


def fill(disk: Path, leave: int) -> Path:
    """Take all room but `leave` bytes; the file that takes it."""
    room = os.statvfs(disk)
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - leave)
    return ballast
