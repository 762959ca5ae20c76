"""A device: it connects to whichever server takes it, pulls, acknowledges, and comes back.

What it holds durably is its position and what it applied. It believes nothing: each page must rise,
lie within what was asked for, and agree with every page that covered the same range before, which
is what `covered_through` promises (nothing at or below it is missing, then or ever).
"""

import asyncio
import random
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.sim.loop import Process
from tests.sim.runtime import WALL_START_MS

from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import ClientFrame, ServerFrame
from qimd.contract.errors import error_of
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import DeviceId
from qimd.core.parameters import CAPABILITIES
from qimd.core.records import DeviceKey, UserKey

if TYPE_CHECKING:
    from tests.sim.servers import Server, SimStream
    from tests.sim.world import World

TENANT_KEY: Final = Ed25519PrivateKey.from_private_bytes(b"a tenant's key for simulations..")
KEY_ID: Final = "k1"
ANSWER_S: Final = 2.0
"""When a client gives up on an answer, and on the stream with it."""

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


@lru_cache(maxsize=4096)
def token_of(device: DeviceKey) -> str:
    """A good access token for the time of any world."""
    now_s = WALL_START_MS // 1000
    claims = {
        "sub": device.user,
        "tenant": device.tenant,
        "device": device.device,
        "jti": f"{device.tenant}/{device.user}/{device.device}",
        "iat": now_s - 3_600,
        "exp": now_s + 30 * 24 * 3_600,
    }
    return jwt.encode(claims, TENANT_KEY, algorithm="EdDSA", headers={"kid": KEY_ID})


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
        self._wanted = False
        self._living = False
        self._wake = asyncio.Event()

    # --- what its user wants ---

    def connect(self) -> None:
        """Be online from now on."""
        self._wanted = True
        if not self._living:
            self._living = True
            self.process.spawn(self._live(), "live")

    def disconnect(self) -> None:
        """Be offline."""
        self._wanted = False
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

    # --- its life ---

    async def _live(self) -> None:
        while self._wanted:
            up = [server for server in self._world.servers if not server.down]
            if up:
                server = up[int(self._chance.random() * len(up))]
                try:
                    await self._session(server)
                except Gone:
                    pass
                except QimError as error:
                    self._judge(error)
            if self.link is not None:
                self.link.stream.hang_up()
                self.link = None
            await asyncio.sleep(self._chance.uniform(0.05, 0.4))
        self._living = False

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
        while self._wanted and not link.stream.closed:
            await self._await_news()
            await self._pull(link)

    async def _await_news(self) -> None:
        """Until a push; or, before the finale, until it is time to look anyway."""
        patience_s = 60.0 if self._world.finale else self._chance.uniform(0.5, 3.0)
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
