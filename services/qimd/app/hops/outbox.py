"""What waits for a stream to be free to write: encoded items, and the frames that they leave in.

No timer gathers them. An idle stream takes an item at once, alone; while a busy one writes, what
comes waits and leaves together, so that frames grow with the load.
"""

import asyncio
from collections import deque
from typing import Final

from qimd.telemetry.metrics import Metrics

FRAME_BYTES: Final = 1024 * 1024
"""What items share a frame up to; a larger one (a page, a large commit) has a frame of its own."""

FRAME_ITEMS: Final = 1024
"""What a receiver reads at one go: a few milliseconds of its event loop."""


class Outbox:
    """One stream's queue. It knows no bound: whoever puts looks at `waiting_bytes` before."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._items: deque[bytes] = deque()
        self._closed = False
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()
        self.waiting_bytes = 0
        """Of the items that are in no frame yet."""

    def put(self, item: bytes) -> None:
        """Queue an item; after the end it is dropped."""
        if self._closed:
            return
        self._items.append(item)
        self.waiting_bytes += len(item)
        self._filled.set()

    async def frame(self) -> list[bytes]:
        """Wait for items, and take the next frame's; empty once closed and empty."""
        while not self._items and not self._closed:
            self._filled.clear()
            await self._filled.wait()
        items: list[bytes] = []
        size = 0
        while self._items and len(items) < FRAME_ITEMS:
            size += len(self._items[0])
            if items and size > FRAME_BYTES:
                size -= len(self._items[0])
                break
            items.append(self._items.popleft())
        self.waiting_bytes -= size
        self._taken.set()
        if items:
            self._metrics.hop_frames_total.inc()
            self._metrics.hop_items_total.inc(len(items))
        return items

    async def room(self, bytes_max: int) -> None:
        """Return once at most so much waits, or all is over."""
        while self.waiting_bytes > bytes_max and not self._closed:
            self._taken.clear()
            await self._taken.wait()

    def close(self) -> None:
        """Take nothing more; what waits still leaves."""
        self._closed = True
        self._filled.set()
        self._taken.set()

    def abandon(self) -> None:
        """Close, and let go of what waits."""
        self._items.clear()
        self.waiting_bytes = 0
        self.close()
