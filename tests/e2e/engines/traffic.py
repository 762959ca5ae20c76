"""Clients that go on sending, whatever dies; and the comparison of what they were told with what
every member's mailbox holds (`qimd.app.demo_verdict`), by gRPC alone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import grpc
from tests.e2e.engines.deployment import PATIENCE_S, TENANT, Deployment, Process

from qim.conversation.v1.event_pb2 import Message
from qim.gateway.v1.gateway_pb2 import OutgoingEvent
from qim.writer.v1.writer_service_pb2 import CommitRequest
from qim.writer.v1.writer_service_pb2_grpc import WriterServiceStub
from qimd.app.demo_verdict import Expected, Found, Verdict, compare
from qimd.client import AdminClient, Client, ClientConfig, Event, Sent, Session
from qimd.core.ids import ConversationId, TenantId, event_id
from qimd.telemetry.metrics import ZEROS

CONFIG: Final = ClientConfig(
    open_timeout_s=PATIENCE_S,
    request_timeout_s=PATIENCE_S,
    backoff_first_s=0.05,
    backoff_most_s=0.5,
)
MEMBERS: Final = tuple(f"member-{number:02d}" for number in range(12))
"""Enough for both mailbox shards, and for lanes that meet."""

OWNING: Final = ("writer", "mailbox", "session")
"""The roles that own shards, which are called after them."""

ROOMS: Final = tuple(f"room-{number}" for number in range(6))
"""Enough for both writer shards."""


class Traffic:
    """Everybody is a member of every room; the first members send, and one watches all along."""

    def __init__(
        self,
        deployment: Deployment,
        rooms: Sequence[str] = ROOMS,
        members: Sequence[str] = MEMBERS,
    ) -> None:
        self.deployment = deployment
        self.rooms = rooms
        self.members = members
        self.told: dict[str, list[Expected]] = {room: [] for room in rooms}
        """By room: what was acknowledged, in no order."""
        self._watched: list[Event] = []
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._number = 0
        self._reports = 0

    async def set_up(self) -> None:
        """Register the tenant, its rooms and their members."""
        await self.deployment.create_tenant()
        for room in self.rooms:
            await self.deployment.administrate(
                lambda admin, room=room: admin.create_conversation(TENANT, room, self.members)  # type: ignore[misc]
            )
            self.told[room].append(Expected(identity(room, 1), 1, "", b""))

    def client(self, user: str, device: str) -> Client:
        """The SDK, through the deployment's door."""

        async def provider() -> str:
            return self.deployment.token(user, device)

        return Client(self.deployment.door.address, token_provider=provider, config=CONFIG)

    # --- sending ---

    @property
    def acknowledged(self) -> int:
        """How many sends were."""
        return sum(map(len, self.told.values())) - len(self.rooms)

    async def say(self, *rooms: str) -> None:
        """One message to each room, or to all, and their acknowledgements."""
        async with self.client(self.members[0], "speaker") as client:
            await asyncio.gather(
                *(self._send(client, self.members[0], r) for r in rooms or self.rooms)
            )

    async def _send(self, client: Client, user: str, room: str) -> None:
        self._number += 1
        body = f"{room} {self._number}".encode()
        sent: Sent = await client.send(room, body)
        self.told[room].append(Expected(sent.event_id, sent.seq, user, body))
        self._changed.set()

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """Two senders in every room, each at its next message as the one before is acknowledged,
        and a reader who is shown everything live.
        """
        over = asyncio.Event()
        async with self.client(self.members[-1], "watcher") as watcher:
            watching = asyncio.create_task(self._watch(watcher))
            senders = [
                asyncio.create_task(self._keep_sending(user, over)) for user in self.members[:2]
            ]
            self._tasks = [watching, *senders]
            for task in self._tasks:
                task.add_done_callback(lambda _: self._changed.set())
            try:
                yield
                over.set()
                await asyncio.gather(*senders)
                self._tasks = [watching]
                # Behind everything else in its room: once it is there, nothing is on its way.
                await self.say()
                await self._until(self._watcher_has_all)
                self._reports += len(watcher.reports)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def more(self, count: int = 30) -> None:
        """Return once so many more sends are acknowledged."""
        wanted = self.acknowledged + count
        await self._until(lambda: self.acknowledged >= wanted)

    async def _keep_sending(self, user: str, over: asyncio.Event) -> None:
        async with self.client(user, "sender") as client:
            async with asyncio.TaskGroup() as group:
                for room in self.rooms:
                    group.create_task(self._keep_sending_in(client, user, room, over))
            self._reports += len(client.reports)

    async def _keep_sending_in(
        self, client: Client, user: str, room: str, over: asyncio.Event
    ) -> None:
        while not over.is_set():
            await self._send(client, user, room)

    async def _watch(self, client: Client) -> None:
        async for item in client.events():
            assert isinstance(item, Event), item
            self._watched.append(item)
            self._changed.set()

    def _watcher_has_all(self) -> bool:
        return len(self._watched) >= self.acknowledged + len(self.rooms)

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                for task in self._tasks:
                    # None of them ends by itself: what ended one is what a test is told.
                    if task.done():
                        task.result()
                self._changed.clear()
                await self._changed.wait()

    async def settle(self) -> None:
        """Return once everything acknowledged is dispatched, and its progress is stored."""
        waiting = list(self.rooms)
        async with asyncio.timeout(PATIENCE_S):
            while waiting:
                # Each look is a round trip.
                waiting = await self.deployment.administrate(
                    lambda admin, rooms=waiting: [r for r in rooms if not _is_dispatched(admin, r)]  # type: ignore[misc]
                )

    # --- comparing ---

    async def verify(self) -> Verdict:
        """Every member's mailbox holds exactly what was acknowledged, once, in order, and the five
        zeros are zero. Gives the numbers.
        """
        if not self._watched:
            await self.say()
        verdict = Verdict(members=len(self.members), events_acknowledged=self.acknowledged)
        for room, told in self.told.items():
            told.sort(key=lambda one: one.seq)
            # Without gaps, and each under the id that its place gives it.
            assert [(one.seq, one.event_id) for one in told] == [
                (seq, identity(room, seq)) for seq in range(1, len(told) + 1)
            ]
        async with asyncio.TaskGroup() as group:
            for user in self.members:
                group.create_task(self._verify(user, verdict))
        if self._watched:
            self._compare(self._watched, verdict)
        verdict.client_reports += self._reports
        verdict.add_zeros(await self.deployment.zeros())
        assert verdict.zeros == dict.fromkeys(ZEROS, 0.0)
        assert verdict.faults() == [], verdict.examples
        return verdict

    async def _verify(self, user: str, verdict: Verdict) -> None:
        async with self.client(user, "verifier") as client, asyncio.timeout(PATIENCE_S):
            events: list[Event] = []
            while len(events) < self.acknowledged + len(self.rooms):
                async for item in client.events(until_caught_up=True):
                    assert isinstance(item, Event), item
                    events.append(item)
            self._compare(events, verdict)
            rows = {row.conversation: row for row in await self._sessions(client)}
            for room, told in self.told.items():
                verdict.session_lists_wrong += rows[room].last_event_id != told[-1].event_id
                # An own message behind nothing unread moves the mark; a sender's unread is others'.
                if user not in self.members[:2]:
                    verdict.session_lists_wrong += rows[room].unread != len(told) - 1
            verdict.client_reports += len(client.reports)

    async def _sessions(self, client: Client) -> list[Session]:
        """The list, once it shows the last event of each room: it is another reader of the log."""
        while True:
            rows = [row async for row in client.sessions()]
            shown = {row.conversation: row.last_seq for row in rows}
            if all(shown.get(room, 0) >= told[-1].seq for room, told in self.told.items()):
                return rows

    def _compare(self, events: Sequence[Event], verdict: Verdict) -> None:
        for room, told in self.told.items():
            found = [
                Found(event.event_id, event.seq, event.sender, event.body, event.mailbox_seq)
                for event in events
                if event.conversation == room
            ]
            compare(told, found, verdict)
        assert {event.conversation for event in events} == set(self.rooms)


