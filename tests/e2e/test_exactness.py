"""Exactness: whatever is killed when, every mailbox holds what was acknowledged, once, in order.

Several conversations with overlapping members, a sender on every membership, guests that come and
go, and a live reader for every user, while the server is killed with SIGKILL again and again. Then
everything is compared with what a permanent member's history says happened, and that with what the
senders were told.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.e2e.support.dev import DevServer
from tests.e2e.support.stream import PATIENCE_S
from tests.e2e.support.tenancy import Operator, Tenancy, samples, zeros

from qim.conversation.v1.event_pb2 import EVENT_KIND_MESSAGE, ConversationEvent
from qim.gateway.v1.gateway_pb2 import DeliveredEvent
from qimd.client import Client, ClientConfig, Event, Message, Reaction, Sent
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import ConversationId, TenantId, event_id
from qimd.telemetry.metrics import ZEROS

SEED = int(os.environ.get("QIM_TEST_SEED", "20261129"))
KILLS = 5
EVENTS_PER_SENDER = 60
GUEST_TURNS = 6
CONFIG = ClientConfig(
    open_timeout_s=60, request_timeout_s=60, backoff_first_s=0.05, backoff_most_s=0.3
)

ROOMS = {
    "all": ["ann", "bob", "cid", "dan", "eve", "fay"],
    "some/of:them": ["ann", "bob", "cid"],
    "others 👋": ["ann", "dan", "eve", "fay"],
    "pair": ["ann", "bob"],
}
"""Ann is in all of them, and stays: her history is the whole one."""
GUESTS = ["guest1", "guest2"]
USERS = ROOMS["all"] + GUESTS
WITNESS = "ann"


@dataclass
class Run:
    """What the senders were told, and what the readers saw."""

    server: DevServer
    chance: random.Random
    acknowledged: dict[tuple[str, int], Sent] = field(default_factory=dict)
    """By (conversation, seq)."""
    bodies: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    """By (conversation, sender, client_msg_id)."""
    seen: dict[str, list[Event]] = field(default_factory=dict)
    """By user: what the live reader was handed, in its order."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    counted: Counter[str] = field(default_factory=Counter)
    """The zeros of the processes that were killed, as of a moment before."""

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that senders or readers bring about."""
        while not holds():
            self.changed.clear()
            await self.changed.wait()

    def told(self) -> None:
        """Something was brought about."""
        self.changed.set()


def client_of(tenancy: Tenancy, user: str, device: str) -> Client:
    """The SDK, on an address that stays through restarts."""

    async def provider() -> str:
        return tenancy.token(user, device)

    return Client(tenancy.server.grpc, token_provider=provider, config=CONFIG)


async def send_in(run: Run, client: Client, room: str, user: str, chance: random.Random) -> None:
    """One sender of a conversation: messages and reactions, a few at a time."""
    number = 0
    while number < EVENTS_PER_SENDER:
        count = min(chance.randrange(1, 8), EVENTS_PER_SENDER - number)
        contents: list[Message | Reaction] = []
        for _ in range(count):
            name = f"{user}{number}"
            number += 1
            if chance.random() < 0.1:
                contents.append(Reaction("👍", 1, name))
                continue
            body = chance.randbytes(chance.choice([0, 1, 40, 400, 4_000]))
            run.bodies[room, user, name] = body
            contents.append(Message(body, name))
        for sent in await client.send_many(room, contents):
            assert isinstance(sent, Sent), sent
            assert run.acknowledged.setdefault((room, sent.seq), sent) is sent
        run.told()


async def come_and_go(tenancy: Tenancy, room: str) -> None:
    """Guests are added and removed, each call repeated until it is answered."""
    for turn in range(GUEST_TURNS):
        async with asyncio.timeout(2 * PATIENCE_S):
            while True:
                try:
                    async with tenancy.operator() as operator:
                        call = operator.remove if turn % 2 else operator.add
                        await call(room, GUESTS)
                    break
                except QimError as error:
                    # A killed server's call has no outcome: the call is idempotent.
                    if error.code not in {ErrorCode.UNAVAILABLE, ErrorCode.NOT_OWNER}:
                        raise


async def read_live(run: Run, client: Client, user: str) -> None:
    """A reader that stays: it sees each event once, through every restart."""
    async for item in client.events():
        assert isinstance(item, Event), item
        run.seen[user].append(item)
        run.told()


async def kill_again_and_again(run: Run, total: int) -> None:
    """SIGKILL at random moments of the sending, and a start on the same data and ports."""
    for mark in sorted(run.chance.sample(range(total // 20, total * 9 // 10), KILLS)):
        await run.until(lambda at_least=mark: len(run.acknowledged) >= at_least)  # type: ignore[misc]
        run.counted.update(await asyncio.to_thread(zeros, run.server))
        # Somewhere in the middle of what is under way, another place each time.
        await asyncio.sleep(run.chance.random() * 0.03)
        run.server.kill()
        await asyncio.to_thread(run.server.start)


@asynccontextmanager
async def live(run: Run, tenancy: Tenancy) -> AsyncIterator[dict[str, Client]]:
    """A live reader for every user; their clients also send."""
    async with AsyncExitStack() as stack:
        clients: dict[str, Client] = {}
        readers: list[asyncio.Task[None]] = []
        for user in USERS:
            run.seen[user] = []
            clients[user] = await stack.enter_async_context(client_of(tenancy, user, "live"))
            readers.append(asyncio.create_task(read_live(run, clients[user], user)))
        try:
            yield clients
        finally:
            for reader in readers:
                reader.cancel()
            ends = await asyncio.gather(*readers, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends


# --- what must have happened ------------------------------------------------------------------


def received(user: str, events: Sequence[ConversationEvent]) -> list[ConversationEvent]:
    """Those of a conversation's events that a user gets: from each of their additions to the
    removal behind it, both included."""
    member = False
    found = []
    for event in events:
        change = event.membership_change
        added, removed = user in change.added_user_ids, user in change.removed_user_ids
        if member or added:
            found.append(event)
        member = (member or added) and not removed
    return found


def triples(events: Sequence[ConversationEvent | Event]) -> list[tuple[str, bytes]]:
    """(conversation, event id), in order; the user is the mailbox's."""
    return [
        (each.conversation_id if isinstance(each, ConversationEvent) else each.conversation,
         each.event_id)
        for each in events
    ]  # fmt: skip


