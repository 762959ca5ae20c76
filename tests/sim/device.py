"""A device: it connects to whichever server takes it, pulls, acknowledges, and comes back.

What it holds durably is its position and what it applied. It believes nothing: each page must rise,
lie within what was asked for, and agree with every page that covered the same range before, which
is what `covered_through` promises (nothing at or below it is missing, then or ever).
"""

import asyncio
import random
from typing import TYPE_CHECKING, Final

from tests.sim.loop import Process
from tests.sim.tokens import token_of

from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import ClientFrame, ServerFrame
from qimd.client.backoff import Backoff
from qimd.contract.errors import error_of
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import DeviceId
from qimd.core.parameters import CAPABILITIES
from qimd.core.records import DeviceKey, UserKey
from qimd.ports.store import ShardKind

if TYPE_CHECKING:
    from tests.sim.servers import Server, SimStream
    from tests.sim.world import World

ANSWER_S: Final = 2.0
"""When a client gives up on an answer, and on the stream with it."""

RETURN_MIN_S: Final = 0.2
RETURN_MAX_S: Final = 1.6
"""Between a stream's end and the next try: longer each time that nobody served it."""

OPENING_S: Final = 3.0
"""How long somebody who wants something looks at a device that does not get online."""

TOLD_RATE: Final = 0.7
"""How often somebody knows which server to ask, and that there is none while nobody serves."""

RETRYABLE: Final = frozenset(
    {
        ErrorCode.NOT_OWNER,
        ErrorCode.UNAVAILABLE,
        ErrorCode.STALE_EPOCH,
        ErrorCode.SESSION_PROJECTION_DIRTY,
    }
)


class Gone(Exception):
    """The stream broke, or there is none."""


class Link:
    """One stream, with the answers that are waited for."""

    def __init__(self, stream: "SimStream") -> None:
        self.stream = stream
        self.ready = False
        self.waiting: dict[int, asyncio.Future[ServerFrame]] = {}
        self._last_id = 0

    async def ask(self, **arm: object) -> ServerFrame:
        """The answer to a request. Raises QimError for an ERROR, Gone without an answer."""
        if self.stream.closed:
            raise Gone
        self._last_id += 1
        answer: asyncio.Future[ServerFrame] = asyncio.get_running_loop().create_future()
        self.waiting[self._last_id] = answer
        self.stream.tell(ClientFrame(request_id=self._last_id, **arm))  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(ANSWER_S):
                frame = await answer
        except TimeoutError:
            self.stream.hang_up()
            raise Gone from None
        if frame.WhichOneof("frame") == "error":
            raise error_of(frame.error)
        return frame


