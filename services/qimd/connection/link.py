"""One client's stream: what waits to be sent, what is under way, and how it ends.

The queue is bounded in bytes. What the client asked for waits for room (`room`), so that a client
that pipelines PULLs is slowed down, not thrown out; what the server sends by itself does not wait,
and at the bound the stream ends with SLOW_CONSUMER: no slow reader can hold memory, or anybody
else. A frame counts until the transport took it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import ClientFrame, ServerFrame
from qimd.connection.logic import Phase
from qimd.contract.frames import EncodedFrame, error_frame, server_frame
from qimd.core.errors import ErrorCode, QimError
from qimd.core.parameters import (
    CONNECTION_QUEUE_BYTES_MAX,
    CONNECTION_REQUESTS_MAX,
    DRAIN_GRACE_S,
)
from qimd.core.seq import SEQ_NONE, MailboxSeq
from qimd.ports.runtime import Task
from qimd.ports.services import Identity
from qimd.ports.transport import FrameStream

Stream = FrameStream[ClientFrame, EncodedFrame]


@dataclass(frozen=True, slots=True)
class End:
    """How a stream ends: requests under way are answered, then `farewell`, then the status `error`.

    All within `patience_s`; with 0 nothing more is sent.
    """

    farewell: EncodedFrame | None
    error: QimError | None
    patience_s: float = DRAIN_GRACE_S


def by_client() -> End:
    """The client ended its side, or is gone."""
    return End(None, None)


def by_error(error: QimError) -> End:
    """The stream can't go on: an ERROR of its own, and the same as its status."""
    return End(error_frame(0, error), error)


def replaced() -> End:
    """A newer stream of the same device took over."""
    kicked = gateway_pb2.Kicked(reason=gateway_pb2.KICK_REASON_REPLACED)
    return End(server_frame(ServerFrame(kicked=kicked)), None)


def slow_consumer() -> End:
    """The client does not read: it could not read a farewell either."""
    error = QimError(ErrorCode.SLOW_CONSUMER, "the stream's queue is full")
    return End(None, error, patience_s=0)


class Link:
    """See the module. Everything but `write` and the waits is synchronous."""

    def __init__(self, stream: Stream, opened_at_s: float) -> None:
        self.stream = stream
        self.opened_at_s = opened_at_s
        self.phase = Phase.OPEN
        self.identity: Identity | None = None
        self.handed: MailboxSeq = SEQ_NONE
        """The largest covered_through that this stream handed to the device."""
        self.pulled = 0
        """Events pulled until nothing was left; -1 from then on."""
        self.authenticated_at_s = 0.0
        self.wants_pushes = False
        """The client named `push-events` in AUTH."""
        self.hints: list[bytes] = []
        """Encoded DeliveredEvents for the next PUSH_EVENTS."""
        self.requests: asyncio.Queue[ClientFrame] = asyncio.Queue()
        """Requests to be served one after another; bounded by `capacity`."""
        self._tasks: list[Task] = []
        self._under_way: dict[int, None] = {}
        self._queue: deque[EncodedFrame] = deque()
        self._queued_bytes = 0
        self._overrun = False
        self._end: End | None = None
        self._ended = asyncio.Event()
        self._wake = asyncio.Event()
        self._changed: asyncio.Event | None = None
        """Made by the first who waits for a change."""

    # --- sending ---

    @property
    def queued_bytes(self) -> int:
        """What waits to be sent."""
        return self._queued_bytes

    def send(self, frame: EncodedFrame) -> None:
        """Hand a frame over, or queue it; at the bound the stream ends instead, and holds nothing
        any more.
        """
        if self._overrun or (not self._queue and self.stream.offer(frame)):
            return
        size = len(frame.data)
        if self._queue and self._queued_bytes + size > CONNECTION_QUEUE_BYTES_MAX:
            self.overrun()
            return
        self._queue.append(frame)
        self._queued_bytes += size
        self._wake.set()

    def overrun(self) -> None:
        """End as a slow consumer, also if the stream was to end otherwise."""
        self._overrun = True
        self._discard()
        self._end = slow_consumer()
        self._ended.set()

    async def write(self) -> None:
        """Hand what had to be queued to the transport, for as long as the stream lives."""
        while True:
            while self._queue:
                frame = self._queue[0]
                await self.stream.send(frame)
                # It may have been discarded meanwhile.
                if self._queue:
                    self._queue.popleft()
                    self._queued_bytes -= len(frame.data)
                    self._notify()
            self._wake.clear()
            await self._wake.wait()

    @property
    def has_room(self) -> bool:
        """Whether the queue is at most half full: an answer of a page's size fits then."""
        return self._queued_bytes * 2 <= CONNECTION_QUEUE_BYTES_MAX

    async def room(self) -> None:
        """Return once there is room."""
        await self._until(lambda: self.has_room)

    async def flushed(self) -> None:
        """Return once the transport took everything."""
        await self._until(lambda: not self._queue)

    # --- requests ---

    @property
    def under_way(self) -> dict[int, None]:
        """The request_ids that were not answered yet."""
        return self._under_way

    def begin(self, request_id: int) -> None:
        """A request was taken."""
        self._under_way[request_id] = None

    def answer(self, request_id: int, frame: EncodedFrame) -> None:
        """Send a request's one answer."""
        self._under_way.pop(request_id, None)
        self.send(frame)
        self._notify()

    async def capacity(self) -> None:
        """Return once another request may be read."""
        await self._until(lambda: len(self._under_way) < CONNECTION_REQUESTS_MAX)

    async def idle(self) -> None:
        """Return once every request was answered."""
        await self._until(lambda: not self._under_way)

    # --- the end ---

    @property
    def ending(self) -> bool:
        """Whether the stream ends: nothing more is read or pushed."""
        return self._end is not None

    def finish(self, end: End) -> None:
        """Let the stream end so; the first end decides."""
        if self._end is None:
            self._end = end
            self._ended.set()

    async def ended(self) -> End:
        """Wait for the end."""
        await self._ended.wait()
        return self.end

    @property
    def end(self) -> End:
        """How it ends, as of now."""
        return self._end or by_client()

    def runs(self, task: Task) -> None:
        """A task runs for the stream."""
        if len(self._tasks) > 2 * CONNECTION_REQUESTS_MAX:
            self._tasks = [running for running in self._tasks if not running.done()]
        self._tasks.append(task)

    def cancel(self) -> None:
        """Stop everything that runs for the stream, and let go of what waits."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self._discard()

    def _discard(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0
        self.hints.clear()
        self._notify()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed = self._changed or asyncio.Event()
            await self._changed.wait()
