"""The network between one server and its engines, as the weather of the seed has it.

It implements the memory adapters' seam (`adapters.memory.Network`): an effect is a plain function
on an engine's state, and what is decided here is whether it runs, when, how often, and what the
caller hears. All effects run on the engine's own process, never on the caller's: a caller that is
killed or frozen meanwhile changes nothing about what is on its way.

The blows that hit a process at a port's step (dead or frozen before the effect, or after it and
before the reply) come from `nemesis`, which is asked at each call.
"""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tests.sim.leases import Held
from tests.sim.plan import Fate, Weather

from qimd.adapters.memory import Call, Lost, Refused
from qimd.core.errors import QimError
from qimd.core.outcome import Refusal
from qimd.core.parameters import LeaseParameters
from qimd.ports.log import LogFault

if TYPE_CHECKING:
    from tests.sim.servers import Server
    from tests.sim.world import World

T = TypeVar("T")

ENGINE_OF: Final = {
    **dict.fromkeys(("view", "acquire", "renew", "release"), "lease"),
    **dict.fromkeys(
        ("produce", "fetch", "identity", "settings", "watermarks", "offset_at", "open_producer",
         "open_reader"),
        "log",
    ),
    **dict.fromkeys(
        ("open_shard", "apply", "apply_entries", "apply_progress", "apply_watermark",
         "apply_fence", "apply_marks", "keep_records", "kept_records", "drop_kept",
         "fold_marks", "expire_buckets", "begin_epoch", "shard_state", "epoch_marks",
         "records_of", "records_after", "dispatch_counts", "entries", "entry_seqs", "open_device",
         "ack"),
        "mailbox",
    ),
    **dict.fromkeys(
        ("checkpoint", "open_partition", "project_fence", "project_rows", "project", "rows", "row",
         "mark_read"),
        "projection",
    ),
}  # fmt: skip
"""Which engine serves an operation; what is not here is the store's."""

_CUT_OFF: Final = frozenset({"store", "mailbox", "projection"})
"""Engines that lose, with their tail, what was on its way to them."""

TIMEOUT_MIN_S: Final = 0.1
TIMEOUT_MAX_S: Final = 1.0
"""When a caller gives up on a call of which it hears nothing."""

LATE_MAX_S: Final = 8.0
"""How long after that a call may still land: longer than a lease and a takeover."""


_OF_CHANGES: Final = frozenset({Fate.NO_SPACE, Fate.TWICE, Fate.LAND_LATE})
"""Fates that a call which changes nothing can't have."""


