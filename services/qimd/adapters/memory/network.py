"""The seam where faults go in: every port call of every memory adapter crosses it.

A real engine is reached over a wire that can refuse, delay or lose a call, lose its reply, or carry
it so late that its caller has long given up. Here the effect of a call is a plain function on the
engine's state, and a `Network` decides whether and when it runs and whether the caller hears of it.
The default plan has no faults: the effect runs at once. Nothing here takes real time, makes a
thread or iterates a set, so a run is a function of its seed.
"""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeVar

from qimd.core.errors import QimError, unavailable
from qimd.core.outcome import NotApplied, Outcome, Refusal, Unknown
from qimd.ports.log import LogFault
from qimd.ports.runtime import Runtime

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One port call under way.

    `op` is the port's method, `key` the partition key that it acts on, `content` what a fault may
    be picky about: the step, or the record.
    """

    op: str
    key: Hashable
    content: object = field(default=None, repr=False)
    mutates: bool = True


class Lost(Enum):
    """The caller learns nothing: the effect may have run, may run later, or never will."""

    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Refused:
    """The effect certainly did not run, and never will."""

    refusal: Refusal
    detail: str


class Network(Protocol):
    """What carries calls to the engine."""

    async def call(self, call: Call, effect: Callable[[], T]) -> T | Refused | Lost:
        """Run the effect, or not, or later; the caller's view of it."""


class Graveyard:
    """Where calls of killed processes wait for ever.

    It keeps a reference to each: dropping a waiting task would run its `finally`, and a killed
    process runs none.
    """

    def __init__(self) -> None:
        self._calls: list[asyncio.Future[None]] = []

    async def bury(self) -> None:
        """Never return."""
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls.append(call)
        await call


class Wire:
    """One process's end of the network: turns what it says into what ports promise."""

    def __init__(self, network: Network, graveyard: Graveyard) -> None:
        self._network = network
        self._graveyard = graveyard
        self._dead = False

    def kill(self) -> None:
        """From now on no call returns, those under way included; their effects may still land."""
        self._dead = True

    async def step(
        self,
        op: str,
        key: Hashable,
        effect: Callable[[], Outcome[T]],
        content: object = None,
    ) -> Outcome[T]:
        """A mutating call: its outcome, Unknown if nothing was heard of it."""
        reply = await self._carry(Call(op, key, content), effect)
        if isinstance(reply, Refused):
            return NotApplied(reply.refusal, reply.detail)
        if isinstance(reply, Lost):
            return Unknown(f"{op}: no reply")
        return reply

    async def read(
        self, op: str, key: Hashable, effect: Callable[[], T], *, mutates: bool = False
    ) -> T:
        """A read, or a mutation that gives a plain value. Raises QimError(UNAVAILABLE)."""
        reply = await self._carry(Call(op, key, mutates=mutates), effect)
        if isinstance(reply, Refused | Lost):
            raise unavailable(f"{op}: the engine does not answer")
        return reply

    async def alive(self) -> None:
        """Return in a process that lives, never in one that was killed."""
        if self._dead:
            await self._graveyard.bury()

    async def _carry(self, call: Call, effect: Callable[[], T]) -> T | Refused | Lost:
        await self.alive()
        reply = await self._network.call(call, effect)
        await self.alive()
        return reply


# --- the fault plan ---------------------------------------------------------------------------


class _Fault(Enum):
    REFUSE = "refuse"
    LOSE_REPLY = "lose_reply"
    LAND_LATE = "land_late"
    DELAY = "delay"


@dataclass(slots=True)
class FaultRule:
    """One planned fault: of the calls that match, it lets `skip` pass and hits the next `times`.

    `hits` counts them, so that a test can tell that its fault took place.
    """

    fault: _Fault
    op: str | None
    where: Callable[[object], bool] | None
    skip: int
    times: int | None
    refusal: Refusal = Refusal.UNREACHABLE
    seconds: float | None = None
    hits: int = 0
    _held: list[Callable[[], object]] = field(default_factory=list, repr=False)

    def stop(self) -> None:
        """Hit no more calls. What is held back can still land."""
        self.times = self.hits

    def land(self) -> int:
        """Let the effects that are held back take place now, in order; how many there were."""
        held, self._held = self._held, []
        for effect in held:
            effect()
        return len(held)

    @property
    def held(self) -> int:
        """Effects that have not landed yet."""
        return len(self._held)

    def hold(self, effect: Callable[[], object]) -> None:
        """Keep an effect back until `land`."""
        self._held.append(effect)

    def takes(self, call: Call) -> bool:
        """Whether this call is hit; counts it."""
        if self.op is not None and self.op != call.op:
            return False
        if self.times is not None and self.hits >= self.times:
            return False
        if self.where is not None and not self.where(call.content):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.hits += 1
        return True


