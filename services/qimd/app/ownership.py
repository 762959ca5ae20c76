"""Who owns a shard: one loop a shard that holds its lease, raises its epoch and serves its rooms.

The problem: a lease is a belief. An engine may end it early or late, a process may be stopped for
longer than it, a reply may be lost. Two owners for a moment are therefore possible, and made safe
elsewhere: by the epoch in every conditional write, and by the mailbox's epoch filter. What this
loop adds is that such moments are rare and short:

- it takes over only a key that it has seen absent for `absence_wait` on its own clock, or one that
  the last owner released durably after its last write had settled (design section 5);
- it raises the epoch after it holds the key, and before a room sees the term;
- its term may write for `writer_self_fence_deadline` since *before* the last renewal that succeeded
  was sent; rooms judge that at each write, this loop only tidies up behind them;
- it releases a key only after its rooms have returned. A room that had to be cancelled may have a
  write on its way, so its key is left to expire.

A room's `serve(term)` runs until the term has ended. If it raises, or returns earlier, the term
ends for all rooms of the shard, and the loop starts over after a back-off. A room that wants to
stay halted keeps `serve` running and refuses its callers: it says so by not returning.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeVar, assert_never

from qimd.core.errors import QimError
from qimd.core.lease import Term
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.parameters import DRAIN_GRACE_S, LeaseParameters
from qimd.ports.lease import LeasePort
from qimd.ports.runtime import Runtime, Task
from qimd.ports.store import EpochStore, ShardKind
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics

T = TypeVar("T")

_log = logger("ownership")

VIEW_INTERVAL_S: Final = 1.0
"""Between two looks at a key that somebody else holds: short beside the lease's own times."""

HAND_OVER_WAIT_S: Final = 3 * VIEW_INTERVAL_S
"""How long an owner that handed its shard over leaves the key to others."""

BACKOFF_MIN_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
"""Between two terms of a shard whose room fails: a fault that stays must not spin."""

_NONCE_BYTES: Final = 16


class ShardRoom(Protocol):
    """A room that works on a shard while it is owned."""

    async def serve(self, term: Term) -> None:
        """Work under the term; return once it has ended and no write is on its way."""


@dataclass(frozen=True, slots=True)
class Role:
    """A kind of shard that a process owns: how many there are, and the rooms that serve each.

    Rooms are started in order. A writer shard's fanout stands before its writer, since it must
    know the term before the first commit is told to it.
    """

    kind: ShardKind
    shards: int
    rooms: Sequence[ShardRoom]


class TermEnd(Enum):
    """Why a term ended."""

    DRAINED = "drained"
    LOST = "lost"
    FENCED = "self_fenced"
    STEPPED_DOWN = "stepped_down"
    HANDED_OVER = "handed_over"
    FAULT = "room_fault"


def backoff_s(failures: int, jitter: float) -> float:
    """The wait before the next try after `failures` in a row (1 or more); `jitter` in [0, 1)."""
    whole = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(failures - 1, 16))
    return whole * (0.5 + jitter / 2)


