"""Deals the plan's blows: at their time, or at a step that a process takes.

A blow at a step waits, once its time has come, for the next process that takes the step (the n-th
time), and hits it there: before the call leaves, or after the effect and before the reply. These
are the crash points; which of them a run met is counted by `World.saw`.
"""

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from tests.sim.plan import LOSING, Blow, Fate, Strike

from qimd.adapters.memory import Call, Refused
from qimd.core.outcome import Refusal
from qimd.ports.mailbox import ApplyStep
from qimd.ports.store import ShardKind

if TYPE_CHECKING:
    from tests.sim.servers import Server
    from tests.sim.world import World

T = TypeVar("T")

_BEFORE: Final = frozenset({Blow.KILL_BEFORE, Blow.FREEZE_BEFORE, Blow.LOG_LOST})
_AFTER: Final = frozenset({Blow.KILL_AFTER, Blow.FREEZE_AFTER})
_KILLS: Final = frozenset({Blow.KILL_BEFORE, Blow.KILL_AFTER})

RESTART_S: Final = 0.7
"""How long a process that died stays away, at least."""

SYNC_S: Final = 0.8
"""How often engines reach their disks, in a world in which they lose what they have not synced."""


_TAKES_NO_ROOM: Final = frozenset(
    {"renew", "expire_buckets", "expire_idempotency", "drop_kept", "fold_marks", "apply_fence",
     "project_fence", "restore_fence"}
)  # fmt: skip
"""What an engine still does that has no room: Redis what frees some or only looks, etcd what renews
a lease.
"""


