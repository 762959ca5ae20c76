"""Connection, writer, mailbox and session as processes over one engine, and clients of them.

Each process has a server, tasks and metrics of its own; all run in one event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
from tests.support.streams import MemoryStream

from qim.conversation.v1.conversation_service_pb2 import CreateConversationRequest
from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import DeliveredEvent, ServerFrame
from qimd.adapters.memory import MemoryCluster
from qimd.adapters.sqlite import open_sqlite
from qimd.app.hops.announced import AnnouncedPresence
from qimd.app.hops.credentials import SharedSecret
from qimd.app.hops.directory import Directory
from qimd.app.hops.options import CHANNEL_OPTIONS, SERVER_OPTIONS
from qimd.app.hops.owner import owner_name
from qimd.app.hops.peers import Peers
from qimd.app.hops.presence import RemotePresence
from qimd.app.hops.registrar import Registrar
from qimd.app.hops.remote import (
    RemoteConversations,
    RemoteMailbox,
    RemoteSessions,
    RemoteWriter,
)
from qimd.app.hops.rooms import LocalRooms
from qimd.app.hops.router import Router
from qimd.app.hops.server import HopHandlers
from qimd.app.ownership import Role, ShardOwner
from qimd.app.runtime import AsyncioRuntime
from qimd.auth.admission import OpenAdmission
from qimd.connection.service import ConnectionService
from qimd.contract.cursor import CursorKeys
from qimd.contract.grpc_aio import StrictServerInterceptor
from qimd.core.ids import ConversationId, DeviceId, TenantId, UserId
from qimd.core.outcome import Applied
from qimd.core.parameters import CAPABILITIES, LeaseParameters
from qimd.core.records import ConversationKey, DeviceKey
from qimd.core.routing import RoutingTable
from qimd.fanout.service import FanoutService
from qimd.mailbox.service import MailboxService
from qimd.ports.data import Backends
from qimd.ports.services import Identity
from qimd.ports.store import ShardKind, TenantRecord
from qimd.session.service import SessionService
from qimd.telemetry.metrics import ZEROS, Metrics
from qimd.writer.handlers import ConversationChanges
from qimd.writer.service import WriterService

TENANT = TenantId("acme")
KEY = ConversationKey(TENANT, ConversationId("c"))
TABLE = RoutingTable(version=1, mailbox_shards=2, writer_shards=2)
SECRET = SharedSecret("a-secret-of-the-tests")
CURSOR_KEYS = CursorKeys("1", {"1": b"k" * 32})
USERS = ("ann", "bob", "cid", "dan")

C, W, M, S = "connection", "writer", "mailbox", "session"


class Auth:
    """Takes `<user>/<device>` for a token."""

    async def verify_access_token(self, token: str) -> Identity:
        user, _, device = token.partition("/")
        return Identity(DeviceKey(TENANT, UserId(user), DeviceId(device)), token, 1 << 50)


class Process:
    """One process with the rooms of its roles."""

    def __init__(self, backends: Backends, roles: Sequence[str], name: str) -> None:
        self.roles = roles
        self.metrics = Metrics()
        self.runtime = runtime = AsyncioRuntime(self.metrics)
        self._server = grpc.aio.server(
            interceptors=[StrictServerInterceptor()], options=SERVER_OPTIONS
        )
        address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        directory = Directory(backends.lease, runtime)
        self.peers = Peers(
            directory=directory,
            channel_factory=lambda to: grpc.aio.insecure_channel(to, CHANNEL_OPTIONS),
            credentials=SECRET.credentials,
            runtime=runtime,
            metrics=self.metrics,
        )
        router = Router(
            address=address,
            directory=directory,
            peers=self.peers,
            runtime=runtime,
        )
        here = AnnouncedPresence(runtime, self.metrics) if C in roles else None
        self.presence = RemotePresence(self.metrics, here) if M in roles else None
        self.writer: WriterService | None = None
        conversations: ConversationChanges | None = None
        mailbox: MailboxService | None = None
        sessions: SessionService | None = None
        owned: list[Role] = []
        common = {"runtime": runtime, "metrics": self.metrics}
        stored = {
            "conversations": backends.conversations,
            "log": backends.log,
            "quarantine": backends.quarantine,
        }
        if S in roles:
            sessions = SessionService(
                projection=backends.projection,
                table=TABLE,
                recovery_window_ms=3_600_000,
                **stored,
                **common,
            )
            owned.append(Role(ShardKind.SESSION, TABLE.mailbox_shards, (sessions,)))
        if M in roles:
            mailbox = MailboxService(
                table=TABLE,
                store=backends.mailbox,
                hints=self.presence,
                cursor_keys=CURSOR_KEYS,
                recovery_window_ms=3_600_000,
                **stored,
                **common,
            )
            owned.append(Role(ShardKind.MAILBOX, TABLE.mailbox_shards, (mailbox,)))
        if W in roles:
            fanout = FanoutService(table=TABLE, **stored, **common)
            self.writer = WriterService(
                TABLE, backends.tenants, backends.conversations, fanout, runtime, self.metrics
            )
            conversations = ConversationChanges(self.writer)
            owned.append(Role(ShardKind.WRITER, TABLE.writer_shards, (fanout, self.writer)))
        self.conversations = RemoteConversations(router, TABLE, conversations)
        self.handlers = HopHandlers(
            rooms=LocalRooms(
                writer=self.writer,
                mailbox=mailbox,
                mailbox_operations=mailbox,
                sessions=sessions,
                session_operations=sessions,
                conversations=conversations,
            ),
            presence=self.presence,
            authenticate=SECRET.authenticate,
            **common,
        )
        self._server.add_generic_rpc_handlers([self.handlers.service()])
        self.connections: ConnectionService | None = None
        self._registrar: Registrar | None = None
        if here is not None:
            to_mailbox = RemoteMailbox(router, TABLE, mailbox, mailbox)
            self._registrar = Registrar(
                table=TABLE, presence=here, router=router, mailbox=to_mailbox, runtime=runtime
            )
            self.peers.listener = self._registrar
            self.connections = ConnectionService(
                auth=Auth(),
                admission=OpenAdmission(),
                writer=RemoteWriter(router, TABLE, self.writer),
                mailbox=to_mailbox,
                sessions=RemoteSessions(router, TABLE, sessions, sessions),
                conversations=backends.conversations,
                presence=here,
                **common,
            )
        self._owners = [
            ShardOwner(
                kind=role.kind,
                shard=shard,
                rooms=role.rooms,
                lease=backends.lease,
                epochs=backends.epochs,
                owner=owner_name(address, name),
                parameters=LeaseParameters(),
                sole=True,
                **common,
            )
            for role in owned
            for shard in range(role.shards)
        ]
        self._owning = len(self._owners)
        self._all_ended = asyncio.Event()

    async def start(self) -> None:
        await self._server.start()
        if self._registrar is not None:
            self.runtime.spawn(self._registrar.run(), "hop-registrar")
        for owner in self._owners:
            self.runtime.spawn(self._own(owner), "owner")

    async def _own(self, owner: ShardOwner) -> None:
        await owner.run()
        self._owning -= 1
        if not self._owning:
            self._all_ended.set()

    async def drain(self) -> None:
        """As a node drains: clients away, calls answered, leases released."""
        if self.connections is not None:
            await self.connections.drain(1)
        await self.handlers.drain(1)
        for owner in self._owners:
            owner.drain()
        if self._owning:
            await self._all_ended.wait()

    async def stop(self) -> None:
        self.peers.close()
        await self._server.stop(0)
        await self.runtime.cancel_all()


class Deployment:
    """The processes of one test."""

    def __init__(self, backends: Backends, splits: Sequence[Sequence[str]]) -> None:
        self.backends = backends
        self.processes = [
            Process(backends, roles, str(number)) for number, roles in enumerate(splits)
        ]

    def all(self, role: str) -> list[Process]:
        return [process for process in self.processes if role in process.roles]

    async def add(self, *roles: str) -> Process:
        process = Process(self.backends, roles, str(len(self.processes)))
        self.processes.append(process)
        await process.start()
        return process

    async def found(self) -> None:
        record = TenantRecord(TENANT, {}, 1)
        assert isinstance(await self.backends.tenants.create_tenant(record), Applied)
        # Of any process: the call finds the owner, and waits for there to be one.
        created = CreateConversationRequest(
            tenant_id=TENANT, conversation_id=KEY.conversation, member_user_ids=USERS
        )
        await self.processes[0].conversations.CreateConversation(created)

    async def client(self, user: str, at: int = 0) -> "Client":
        process = self.all(C)[at % len(self.all(C))]
        stream = MemoryStream()
        assert process.connections is not None
        process.runtime.spawn(process.connections.handle(stream), "stream")
        client = Client(stream)
        answer = await client.ask(
            auth=gateway_pb2.Auth(
                protocol_version=1, capabilities=CAPABILITIES, access_token=f"{user}/phone"
            )
        )
        assert answer.WhichOneof("frame") == "auth_ok", answer
        client.cursor = answer.auth_ok.cursor_token
        return client


class Client:
    """One client: it keeps pushes apart, and asks again what is UNAVAILABLE, as the SDK does."""

    def __init__(self, stream: MemoryStream) -> None:
        self._stream = stream
        self.pushes: list[DeliveredEvent] = []
        self.cursor = b""
        self.position = 0

    async def ask(self, **arm: object) -> ServerFrame:
        while True:
            request_id = self._stream.client.request(**arm)
            answer = await self._until(request_id)
            if not (answer.WhichOneof("frame") == "error" and answer.error.retryable):
                return answer

    async def _until(self, request_id: int) -> ServerFrame:
        while True:
            frame = await self._next()
            if frame.request_id == request_id:
                return frame

    async def _next(self) -> ServerFrame:
        frame = await self._stream.client.next()
        assert frame is not None
        self.pushes += frame.push_events.events
        return frame

    async def send(self, *bodies: str) -> None:
        """Messages, in one SEND, each with its body for its client_msg_id."""
        events = [
            gateway_pb2.OutgoingEvent(
                client_msg_id=body,
                message={"body": body.encode()},  # type: ignore[arg-type]
            )
            for body in bodies
        ]
        send = gateway_pb2.Send(conversation_id=KEY.conversation, events=events)
        answer = await self.ask(send=send)
        kinds = [result.WhichOneof("outcome") for result in answer.send_ack.results]
        assert kinds == ["accepted"] * len(bodies), answer

    async def pull(self, count: int) -> list[str]:
        """The bodies of the next `count` messages of the mailbox, by one PULL at least: what is
        sent behind that one is pushed.
        """
        found: list[str] = []
        while True:
            pull = gateway_pb2.PullMailbox(
                cursor_token=self.cursor, last_applied_mailbox_seq=self.position
            )
            page = (await self.ask(pull_mailbox=pull)).mailbox_page
            self.cursor = page.cursor_token or self.cursor
            self.position = page.covered_through_seq
            found += bodies(page.events)
            if len(found) >= count:
                return found

    async def pushed(self, count: int) -> list[str]:
        """The bodies of the next `count` messages that are pushed."""
        while len(bodies(self.pushes)) < count:
            await self._next()
        pushes, self.pushes = self.pushes, []
        return bodies(pushes)


def bodies(events: Sequence[DeliveredEvent]) -> list[str]:
    messages = [each.event for each in events if each.event.HasField("message")]
    return [message.message.body.decode() for message in messages]


@asynccontextmanager
async def deployed(
    engine: str, folder: Path, splits: Sequence[Sequence[str]]
) -> AsyncIterator[Deployment]:
    """Processes over one engine; at the end none has met a defect, or a broken invariant."""
    runtime = AsyncioRuntime(Metrics())
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        if engine == "memory":
            backends: Backends = MemoryCluster(runtime, partitions=2).open(runtime)
        else:
            opened = await open_sqlite(folder / "qim.db", runtime, partitions=2)
            stack.push_async_callback(opened.close)
            backends = opened.backends
        stack.push_async_callback(runtime.cancel_all)
        deployment = Deployment(backends, splits)
        for process in deployment.processes:
            stack.push_async_callback(process.stop)
            await process.start()
        await deployment.found()
        yield deployment
        for process in deployment.processes:
            samples = {
                sample.name: sample.value
                for family in process.metrics.registry.collect()
                for sample in family.samples
                if sample.name in {*ZEROS, "defects_total"}
            }
            assert not any(samples.values()), samples