class ShardOwner:
    """The loop of one shard. `owner` names this process, uniquely among all that ever ran.

    `sole` says that no other process can live: in `dev` the exclusive lock on the data folder
    proves it, so that a key which is absent may be taken at once.
    """

    def __init__(
        self,
        *,
        kind: ShardKind,
        shard: int,
        rooms: Sequence[ShardRoom],
        lease: LeasePort,
        epochs: EpochStore,
        runtime: Runtime,
        metrics: Metrics,
        owner: str,
        parameters: LeaseParameters,
        sole: bool = False,
        settle_s: float = DRAIN_GRACE_S,
    ) -> None:
        self.kind = kind
        self.shard = shard
        self._rooms = tuple(rooms)
        self._lease = lease
        self._epochs = epochs
        self._runtime = runtime
        self._metrics = metrics
        self._owner = owner
        self._parameters = parameters
        self._sole = sole
        self._settle_s = settle_s
        self._draining = False
        self._handing_over = False
        self._wake = asyncio.Event()
        self.held_elsewhere = False
        """Whether another process held the key at the last look."""
        self._blind = False
        self._absent_since_s: float | None = None
        self._failures = 0
        self._running = 0
        self._fault = False
        self.term: Term | None = None
        """The term that is served now."""

    # --- what the node does ---

    @property
    def owned(self) -> bool:
        """Whether its rooms serve a term that may write."""
        return self.term is not None and self.term.may_write(self._runtime.monotonic_s())

    def drain(self) -> None:
        """End the term, release the key, and let `run` return."""
        self._draining = True
        self._wake.set()

    def hand_over(self) -> None:
        """End the term and release the key; another process may take it before we try again."""
        self._handing_over = True
        self._wake.set()

    async def run(self) -> None:
        """Own the shard, again and again, until drained."""
        while not self._draining:
            sent_at_s = await self._acquire()
            if sent_at_s is None:
                break
            epoch = await self._raise_epoch(sent_at_s)
            if epoch is None:
                await self._release()
                await self._back_off()
                continue
            end = await self._serve(epoch, sent_at_s)
            if end is TermEnd.HANDED_OVER:
                await self._stand_back(HAND_OVER_WAIT_S)
            elif end in {TermEnd.FAULT, TermEnd.STEPPED_DOWN}:
                await self._back_off()

    # --- taking over ---

    async def _acquire(self) -> float | None:
        """Hold the key; gives the monotonic time before the call that took it. None: drained."""
        self._absent_since_s = None
        first_sent_s: float | None = None
        while not self._draining:
            if not await self._may_take_over():
                await self._pause(VIEW_INTERVAL_S)
                continue
            sent_at_s = self._runtime.monotonic_s()
            outcome = await self._answered(
                self._lease.acquire(
                    self.kind, self.shard, self._owner, self._parameters.shard_lease_ttl_s
                ),
                self._parameters.lease_renew_interval_s,
            )
            match outcome:
                case Applied():
                    # After a lost reply the lease may run from the first call on.
                    return sent_at_s if first_sent_s is None else first_sent_s
                case NotApplied(refusal=Refusal.CONFLICT):
                    # Somebody was faster: the wait for absence starts over.
                    self._absent_since_s = first_sent_s = None
                    await self._pause(VIEW_INTERVAL_S)
                case NotApplied():
                    await self._pause(self._parameters.lease_renew_retry_s)
                case Unknown():
                    # The same owner again is Applied, so asking again resolves it.
                    first_sent_s = sent_at_s if first_sent_s is None else first_sent_s
                    await self._pause(self._parameters.lease_renew_retry_s)
                case _:
                    assert_never(outcome)
        return None

    async def _may_take_over(self) -> bool:
        """Whether the key was seen absent for long enough, or given up for good."""
        try:
            view = await self._runtime.wait_for(
                self._lease.view(self.kind, self.shard), self._parameters.lease_renew_interval_s
            )
        except (QimError, TimeoutError) as error:
            # Unseen is not absent: whatever was seen before proves nothing about the time between.
            if not self._blind:
                # Once an outage: every shard looks each second.
                _log.warning("a lease can't be looked at", error=error, **self._names())
            self._blind = True
            self._absent_since_s = None
            self.held_elsewhere = False
            return False
        self._blind = False
        self.held_elsewhere = view.holder not in {"", self._owner}
        if view.holder == self._owner:
            return True
        if view.holder:
            self._absent_since_s = None
            return False
        if view.released or self._sole:
            return True
        now_s = self._runtime.monotonic_s()
        if self._absent_since_s is None:
            self._absent_since_s = now_s
        return now_s - self._absent_since_s >= self._parameters.absence_wait_s

    async def _raise_epoch(self, sent_at_s: float) -> int | None:
        """A new epoch; None if another owner was faster, or it took until the self-fence."""
        nonce = self._runtime.random_bytes(_NONCE_BYTES)
        deadline_s = sent_at_s + self._parameters.writer_self_fence_deadline_s
        while not self._draining and self._runtime.monotonic_s() < deadline_s:
            now_s = self._runtime.wall_ms() // 1000
            outcome = await self._answered(
                self._epochs.raise_epoch(self.kind, self.shard, nonce, now_s),
                deadline_s - self._runtime.monotonic_s(),
            )
            match outcome:
                case Applied(value=epoch):
                    return epoch
                case NotApplied(refusal=Refusal.STALE_EPOCH):
                    _log.warning("another owner raised the epoch since", **self._names())
                    return None
                case NotApplied() | Unknown():
                    # The same nonce again gives the epoch that a lost reply had given.
                    await self._pause(self._parameters.lease_renew_retry_s)
                case _:
                    assert_never(outcome)
        return None

    # --- a term ---

    async def _serve(self, epoch: int, sent_at_s: float) -> TermEnd:
        """Serve one term from its start to the release of its key."""
        term = Term(
            shard=self.shard,
            epoch=epoch,
            owner=self._owner,
            self_fence_deadline_s=self._parameters.writer_self_fence_deadline_s,
            renewed_at_s=sent_at_s,
        )
        self._fault = False
        self._handing_over = False
        self._running = len(self._rooms)
        self.term = term
        gauge = self._metrics.epoch.labels(self.kind.value, str(self.shard))
        gauge.set(epoch)
        _log.info("term begins", epoch=epoch, **self._names())
        name = f"serve-{self.kind.value}:{self.shard}"
        tasks = [self._runtime.spawn(self._serve_room(room, term), name) for room in self._rooms]
        end = await self._keep(term)
        # Not `finally`: a simulator drops killed tasks, and dropping runs `finally`.
        term.end()
        self.term = None
        gauge.set(0)
        settled = await self._settle(tasks)
        _log.info("term ended", epoch=epoch, reason=end.value, settled=settled, **self._names())
        if settled and end is not TermEnd.LOST:
            await self._release()
        return end

    async def _serve_room(self, room: ShardRoom, term: Term) -> None:
        """Run one room under the term; what escapes it ends the term, not the process."""
        try:
            await room.serve(term)
        except Exception as error:  # noqa: BLE001 - the one place that supervises rooms.
            self._fault = True
            if not isinstance(error, QimError):
                self._metrics.defects_total.labels(f"serve-{self.kind.value}").inc()
            _log.error(
                "a room gave up its shard",
                room=type(room).__name__,
                epoch=term.epoch,
                exc_info=error,
                **self._names(),
            )
        finally:
            self._running -= 1
            self._wake.set()

    async def _keep(self, term: Term) -> TermEnd:
        """Renew until the term must end; returns why."""
        renew_at_s = term.renewed_at_s + self._parameters.lease_renew_interval_s
        while True:
            now_s = self._runtime.monotonic_s()
            end = self._reason_to_end(term, now_s)
            if end is not None:
                return end
            if now_s < renew_at_s:
                fence_at_s = term.renewed_at_s + term.self_fence_deadline_s
                await self._pause(min(renew_at_s, fence_at_s) - now_s)
                continue
            outcome = await self._renew(term)
            match outcome:
                case Applied():
                    # From before it was sent: the engine counts the lease from some later moment.
                    term.renewed(now_s)
                    self._failures = 0
                    renew_at_s = now_s + self._parameters.lease_renew_interval_s
                case NotApplied(refusal=Refusal.NOT_FOUND | Refusal.CONFLICT):
                    _log.warning("the lease was lost", epoch=term.epoch, **self._names())
                    return TermEnd.LOST
                case NotApplied() | Unknown():
                    _log.warning("a lease was not renewed", epoch=term.epoch, **self._names())
                    renew_at_s = self._runtime.monotonic_s() + self._parameters.lease_renew_retry_s
                case _:
                    assert_never(outcome)

    def _reason_to_end(self, term: Term, now_s: float) -> TermEnd | None:
        if self._draining:
            return TermEnd.DRAINED
        if self._fault:
            return TermEnd.FAULT
        if self._handing_over:
            return TermEnd.HANDED_OVER
        if term.ended or self._running < len(self._rooms):
            return TermEnd.STEPPED_DOWN
        if not term.may_write(now_s):
            _log.warning("no renewal in time: self-fenced", epoch=term.epoch, **self._names())
            return TermEnd.FENCED
        return None

    async def _renew(self, term: Term) -> Outcome[None]:
        """One renewal, given up at the self-fence: after it, its answer changes nothing."""
        left_s = term.renewed_at_s + term.self_fence_deadline_s - self._runtime.monotonic_s()
        renewal = self._lease.renew(
            self.kind, self.shard, self._owner, self._parameters.shard_lease_ttl_s
        )
        return await self._answered(renewal, left_s)

    async def _settle(self, tasks: Sequence[Task]) -> bool:
        """Whether every room returned by itself: only then is no write of the term on its way."""
        if await self._all_returned():
            return True
        for task in tasks:
            task.cancel()
        await self._all_returned()
        return False

    async def _all_returned(self) -> bool:
        deadline_s = self._runtime.monotonic_s() + self._settle_s
        while self._running:
            left_s = deadline_s - self._runtime.monotonic_s()
            if left_s <= 0:
                return False
            await self._pause(left_s)
        return True

    async def _release(self) -> None:
        """Give the key up durably; one that can't be released is left to expire."""
        deadline_s = self._runtime.monotonic_s() + self._settle_s
        while self._runtime.monotonic_s() < deadline_s:
            outcome = await self._answered(
                self._lease.release(self.kind, self.shard, self._owner), self._settle_s
            )
            match outcome:
                case Applied():
                    return
                case NotApplied(refusal=Refusal.NOT_FOUND | Refusal.CONFLICT):
                    return
                case NotApplied() | Unknown():
                    await self._pause(self._parameters.lease_renew_retry_s)
                case _:
                    assert_never(outcome)
        _log.warning("a lease was not released; it will expire", **self._names())

    # --- small things ---

    async def _answered(
        self, call: Coroutine[Any, Any, Outcome[T]], timeout_s: float
    ) -> Outcome[T]:
        """The call's outcome; Unknown if there is none in time."""
        try:
            return await self._runtime.wait_for(call, timeout_s)
        except TimeoutError:
            return Unknown("no answer in time")

    async def _pause(self, seconds: float) -> None:
        """Wait, or until something happened that a loop must look at."""
        try:
            await self._runtime.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return
        self._wake.clear()

    async def _back_off(self) -> None:
        self._failures += 1
        await self._stand_back(backoff_s(self._failures, self._runtime.random()))

    async def _stand_back(self, seconds: float) -> None:
        """Leave the key alone for a while."""
        deadline_s = self._runtime.monotonic_s() + seconds
        while not self._draining and (left_s := deadline_s - self._runtime.monotonic_s()) > 0:
            await self._pause(left_s)

    def _names(self) -> dict[str, object]:
        return {"kind": self.kind.value, "shard": self.shard}