class Nemesis:
    """See the module."""

    def __init__(self, world: "World", strikes: tuple[Strike, ...]) -> None:
        self._world = world
        self._strikes = strikes
        self.armed: dict[Strike, int] = {}
        """Blows that wait for a step, with how often it was taken since."""
        self._walls: list[tuple[int, str, bool]] = []
        """(node, engine, whether calls still arrive and only replies are lost)."""
        self._frozen: list[tuple[Server, Strike]] = []
        self._poisoned: list[tuple[int, int]] = []
        self._log_fate: Fate | None = None
        self._full: list[str] = []
        """Engines without room."""
        self.loses_tails = any(strike.blow in LOSING for strike in strikes)
        """Whether engines write behind their acknowledgements in this world."""

    # --- blows at a time ---

    async def run(self) -> None:
        """Deal all blows of the plan."""
        if self.loses_tails:
            self._world.loop.world.spawn(self._sync(), "sync")
        for strike in self._strikes:
            await asyncio.sleep(max(0.0, strike.at_s - self._world.loop.now_s))
            if self._world.healed:
                return
            if strike.step:
                self.armed[strike] = 0
            else:
                self._world.loop.world.spawn(self._deal(strike), "strike")

    async def _deal(self, strike: Strike) -> None:
        world = self._world
        server = world.servers[strike.node]
        world.saw(strike.blow)
        world.note("nemesis", str(strike))
        match strike.blow:
            case Blow.KILL:
                server.kill()
                await self._bring_back(server, strike.for_s)
            case Blow.FREEZE:
                await self._freeze(server, strike)
            case Blow.DRAIN:
                await server.drain()
                await self._bring_back(server, strike.for_s)
            case Blow.PARTITION:
                wall = (strike.node, strike.engine, strike.nth > 1)
                await self._lasting(self._walls, [wall], strike.for_s)
            case Blow.LEASE_EARLY:
                for kind in ShardKind:
                    world.cluster.leases.end_early(kind, strike.shard)
            case Blow.LEASE_LATE:
                for kind in ShardKind:
                    world.cluster.leases.end_late(kind, strike.shard, strike.amount)
            case Blow.LEASES_OVER:
                world.cluster.leases.start_over()
            case Blow.LEASES_LOST:
                world.cluster.leases.lose()
            case Blow.FULL:
                await self._lasting(self._full, strike.engine.split("+"), strike.for_s)
            case Blow.CLOCK_BACK:
                server.clock.step_ms -= round(strike.amount * 1000)
            case Blow.CLOCK_AHEAD:
                server.clock.step_ms += round(strike.amount * 1000)
            case Blow.POISON:
                lane = world.lane_of_user(strike.lane)
                await self._lasting(self._poisoned, [lane], strike.for_s)
            case Blow.LOG_REFUSES | Blow.LOG_FORGETS:
                refuses = strike.blow is Blow.LOG_REFUSES
                self._log_fate = Fate.REFUSE if refuses else Fate.LOSE_CALL
                await asyncio.sleep(strike.for_s)
                self._log_fate = None
            case Blow.LOG_LOST:
                world.lose_log()
            case Blow.POWER:
                await self._power_failure()
            case Blow.TAIL:
                world.lose_tail()
            case Blow.CUT:
                for one in world.servers:
                    one.cut_streams()
            case Blow.KILL_BEFORE | Blow.KILL_AFTER | Blow.FREEZE_BEFORE | Blow.FREEZE_AFTER:
                raise ValueError("dealt at a step, not at a time")

    async def _lasting(self, trouble: list[T], added: list[T], for_s: float) -> None:
        """Add to what is in trouble, for a while or until all is healed."""
        trouble += added
        await asyncio.sleep(for_s)
        for one in added if trouble else ():
            trouble.remove(one)

    async def _freeze(self, server: "Server", strike: Strike) -> None:
        server.freeze()
        self._frozen.append((server, strike))
        await asyncio.sleep(strike.for_s)
        self._wake(server, strike)

    def _wake(self, server: "Server", strike: Strike) -> None:
        if (server, strike) in self._frozen:
            self._frozen.remove((server, strike))
            self._world.note("nemesis", f"{server.name} goes on")
            server.resume()

    async def _bring_back(self, server: "Server", after_s: float) -> None:
        if not self._world.healed:
            await asyncio.sleep(RESTART_S + after_s)
        # Healing starts who is down. Who was still draining then is down only now.
        if server.down and not self._world.finale:
            server.start()

    async def _sync(self) -> None:
        while not self._world.healed:
            self._world.cluster.sync()
            self._world.cluster.sync_store()
            await asyncio.sleep(SYNC_S)

    async def _power_failure(self) -> None:
        for server in self._world.servers:
            server.kill()
        self._world.lose_tail()
        await asyncio.sleep(RESTART_S)
        for server in self._world.servers:
            await self._bring_back(server, 0.0)

    # --- blows at a step ---

    def strikes_before(self, server: "Server", op: str) -> bool:
        """Whether the process is dead or frozen before its call leaves."""
        return self._strikes_at(server, op, _BEFORE)

    def strikes_after(self, server: "Server", op: str) -> bool:
        """Whether the process is dead or frozen before it hears the reply."""
        return self._strikes_at(server, op, _AFTER)

    def _strikes_at(self, server: "Server", op: str, blows: frozenset[Blow]) -> bool:
        if server.down or server.frozen or self._world.healed:
            return False
        for strike, taken in self.armed.items():
            if strike.blow not in blows or strike.step != op:
                continue
            self.armed[strike] = taken + 1
            if taken + 1 < strike.nth:
                continue
            del self.armed[strike]
            self._hit(server, strike)
            return True
        return False

    def _hit(self, server: "Server", strike: Strike) -> None:
        world = self._world
        world.saw(strike.blow)
        side = "before" if strike.blow in _BEFORE else "after"
        world.note("nemesis", f"{server.name}: {strike.blow.value} ({strike.step})")
        if strike.blow in _KILLS:
            world.saw_text(f"crash {side} {strike.step}")
            server.kill()
            world.loop.world.spawn(self._bring_back(server, strike.for_s), "restart")
        elif strike.blow is Blow.LOG_LOST:
            world.saw_text("the log is lost amid a run")
            world.lose_log()
        else:
            world.saw_text(f"freeze {side} {strike.step}")
            world.loop.world.spawn(self._freeze(server, strike), "freeze")
            server.freeze()

    def landed(self, server: "Server", op: str) -> None:
        """Somebody's step took effect: it may be what a frozen process is to meet."""
        if not self._frozen:
            return
        for frozen, strike in list(self._frozen):
            if strike.wake_on == op and frozen is not server:
                self._world.saw_text("a frozen owner wakes amid its successor's work")
                self._wake(frozen, strike)

    # --- engines ---

    def engine_fate(self, server: "Server", engine: str, call: Call) -> Fate | None:
        """What a partition or an engine's trouble makes of a call."""
        for node, walled, one_way in self._walls:
            if node == server.index and walled == engine:
                return Fate.LOSE_REPLY if one_way else Fate.LOSE_CALL
        if engine in self._full and call.mutates and call.op not in _TAKES_NO_ROOM:
            self._world.saw_text(f"no room for {call.op}")
            return Fate.NO_SPACE
        if self._log_fate is not None and call.op in {"produce", "open_producer"}:
            return self._log_fate
        return None

    def rejects(self, call: Call) -> Refused | None:
        """The refusal of a step for the content of a block."""
        if not self._poisoned or self._world.healed or not isinstance(call.content, ApplyStep):
            return None
        step = call.content
        for shard, lane in self._poisoned:
            touched = (block.lane == lane for record in step.records for block in record.blocks)
            if step.shard == shard and any(touched):
                self._world.saw_text("a block was refused")
                return Refused(Refusal.REJECTED, "the engine refuses a block")
        return None

    def heal(self) -> None:
        """No blow lasts beyond this."""
        self.armed.clear()
        self._walls.clear()
        self._poisoned.clear()
        self._log_fate = None
        self._full.clear()
        for server, strike in list(self._frozen):
            self._wake(server, strike)