class FaultPlan:
    """A network with planned faults; without any it is perfect.

    Rules are tried in the order they were made; the first that takes a call decides. `op` None
    means every call, `times` None until `stop` or `heal`. Time is the engine's runtime's.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._rules: list[FaultRule] = []

    def refuse(
        self,
        op: str | None = None,
        *,
        refusal: Refusal = Refusal.UNREACHABLE,
        times: int | None = 1,
        skip: int = 0,
        where: Callable[[object], bool] | None = None,
    ) -> FaultRule:
        """Refuse before anything happens; a read raises UNAVAILABLE.

        On `produce`, which crosses the network once a record, `skip` tears a batch: a prefix lands.
        """
        return self._add(FaultRule(_Fault.REFUSE, op, where, skip, times, refusal))

    def reject(
        self, op: str, where: Callable[[object], bool], *, times: int | None = None
    ) -> FaultRule:
        """Refuse this content for good (REJECTED): trying it again will not help."""
        return self._add(FaultRule(_Fault.REFUSE, op, where, 0, times, Refusal.REJECTED))

    def lose_reply(
        self,
        op: str | None = None,
        *,
        times: int | None = 1,
        skip: int = 0,
        where: Callable[[object], bool] | None = None,
    ) -> FaultRule:
        """Apply it, and lose the reply: Unknown."""
        return self._add(FaultRule(_Fault.LOSE_REPLY, op, where, skip, times))

    def land_late(
        self,
        op: str | None = None,
        *,
        after_s: float | None = None,
        times: int | None = 1,
        skip: int = 0,
        where: Callable[[object], bool] | None = None,
    ) -> FaultRule:
        """Unknown now; applied `after_s` later, or when the test calls `land()` on the rule."""
        return self._add(FaultRule(_Fault.LAND_LATE, op, where, skip, times, seconds=after_s))

    def delay(
        self,
        seconds: float,
        op: str | None = None,
        *,
        times: int | None = 1,
        skip: int = 0,
        where: Callable[[object], bool] | None = None,
    ) -> FaultRule:
        """Apply and answer it `seconds` later; a caller that gives up meanwhile undoes nothing."""
        return self._add(FaultRule(_Fault.DELAY, op, where, skip, times, seconds=seconds))

    def heal(self) -> None:
        """Drop every rule. Effects that are held back can still land through their rules."""
        self._rules.clear()

    async def call(self, call: Call, effect: Callable[[], T]) -> T | Refused | Lost:
        """Carry a call by the plan."""
        rule = next((rule for rule in self._rules if rule.takes(call)), None)
        if rule is None:
            return effect()
        match rule.fault:
            case _Fault.REFUSE:
                return Refused(rule.refusal, f"{call.op}: refused by the fault plan")
            case _Fault.LOSE_REPLY | _Fault.LAND_LATE if not call.mutates:
                return Lost.LOST
            case _Fault.LOSE_REPLY:
                effect()
                return Lost.LOST
            case _Fault.LAND_LATE:
                rule.hold(effect)
                if rule.seconds is not None:
                    self._runtime.spawn(self._land_after(rule, rule.seconds), f"late {call.op}")
                return Lost.LOST
            case _Fault.DELAY:
                return await self._delayed(rule.seconds or 0.0, call, effect)

    def _add(self, rule: FaultRule) -> FaultRule:
        self._rules.append(rule)
        return rule

    async def _land_after(self, rule: FaultRule, seconds: float) -> None:
        await self._runtime.sleep(seconds)
        rule.land()

    async def _delayed(self, seconds: float, call: Call, effect: Callable[[], T]) -> T:
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def land() -> None:
            await self._runtime.sleep(seconds)
            try:
                value = effect()
            except (QimError, LogFault) as error:
                if not reply.done():
                    reply.set_exception(error)
            else:
                if not reply.done():
                    reply.set_result(value)

        # The engine's task, not the caller's: a cancelled caller has sent its call all the same.
        self._runtime.spawn(land(), f"delayed {call.op}")
        return await reply
