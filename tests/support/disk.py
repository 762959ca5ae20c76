"""A disk of a few megabytes, which a test can fill."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, megabytes: int = 12) -> Iterator[Path]:
    """A new folder that is a file system of its own; skips where none can be mounted."""
    folder.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system takes root")
    try:
        yield folder
    finally:
        # Lazily: a test that failed may have left files open.
        subprocess.run(("umount", "--lazy", str(folder)), check=True)