class SimNetwork:
    """One incarnation's way to the engines."""

    def __init__(
        self,
        world: "World",
        server: "Server",
        weather: Weather,
        lease: LeaseParameters,
        chance: random.Random,
    ) -> None:
        self.name = server.name
        self.granted: dict[object, list[int]] = {}
        """The epochs that this incarnation was given, by (kind, shard)."""
        self._held = Held(server.name, lease, lambda: world.loop.now_s, world.violate)
        self._world = world
        self._server = server
        self._chance = chance
        self._weather = weather
        self._slow = dict(weather.rates).get(Fate.DELAY, 0.0)
        bound = 0.0
        self._bounds: list[tuple[float, Fate]] = []
        for fate, rate in weather.rates:
            bound += rate
            self._bounds.append((bound, fate))

    async def call(self, call: Call, effect: Callable[[], T]) -> T | Refused | Lost:
        """See `adapters.memory.Network`."""
        sent_s = self._world.loop.now_s
        self._held.leaves(call)
        reply = await self._carried(call, effect)
        self._held.heard(call, sent_s, reply)
        return reply

    async def _carried(self, call: Call, effect: Callable[[], T]) -> T | Refused | Lost:
        nemesis = self._world.nemesis
        sent: Callable[[], T | Lost] = effect
        if nemesis.loses_tails and ENGINE_OF.get(call.op, "store") in _CUT_OFF:
            sent = self._unless_cut(effect)
        if nemesis.armed and nemesis.strikes_before(self._server, call.op):
            # A killed process is never resumed; a frozen one sends its call once it wakes.
            await asyncio.sleep(0)
        fate = self._fate(call)
        if fate is None:
            reply = self._land(call, sent)
        elif fate is Fate.DELAY or fate is Fate.TWICE:
            reply = await self._delayed(call, sent, fate)
        else:
            return await self._failed(call, sent, fate)
        if nemesis.armed and nemesis.strikes_after(self._server, call.op):
            await asyncio.sleep(0)
        return _given(reply)

    def _unless_cut(self, effect: Callable[[], T]) -> Callable[[], T | Lost]:
        """The effect, unless its engine starts anew while the call is on its way: what has not
        arrived by then never does.
        """
        world = self._world
        outages = world.outages

        def arrive() -> T | Lost:
            return effect() if world.outages == outages else Lost.LOST

        return arrive

    # --- what becomes of a call ---

    def _fate(self, call: Call) -> Fate | None:
        world = self._world
        if world.healed:
            # Slow is not broken: calls still cross one another.
            return Fate.DELAY if self._chance.random() < self._slow else None
        fate = world.nemesis.engine_fate(self._server, ENGINE_OF.get(call.op, "store"), call)
        if fate is None:
            fate = self._weathered()
        if fate is None or call.mutates or fate not in _OF_CHANGES:
            return fate
        return None

    def _weathered(self) -> Fate | None:
        drawn = self._chance.random()
        for bound, fate in self._bounds:
            if drawn < bound:
                return fate
        return None

    async def _delayed(
        self, call: Call, effect: Callable[[], T | Lost], fate: Fate
    ) -> T | Refused | Lost | Exception:
        """Landed a little later; `TWICE` lands once more, unheard."""
        self._world.saw(fate)
        reply: asyncio.Future[T | Refused | Lost | Exception] = self._world.loop.create_future()

        def land() -> None:
            landed = self._land(call, effect)
            if not reply.done():
                reply.set_result(landed)

        self._later(self._chance.random() * self._weather.delay_s, land)
        if fate is Fate.TWICE:
            self._unheard(self._chance.random() * LATE_MAX_S, lambda: self._land(call, effect))
        return await reply

    async def _failed(
        self, call: Call, effect: Callable[[], T | Lost], fate: Fate
    ) -> Refused | Lost:
        self._world.saw(fate)
        self._world.note(self.name, f"{call.op} {call.key!r} is {fate.value}")
        if fate is Fate.REFUSE or fate is Fate.NO_SPACE:
            refusal = Refusal.UNREACHABLE if fate is Fate.REFUSE else Refusal.NO_SPACE
            return Refused(refusal, f"{call.op}: {fate.value}")
        timeout_s = self._chance.uniform(TIMEOUT_MIN_S, TIMEOUT_MAX_S)
        if fate is Fate.LOSE_REPLY:
            self._unheard(self._chance.random() * timeout_s, lambda: self._land(call, effect))
        elif fate is Fate.LAND_LATE:
            late_s = timeout_s + self._chance.random() * LATE_MAX_S
            self._unheard(late_s, lambda: self._land(call, effect))
        await asyncio.sleep(timeout_s)
        return Lost.LOST

    def _land(self, call: Call, effect: Callable[[], T | Lost]) -> T | Refused | Lost | Exception:
        """Run the effect on the engine; what it gives, or raises."""
        refusal = self._world.nemesis.rejects(call)
        if refusal is not None:
            return refusal
        reply: T | Lost | Exception
        try:
            reply = effect()
        except (QimError, LogFault) as error:
            reply = error
        if reply is not Lost.LOST:
            self._world.landed(self, self._server, call, reply)
        return reply

    def _later(self, delay_s: float, run: Callable[[], Any]) -> None:
        self._world.loop.call_later(delay_s, run, context=self._world.engine.context)

    def _unheard(self, delay_s: float, run: Callable[[], Any]) -> None:
        """As `_later`, for an effect of which its caller hears nothing."""
        world = self._world
        world.on_their_way += 1

        def arrive() -> None:
            world.on_their_way -= 1
            run()

        self._later(delay_s, arrive)


def _given(reply: T | Refused | Lost | Exception) -> T | Refused | Lost:
    if isinstance(reply, Exception):
        raise reply
    return reply
