"""Processes that call one another over real gRPC on loopback, all in one event loop.

Each has a runtime, a server and rooms of its own; what they share is the table of leases. Nothing
waits for time: a test waits for what it wants to see, by the bell that every fake rings.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import grpc
from tests.support.streams import MemoryStream, StreamClient

from qimd.adapters.memory.cluster import MemoryCluster
from qimd.app.hops.announced import AnnouncedPresence
from qimd.app.hops.credentials import SharedSecret
from qimd.app.hops.directory import Directory
from qimd.app.hops.options import CHANNEL_OPTIONS, SERVER_OPTIONS
from qimd.app.hops.owner import owner_name
from qimd.app.hops.peers import Peers
from qimd.app.hops.presence import Registered, RemotePresence
from qimd.app.hops.registrar import Registrar
from qimd.app.hops.remote import RemoteMailbox, RemoteSessions, RemoteSupplement, RemoteWriter
from qimd.app.hops.rooms import LocalRooms
from qimd.app.hops.router import Router
from qimd.app.hops.server import HopHandlers
from qimd.app.runtime import AsyncioRuntime
from qimd.auth.admission import OpenAdmission
from qimd.connection.service import ConnectionService
from qimd.contract.events import encode_delivered, encode_event
from qimd.contract.grpc_aio import StrictServerInterceptor
from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.core.ids import ConversationId, DeviceId, TenantId, UserId, event_id
from qimd.core.records import (
    Accepted,
    ConversationKey,
    DeliveredEvent,
    DeviceKey,
    Draft,
    EventKind,
    EventSummary,
    SessionItem,
    UserKey,
)
from qimd.core.routing import RoutingTable
from qimd.core.seq import SEQ_NONE, MailboxSeq, mailbox_seq, offset_of
from qimd.ports.lease import LeaseView
from qimd.ports.services import (
    Commit,
    GapReport,
    Hint,
    Identity,
    OpenedDevice,
    Page,
    Rebased,
    RebasePlan,
    RebuildPlan,
)
from qimd.ports.store import ShardKind
from qimd.telemetry.metrics import Metrics

TENANT = TenantId("acme")
SECRET = SharedSecret("a-secret-of-the-tests")
TABLE = RoutingTable(version=1, mailbox_shards=1, writer_shards=1)
"""One shard of each kind: a test says who owns it."""


def conversation(name: str) -> ConversationKey:
    return ConversationKey(TENANT, ConversationId(name))


def user(name: str) -> UserKey:
    return UserKey(TENANT, UserId(name))


def device(name: str, of: str = "phone") -> DeviceKey:
    return DeviceKey(TENANT, UserId(name), DeviceId(of))


def command(name: str, *messages: str, body: bytes = b"hello") -> Commit:
    """A commit to the conversation `name`, one draft a client_msg_id."""
    return Commit(
        key=conversation(name),
        sender=UserId("ann"),
        sender_device=DeviceId("phone"),
        drafts=[Draft(each, EventKind.MESSAGE, body) for each in messages],
        trace_parent="00-trace",
    )


def event(seq: int) -> DeliveredEvent:
    """The event at a log offset, in a mailbox."""
    key = conversation("c")
    encoded = encode_event(
        key=key,
        conversation_seq=seq,
        event_id=event_id(key.tenant, key.conversation, seq),
        kind=EventKind.MESSAGE,
        sender=UserId("bob"),
        sender_device=DeviceId("phone"),
        created_at_ms=1_000,
        client_msg_id=f"m{seq}",
        membership_version=1,
        body=b"hello",
    )
    return DeliveredEvent(mailbox_seq(1, seq), encoded)


def delivered(seq: int) -> bytes:
    made = event(seq)
    return encode_delivered(made.seq, made.encoded)


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


class Bell:
    """Rung whenever something happened that a test may wait for."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._rung.clear()
            await self._rung.wait()


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


class Room:
    """What the fakes share: a gate that holds calls, a failure that they meet, and a record."""

    def __init__(self, bell: Bell) -> None:
        self.bell = bell
        self.calls: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.fails: dict[str, BaseException] = {}
        self.fails_once: dict[str, list[BaseException]] = {}
        self.cancelled: list[str] = []

    def hold(self, call: str) -> asyncio.Event:
        """Have calls of that name wait for the event."""
        self.gates[call] = gate = asyncio.Event()
        return gate

    async def enter(self, call: str, name: str) -> None:
        self.calls.append(call)
        self.bell.ring()
        try:
            if (gate := self.gates.get(name)) is not None:
                await gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(call)
            self.bell.ring()
            raise
        if once := self.fails_once.get(name):
            raise once.pop(0)
        if (failure := self.fails.get(name)) is not None:
            raise failure


