"""One term of one writer shard: what may be written under it, and how a step's outcome is settled.

A mutating call whose reply is lost has an unknown outcome. It is settled here, by issuing the same
call again for as long as the term may write; nobody above ever guesses.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar, assert_never

from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.core.lease import Term
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.records import ConversationKey
from qimd.ports.runtime import Runtime
from qimd.telemetry.logs import logger
from qimd.writer.logic import settled

RETRY_MIN_S: Final = 0.02
"""A store that lost one reply usually answers the next call: the sender still waits."""

RETRY_MAX_S: Final = 1.0
"""A store that stays silent is asked this often; the term's deadline ends it within seconds."""

T = TypeVar("T")
_log = logger("writer")


class OutcomeUnknownError(QimError):
    """UNAVAILABLE, and the step may still take effect: the term can't write any more, so nobody
    can ask. The next owner's idempotency check answers the sender.
    """

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.UNAVAILABLE,
            "the outcome is not known; send it again under the same client_msg_id",
        )


def not_owner() -> QimError:
    """Nothing was issued: another node owns the shard, or nobody does yet."""
    return QimError(ErrorCode.NOT_OWNER, "this node does not own the conversation's shard")


def refused(refusal: Refusal) -> QimError:
    """What a caller learns of a step that the store certainly did not apply."""
    match refusal:
        case Refusal.STALE_EPOCH:
            return QimError(ErrorCode.STALE_EPOCH, "another owner took the shard over")
        case Refusal.NO_SPACE | Refusal.UNREACHABLE:
            return unavailable(f"{refusal.words}; nothing was written")
        case Refusal.NOT_FOUND:
            return QimError(ErrorCode.NOT_FOUND, "there is no such conversation")
        case Refusal.REJECTED:
            return QimError(ErrorCode.INVALID_ARGUMENT, "the store refuses this event's content")
        case Refusal.HEAD_MOVED | Refusal.DUPLICATE | Refusal.CONFLICT:
            return unavailable("the conversation changed under the call; nothing was written")
        case _:
            assert_never(refusal)


@dataclass(slots=True, eq=False)
class Shard:
    """A shard under one term. A new term gets a new one: nothing is carried over."""

    term: Term
    runtime: Runtime
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set as soon as the term is found to have ended, so that serving it ends without a delay."""
    reserved: int = 0
    """Events of steps under way: they count against the backlog before the fanout knows them."""
    unresolved: set[ConversationKey] = field(default_factory=set)
    """Conversations with a step of unknown outcome: not touched again under this term."""
    closed: bool = False
    running: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no conversation of the shard has a call under way."""

    def __post_init__(self) -> None:
        self.quiet.set()

    def began(self) -> None:
        """A conversation has something under way."""
        self.running += 1
        self.quiet.clear()

    def settled(self) -> None:
        """A conversation has nothing under way any more."""
        self.running -= 1
        if not self.running:
            self.quiet.set()

    def may_write(self) -> bool:
        """Judged at each write, against the clock."""
        return not self.closed and self.term.may_write(self.runtime.monotonic_s())

    def close(self) -> None:
        """Serve no more: calls under way settle, no new step is issued."""
        self.closed = True
        self.over.set()

    async def settle(self, issue: Callable[[], Awaitable[Outcome[T]]]) -> Applied[T] | NotApplied:
        """Issue a step until its outcome is known. `issue` must be the same step each time.

        STALE_EPOCH ends the term. Raises NOT_OWNER if nothing was issued, and OutcomeUnknownError
        if a try's outcome is open when the term can't write any more.
        """
        open_tries = 0
        while self.may_write():
            outcome = await issue()
            match certain := settled(outcome, open_tries):
                case None:
                    open_tries += isinstance(outcome, Unknown)
                case NotApplied(refusal=Refusal.STALE_EPOCH):
                    self._stale()
                    return certain
                case Applied() | NotApplied():
                    return certain
                case _:
                    assert_never(certain)
            await self.runtime.sleep(backoff_s(open_tries, self.runtime.random()))
        raise OutcomeUnknownError if open_tries else not_owner()

    def _stale(self) -> None:
        if not self.term.ended:
            _log.warning(
                "another owner raised the shard's epoch; stepping down",
                writer_shard=self.term.shard,
                fencing_epoch=self.term.epoch,
            )
        self.term.end()
        self.over.set()


def backoff_s(tries: int, chance: float) -> float:
    """Doubling and jittered, so that conversations do not ask in step."""
    longest = min(RETRY_MAX_S, RETRY_MIN_S * (1 << min(tries, 10)))
    return longest * (0.5 + 0.5 * chance)
