"""A call to the owner of a shard, whoever that is: in process where it is this one, else by a hop.

`Elsewhere`, NOT_OWNER and STALE_EPOCH mean that the call is to be tried where the shard is owned by
then. The directory paces that: each try that failed costs a look at the lease, and those are 200 ms
apart, until the caller's deadline.
"""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from qimd.app.hops.asks import Ask
from qimd.app.hops.directory import Directory
from qimd.app.hops.failures import Elsewhere, is_elsewhere
from qimd.app.hops.peer import Peer
from qimd.app.hops.peers import Peers
from qimd.core.errors import QimError, unavailable
from qimd.ports.runtime import Runtime
from qimd.ports.store import ShardKind

R = TypeVar("R")

Local = Callable[[], Coroutine[Any, Any, R]]
"""The same call, made of the room in this process."""

Home = Peer | None
"""Where a shard is served: over a peer, or (None) in this process."""


def _ignore(_kind: ShardKind, _shard: int, _home: Home) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Begun(Generic[R]):
    """A call that is on its way to `address`. Awaiting `answer` gives its result, or raises."""

    address: str
    answer: Coroutine[Any, Any, R]


class Router:
    """Finds owners and calls them. `address` is this process's own, as others dial it."""

    def __init__(
        self, *, address: str, directory: Directory, peers: Peers, runtime: Runtime
    ) -> None:
        self._address = address
        self._directory = directory
        self._peers = peers
        self._runtime = runtime
        self.on_route: Callable[[ShardKind, int, Home], None] = _ignore
        """Told where a call goes, right before it goes there."""

    def deadline_s(self, ask: Ask[R]) -> float:
        """When nobody waits for the call's answer any more, if it is made now."""
        return self._runtime.monotonic_s() + ask.timeout_s

    async def call(
        self, kind: ShardKind, shard: int, ask: Ask[R], local: Local[R] | None, deadline_s: float
    ) -> R:
        """The call's result, tried again where that helps: it must be safe to be made twice.

        Raises what the owner raises, and UNAVAILABLE if none answers in time.
        """
        while True:
            begun = await self.begin(kind, shard, ask, local, deadline_s)
            try:
                return await begun.answer
            except QimError as error:
                if not self.moved(kind, shard, begun.address, error):
                    raise

    async def begin(
        self, kind: ShardKind, shard: int, ask: Ask[R], local: Local[R] | None, deadline_s: float
    ) -> Begun[R]:
        """Send the call to the shard's owner; it does not suspend while that one is known.

        Raises UNAVAILABLE if none is found in time, or too much waits for it.
        """
        while True:
            address = await self._find(kind, shard, deadline_s)
            try:
                return Begun(address, self._issue(kind, shard, address, ask, local, deadline_s))
            except Elsewhere as error:
                self.moved(kind, shard, address, error)

    def moved(self, kind: ShardKind, shard: int, address: str, error: QimError) -> bool:
        """Whether the failure says that the owner is to be looked up anew; it is, then."""
        if not is_elsewhere(error):
            return False
        self._directory.forget(kind, shard, address)
        return True

    async def home(self, kind: ShardKind, shard: int) -> Home:
        """Where the lease says that the shard is served now. Raises Elsewhere if nowhere."""
        address = await self._directory.look(kind, shard)
        return None if address == self._address else self._peers.at(address)

    def known_home(self, kind: ShardKind, shard: int) -> Home:
        """The same as it is remembered. Raises Elsewhere, and has it looked up meanwhile."""
        try:
            address = self._directory.known(kind, shard)
        except Elsewhere:
            self._directory.begin_look(kind, shard)
            raise
        return None if address == self._address else self._peers.at(address)

    async def _find(self, kind: ShardKind, shard: int, deadline_s: float) -> str:
        while (left_s := deadline_s - self._runtime.monotonic_s()) > 0:
            with suppress(Elsewhere):
                return self._directory.known(kind, shard)
            with suppress(Elsewhere, TimeoutError):
                return await self._runtime.wait_for(self._directory.look(kind, shard), left_s)
        raise unavailable(f"no owner of {kind.value} shard {shard} has answered in time")

    def _issue(
        self,
        kind: ShardKind,
        shard: int,
        address: str,
        ask: Ask[R],
        local: Local[R] | None,
        deadline_s: float,
    ) -> Coroutine[Any, Any, R]:
        if address != self._address:
            peer = self._peers.at(address)
            self.on_route(kind, shard, peer)
            return peer.begin(ask, deadline_s)
        if local is None:
            raise Elsewhere(f"{kind.value} shards are not served in this process")
        self.on_route(kind, shard, None)
        return local()