async def served(
    deployment: Deployment, *processes: Process, rooms: Sequence[str] = ROOMS
) -> Traffic:
    """Traffic that can begin: the processes are started, each once the one before is ready, so that
    the first owns what it may; clients come in by the last.
    """
    for process in processes:
        await process.start()
    deployment.lead_to(processes[-1])
    traffic = Traffic(deployment, rooms)
    await traffic.set_up()
    return traffic


async def served_by_roles(
    deployment: Deployment,
) -> tuple[dict[str, Process], Process, Traffic]:
    """Likewise with a process of each role, by which clients come in, and their heir."""
    roles = {role: deployment.process(role, role) for role in (*OWNING, "connection")}
    await asyncio.gather(*(process.start() for process in roles.values()))
    heir = deployment.process("heir", "all")
    traffic = await served(deployment, heir)
    deployment.lead_to(roles["connection"])
    return roles, heir, traffic


def _is_dispatched(admin: AdminClient, room: str) -> bool:
    found = admin.get_conversation(TENANT, room)
    return found.dispatched_through == found.head_version


def identity(room: str, seq: int) -> bytes:
    """What an event is named by."""
    return event_id(TenantId(TENANT), ConversationId(room), seq)


def push(process: Process, deployment: Deployment, room: str) -> str:
    """A commit by one process and no other; what came of it."""
    request = CommitRequest(
        tenant_id=TENANT,
        conversation_id=room,
        sender_user_id=MEMBERS[0],
        sender_device_id="old",
        events=[OutgoingEvent(client_msg_id=f"late-{room}", message=Message(body=b"late"))],
    )
    with grpc.insecure_channel(process.grpc) as channel:
        try:
            answer = WriterServiceStub(channel).Commit(
                request, timeout=30, metadata=deployment.admin_metadata
            )
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(answer.results[0].WhichOneof("outcome"))
