"""Keeps the owners of mailbox shards told of who is online here, so that their hints come.

The promise is that of one process: what a PULL does not find is hinted. It rests on three rules.

1. *A change goes out before what follows it.* Presence and calls share one stream to a shard's
   owner, which takes both in order. A user who came online is registered there before the PULL
   that the device makes next begins, without anybody waiting for it.
2. *A shard's users are registered wherever its calls go.* Before the first call for a shard goes
   over a stream, all of its users are told on it (`routed`). A stream that is lost, and a shard
   that moves while nobody calls, are found by `run`, within a second or so.
3. *What came while nobody was registered is looked for.* Then each user's mailbox is read from the
   last position that all streams of the user are known to have seen, and pushed. Such a position is
   taken before anything else is hinted, and kept until the user was looked after.

The position of a user is the larger of what was hinted last, and of what each stream of the user
has pulled at least. Everything below was pushed to a stream that was here, or is found by its
PULLs; a position that is too low costs events that are pushed twice.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from qim.hop.v1.hop_service_pb2 import Hint as HintMessage
from qim.hop.v1.hop_service_pb2 import HopCall
from qimd.app.hops import asks
from qimd.app.hops.announced import AnnouncedPresence
from qimd.app.hops.failures import Elsewhere
from qimd.app.hops.peer import Peer
from qimd.app.hops.router import Home, Router
from qimd.connection.traced import traced
from qimd.contract.events import encode_delivered
from qimd.contract.hops import delivered_seq
from qimd.core.errors import QimError
from qimd.core.ids import TenantId, UserId
from qimd.core.records import UserKey
from qimd.core.routing import RoutingTable
from qimd.core.seq import SEQ_NONE, MailboxSeq
from qimd.ports.runtime import Runtime
from qimd.ports.services import Hint, Mailbox
from qimd.ports.store import ShardKind
from qimd.telemetry.logs import logger
from qimd.telemetry.tracing import HINT, NO_SPANS, Spans

T = TypeVar("T")

_log = logger("hops")

LOOK_INTERVAL_S: Final = 1.0
"""How long a shard may have moved before its new owner knows who is here, if nobody calls."""

CATCH_UP_READS: Final = 16
"""Mailboxes read at a time after a shard has moved: beside them, its clients' PULLs go on."""

CATCH_UP_RETRY_S: Final = 0.5

PRESENCE_USERS: Final = 1_000
"""Users of one registration: a few ten KB."""


