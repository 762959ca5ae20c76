"""A device's stream as bytes: a test must be able to send what no client's library would let it.

Nothing of the contract's codec stands on this side, so that what the server does with a frame is
the server's doing alone. Messages are encoded by protobuf's own runtime.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import grpc

from qim.common.v1 import error_pb2
from qim.conversation.v1.event_pb2 import ConversationEvent, Message
from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import (
    AuthOk,
    ClientFrame,
    DeliveredEvent,
    OutgoingEvent,
    SendResult,
    ServerFrame,
)
from qimd.contract.rpc_details import parse_details
from qimd.core.parameters import CAPABILITIES

PATIENCE_S = 30.0
"""How long a frame may take on a machine that is busy with other things. No test waits for it."""
_METHOD = "/qim.gateway.v1.Gateway/Connect"
_OPTIONS = (
    # Each channel is a connection of its own, as each device's is.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 8 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
)


class Ended(Exception):
    """The server ended the stream; `code` is its gRPC status, `reason` its ErrorInfo's."""

    def __init__(self, code: grpc.StatusCode, detail: str, reason: str = "") -> None:
        super().__init__(f"{code.name}: {detail}")
        self.code = code
        self.reason = reason


class Stream:
    """One call of Gateway.Connect. Use it as an async context manager."""

    def __init__(self, address: str, options: tuple[tuple[str, int], ...] = ()) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=[*_OPTIONS, *options])
        self._call: Any = None
        self.last_id = 0
        self._waiting: deque[ServerFrame] = deque()
        self.auth_ok = AuthOk()

    async def __aenter__(self) -> Self:
        self._call = self._channel.stream_stream(_METHOD)()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call.cancel()
        await self._channel.close()

    # --- bytes and frames ---

    async def write(self, data: bytes) -> None:
        """Send bytes as one frame, whatever they are."""
        async with asyncio.timeout(PATIENCE_S):
            await self._call.write(data)

    async def send(self, **arm: Any) -> int:
        """Send a request under a new id: `send(ping=Ping())`."""
        self.last_id += 1
        frame = ClientFrame(request_id=self.last_id, **arm)
        await self.write(frame.SerializeToString())
        return self.last_id

    async def next(self) -> ServerFrame:
        """The next frame that was not taken yet. Raises Ended."""
        if self._waiting:
            return self._waiting.popleft()
        return await self._receive()

    async def answer(self, request_id: int) -> ServerFrame:
        """The frame that answers a request; others wait for `next`. Raises Ended."""
        for frame in self._waiting:
            if frame.request_id == request_id:
                self._waiting.remove(frame)
                return frame
        while True:
            frame = await self._receive()
            if frame.request_id == request_id:
                return frame
            self._waiting.append(frame)

    async def ask(self, **arm: Any) -> ServerFrame:
        """Send a request and wait for its answer."""
        return await self.answer(await self.send(**arm))

    def unasked(self) -> list[ServerFrame]:
        """What has come and was not taken."""
        return list(self._waiting)

    async def next_of(self, kind: str) -> ServerFrame:
        """The next frame of a kind; those before it are dropped."""
        while (frame := await self.next()).WhichOneof("frame") != kind:
            pass
        return frame

    async def pushed(self, seq: int) -> None:
        """Wait for a push that holds the conversation's event `seq`."""
        while True:
            frame = await self.next_of("push_events")
            if any(each.event.conversation_seq >= seq for each in frame.push_events.events):
                return

    async def ended(self) -> Ended:
        """Read until the server ends the stream; how it did."""
        try:
            while True:
                await self.next()
        except Ended as end:
            return end

    async def _receive(self) -> ServerFrame:
        async with asyncio.timeout(PATIENCE_S):
            try:
                data = await self._call.read()
            except grpc.aio.AioRpcError as error:
                raise Ended(error.code(), error.details() or "", reason_of(error)) from None
            if data is grpc.aio.EOF:
                raise Ended(await self._call.code(), await self._call.details() or "")
        return ServerFrame.FromString(data)

    # --- requests ---

    async def auth(self, token: str, version: int = 1) -> ServerFrame:
        """AUTH; its answer."""
        frame = await self.ask(
            auth=gateway_pb2.Auth(
                protocol_version=version, capabilities=CAPABILITIES, access_token=token
            )
        )
        if frame.WhichOneof("frame") == "auth_ok":
            self.auth_ok = frame.auth_ok
        return frame

    async def say(self, conversation: str, *events: OutgoingEvent) -> list[SendResult]:
        """SEND; a result for each event."""
        frame = await self.ask(send=gateway_pb2.Send(conversation_id=conversation, events=events))
        assert frame.WhichOneof("frame") == "send_ack", frame
        return list(frame.send_ack.results)

    async def pull(
        self, last_applied: int = 0, *, limit: int = 0, token: bytes | None = None
    ) -> ServerFrame:
        """PULL_MAILBOX with the token of AUTH_OK, or another; its answer."""
        return await self.ask(
            pull_mailbox=gateway_pb2.PullMailbox(
                cursor_token=self.auth_ok.cursor_token if token is None else token,
                last_applied_mailbox_seq=last_applied,
                limit=limit,
            )
        )

    async def mailbox(
        self, count: int = 0, *, after: int = 0, token: bytes | None = None
    ) -> list[DeliveredEvent]:
        """Everything behind `after`, once there are `count` events."""
        found: list[DeliveredEvent] = []
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer = await self.pull(after, token=token)
                assert answer.WhichOneof("frame") == "mailbox_page", answer
                page = answer.mailbox_page
                found += page.events
                after = page.covered_through_seq
                if not page.more and len(found) >= count:
                    return found

    async def ack(self, last_applied: int) -> ServerFrame:
        """ACK_MAILBOX; its answer."""
        return await self.ask(
            ack_mailbox=gateway_pb2.AckMailbox(last_applied_mailbox_seq=last_applied)
        )

    async def history(
        self, conversation: str, *, before: int = 0, limit: int = 0
    ) -> list[ConversationEvent]:
        """PULL_HISTORY; the page's events."""
        frame = await self.ask(
            pull_history=gateway_pb2.PullHistory(
                conversation_id=conversation, before_seq=before, limit=limit
            )
        )
        assert frame.WhichOneof("frame") == "history_page", frame
        return list(frame.history_page.events)

    async def sessions(self, limit: int = 0) -> list[gateway_pb2.Session]:
        """PULL_SESSION_LIST, all pages."""
        found: list[gateway_pb2.Session] = []
        token = b""
        while True:
            page = (
                await self.ask(
                    pull_session_list=gateway_pb2.PullSessionList(page_token=token, limit=limit)
                )
            ).session_list
            found += page.sessions
            token = page.next_page_token
            if not token:
                return found

    async def session(self, conversation: str, last_seq: int) -> gateway_pb2.Session:
        """The user's row of a conversation, once it shows the event `last_seq`."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for row in await self.sessions():
                    if (
                        row.conversation_id == conversation
                        and row.last_event.conversation_seq >= last_seq
                    ):
                        return row

    async def mark_read(self, conversation: str, through: int) -> gateway_pb2.ReadOk:
        """MARK_READ."""
        frame = await self.ask(
            mark_read=gateway_pb2.MarkRead(conversation_id=conversation, read_through_seq=through)
        )
        assert frame.WhichOneof("frame") == "read_ok", frame
        return frame.read_ok

    async def ping(self) -> bool:
        """Whether the stream lives: a PING has its PONG."""
        return (await self.ask(ping=gateway_pb2.Ping())).WhichOneof("frame") == "pong"


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """The reason of a status's ErrorInfo; empty for a bare one, which gRPC itself made."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            details = parse_details(value)
            return "" if details is None or details.domain != "qim" else details.reason
    return ""


def message(client_msg_id: str, body: bytes = b"hi") -> OutgoingEvent:
    """A message to send."""
    return OutgoingEvent(client_msg_id=client_msg_id, message=Message(body=body))


def refusal(answer: ServerFrame | SendResult) -> tuple[str, str]:
    """(code, field) of an answer that must be a refusal."""
    assert answer.WhichOneof("frame" if isinstance(answer, ServerFrame) else "outcome") == "error"
    return named(answer.error)


def named(error: error_pb2.Error) -> tuple[str, str]:
    """(code, field) of an error."""
    name = error_pb2.ErrorCode.Name(error.code)
    return name.removeprefix("ERROR_CODE_"), error.field


@asynccontextmanager
async def device_stream(address: str, token: str) -> AsyncIterator[Stream]:
    """A stream that is authenticated."""
    async with Stream(address) as stream:
        answer = await stream.auth(token)
        assert answer.WhichOneof("frame") == "auth_ok", answer
        yield stream
