"""A device's stream at the level of bytes: what is measured is the server, so a client does as
little as being right about it needs.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc

from bench.harness import Wrong
from qim.conversation.v1.event_pb2 import Message
from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import ClientFrame, DeliveredEvent, OutgoingEvent, ServerFrame
from qimd.core.parameters import CAPABILITIES, PROTOCOL_VERSION, SEND_EVENTS_MAX

CONNECT: Final = "/qim.gateway.v1.Gateway/Connect"
CHANNEL_OPTIONS: Final = (
    # Each device has a connection of its own.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 8 * 1024 * 1024),
)
PUSH_EVENTS: Final = "push-events"
_ANSWER_S: Final = 120.0


class Device:
    """One authenticated stream. Frames are read where they are waited for, by one task."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.auth_ok = gateway_pb2.AuthOk()
        self._ids = itertools.count(1)

    def stamped(self, frame: ClientFrame) -> bytes:
        """The frame's bytes under the next request_id."""
        frame.request_id = next(self._ids)
        return frame.SerializeToString()

    async def read(self) -> ServerFrame:
        """The next frame. Raises Wrong if the stream ended."""
        async with asyncio.timeout(_ANSWER_S):
            data = await self.call.read()
        if data is grpc.aio.EOF:
            raise Wrong(f"the server ended the stream: {await self.call.code()}")
        return ServerFrame.FromString(data)

    async def ask(self, frame: ClientFrame) -> ServerFrame:
        """The answer to a request; pushes that come before it are dropped."""
        await self.call.write(self.stamped(frame))
        while (answer := await self.read()).request_id != frame.request_id:
            pass
        if answer.WhichOneof("frame") == "error":
            raise Wrong(f"a request was refused: {answer.error.message}")
        return answer

    async def say(
        self, conversation: str, client_msg_ids: Sequence[str], body: bytes
    ) -> Sequence[bytes]:
        """Send messages, as many at a time as a stream may; their event_ids, in their order."""
        frames = [
            send_frame(conversation, client_msg_ids[start : start + SEND_EVENTS_MAX], body)
            for start in range(0, len(client_msg_ids), SEND_EVENTS_MAX)
        ]
        writing = asyncio.create_task(self._write(frames))
        answers: dict[int, Sequence[bytes]] = {}
        while len(answers) < len(frames):
            answer = await self.read()
            if answer.request_id:
                answers[answer.request_id] = accepted(answer)
        await writing
        return [event_id for frame in frames for event_id in answers[frame.request_id]]

    async def _write(self, frames: Sequence[ClientFrame]) -> None:
        for frame in frames:
            await self.call.write(self.stamped(frame))

    async def page(self, after: int, limit: int = 500) -> gateway_pb2.MailboxPage:
        """One page of the mailbox."""
        pull = gateway_pb2.PullMailbox(
            cursor_token=self.auth_ok.cursor_token, last_applied_mailbox_seq=after, limit=limit
        )
        return (await self.ask(ClientFrame(pull_mailbox=pull))).mailbox_page

    async def mailbox(self, after: int) -> Sequence[DeliveredEvent]:
        """Everything behind `after`."""
        found: list[DeliveredEvent] = []
        while True:
            page = await self.page(after)
            found += page.events
            after = page.covered_through_seq
            if not page.more:
                return found


@asynccontextmanager
async def device(address: str, token: str, *, pushes: bool = True) -> AsyncIterator[Device]:
    """An authenticated stream, on a connection of its own, with or without PUSH_EVENTS."""
    wanted = [each for each in CAPABILITIES if pushes or each != PUSH_EVENTS]
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        call: Any = channel.stream_stream(CONNECT)()
        opened = Device(call)
        auth = gateway_pb2.Auth(
            protocol_version=PROTOCOL_VERSION, capabilities=wanted, access_token=token
        )
        try:
            opened.auth_ok = (await opened.ask(ClientFrame(auth=auth))).auth_ok
            yield opened
        finally:
            call.cancel()


def send_frame(conversation: str, client_msg_ids: Sequence[str], body: bytes) -> ClientFrame:
    """A SEND of messages that all say the same."""
    return ClientFrame(
        send=gateway_pb2.Send(
            conversation_id=conversation,
            events=[
                OutgoingEvent(client_msg_id=name, message=Message(body=body))
                for name in client_msg_ids
            ],
        )
    )


def accepted(answer: ServerFrame) -> Sequence[bytes]:
    """The event_ids of a SEND_ACK. Raises Wrong unless every event of the SEND was accepted."""
    if answer.WhichOneof("frame") != "send_ack":
        raise Wrong(f"a SEND was answered by {answer.WhichOneof('frame')}: {answer.error.message}")
    ids = [result.accepted.event_id for result in answer.send_ack.results]
    if not all(ids):
        raise Wrong("an event of a SEND was refused")
    return ids
