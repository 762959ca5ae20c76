"""A client's stream in memory: `ports.transport.FrameStream` on one side, a test's client on the
other. Frames cross as bytes through the strict codec, as they do over gRPC.
"""

import asyncio
from collections import deque

from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import ClientFrame, ServerFrame
from qimd.contract.codec import decode
from qimd.contract.frames import EncodedFrame
from qimd.core.errors import QimError
from qimd.core.parameters import CAPABILITIES


class MemoryStream:
    """What a handler sees. `client` is the other side."""

    def __init__(self) -> None:
        self.client = StreamClient(self)
        self.inbox: asyncio.Queue[ClientFrame | QimError | None] = asyncio.Queue()
        self.delivered: asyncio.Queue[ServerFrame | None] = asyncio.Queue()
        self.sizes: deque[int] = deque()
        self.closed = asyncio.Event()
        self.error: QimError | None = None
        self.reads = asyncio.Event()
        self.reads.set()

    @property
    def peer(self) -> str:
        return "memory"

    async def receive(self) -> ClientFrame | QimError | None:
        return await self.inbox.get()

    def offer(self, frame: EncodedFrame) -> bool:
        if not self.reads.is_set():
            return False
        self._deliver(frame)
        return True

    async def send(self, frame: EncodedFrame) -> None:
        # A client that does not read stops the transport after one frame.
        await self.reads.wait()
        self._deliver(frame)

    def _deliver(self, frame: EncodedFrame) -> None:
        parsed = decode(ServerFrame, frame.data)
        assert parsed.WhichOneof("frame") == frame.kind
        self.sizes.append(len(frame.data))
        self.delivered.put_nowait(parsed)

    async def close(self, error: QimError | None) -> None:
        if not self.closed.is_set():
            self.error = error
            self.closed.set()
            self.delivered.put_nowait(None)


class StreamClient:
    """A client: it numbers requests, and reads frames in the order they came."""

    def __init__(self, stream: MemoryStream) -> None:
        self._stream = stream
        self._last_id = 0

    def send(self, frame: ClientFrame | QimError | None) -> None:
        """Send a frame as it is; a QimError for one that the contract refused, None to end."""
        self._stream.inbox.put_nowait(frame)

    def request(self, **arm: object) -> int:
        """Send one request under a new id: `request(ping=Ping())`."""
        self._last_id += 1
        self.send(ClientFrame(request_id=self._last_id, **arm))  # type: ignore[arg-type]
        return self._last_id

    def auth(self, token: str = "token", version: int = 1) -> int:
        """Send AUTH."""
        return self.request(
            auth=gateway_pb2.Auth(
                protocol_version=version, capabilities=CAPABILITIES, access_token=token
            )
        )

    def received(self) -> list[ServerFrame]:
        """What has come since the last look, without waiting."""
        frames = []
        while not self._stream.delivered.empty():
            frame = self._stream.delivered.get_nowait()
            if frame is not None:
                frames.append(frame)
        return frames

    async def next(self) -> ServerFrame | None:
        """The next frame; None once the stream was closed."""
        return await self._stream.delivered.get()

    def stop_reading(self) -> None:
        """From now on the transport takes nothing."""
        self._stream.reads.clear()

    def read_on(self) -> None:
        """Read again."""
        self._stream.reads.set()
