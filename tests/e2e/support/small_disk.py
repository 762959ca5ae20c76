"""A disk of a few megabytes that a server has for itself, and that a test can fill.

As root it is mounted for all to see. Without, a process that does nothing holds a user and mount
namespace with the disk in it; the server runs there, and the test sees the disk through /proc.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.support.dev import DevServer

SIZE = "12m"
_MOUNT = ("mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs")
_NEW_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
_INTO_NAMESPACE = ("nsenter", "--user", "--mount", "--preserve-credentials", "--target")
_HOLD = f'{" ".join(_MOUNT)} "$0" && echo mounted && exec sleep infinity'


class SmallDiskServer(DevServer):
    """A DevServer whose data folder is a small disk; `holder` is who holds its namespace."""

    holder: "subprocess.Popen[str] | None" = None

    def command(self) -> list[str]:
        plain = super().command()
        return plain if self.holder is None else [*_INTO_NAMESPACE, str(self.holder.pid), *plain]

    @property
    def disk(self) -> Path:
        """The folder as a test can reach it."""
        return (
            self.data if self.holder is None else Path(f"/proc/{self.holder.pid}/root{self.data}")
        )

    @property
    def credentials(self) -> dict[str, str]:
        return self.credentials_in(self.disk)

    def fill(self, leave: int) -> None:
        """Take all room but `leave` bytes."""
        room = os.statvfs(self.disk)
        with (self.disk / "ballast").open("ab") as ballast:
            ballast.write(bytes(max(0, room.f_bavail * room.f_frsize - leave)))

    def make_room(self) -> None:
        """Give it back."""
        (self.disk / "ballast").unlink()


@contextmanager
def small_disk() -> Iterator[SmallDiskServer]:
    """A server that is not started yet. Skips where no small disk can be had; in CI that fails."""
    with tempfile.TemporaryDirectory(prefix="qim-small-") as folder:
        data = Path(folder) / "data"
        data.mkdir()
        server = SmallDiskServer(data)
        if subprocess.run([*_MOUNT, str(data)], capture_output=True, check=False).returncode == 0:
            try:
                yield server
            finally:
                # Lazily: a server that a failing test left may have files open.
                subprocess.run(["umount", "--lazy", str(data)], check=True)
            return
        with subprocess.Popen(
            [*_NEW_NAMESPACE, "sh", "-c", _HOLD, str(data)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as server.holder:
            assert server.holder.stdout is not None
            if server.holder.stdout.readline() == "mounted\n":
                try:
                    yield server
                finally:
                    server.holder.kill()
                return
        text = "no small file system can be mounted here, by root or in a namespace"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)
