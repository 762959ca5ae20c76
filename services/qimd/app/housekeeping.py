"""What must happen now and then, whoever asks: expiry, retention, audits, rates.

A chore that fails is logged and tried again at its next turn; none of them is needed for a message
to arrive.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from qimd.core.errors import QimError
from qimd.core.parameters import IDEMPOTENCY_WINDOW_MS
from qimd.ports.runtime import Runtime
from qimd.ports.store import ConversationStore
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.rates import PUBLISH_INTERVAL_S

_log = logger("housekeeping")

EXPIRY_INTERVAL_S: Final = 60.0
"""Between two looks for what has expired: nothing of it is urgent."""

EXPIRY_BATCH: Final = 1_000
"""Rows that one step of expiry takes: it must not hold the store's writer for long."""


@dataclass(frozen=True, slots=True)
class Chore:
    """A thing to do every `interval_s`."""

    name: str
    interval_s: float
    run: Callable[[], Awaitable[None]]


class Housekeeping:
    """Runs chores, each in a loop of its own, until told to stop."""

    def __init__(self, chores: Sequence[Chore], runtime: Runtime, metrics: Metrics) -> None:
        self._chores = tuple(chores)
        self._runtime = runtime
        self._metrics = metrics
        self._stopped = False

    def start(self) -> None:
        """Begin; the first turn of each comes after its interval."""
        for chore in self._chores:
            self._runtime.spawn(self._repeat(chore), f"chore-{chore.name}")

    def stop(self) -> None:
        """Begin no more turns."""
        self._stopped = True

    async def _repeat(self, chore: Chore) -> None:
        while True:
            await self._runtime.sleep(chore.interval_s)
            if self._stopped:
                return
            await self._turn(chore)

    async def _turn(self, chore: Chore) -> None:
        try:
            await chore.run()
        except QimError as error:
            _log.warning("a chore was put off", chore=chore.name, error=error)
        except Exception as error:  # noqa: BLE001 - the one place that supervises chores.
            self._metrics.defects_total.labels(f"chore-{chore.name}").inc()
            _log.error("a chore failed", chore=chore.name, exc_info=error)


def expire_idempotency(conversations: ConversationStore, runtime: Runtime) -> Chore:
    """Forget idempotency keys whose window has passed, in small steps."""

    async def run() -> None:
        before_ms = runtime.wall_ms() - IDEMPOTENCY_WINDOW_MS
        gone = 0
        while (step := await conversations.expire_idempotency(before_ms, EXPIRY_BATCH)) > 0:
            gone += step
        if gone:
            _log.info("idempotency keys expired", keys_count=gone)

    return Chore("idempotency", EXPIRY_INTERVAL_S, run)


def enforce_retention(enforce: Callable[[int], Awaitable[int]], runtime: Runtime) -> Chore:
    """Drop what the log no longer keeps. `enforce(now_ms)` is the embedded log's own."""

    async def run() -> None:
        if dropped := await enforce(runtime.wall_ms()):
            _log.info("log records dropped by retention", records=dropped)

    return Chore("retention", EXPIRY_INTERVAL_S, run)


def publish_rates(metrics: Metrics) -> Chore:
    """Set the rates that are made of counts."""

    async def run() -> None:
        metrics.entry_rates.publish()

    return Chore("rates", PUBLISH_INTERVAL_S, run)