class Registrar:
    """Of a connection process. `table` says which shard a user's mailbox is in."""

    def __init__(
        self,
        *,
        table: RoutingTable,
        presence: AnnouncedPresence,
        router: Router,
        mailbox: Mailbox,
        runtime: Runtime,
        spans: Spans = NO_SPANS,
    ) -> None:
        self._table = table
        self._presence = presence
        self._router = router
        self._mailbox = mailbox
        self._runtime = runtime
        self._spans = spans
        self._shards: dict[int, _Shard] = {}
        self._hinted: dict[TenantId, dict[UserId, MailboxSeq]] = {}
        """The last seq that each online user was hinted, if any."""
        self._wake = asyncio.Event()
        presence.listener = self
        router.on_route = self.routed

    # --- who is here (PresenceListener) ---

    def online(self, user: UserKey) -> None:
        """The user's first stream here."""
        shard = self._shard(user)
        users = shard.users.setdefault(user.tenant, {})
        if user.user in users:
            return
        users[user.user] = None
        _tell(shard.home, asks.presence(user.tenant, online=(user.user,)))

    def offline(self, user: UserKey) -> None:
        """The user's last stream here has ended."""
        shard = self._shard(user)
        users = shard.users.get(user.tenant, {})
        if user.user not in users:
            return
        _drop(shard.users, user)
        _drop(self._hinted, user)
        shard.behind.pop(user, None)
        _tell(shard.home, asks.presence(user.tenant, offline=(user.user,)))

    # --- what comes of the streams (PeerListener) ---

    def hinted(self, hint: HintMessage) -> None:
        """Push what a mailbox sends, in order."""
        came_s = self._runtime.monotonic_s()
        tenant = TenantId(hint.tenant_id)
        users = self._presence.online(tenant, [UserId(user) for user in hint.user_ids])
        if not users:
            return
        seq = delivered_seq(hint.delivered[-1])
        self._hinted.setdefault(tenant, {}).update(dict.fromkeys(users, seq))
        parents = {each.index: each.trace_parent for each in hint.traced}
        hints = [
            Hint(tenant, users, event, parents.get(index, ""))
            for index, event in enumerate(hint.delivered)
        ]
        self._presence.push(hints)
        if parents:
            recorded = [each for each in hints if each.trace_parent]
            self._spans.stage(HINT, came_s, traced(recorded))

    def lost(self, peer: Peer) -> None:
        """Whoever was registered over it is registered nowhere."""
        for shard in self._shards.values():
            if shard.home is peer:
                shard.home, shard.placed = None, False
                self._wake.set()

    # --- where the shards are ---

    def routed(self, kind: ShardKind, shard: int, home: Home) -> None:
        """A call for the shard goes there next: register its users there before it."""
        if kind is ShardKind.MAILBOX:
            self._place(shard, home)

    async def run(self) -> None:
        """Follow the shards of those who are here, for as long as the process lives."""
        while True:
            for number, shard in list(self._shards.items()):
                if shard.users:
                    await self._follow(number)
            # A shard without a home is looked for as fast as the directory allows.
            if all(shard.placed for shard in self._shards.values() if shard.users):
                await self._pause()

    async def _follow(self, number: int) -> None:
        try:
            home = await self._router.home(ShardKind.MAILBOX, number)
        except Elsewhere:
            return
        self._place(number, home)

    async def _pause(self) -> None:
        try:
            await self._runtime.wait_for(self._wake.wait(), LOOK_INTERVAL_S)
        except TimeoutError:
            return
        self._wake.clear()

    def _place(self, number: int, home: Home) -> None:
        shard = self._shards.setdefault(number, _Shard())
        if shard.placed and shard.home is home:
            return
        if home is not None and (home.ended or home.draining):
            return
        for change in _changes(shard.users, online=False):
            _tell(shard.home, change)
        shard.home, shard.placed = home, True
        for change in _changes(shard.users, online=True):
            _tell(home, change)
        self._look_after(shard)

    # --- what came meanwhile ---

    def _look_after(self, shard: "_Shard") -> None:
        """Read what the shard's users may have missed, from where they are now."""
        for tenant, users in shard.users.items():
            for user in users:
                key = UserKey(tenant, user)
                shard.behind.setdefault(key, self._position(key))
        shard.visit += 1
        left = deque(shard.behind)
        for _ in range(min(CATCH_UP_READS, len(left))):
            self._runtime.spawn(self._catch_up(shard, shard.visit, left), "hop-catch-up")

    async def _catch_up(self, shard: "_Shard", visit: int, left: deque[UserKey]) -> None:
        while left and shard.visit == visit:
            user = left.popleft()
            while shard.visit == visit and user in shard.behind:
                try:
                    await self._advance(shard, visit, user)
                except QimError as error:
                    if not error.retryable:
                        _log.error("a mailbox can't be looked at", error=error)
                        del shard.behind[user]
                        break
                    await self._runtime.sleep(CATCH_UP_RETRY_S)

    async def _advance(self, shard: "_Shard", visit: int, user: UserKey) -> None:
        """Push one page of what the user may have missed. Raises what the mailbox does."""
        page = await self._mailbox.read(user, shard.behind[user], 0)
        if shard.visit != visit or user not in shard.behind:
            # What was read before the shard moved says nothing of what came since.
            return
        if page.events:
            delivered = [encode_delivered(event.seq, event.encoded) for event in page.events]
            self._presence.push([Hint(user.tenant, (user.user,), event) for event in delivered])
        if page.more:
            shard.behind[user] = page.covered_through
        else:
            del shard.behind[user]
            self._hinted.setdefault(user.tenant, {})[user.user] = page.covered_through

    def _position(self, user: UserKey) -> MailboxSeq:
        hinted = self._hinted.get(user.tenant, {}).get(user.user, SEQ_NONE)
        return max(hinted, self._presence.pulled_through(user))

    def _shard(self, user: UserKey) -> "_Shard":
        number, _ = self._table.mailbox(user.tenant, user.user)
        return self._shards.setdefault(number, _Shard())


class _Shard:
    """A mailbox shard with the users of it who are online here."""

    __slots__ = ("behind", "home", "placed", "users", "visit")

    def __init__(self) -> None:
        self.users: dict[TenantId, dict[UserId, None]] = {}
        self.home: Home = None
        self.placed = False
        """Whether the users are registered, at `home`: this process's own mailbox if it is None."""
        self.behind: dict[UserKey, MailboxSeq] = {}
        """Who has yet to be looked after, and from where on."""
        self.visit = 0
        """Counts the homes: whoever looks after users stops when the shard has moved on."""


def _drop(users: dict[TenantId, dict[UserId, T]], user: UserKey) -> None:
    """Remove a user, with what that leaves empty."""
    names = users.get(user.tenant, {})
    names.pop(user.user, None)
    if not names:
        users.pop(user.tenant, None)


def _tell(home: Home, change: HopCall) -> None:
    """Tell a peer; this process's own mailbox sees its presence anyway."""
    if home is not None and not home.tell(change):
        # It does not read. With a change left out it would be wrong for good about who is here: a
        # new stream begins with all of them.
        home.close()


def _changes(users: dict[TenantId, dict[UserId, None]], *, online: bool) -> Iterator[HopCall]:
    for tenant, names in users.items():
        for part in _parts(names, PRESENCE_USERS):
            if online:
                yield asks.presence(tenant, online=part)
            else:
                yield asks.presence(tenant, offline=part)


def _parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
