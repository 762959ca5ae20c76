"""A Gateway on a loopback port that a test holds in its hands: real gRPC, a mailbox in a list.

It answers as the contract says, until a test puts its own answer in the place of a frame kind's.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc.aio

from qim.conversation.v1 import event_pb2
from qim.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from qimd.client import Client, ClientConfig
from qimd.client.positions import PositionStore
from qimd.contract.errors import error_message
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import ConversationId, TenantId, event_id

ServerFrame = gateway_pb2.ServerFrame
ClientFrame = gateway_pb2.ClientFrame
DeliveredEvent = gateway_pb2.DeliveredEvent

USER = "me"
FAST = ClientConfig(
    backoff_first_s=0.001,
    backoff_most_s=0.01,
    open_timeout_s=10.0,
    request_timeout_s=10.0,
    idle_pull_s=0.01,
)
STEADY = ClientConfig(backoff_first_s=0.001, backoff_most_s=0.01, idle_pull_s=3600.0, poll_s=3600.0)
"""Pulls only when something is known to be missing."""


def event(
    seq: int, mailbox_seq: int, conversation: str = "c", added: tuple[str, ...] = ()
) -> DeliveredEvent:
    """A message, or the membership event that adds somebody."""
    made = event_pb2.ConversationEvent(
        conversation_id=conversation,
        conversation_seq=seq,
        event_id=event_id(TenantId("t"), ConversationId(conversation), seq),
        kind=event_pb2.EVENT_KIND_MEMBERSHIP if added else event_pb2.EVENT_KIND_MESSAGE,
        sender_user_id="other",
        sender_device_id="phone",
        created_at_ms=1_000 + seq,
        client_msg_id="" if added else f"m{conversation}{seq}",
        membership_version=1,
    )
    if added:
        made.membership_change.added_user_ids.extend(added)
    else:
        made.message.body = f"{conversation} {seq}".encode()
    return DeliveredEvent(mailbox_seq=mailbox_seq, event=made)


class Peer:
    """One client's stream."""

    def __init__(self) -> None:
        self.out: asyncio.Queue[ServerFrame | None] = asyncio.Queue()
        self.gone = asyncio.Event()

    def send(self, **frame: object) -> None:
        self.out.put_nowait(ServerFrame(**frame))  # type: ignore[arg-type]

    def push(self, *events: DeliveredEvent) -> None:
        self.send(push_events=gateway_pb2.PushEvents(events=events))

    def error(self, request_id: int, code: ErrorCode) -> None:
        self.send(request_id=request_id, error=error_message(QimError(code, "so the test says")))

    def drop(self) -> None:
        """End the stream without a word."""
        self.out.put_nowait(None)


Answer = Callable[[Peer, ClientFrame], Awaitable[bool]]
"""Whether it answered; False: the ordinary answer follows."""


