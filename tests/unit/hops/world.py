"""Processes that call one another over real gRPC on loopback, all in one event loop.

Each has a runtime, a server and rooms of its own; what they share is the table of leases.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import grpc
from tests.support.streams import MemoryStream, StreamClient
from tests.unit.hops.fakes import (
    TENANT,
    Bell,
    FakeConversations,
    FakeMailbox,
    FakeSessions,
    FakeWriter,
    device,
)

from qimd.adapters.memory.cluster import MemoryCluster
from qimd.app.hops.announced import AnnouncedPresence
from qimd.app.hops.credentials import SharedSecret
from qimd.app.hops.directory import Directory
from qimd.app.hops.options import CHANNEL_OPTIONS, SERVER_OPTIONS
from qimd.app.hops.owner import owner_name
from qimd.app.hops.peers import Peers
from qimd.app.hops.presence import Registered, RemotePresence
from qimd.app.hops.registrar import Registrar
from qimd.app.hops.remote import (
    RemoteConversations,
    RemoteMailbox,
    RemoteSessions,
    RemoteSupplement,
    RemoteWriter,
)
from qimd.app.hops.rooms import LocalRooms
from qimd.app.hops.router import Router
from qimd.app.hops.server import HopHandlers
from qimd.app.runtime import AsyncioRuntime
from qimd.auth.admission import OpenAdmission
from qimd.connection.service import ConnectionService
from qimd.contract.grpc_aio import StrictServerInterceptor
from qimd.core.errors import unavailable
from qimd.core.ids import TenantId, UserId
from qimd.core.routing import RoutingTable
from qimd.core.seq import offset_of
from qimd.ports.lease import LeaseView
from qimd.ports.services import Identity
from qimd.ports.store import ShardKind
from qimd.telemetry.metrics import Metrics

SECRET = SharedSecret("a-secret-of-the-tests")
TABLE = RoutingTable(version=1, mailbox_shards=1, writer_shards=1)
"""One shard of each kind: a test says who owns it."""


async def pushed(client: StreamClient, count: int) -> list[int]:
    """The log offsets of the next `count` events that are pushed."""
    found: list[int] = []
    while len(found) < count:
        frame = await client.next()
        assert frame is not None
        found += [offset_of(each.mailbox_seq) for each in frame.push_events.events]
    return found


class Auth:
    """Takes any `<user>/<device>` for a token that is good for ever."""

    async def verify_access_token(self, token: str) -> Identity:
        name, _, of = token.partition("/")
        return Identity(device(name, of), f"jti-{token}", 1 << 50)


class Leases:
    """`LeasePort.view` over what the test gives to whom."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self.holders: dict[tuple[ShardKind, int], str] = {}
        self.views: list[tuple[ShardKind, int]] = []
        self.away = False
        self.gate: asyncio.Event | None = None

    def give(self, to: "Process | None", *kinds: ShardKind) -> None:
        """Let a process hold the shards of these kinds, or of all; None for nobody."""
        for kind in kinds or ShardKind:
            self.holders[kind, 0] = to.owner if to else ""

    async def view(self, kind: ShardKind, shard: int) -> LeaseView:
        self.views.append((kind, shard))
        self._bell.ring()
        if self.gate is not None:
            await self.gate.wait()
        if self.away:
            raise unavailable("the lease store is away")
        return LeaseView(self.holders.get((kind, shard), ""), released=False)


class WatchedPresence(RemotePresence):
    """Rings when who is here has changed."""

    def __init__(self, bell: Bell, metrics: Metrics) -> None:
        super().__init__(metrics)
        self._bell = bell

    def change(
        self,
        registered: Registered,
        tenant: TenantId,
        online: Iterable[UserId],
        offline: Iterable[UserId],
    ) -> None:
        super().change(registered, tenant, online, offline)
        self._bell.ring()

    def here(self, *names: str) -> set[str]:
        return set(self.online(TENANT, [UserId(name) for name in names]))


