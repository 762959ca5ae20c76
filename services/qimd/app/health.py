"""Whether what a process depends on is there: probed every few seconds, answered from memory.

So a health check costs an engine nothing, however many ask, and one that hangs holds up nobody.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from qimd.core.errors import QimError
from qimd.ports.health import Dependency
from qimd.ports.log import LogFault
from qimd.ports.runtime import Runtime
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics

_log: Final = logger("health")

PROBE_INTERVAL_S: Final = 3.0
"""Well below what load balancers take to send clients elsewhere (three checks, 10 s apart)."""

PROBE_TIMEOUT_S: Final = 2.0
"""An engine that takes longer fails the calls of rooms too: their own limits are about that."""


@dataclass(frozen=True, slots=True)
class Failing:
    """A dependency that did not answer its last probe, and since when none."""

    name: str
    needed: bool
    reason: str
    since_ms: int

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"{self.name}: {self.reason}, since {since.replace('+00:00', 'Z')}"


OnChange = Callable[[str, bool], Awaitable[None]]
"""Told that a dependency of that name is up, or is not; at its first probe, too."""


class Health:
    """The dependencies of one process. Each counts as up until a probe says otherwise: a process
    that has started reached them all.
    """

    def __init__(
        self, dependencies: Sequence[Dependency], runtime: Runtime, metrics: Metrics
    ) -> None:
        self._dependencies = dependencies
        self._runtime = runtime
        self._metrics = metrics
        self._failing: dict[str, Failing] = {}

    @property
    def failing(self) -> Sequence[Failing]:
        """Those that do not answer, by name. May be read from any thread."""
        return sorted(self._failing.copy().values(), key=lambda one: one.name)

    @property
    def serves(self) -> bool:
        """Whether nothing is away without which the process serves nothing."""
        return not any(one.needed for one in self.failing)

    def start(self, on_change: OnChange) -> None:
        """Begin to probe, each dependency on its own: one that hangs delays no other."""
        for one in self._dependencies:
            self._runtime.spawn(self._watch(one, on_change), f"health:{one.name}")

    async def _watch(self, dependency: Dependency, on_change: OnChange) -> None:
        name, known = dependency.name, None
        while True:
            reason = await self._probe(dependency)
            if reason:
                before = self._failing.get(name)
                since_ms = self._runtime.wall_ms() if before is None else before.since_ms
                self._failing[name] = Failing(name, dependency.needed, reason, since_ms)
            else:
                self._failing.pop(name, None)
            up = not reason
            self._metrics.dependency_up.labels(name).set(up)
            if up is not known:
                if not up:
                    _log.warning("a dependency is away", dependency=name, reason=reason)
                elif known is not None:
                    _log.info("a dependency is back", dependency=name)
                await on_change(name, up)
                known = up
            await self._runtime.sleep(PROBE_INTERVAL_S)

    async def _probe(self, dependency: Dependency) -> str:
        """Why it does not answer; empty if it does."""

        async def ping() -> None:
            await dependency.ping()

        try:
            await self._runtime.wait_for(ping(), PROBE_TIMEOUT_S)
        except TimeoutError:
            return f"no answer within {PROBE_TIMEOUT_S:g} s"
        except QimError as error:
            return error.message
        except LogFault as fault:
            return str(fault)
        return ""