class Gateway(gateway_pb2_grpc.GatewayServicer):
    def __init__(self) -> None:
        self.address = ""
        self.mailbox: list[DeliveredEvent] = []
        self.covered = 0
        self.page_size = 500
        self.stored = 0
        self.committed: dict[str, gateway_pb2.Accepted] = {}
        self.frames: list[ClientFrame] = []
        self.peers: list[Peer] = []
        self.live = 0
        self.answers: dict[str, Answer] = {}
        self._changed = asyncio.Condition()

    # --- for tests ----------------------------------------------------------------------------

    @property
    def peer(self) -> Peer:
        """The newest stream."""
        return self.peers[-1]

    def deliver(self, *events: DeliveredEvent) -> None:
        """Put events into the mailbox, without a push."""
        self.mailbox.extend(events)
        self.covered = max(self.covered, events[-1].mailbox_seq)

    def seen(self, kind: str) -> list[ClientFrame]:
        return [frame for frame in self.frames if frame.WhichOneof("frame") == kind]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition on what the gateway has seen."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(holds)

    # --- the service --------------------------------------------------------------------------

    async def Connect(
        self, request_iterator: AsyncIterator[ClientFrame], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[ServerFrame]:
        peer = Peer()
        self.peers.append(peer)
        reading = asyncio.create_task(self._read(peer, request_iterator))
        self.live += 1
        try:
            while (frame := await peer.out.get()) is not None:
                yield frame
        finally:
            self.live -= 1
            peer.gone.set()
            reading.cancel()

    async def _read(self, peer: Peer, frames: AsyncIterator[ClientFrame]) -> None:
        async for frame in frames:
            kind = frame.WhichOneof("frame") or ""
            self.frames.append(frame)
            answer = self.answers.get(kind)
            if answer is None or not await answer(peer, frame):
                getattr(self, f"_{kind}")(peer, frame)
            async with self._changed:
                self._changed.notify_all()
        peer.drop()

    def _auth(self, peer: Peer, frame: ClientFrame) -> None:
        ok = gateway_pb2.AuthOk(
            protocol_version=1,
            tenant_id="t",
            user_id=USER,
            device_id="d",
            token_expires_at_ms=1 << 40,
            server_time_ms=1 << 39,
            cursor_token=b"cursor",
            last_applied_mailbox_seq=self.stored,
        )
        peer.send(request_id=frame.request_id, auth_ok=ok)

    def _send(self, peer: Peer, frame: ClientFrame) -> None:
        peer.send(request_id=frame.request_id, send_ack=self.commit(frame))

    def commit(self, frame: ClientFrame) -> gateway_pb2.SendAck:
        """Commit a SEND once per client_msg_id; its answer."""
        results = []
        for outgoing in frame.send.events:
            accepted = gateway_pb2.Accepted()
            known = self.committed.get(outgoing.client_msg_id)
            if known is None:
                seq = len(self.committed) + 1
                accepted.event_id = event_id(TenantId("t"), ConversationId("c"), seq)
                accepted.conversation_seq = seq
                accepted.created_at_ms = seq
                self.committed[outgoing.client_msg_id] = accepted
            else:
                accepted.CopyFrom(known)
                accepted.duplicate = True
            results.append(
                gateway_pb2.SendResult(client_msg_id=outgoing.client_msg_id, accepted=accepted)
            )
        conversation = frame.send.conversation_id
        return gateway_pb2.SendAck(conversation_id=conversation, results=results)

    def _pull_mailbox(self, peer: Peer, frame: ClientFrame) -> None:
        after = frame.pull_mailbox.last_applied_mailbox_seq
        rest = [item for item in self.mailbox if item.mailbox_seq > after]
        page, more = rest[: self.page_size], len(rest) > self.page_size
        covered = page[-1].mailbox_seq if more else max(self.covered, after)
        peer.send(
            request_id=frame.request_id,
            mailbox_page=gateway_pb2.MailboxPage(
                events=page, covered_through_seq=covered, more=more
            ),
        )

    def _ack_mailbox(self, peer: Peer, frame: ClientFrame) -> None:
        self.stored = max(self.stored, frame.ack_mailbox.last_applied_mailbox_seq)
        ok = gateway_pb2.AckOk(last_applied_mailbox_seq=self.stored)
        peer.send(request_id=frame.request_id, ack_ok=ok)

    def _report(self, peer: Peer, frame: ClientFrame) -> None:
        peer.send(request_id=frame.request_id, report_ok=gateway_pb2.ReportOk(confirmed=True))

    def _ping(self, peer: Peer, frame: ClientFrame) -> None:
        peer.send(request_id=frame.request_id, pong=gateway_pb2.Pong(server_time_ms=5))

    def _mark_read(self, peer: Peer, frame: ClientFrame) -> None:
        mark = frame.mark_read
        ok = gateway_pb2.ReadOk(
            conversation_id=mark.conversation_id,
            read_through_seq=mark.read_through_seq,
            unread_count=2,
        )
        peer.send(request_id=frame.request_id, read_ok=ok)

    def _pull_history(self, peer: Peer, frame: ClientFrame) -> None:
        asked = frame.pull_history
        events = [item.event for item in self.mailbox]
        below = [e for e in events if not asked.before_seq or e.conversation_seq < asked.before_seq]
        page = gateway_pb2.HistoryPage(
            conversation_id=asked.conversation_id,
            events=below[-asked.limit :],
            more=len(below) > asked.limit,
        )
        peer.send(request_id=frame.request_id, history_page=page)

    def _pull_session_list(self, peer: Peer, frame: ClientFrame) -> None:
        index = int(frame.pull_session_list.page_token or b"0")
        page = gateway_pb2.SessionList(
            sessions=[gateway_pb2.Session(conversation_id=f"c{index}", unread_count=index)],
            next_page_token=str(index + 1).encode() if index < 2 else b"",
        )
        peer.send(request_id=frame.request_id, session_list=page)


@asynccontextmanager
async def running() -> AsyncIterator[Gateway]:
    """A gateway on a free port."""
    server = grpc.aio.server()
    gateway = Gateway()
    gateway_pb2_grpc.add_GatewayServicer_to_server(gateway, server)
    gateway.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield gateway
    finally:
        await server.stop(grace=None)


def client_of(
    gateway: Gateway, config: ClientConfig = FAST, positions: PositionStore | None = None
) -> Client:
    """A client of that gateway."""
    return Client(gateway.address, token="a token", config=config, positions=positions)
