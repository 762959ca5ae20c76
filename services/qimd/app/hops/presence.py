"""Who is online at which connection process, as a mailbox process knows it, and hints to them.

A connection process registers its users over its stream to this process, and is forgotten with it.
Hints leave over the same stream. They wait up to a bound, and beyond it they are dropped and
counted: a client that misses a hint finds the event by its next PULL.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Final, Protocol

from qimd.connection.logic import cut_pushes
from qimd.contract.hops import hint_answer, hint_events
from qimd.core.ids import TenantId, UserId
from qimd.ports.services import Hint, PushHints
from qimd.telemetry.metrics import Metrics

HINT_BYTES_MAX: Final = 8 * 1024 * 1024
"""What waits for a connection process; at 200 B a hint it is half a second of what one can take."""

_NOBODY: Final[frozenset[UserId]] = frozenset()


class HintSink(Protocol):
    """A stream that hints can leave over."""

    @property
    def waiting_bytes(self) -> int:
        """What waits to leave."""

    def put(self, item: bytes) -> None:
        """Queue an encoded HopAnswer."""


class Registered:
    """One connection process's users. Made by `RemotePresence.join`."""

    __slots__ = ("sink", "users")

    def __init__(self, sink: HintSink) -> None:
        self.sink = sink
        self.users: dict[TenantId, set[UserId]] = {}


class RemotePresence:
    """`ports.services.PushHints` of a mailbox process.

    `local` is the presence of this process's own connection room, if it has one.
    """

    def __init__(self, metrics: Metrics, local: PushHints | None = None) -> None:
        self._metrics = metrics
        self._local = local
        self._joined: dict[Registered, None] = {}
        self._online: dict[TenantId, Counter[UserId]] = {}
        """At how many connection processes each user is online."""

    # --- registrations ---

    def join(self, sink: HintSink) -> Registered:
        """A connection process's stream has begun."""
        registered = Registered(sink)
        self._joined[registered] = None
        return registered

    def change(
        self,
        registered: Registered,
        tenant: TenantId,
        online: Iterable[UserId],
        offline: Iterable[UserId],
    ) -> None:
        """Users came online there, or left it. What is known already may be repeated."""
        here = registered.users.setdefault(tenant, set())
        come = set(online) - here
        gone = here.intersection(offline)
        here |= come
        here -= gone
        if not here:
            del registered.users[tenant]
        counts = self._online.setdefault(tenant, Counter())
        counts.update(come)
        counts.subtract(gone)
        for user in gone:
            if not counts[user]:
                del counts[user]
        if not counts:
            del self._online[tenant]

    def leave(self, registered: Registered) -> None:
        """The stream has ended, and with it what was registered over it."""
        self._joined.pop(registered, None)
        for tenant, users in list(registered.users.items()):
            self.change(registered, tenant, (), tuple(users))

    # --- ports.services.PushHints ---

    def online(self, tenant: TenantId, users: Collection[UserId]) -> Collection[UserId]:
        """Those of the users who are online anywhere, in the order given."""
        there = self._online.get(tenant, _NOBODY)
        if self._local is None:
            return list(filter(there.__contains__, users))
        found = set(filter(there.__contains__, users)).union(self._local.online(tenant, users))
        return list(filter(found.__contains__, users))

    def push(self, hints: Sequence[Hint]) -> None:
        """Queue hints, in order, for the processes where their users are. Never blocks."""
        if self._local is not None:
            self._local.push(hints)
        if not self._joined:
            return
        for (tenant, users), same in groupby(hints, attrgetter("tenant", "users")):
            alike = list(same)
            trace_parents = iter([hint.trace_parent for hint in alike])
            for part in cut_pushes([hint.delivered for hint in alike]):
                events = hint_events(part, list(islice(trace_parents, len(part))))
                self._tell(tenant, users, events, len(part))

    def _tell(self, tenant: TenantId, users: Collection[UserId], events: bytes, count: int) -> None:
        for registered in self._joined:
            here = list(filter(registered.users.get(tenant, _NOBODY).__contains__, users))
            if not here:
                continue
            if registered.sink.waiting_bytes >= HINT_BYTES_MAX:
                self._metrics.hints_dropped_total.inc(count)
                continue
            registered.sink.put(hint_answer(tenant, here, events))