class Device:
    """See the module. `connect` and `disconnect` say what is wanted; the rest is its own affair."""

    def __init__(self, world: "World", user: UserKey, number: int, chance: random.Random) -> None:
        self.key = DeviceKey(user.tenant, user.user, DeviceId(f"d{number}"))
        self.name = f"{user.user}/{number}"
        self.process = Process(world.loop, self.name)
        self.seen: dict[int, tuple[str, int, bytes]] = {}
        """mailbox_seq → (conversation, conversation_seq, event_id) of what it pulled."""
        self.covered = 0
        self.pushed: dict[int, None] = {}
        self.cursor = b""
        self.link: Link | None = None
        self._position = 0
        self._acked = 0
        self._forgot = False
        self._world = world
        self._chance = chance
        self.wanted = False
        """Whether it is to be online."""
        self._living = False
        self._backoff = Backoff(RETURN_MIN_S, RETURN_MAX_S, chance.random)
        self._wake = asyncio.Event()
        self._came_online = asyncio.Event()

    # --- what its user wants ---

    def connect(self) -> None:
        """Be online from now on."""
        self.wanted = True
        if not self._living:
            self._living = True
            self.process.spawn(self._live(), "live")

    def disconnect(self) -> None:
        """Be offline."""
        self.wanted = False
        if self.link is not None:
            self.link.stream.hang_up()
        self._wake.set()

    def forget(self) -> None:
        """Lose the own position: go on from what the server stored."""
        self._forgot = True
        self.disconnect()
        self.connect()

    @property
    def ready(self) -> Link | None:
        """The stream, if its first pull was served."""
        return self.link if self.link is not None and self.link.ready else None

    async def opened(self) -> Link:
        """The stream, once its first pull was served. Raises Gone if that takes too long."""
        self.connect()
        try:
            async with asyncio.timeout(OPENING_S):
                while (link := self.ready) is None:
                    self._came_online.clear()
                    await self._came_online.wait()
        except TimeoutError:
            raise Gone from None
        return link

    # --- its life ---

    async def _live(self) -> None:
        while self.wanted:
            server = self._server()
            if server is not None:
                try:
                    await self._session(server)
                except Gone:
                    pass
                except QimError as error:
                    self._judge(error)
            if self.link is not None:
                self.link.stream.hang_up()
                self.link = None
            await asyncio.sleep(self._backoff.next_s())
        self._living = False

    def _server(self) -> "Server | None":
        """Where to connect, if anywhere: mostly whoever serves the mailbox, as by a gateway that
        was told.
        """
        servers = [server for server in self._world.servers if not server.down]
        shard, _ = self._world.table.mailbox(self.key.tenant, self.key.user)
        if self._chance.random() < TOLD_RATE:
            servers = [server for server in servers if server.owns(ShardKind.MAILBOX, shard)]
        return servers[int(self._chance.random() * len(servers))] if servers else None

    def _judge(self, error: QimError) -> None:
        if error.code not in RETRYABLE:
            self._world.violate(f"{self.name} was honest, and was told {error}")

    async def _session(self, server: "Server") -> None:
        link = self.link = Link(server.connect(self.key.owner))
        self.process.spawn(self._listen(link), "listen")
        hello = gateway_pb2.Auth(
            protocol_version=1, capabilities=CAPABILITIES, access_token=token_of(self.key)
        )
        ok = (await link.ask(auth=hello)).auth_ok
        if ok.last_applied_mailbox_seq > self._acked:
            self._world.violate(f"{self.name}'s stored position is beyond what it acknowledged")
        self.cursor = ok.cursor_token
        known = 0 if self._forgot else self._position
        self._forgot = False
        self._position = max(known, ok.last_applied_mailbox_seq)
        self._world.tokens[self.key] = self.cursor
        await self._pull(link)
        link.ready = True
        self._came_online.set()
        self._backoff.reset()
        while self.wanted and not link.stream.closed:
            await self._await_news()
            await self._pull(link)

    async def _await_news(self) -> None:
        """Until a push; or, before the finale, until it is time to look anyway."""
        patience_s = 60.0 if self._world.finale else self._chance.uniform(1.0, 5.0)
        try:
            async with asyncio.timeout(patience_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _listen(self, link: Link) -> None:
        while (frame := await link.stream.frames.get()) is not None:
            if frame.request_id:
                answer = link.waiting.pop(frame.request_id, None)
                if answer is not None and not answer.done():
                    answer.set_result(frame)
            elif frame.WhichOneof("frame") == "push_events":
                for delivered in frame.push_events.events:
                    self.pushed[delivered.mailbox_seq] = None
                self._wake.set()
        for answer in link.waiting.values():
            if not answer.done():
                answer.set_exception(Gone())
                # Whoever waits hears of it; what nobody waits for is nobody's trouble.
                answer.exception()
        self._wake.set()

    # --- pages ---

    async def _pull(self, link: Link) -> None:
        """Pull until nothing more is ready, acknowledging now and then."""
        more = True
        while more:
            limit = self._chance.choice((1, 3, 500))
            asked = gateway_pb2.PullMailbox(
                cursor_token=self.cursor, last_applied_mailbox_seq=self._position, limit=limit
            )
            answer = await link.ask(pull_mailbox=asked)
            if answer.WhichOneof("frame") != "mailbox_page":
                self._world.violate(f"{self.name}: PULL was answered by {answer!r}")
                return
            page = answer.mailbox_page
            self._take(page)
            self.cursor = page.cursor_token or self.cursor
            more = page.more
            if self._chance.random() < 0.6:
                await self._ack(link)

    async def _ack(self, link: Link) -> None:
        self._acked = max(self._acked, self._position)
        asked = gateway_pb2.AckMailbox(last_applied_mailbox_seq=self._position)
        stored = (await link.ask(ack_mailbox=asked)).ack_ok.last_applied_mailbox_seq
        if not self._position <= stored <= self._acked:
            self._world.violate(f"{self.name} acknowledged {self._position}, stored is {stored}")

    def _take(self, page: gateway_pb2.MailboxPage) -> None:
        """Apply a page, and hold it against every page before it."""
        after, through = self._position, page.covered_through_seq
        found: dict[int, tuple[str, int, bytes]] = {}
        last = after
        for delivered in page.events:
            event = delivered.event
            if not last < delivered.mailbox_seq <= through:
                self._world.violate(f"{self.name}: a page is out of order, or beyond its cover")
            last = delivered.mailbox_seq
            found[last] = (event.conversation_id, event.conversation_seq, event.event_id)
        known = {seq: what for seq, what in self.seen.items() if after < seq <= through}
        again = {seq: what for seq, what in found.items() if seq <= self.covered}
        if known != again:
            self._world.violate(
                f"{self.name}: (…, {through}] was covered before, and holds {len(again)} events "
                f"now, {len(known)} then"
            )
        self.seen.update(found)
        self.covered = max(self.covered, through)
        self._position = max(self._position, through)
