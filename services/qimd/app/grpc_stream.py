"""The gateway's stream over gRPC: `ports.transport.FrameStream` bound to one call."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol, cast

import grpc

from qim.gateway.v1.gateway_pb2 import ClientFrame
from qimd.contract.frames import EncodedFrame
from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.ports.runtime import Runtime
from qimd.ports.transport import FrameStream

_READ_AHEAD_FRAMES: Final = 1
"""Frames read before somebody asks: one, so that a handler that does not read stops the client."""

GatewayStream = FrameStream[ClientFrame, EncodedFrame]


class StreamHandler(Protocol):
    """The connection room, as the transport sees it."""

    async def handle(self, stream: GatewayStream) -> None:
        """Serve one stream from its first frame to its end."""


class GrpcFrameStream:
    """One call's frames, both ways.

    gRPC's own objects are touched by `pump` and `outgoing` alone. A handler may so cancel a
    `receive` (its AUTH deadline) without breaking the call's read, and `send` waits until gRPC took
    the frame before, which is the back-pressure of a client that does not read.
    """

    def __init__(self, frames: AsyncIterator[ClientFrame | QimError], peer: str) -> None:
        self._frames = frames
        self._peer = peer
        self._inbox: asyncio.Queue[ClientFrame | QimError | None] = asyncio.Queue(
            _READ_AHEAD_FRAMES
        )
        self._input_ended = False
        self._outbox: deque[EncodedFrame] = deque()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._closed = False
        self._gone = False
        self._error: QimError | None = None

    # --- what the handler sees ---

    @property
    def peer(self) -> str:
        """As gRPC names it: `ipv4:127.0.0.1:50000`."""
        return self._peer

    async def receive(self) -> ClientFrame | QimError | None:
        """See the port. After the end it gives None again and again."""
        if self._input_ended and self._inbox.empty():
            return None
        return await self._inbox.get()

    def offer(self, frame: EncodedFrame) -> bool:
        """See the port."""
        if self._gone or self._closed:
            return True
        if self._outbox:
            return False
        self._outbox.append(frame)
        self._changed.set()
        return True

    async def send(self, frame: EncodedFrame) -> None:
        """See the port. What is sent to a client that is gone is dropped."""
        while not self.offer(frame):
            self._taken.clear()
            await self._taken.wait()

    async def close(self, error: QimError | None) -> None:
        """See the port. The first close decides."""
        if not self._closed:
            self._closed = True
            self._error = error
            self._changed.set()

    # --- what the call sees ---

    async def pump(self) -> None:
        """Read the client's frames until it ends its side or is gone."""
        try:
            async for frame in self._frames:
                await self._inbox.put(frame)
        except grpc.aio.BaseError:
            # The call ended under the read: to the handler that is the client's end.
            pass
        finally:
            self._end_input()

    async def outgoing(self) -> AsyncIterator[EncodedFrame]:
        """The frames to write; ends, or raises the error, once the stream was closed."""
        while True:
            while self._outbox:
                yield self._outbox[0]
                # Only now has gRPC taken it: it asks for the next one after its write.
                self._outbox.popleft()
                self._taken.set()
            if self._closed:
                break
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """The call is over: nobody waits for it any longer."""
        self._gone = True
        self._outbox.clear()
        self._taken.set()
        self._end_input()

    def _end_input(self) -> None:
        if self._input_ended:
            return
        self._input_ended = True
        # A reader that waits on the empty inbox must wake; with a frame there, it finds the flag.
        if self._inbox.empty():
            self._inbox.put_nowait(None)


class GatewayCalls:
    """Runs `Gateway.Connect`: a handler, a reader and the call's own writer for each stream."""

    def __init__(self, handler: StreamHandler, runtime: Runtime) -> None:
        self._handler = handler
        self._runtime = runtime

    async def connect(
        self,
        frames: AsyncIterator[ClientFrame | QimError],
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> AsyncIterator[EncodedFrame]:
        """The frames for the client, until the stream is closed or the client is gone."""
        stream = GrpcFrameStream(frames, context.peer())
        # A call that ends while gRPC writes drops this generator, and its `finally` runs only when
        # the collector finds it.
        context.add_done_callback(cast("Any", lambda _: stream.end()))
        reader = self._runtime.spawn(stream.pump(), "gateway-read")
        self._runtime.spawn(self._handle(stream), "gateway-stream")
        try:
            async for frame in stream.outgoing():
                yield frame
        finally:
            # Reached when the stream was closed and when the call was cancelled: the handler finds
            # the client gone, and ends by itself after what it has under way.
            stream.end()
            reader.cancel()

    async def _handle(self, stream: GrpcFrameStream) -> None:
        # Should the handler fail, the client must see a status, not wait for its own deadline.
        ending: QimError | None = QimError(ErrorCode.INTERNAL, "the stream's handler failed")
        try:
            await self._handler.handle(stream)
            ending = None
        except asyncio.CancelledError:
            # Whatever was cancelled, it was not the call: the client is to come again.
            ending = unavailable("the stream was interrupted")
            raise
        finally:
            await stream.close(ending)
