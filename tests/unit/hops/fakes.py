"""Rooms as small as their ports allow, and what goes through them.

Nothing waits for time: a test waits for what it wants to see, by the bell that every fake rings.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from qim.conversation.v1.conversation_service_pb2 import (
    AddMembersRequest,
    AddMembersResponse,
    Conversation,
    CreateConversationRequest,
    CreateConversationResponse,
    RemoveMembersRequest,
    RemoveMembersResponse,
)
from qimd.app.hops.presence import RemotePresence
from qimd.contract.events import encode_delivered, encode_event
from qimd.core.errors import ErrorCode, QimError
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
from qimd.core.seq import SEQ_NONE, MailboxSeq, mailbox_seq
from qimd.ports.services import (
    Commit,
    GapReport,
    Hint,
    OpenedDevice,
    Page,
    Rebased,
    RebasePlan,
    RebuildPlan,
)

TENANT = TenantId("acme")


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


class FakeConversations(Room):
    """Repeats the conversation that it was asked for."""

    async def CreateConversation(
        self, request: CreateConversationRequest
    ) -> CreateConversationResponse:
        await self.enter(f"create {' '.join(request.member_user_ids)}", "create")
        return CreateConversationResponse(conversation=_named(request))

    async def AddMembers(self, request: AddMembersRequest) -> AddMembersResponse:
        await self.enter(f"add {' '.join(request.user_ids)}", "add")
        return AddMembersResponse(conversation_seq=4, conversation=_named(request))

    async def RemoveMembers(self, request: RemoveMembersRequest) -> RemoveMembersResponse:
        await self.enter(f"remove {' '.join(request.user_ids)}", "remove")
        return RemoveMembersResponse(conversation_seq=5, conversation=_named(request))


def _named(
    request: CreateConversationRequest | AddMembersRequest | RemoveMembersRequest,
) -> Conversation:
    return Conversation(tenant_id=request.tenant_id, conversation_id=request.conversation_id)


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
