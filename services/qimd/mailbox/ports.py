"""What all parts of the mailbox room share: its ports and parameters, and steps with an outcome."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar, assert_never

from qimd.core.errors import unavailable
from qimd.core.lease import Term
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.routing import RoutingTable
from qimd.mailbox.logic import Fault, retry_wait_s
from qimd.ports.log import Log
from qimd.ports.mailbox import MailboxStore
from qimd.ports.quarantine import QuarantineStore
from qimd.ports.runtime import Runtime
from qimd.ports.services import PushHints, SessionSupplement
from qimd.ports.store import ConversationStore
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import Spans

T = TypeVar("T")

REQUEST_ID_BYTES = 16
ATTEMPTS_MAX = 8
"""Tries of a device's step, about 5 s in all: then the client asks again, under the same values."""


@dataclass(frozen=True, slots=True)
class RoomPorts:
    """The room's ports. `recovery_window_ms` is what the log's retention must cover;
    `replay_safety_window_ms` is None where no progress of dispatches is ever dropped.

    `on_stall_failover(shard)` is called when a lane has stood for `lane_stall_failover`: the owner
    should hand the shard over.
    """

    table: RoutingTable
    store: MailboxStore
    conversations: ConversationStore
    log: Log
    quarantine: QuarantineStore
    hints: PushHints
    supplement: SessionSupplement | None
    runtime: Runtime
    metrics: Metrics
    recovery_window_ms: int
    replay_safety_window_ms: int | None
    on_stall_failover: Callable[[int], None]
    spans: Spans


class Halted(Exception):
    """The shard can't go on: an explicit fault, and nothing is applied from here on."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{fault.reason}: {fault.detail}")
        self.fault = fault


class TermOver(Exception):
    """The shard's term may write no more: step down."""


async def settle(
    runtime: Runtime, term: Term, issue: Callable[[], Awaitable[Outcome[T]]]
) -> Applied[T] | NotApplied:
    """Issue a shard's step until its outcome is known and is no passing trouble of the engine.

    The very same step each time, under the same request id: an Unknown may have landed. Everything
    of the shard waits meanwhile, and its watermarks stay. Raises TermOver.
    """
    attempts = 0
    while True:
        if not term.may_write(runtime.monotonic_s()):
            raise TermOver
        outcome = await issue()
        match outcome:
            case NotApplied(refusal=Refusal.STALE_EPOCH):
                term.end()
                raise TermOver
            case NotApplied(refusal=Refusal.NO_SPACE | Refusal.UNREACHABLE) | Unknown():
                await runtime.sleep(retry_wait_s(attempts, runtime.random()))
                attempts += 1
            case Applied() | NotApplied():
                return outcome
            case _:
                assert_never(outcome)


async def settle_device(runtime: Runtime, issue: Callable[[], Awaitable[Outcome[T]]]) -> T:
    """A device's step, tried a few times; it only raises values, so a repetition changes nothing.

    Raises QimError(UNAVAILABLE) if it can't be done or stays unknown.
    """
    for attempt in range(ATTEMPTS_MAX):
        outcome = await issue()
        match outcome:
            case Applied(value=value):
                return value
            case NotApplied(refusal=refusal) if refusal is not Refusal.UNREACHABLE:
                raise unavailable(f"the device's position can't be stored: {refusal.words}")
            case NotApplied() | Unknown():
                await runtime.sleep(retry_wait_s(attempt, runtime.random()) / 4)
            case _:
                assert_never(outcome)
    raise unavailable("it is not known whether the device's position was stored")