def of_room(room: str, found: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """A conversation's part: order holds within it."""
    return [each for each in found if each[0] == room]


async def whole_history(tenancy: Tenancy, room: str) -> list[ConversationEvent]:
    """Everything that a permanent member can read back."""
    events: list[ConversationEvent] = []
    async with tenancy.device(WITNESS, "witness") as stream:
        before = 0
        while page := await stream.history(room, before=before, limit=500):
            events = page + events
            before = page[0].conversation_seq
            if before == 1:
                break
    return events


def check_history(run: Run, room: str, events: Sequence[ConversationEvent], head: int) -> None:
    """The history against what senders were told: gapless, theirs, byte for byte, in time."""
    assert [each.conversation_seq for each in events] == list(range(1, head + 1))
    for event in events:
        identity = event_id(TenantId("dev"), ConversationId(room), event.conversation_seq)
        assert event.event_id == identity
        sent = run.acknowledged.get((room, event.conversation_seq))
        if event.HasField("membership_change"):
            assert sent is None
            continue
        # Also what was not acknowledged at first was, in the end, under its own id.
        assert sent is not None
        assert (sent.event_id, sent.client_msg_id) == (identity, event.client_msg_id)
        body = run.bodies.get((room, event.sender_user_id, event.client_msg_id))
        assert (event.message.body if event.HasField("message") else None) == body
    names = [(e.sender_user_id, e.client_msg_id) for e in events if e.client_msg_id]
    assert len(names) == len(set(names)) == EVENTS_PER_SENDER * len(ROOMS[room])
    for sender in ROOMS[room]:
        own = [name for user, name in names if user == sender]
        assert own == [f"{sender}{number}" for number in range(EVENTS_PER_SENDER)]
    times = [each.created_at_ms for each in events]
    assert times == sorted(times)


def check_mailbox(
    user: str, mailbox: Sequence[DeliveredEvent], histories: dict[str, list[ConversationEvent]]
) -> None:
    """The user's triples: none missing, doubled or strange, in order within each conversation."""
    places = [each.mailbox_seq for each in mailbox]
    assert places == sorted(set(places))
    found = triples([each.event for each in mailbox])
    for room, history in histories.items():
        assert of_room(room, found) == triples(received(user, history)), (user, room)
    assert {room for room, _ in found} <= set(histories)
    by_id = {event.event_id: event for history in histories.values() for event in history}
    assert all(by_id[each.event.event_id] == each.event for each in mailbox)


def check_live(
    user: str, seen: Sequence[Event], histories: dict[str, list[ConversationEvent]]
) -> None:
    """What the live reader was handed is what the mailbox holds."""
    found = triples(seen)
    for room, history in histories.items():
        assert of_room(room, found) == triples(received(user, history)), (user, room)


async def check_sessions(
    tenancy: Tenancy, user: str, histories: dict[str, list[ConversationEvent]]
) -> None:
    """The session list against a recount, before and after a half of each was read."""
    async with tenancy.device(user, "checker") as stream:
        for room, history in histories.items():
            own = received(user, history)
            if not own:
                continue
            last = own[-1]
            foreign = [
                each.conversation_seq
                for each in own
                if each.kind == EVENT_KIND_MESSAGE and each.sender_user_id != user
            ]
            row = await stream.session(room, last.conversation_seq)
            assert (row.last_event.event_id, row.activity_at_ms) == (
                last.event_id,
                last.created_at_ms,
            )
            assert row.unread_count == len(foreign), (user, room)
            middle = own[len(own) // 2].conversation_seq
            unread = sum(seq > middle for seq in foreign)
            read = await stream.mark_read(room, middle)
            assert (read.read_through_seq, read.unread_count) == (middle, unread)
            assert (await stream.session(room, last.conversation_seq)).unread_count == unread
        listed = [row.conversation_id for row in await stream.sessions(limit=2)]
        assert sorted(listed) == sorted(r for r in histories if received(user, histories[r]))


@pytest.fixture
def server(tmp_path: Path) -> DevServer:
    return DevServer(tmp_path / "data", ("--audit-interval-s", "0.5"))


async def test_whatever_is_killed_when_every_mailbox_is_exact(server: DevServer) -> None:
    run = Run(server, random.Random(SEED))
    with server:
        # Clients find a restarted server where it was.
        _, _, grpc_port = server.grpc.rpartition(":")
        _, _, metrics_port = server.metrics.rpartition(":")
        server.arguments += ("--grpc-port", grpc_port, "--metrics-port", metrics_port)
        tenancy = Tenancy(server)
        async with tenancy.operator() as operator:
            for room, members in ROOMS.items():
                await operator.create(room, members)
        total = EVENTS_PER_SENDER * sum(map(len, ROOMS.values()))
        async with live(run, tenancy) as clients:
            async with asyncio.TaskGroup() as group:
                group.create_task(kill_again_and_again(run, total))
                for room, members in ROOMS.items():
                    group.create_task(come_and_go(tenancy, room))
                    for user in members:
                        chance = random.Random(f"{SEED} {room} {user}")
                        group.create_task(send_in(run, clients[user], room, user, chance))
            assert len(run.acknowledged) == total

            histories = {room: await whole_history(tenancy, room) for room in ROOMS}
            async with tenancy.operator() as operator:
                for room, history in histories.items():
                    check_history(run, room, history, await operator.head(room))
                await _check_mailboxes(operator, histories)
            for user in USERS:
                wanted = sum(len(received(user, history)) for history in histories.values())
                async with asyncio.timeout(PATIENCE_S):
                    await run.until(
                        lambda user=user, count=wanted: len(run.seen[user]) >= count  # type: ignore[misc]
                    )
                check_live(user, run.seen[user], histories)
                assert clients[user].reports == ()
                assert clients[user].connects > 1
            for user in USERS:
                await check_sessions(tenancy, user, histories)
        run.counted.update(zeros(server))
        assert run.counted == dict.fromkeys(ZEROS, 0.0), f"seed {SEED}"
        defects = {k: v for k, v in samples(server).items() if k.startswith("defects_total")}
        assert not any(defects.values()), defects


async def _check_mailboxes(
    operator: Operator, histories: dict[str, list[ConversationEvent]]
) -> None:
    for user in USERS:
        wanted = sum(len(received(user, history)) for history in histories.values())
        check_mailbox(user, await operator.mailbox(user, wanted), histories)


# --- would it be noticed? ---------------------------------------------------------------------


def _event(seq: int, added: Sequence[str] = (), removed: Sequence[str] = ()) -> ConversationEvent:
    event = ConversationEvent(conversation_id="r", conversation_seq=seq, event_id=bytes([seq]) * 16)
    event.membership_change.added_user_ids.extend(added)
    event.membership_change.removed_user_ids.extend(removed)
    return event


HISTORY = [
    _event(1, added=["u"]),
    _event(2),
    _event(3, removed=["u"]),
    _event(4),
    _event(5, added=["u"]),
    _event(6),
]


@pytest.mark.parametrize(
    ("seqs", "is_exact"),
    [
        ([1, 2, 3, 5, 6], True),
        ([1, 2, 3, 5], False),
        ([1, 2, 3, 4, 5, 6], False),
        ([1, 2, 2, 3, 5, 6], False),
        ([2, 1, 3, 5, 6], False),
    ],
)
def test_a_mailbox_that_is_not_exact_would_be_noticed(seqs: list[int], is_exact: bool) -> None:
    mailbox = [
        DeliveredEvent(mailbox_seq=place, event=HISTORY[seq - 1])
        for place, seq in enumerate(seqs, 1)
    ]
    try:
        check_mailbox("u", mailbox, {"r": HISTORY})
    except AssertionError:
        assert not is_exact
    else:
        assert is_exact
