"""A connection room between fakes of the rooms behind it, each as small as the port allows."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.chat import Chat
from tests.support.runtime import WALL_START_MS, ManualRuntime
from tests.support.streams import MemoryStream, StreamClient

from qimd.adapters.memory.cluster import MemoryCluster
from qimd.auth.admission import OpenAdmission
from qimd.connection.service import ConnectionService
from qimd.contract.events import encode_delivered, encode_event
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import DeviceId, EventId, TenantId, UserId, event_id
from qimd.core.records import Accepted, ConversationKey, DeviceKey, EventKind, SessionItem, UserKey
from qimd.core.routing import RoutingTable
from qimd.core.seq import MailboxSeq, mailbox_seq
from qimd.ports.services import (
    Commit,
    GapReport,
    Hint,
    Identity,
    OpenedDevice,
    Page,
    Rebased,
)
from qimd.ports.store import key_of
from qimd.telemetry.metrics import Metrics

TENANT = TenantId("acme")
FLOOR = mailbox_seq(1, 0)
KEY = key_of(TENANT, "c")


def encoded(seq: int, body: bytes = b"hello") -> bytes:
    return encode_event(
        key=KEY,
        conversation_seq=seq,
        event_id=event_id(KEY.tenant, KEY.conversation, seq),
        kind=EventKind.MESSAGE,
        sender=UserId("other"),
        sender_device=DeviceId("phone"),
        created_at_ms=1_000,
        client_msg_id=f"m{seq}",
        membership_version=1,
        body=body,
    )


def delivered(seq: int, body: bytes = b"hello") -> bytes:
    return encode_delivered(mailbox_seq(1, seq), encoded(seq, body))


class Auth:
    """Accepts `<user>` and `<user>/<device>`; a token lives an hour."""

    def __init__(self) -> None:
        self.refuses: QimError | None = None
        self.expires_at_ms = WALL_START_MS + 3_600_000

    async def verify_access_token(self, token: str) -> Identity:
        if self.refuses is not None:
            raise self.refuses
        user, _, device = token.partition("/")
        key = DeviceKey(TENANT, UserId(user), DeviceId(device or "phone"))
        return Identity(key, f"jti-{token}", self.expires_at_ms)


class Writer:
    """Numbers drafts as they come. A conversation named in `gates` waits for its event."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.raises: BaseException | None = None
        self._seq = 0

    async def commit(self, command: Commit) -> Sequence[Accepted | QimError]:
        self.commits.append(command)
        gate = self.gates.get(command.key.conversation)
        if gate is not None:
            await gate.wait()
        if self.raises is not None:
            raise self.raises
        results: list[Accepted | QimError] = []
        for _ in command.drafts:
            self._seq += 1
            event = EventId(self._seq.to_bytes(16, "big"))
            results.append(Accepted(event, self._seq, WALL_START_MS, duplicate=False))
        return results


class Mailbox:
    """Serves the pages it is given, one a PULL, then empty ones."""

    def __init__(self) -> None:
        self.pages: list[Page | Rebased] = []
        self.gate: asyncio.Event | None = None
        self.open_gate: asyncio.Event | None = None
        self.raises: BaseException | None = None
        self.opened: list[DeviceKey] = []
        self.handed: list[tuple[int, MailboxSeq]] = []
        self.reports: list[GapReport] = []
        self.calls: list[str] = []

    async def open_device(self, device: DeviceKey) -> OpenedDevice:
        self.opened.append(device)
        if self.open_gate is not None:
            await self.open_gate.wait()
        if self.raises is not None:
            raise self.raises
        return OpenedDevice(b"cursor", FLOOR, FLOOR)

    async def pull(
        self, device: DeviceKey, cursor_token: bytes, last_applied: int, limit: int
    ) -> Page | Rebased:
        self.calls.append("pull begins")
        if self.gate is not None:
            await self.gate.wait()
        if self.raises is not None:
            raise self.raises
        self.calls.append("pull ends")
        return self.pages.pop(0) if self.pages else Page((), FLOOR, more=False)

    async def ack(self, device: DeviceKey, last_applied: int, handed: MailboxSeq) -> MailboxSeq:
        self.calls.append("ack")
        self.handed.append((last_applied, handed))
        if last_applied > handed:
            raise QimError(ErrorCode.CURSOR_INVALID, "beyond what was handed")
        return MailboxSeq(last_applied)

    async def read(self, user: UserKey, after: int, limit: int) -> Page:
        raise NotImplementedError

    async def report(self, user: UserKey, report: GapReport) -> bool:
        self.reports.append(report)
        return report.kind == 1


class Sessions:
    """A list of what it is given."""

    def __init__(self) -> None:
        self.items: list[SessionItem] = []
        self.marked: list[tuple[UserKey, ConversationKey, int]] = []
        self.raises: QimError | None = None

    async def list(
        self, user: UserKey, page_token: bytes, limit: int
    ) -> tuple[Sequence[SessionItem], bytes]:
        if self.raises is not None:
            raise self.raises
        return self.items, b"next"

    async def mark_read(self, user: UserKey, key: ConversationKey, through: int) -> tuple[int, int]:
        self.marked.append((user, key, through))
        return 5, 2


@dataclass
class World:
    """The room and what it stands on."""

    runtime: ManualRuntime
    metrics: Metrics
    auth: Auth
    writer: Writer
    mailbox: Mailbox
    sessions: Sessions
    cluster: MemoryCluster
    chat: Chat
    service: ConnectionService
    streams: dict[str, MemoryStream] = field(default_factory=dict)

    async def connect(self) -> StreamClient:
        """Open a stream without AUTH."""
        stream = MemoryStream()
        self.streams[str(len(self.streams))] = stream
        self.runtime.spawn(self.service.handle(stream), "stream")
        await self.runtime.settle()
        return stream.client

    async def login(self, token: str = "u") -> StreamClient:
        """Open a stream and authenticate it."""
        client = await self.connect()
        client.auth(token)
        await self.runtime.settle()
        (frame,) = client.received()
        assert frame.WhichOneof("frame") == "auth_ok"
        return client

    def stream_of(self, client: StreamClient) -> MemoryStream:
        """The server's side of a client's stream."""
        return next(stream for stream in self.streams.values() if stream.client is client)

    def push(self, users: Sequence[str], *delivered: bytes) -> None:
        """Hint each event to the users."""
        names = [UserId(user) for user in users]
        self.service.push([Hint(TENANT, names, event) for event in delivered])

    def value(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        """A metric's value, 0 if it was never touched."""
        return self.metrics.registry.get_sample_value(name, dict(labels or {})) or 0.0


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """A world whose tasks all end with it."""
    async with ManualRuntime() as runtime:
        metrics = Metrics()
        auth, writer, mailbox, sessions = Auth(), Writer(), Mailbox(), Sessions()
        cluster = MemoryCluster(runtime)
        backends = cluster.open(runtime)
        table = RoutingTable(version=1, mailbox_shards=2, writer_shards=1)
        chat = Chat(cluster, backends, table, runtime)
        await chat.start()
        service = ConnectionService(
            auth=auth,
            admission=OpenAdmission(),
            writer=writer,
            mailbox=mailbox,
            sessions=sessions,
            conversations=backends.conversations,
            runtime=runtime,
            metrics=metrics,
        )
        yield World(runtime, metrics, auth, writer, mailbox, sessions, cluster, chat, service)