class FakeWriter(Room):
    """Numbers drafts as they come. Gates and failures go by conversation."""

    def __init__(self, bell: Bell) -> None:
        super().__init__(bell)
        self.commits: list[Commit] = []
        self.known: dict[str, Accepted] = {}

    async def commit(self, command: Commit) -> Sequence[Accepted | QimError]:
        self.commits.append(command)
        name = command.key.conversation
        await self.enter(" ".join([name, *(d.client_msg_id for d in command.drafts)]), name)
        return [self._result(command.key, draft) for draft in command.drafts]

    def _result(self, key: ConversationKey, draft: Draft) -> Accepted | QimError:
        if draft.client_msg_id.startswith("bad"):
            return QimError(ErrorCode.INVALID_ARGUMENT, "bad", field="body")
        if draft.client_msg_id in self.known:
            first = self.known[draft.client_msg_id]
            return Accepted(first.event_id, first.conversation_seq, first.created_at_ms, True)
        seq = len(self.known) + 1
        made = Accepted(event_id(key.tenant, key.conversation, seq), seq, 1_000 + seq, False)
        self.known[draft.client_msg_id] = made
        return made


class FakeMailbox(Room):
    """A mailbox a user. What `materialise` adds is hinted as the real room does it."""

    def __init__(self, bell: Bell, boxes: dict[UserId, list[DeliveredEvent]] | None = None) -> None:
        super().__init__(bell)
        self.boxes = {} if boxes is None else boxes
        self.hints: RemotePresence | None = None
        self.rebased: Rebased | None = None
        self.page_events = 500

    def materialise(self, seq: int, *users: str) -> None:
        """Insert first, then look at presence."""
        made = event(seq)
        for name in users:
            self.boxes.setdefault(UserId(name), []).append(made)
        if self.hints is not None:
            here = self.hints.online(TENANT, [UserId(name) for name in users])
            if here:
                self.hints.push([Hint(TENANT, here, delivered(seq))])

    async def open_device(self, device: DeviceKey) -> OpenedDevice:
        await self.enter(f"open {device.user}", "open")
        return OpenedDevice(b"token", MailboxSeq(3), MailboxSeq(2))

    async def pull(
        self, device: DeviceKey, cursor_token: bytes, last_applied: int, limit: int
    ) -> Page | Rebased:
        await self.enter(f"pull {device.user}", "pull")
        return self.rebased or self._page(device.owner, last_applied, limit)

    async def ack(self, device: DeviceKey, last_applied: int, handed: MailboxSeq) -> MailboxSeq:
        await self.enter(f"ack {last_applied} {handed}", "ack")
        return MailboxSeq(last_applied)

    async def read(self, user: UserKey, after: int, limit: int) -> Page:
        page = self._page(user, after, limit)
        await self.enter(f"read {user.user} {after}", "read")
        return page

    async def report(self, user: UserKey, report: GapReport) -> bool:
        await self.enter(f"report {report}", "report")
        return report.kind == 1

    async def rebase(self, shard: int, *, dry_run: bool) -> RebasePlan:
        await self.enter(f"rebase {shard} {dry_run}", "rebase")
        return RebasePlan(shard, "foreign_record", 2, 3, "cluster/topic", 4, 5, 6)

    def _page(self, user: UserKey, after: int, limit: int) -> Page:
        found = [each for each in self.boxes.get(user.user, []) if each.seq > after]
        shown = found[: limit or self.page_events]
        covered = shown[-1].seq if shown else MailboxSeq(max(after, SEQ_NONE))
        return Page(shown, covered, more=len(shown) < len(found), cursor_token=b"newer")


class FakeSessions(Room):
    """One conversation a list."""

    async def list(
        self, user: UserKey, page_token: bytes, limit: int
    ) -> tuple[Sequence[SessionItem], bytes]:
        await self.enter(f"list {user.user} {page_token!r} {limit}", "list")
        summary = EventSummary(7, event_id(TENANT, "c", 7), 1, UserId("bob"), 1_000, b"hi")
        first = SessionItem(conversation("c"), summary, 1_000, 2, 5)
        return [first, SessionItem(conversation("d"), None, 900, 0, 0)], b"next"

    async def mark_read(self, user: UserKey, key: ConversationKey, through: int) -> tuple[int, int]:
        await self.enter(f"mark {key.conversation} {through}", "mark")
        return through, 4

    async def rebuild(self, partition: int, *, dry_run: bool) -> RebuildPlan:
        await self.enter(f"rebuild {partition} {dry_run}", "rebuild")
        return RebuildPlan(partition, "out_of_range", "cluster/topic", 4, 5, 6, 7)

    def touched(self, key: ConversationKey, users: Iterable[UserId], created_at_ms: int) -> None:
        self.calls.append(f"touched {key.conversation} {' '.join(users)} {created_at_ms}")
        self.bell.ring()


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
