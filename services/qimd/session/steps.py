"""What all steps and reads of one partition have in common: who may write, what is waited for."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, assert_never

from qimd.core.errors import ErrorCode, QimError
from qimd.core.lease import Term
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.parameters import PROJECTION_RETRY_MAX_S, PROJECTION_RETRY_MIN_S
from qimd.core.records import LogIdentity
from qimd.ports.log import Watermarks
from qimd.ports.runtime import Runtime
from qimd.session.logic import Dirty, judge_identity, judge_retention
from qimd.session.ports import RoomPorts
from qimd.telemetry.logs import logger

_log = logger("session")
_TRANSIENT: Final = frozenset({Refusal.NO_SPACE, Refusal.UNREACHABLE})
T = TypeVar("T")


class ProjectionDirty(Exception):
    """The projection can't be proved complete. Its text is for operators."""


class StartedAnew(Exception):
    """The store was started anew, maybe without its end: the partition is loaded again."""


class SteppedDown(Exception):
    """Another owner has the partition, or the term has ended: nothing may be written any more."""


def demand(fault: Dirty | None) -> None:
    """Raise ProjectionDirty for a fault."""
    if fault is not None:
        raise ProjectionDirty(fault.reason)


async def inspected_log(ports: RoomPorts, partition: int) -> tuple[LogIdentity, Watermarks]:
    """The log's identity, read before and after the partition's watermarks, and these.

    Raises ProjectionDirty if they prove nothing or the retention is too short, LogFault,
    QimError(UNAVAILABLE).
    """
    before = await ports.log.identity()
    marks = await ports.log.watermarks(partition)
    after = await ports.log.identity()
    demand(judge_identity(before, before, after, ports.table.mailbox_shards))
    demand(judge_retention(await ports.log.settings(), ports.recovery_window_ms))
    return before, marks


class Steps:
    """Issues a partition's steps and reads while `term` may write.

    `watch` is called after each wait: a partition that waits still shows its lag.
    """

    def __init__(self, term: Term, runtime: Runtime, watch: Callable[[], Awaitable[None]]) -> None:
        self._term = term
        self._runtime = runtime
        self._watch = watch

    async def settle(self, what: str, call: Callable[[], Awaitable[Outcome[T]]]) -> T:
        """The step's value once it is applied; issued again while its outcome is unknown or the
        engine can't take it now. Raises SteppedDown, ProjectionDirty.
        """
        tries = 0
        while True:
            self._demand_term()
            match await call():
                case Applied(value=value):
                    return value
                case NotApplied(refusal=Refusal.STALE_EPOCH | Refusal.HEAD_MOVED):
                    raise SteppedDown
                case NotApplied(refusal=refusal, detail=detail) if refusal not in _TRANSIENT:
                    raise ProjectionDirty(f"{what} was refused: {refusal.value} {detail}")
                case NotApplied(refusal=refusal):
                    waits_for = refusal.value
                case Unknown():
                    waits_for = "unknown outcome"
                case outcome:
                    assert_never(outcome)
            await self._back_off(what, waits_for, tries)
            tries += 1

    async def persist(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """What the call gives, asked again while the engine does not answer.

        Raises SteppedDown, ProjectionDirty.
        """
        tries = 0
        while True:
            self._demand_term()
            try:
                return await call()
            except QimError as error:
                if error.code is not ErrorCode.UNAVAILABLE:
                    raise ProjectionDirty(f"{what}: {error}") from None
            await self._back_off(what, "unavailable", tries)
            tries += 1

    async def _back_off(self, what: str, waits_for: str, tries: int) -> None:
        if tries == 0:
            _log.warning("projection waits", mailbox_shard=self._term.shard, step=what,
                         waits_for=waits_for)  # fmt: skip
        delay_s = min(PROJECTION_RETRY_MAX_S, PROJECTION_RETRY_MIN_S * 2 ** min(tries, 16))
        await self._runtime.sleep(delay_s * (0.5 + self._runtime.random() / 2))
        await self._watch()

    def _demand_term(self) -> None:
        if not self._term.may_write(self._runtime.monotonic_s()):
            raise SteppedDown
