"""A way between a client and the server that counts HTTP/2 frames.

Plain HTTP/2: each frame has a header of 9 bytes, its length first and its type behind that.
"""

import asyncio
from collections import Counter

from tests.support.wire import Wire

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


class CountingWire(Wire):
    """Counts what passes on the one connection that it carries."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.sent = Frames(_PREFACE)
        self.received = Frames(0)
        self._changed = asyncio.Event()

    async def pings(self, count: int) -> None:
        """Wait until the client has sent so many pings."""
        while self.sent.seen[PING] < count:
            self._changed.clear()
            await self._changed.wait()

    def passed(self, data: bytes, *, up: bool) -> None:
        (self.sent if up else self.received).add(data)
        self._changed.set()
