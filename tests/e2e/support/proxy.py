"""A network between a client and the server: it can go dead without a FIN, and it counts frames.

Plain HTTP/2: each frame has a header of 9 bytes, its length first and its type behind that.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PING, GOAWAY = 0x6, 0x7
_ACK = 0x1
_PREFACE = 24
_HEADER = 9


class Frames:
    """Counts the HTTP/2 frames of one direction by type; acknowledgements of pings apart."""

    def __init__(self, skip: int) -> None:
        self.seen: Counter[int] = Counter()
        self._skip = skip
        self._rest = b""

    def add(self, data: bytes) -> None:
        """Bytes that have passed."""
        self._rest += data
        while len(self._rest) >= self._skip + _HEADER:
            header = self._rest[self._skip : self._skip + _HEADER]
            if not (header[3] == PING and header[4] & _ACK):
                self.seen[header[3]] += 1
            self._skip += _HEADER + int.from_bytes(header[:3], "big")
            gone = min(self._skip, len(self._rest))
            self._rest, self._skip = self._rest[gone:], self._skip - gone
        if self._skip >= len(self._rest):
            self._rest, self._skip = b"", self._skip - len(self._rest)


class Proxy:
    """Carries one connection to the server; `address` is where a client dials it."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self.address = ""
        self.sent = Frames(_PREFACE)
        self.received = Frames(0)
        self._flows = asyncio.Event()
        self._flows.set()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def go_dead(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._flows.clear()

    async def pings(self, count: int) -> None:
        """Wait until the client has sent so many pings."""
        while self.sent.seen[PING] < count:
            self._changed.clear()
            await self._changed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            # As a network does where nobody listens.
            writer.close()
            return
        both = (
            self._carry(reader, up_writer, self.sent),
            self._carry(up_reader, writer, self.received),
        )
        self._tasks += [asyncio.ensure_future(each) for each in both]

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: Frames
    ) -> None:
        try:
            while data := await reader.read(65_536):
                await self._flows.wait()
                frames.add(data)
                self._changed.set()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def close(self) -> None:
        """End what still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


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