class Process:
    """One process: it may be called, and calls others."""

    def __init__(self, name: str, bell: Bell, leases: Leases, *, port: int = 0) -> None:
        self.defects_expected = 0
        self.metrics = Metrics()
        self.runtime = AsyncioRuntime(self.metrics)
        self.writer = FakeWriter(bell)
        self.conversations = FakeConversations(bell)
        self.mailbox = FakeMailbox(bell)
        self.sessions = FakeSessions(bell)
        self.presence = WatchedPresence(bell, self.metrics)
        self.mailbox.hints = self.presence
        self.handlers = HopHandlers(
            rooms=LocalRooms(
                writer=self.writer,
                mailbox=self.mailbox,
                mailbox_operations=self.mailbox,
                sessions=self.sessions,
                session_operations=self.sessions,
                supplement=self.sessions,
                conversations=self.conversations,
            ),
            presence=self.presence,
            authenticate=SECRET.authenticate,
            runtime=self.runtime,
            metrics=self.metrics,
        )
        self.server = grpc.aio.server(
            interceptors=[StrictServerInterceptor()], options=SERVER_OPTIONS
        )
        self.server.add_generic_rpc_handlers([self.handlers.service()])
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{self.port}"
        self.owner = owner_name(self.address, name)
        self.directory = Directory(leases, self.runtime)
        self.peers = Peers(
            directory=self.directory,
            channel_factory=lambda to: grpc.aio.insecure_channel(to, CHANNEL_OPTIONS),
            credentials=SECRET.credentials,
            runtime=self.runtime,
            metrics=self.metrics,
        )
        self.router = Router(
            address=self.address,
            directory=self.directory,
            peers=self.peers,
            runtime=self.runtime,
        )
        self.to_writer = RemoteWriter(self.router, TABLE, self.writer)
        self.to_conversations = RemoteConversations(self.router, TABLE, self.conversations)
        self.to_mailbox = RemoteMailbox(self.router, TABLE, self.mailbox, self.mailbox)
        self.to_sessions = RemoteSessions(self.router, TABLE, self.sessions, self.sessions)
        self.to_supplement = RemoteSupplement(self.router, TABLE, self.sessions)
        self.online = AnnouncedPresence(self.runtime, self.metrics)
        self.registrar = Registrar(
            table=TABLE,
            presence=self.online,
            router=self.router,
            mailbox=self.to_mailbox,
            runtime=self.runtime,
        )
        self.peers.listener = self.registrar
        self.connections = ConnectionService(
            auth=Auth(),
            admission=OpenAdmission(),
            writer=self.to_writer,
            mailbox=self.to_mailbox,
            sessions=self.to_sessions,
            conversations=MemoryCluster(self.runtime).open(self.runtime).conversations,
            runtime=self.runtime,
            metrics=self.metrics,
            presence=self.online,
        )

    async def connect(self, token: str) -> StreamClient:
        """A client that has authenticated as `<user>/<device>`, and wants pushes."""
        stream = MemoryStream()
        self.runtime.spawn(self.connections.handle(stream), "stream")
        stream.client.auth(token)
        frame = await stream.client.next()
        assert frame is not None
        assert frame.WhichOneof("frame") == "auth_ok"
        return stream.client

    def follow(self) -> None:
        """Begin to follow the shards of those who are online."""
        self.runtime.spawn(self.registrar.run(), "hop-registrar")

    def sample(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(name) or 0.0

    def defects(self) -> float:
        return sum(
            sample.value
            for family in self.metrics.registry.collect()
            if family.name == "defects"
            for sample in family.samples
            if sample.name == "defects_total"
        )

    async def kill(self) -> None:
        """End as a killed process does: its streams break, its port is free."""
        await self.server.stop(0)
        self.peers.close()
        await self.runtime.cancel_all()


class World:
    """Processes, and what they share."""

    def __init__(self) -> None:
        self.bell = Bell()
        self.leases = Leases(self.bell)
        self.processes: list[Process] = []

    async def process(self, name: str, *, port: int = 0) -> Process:
        """Start one."""
        process = Process(name, self.bell, self.leases, port=port)
        await process.server.start()
        self.processes.append(process)
        return process


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """At its end no process may have met a defect that the test did not make."""
    made = World()
    async with asyncio.timeout(60):
        try:
            yield made
        finally:
            for process in made.processes:
                await process.kill()
    for process in made.processes:
        assert process.defects() == process.defects_expected
