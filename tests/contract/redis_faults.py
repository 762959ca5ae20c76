"""What goes wrong between qim and a Redis: replies that get lost, disks that are full."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

CHUNK = 65_536


class Proxy:
    """A way to the server on which replies get lost: what was sent has its effect all the same."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self.address = ""
        self.replies_to_lose = 0
        self._lines: list[asyncio.Task[None]] = []

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection."""
        server, to_server = await asyncio.open_connection(self._host, self._port)
        self._lines += [
            asyncio.ensure_future(self._carry(client, to_server, loses=False)),
            asyncio.ensure_future(self._carry(server, to_client, loses=True)),
        ]

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, loses: bool
    ) -> None:
        try:
            while data := await reader.read(CHUNK):
                if loses and self.replies_to_lose:
                    self.replies_to_lose -= 1
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            return
        finally:
            writer.close()

    async def close(self) -> None:
        """End all connections."""
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)


@asynccontextmanager
async def proxy_to(target: str) -> AsyncIterator[Proxy]:
    """A proxy in front of `host:port`."""
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    proxy.address = f"{host}:{port}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of a few megabytes; skips where none can be mounted."""
    folder.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder))
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system takes root")
    try:
        yield folder
    finally:
        # Lazily: a test that failed may have left the files open.
        subprocess.run(("umount", "--lazy", str(folder)), check=True)
