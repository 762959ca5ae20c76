"""One shard's follower: takes to the shadow what the primary applied, in the primary's order.

What is to be taken waits in a bounded queue, comparisons in their places among the steps: when one
is due, the shadow stands exactly where the primary stood when it answered. A shadow that is away is
tried again; one that falls too far behind, or lacks what came before, is lost until the shard is
opened again with both at hand.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from qimd.adapters.shadow.differences import Findings, plain
from qimd.adapters.shadow.standing import Standing, fitted
from qimd.core.errors import QimError
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.seq import SEQ_NONE, MailboxSeq
from qimd.ports.mailbox import (
    ApplyStep,
    EpochBoundary,
    MailboxStore,
    RecordVerdict,
    ShardState,
)
from qimd.ports.runtime import Runtime
from qimd.ports.shadow import ShadowShard

T = TypeVar("T")

BACKLOG_MAX: Final = 100_000
"""Entries that wait for the shadow of a shard, at about 100 bytes each: seconds of a busy shard,
minutes of a quiet one. What waits is lost with the process, so more would promise too much."""

RETRY_S: Final = 1.0
"""Between two tries of a shadow that is away."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The primary opened the shard."""

    term: int
    first: EpochBoundary
    state: ShardState
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Begun:
    """The primary began a shard_epoch."""

    term: int
    boundary: EpochBoundary
    state: ShardState
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Taken:
    """The primary took a step of records."""

    step: ApplyStep
    verdicts: Sequence[RecordVerdict]

    @property
    def weight(self) -> int:
        """Entries of the step, and 1 for each record."""
        blocks = (block for record in self.step.records for block in record.blocks)
        return 1 + len(self.step.records) + sum(len(block.users) for block in blocks)


@dataclass(frozen=True, slots=True)
class Done:
    """Any other step that the primary applied. How much it dropped, engines may count apart."""

    asked: str
    call: Callable[[MailboxStore], Awaitable[Outcome[Any]]]
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """A read that the primary answered where it stood at `standing`."""

    asked: str
    read: Callable[[MailboxStore], Awaitable[object]]
    answer: object
    standing: Standing

    @property
    def weight(self) -> int:
        """What the answer holds, and 1."""
        return 1 + (len(self.answer) if isinstance(self.answer, Sized) else 0)


Followed = Opened | Begun | Taken | Done | Comparison


class Traffic:
    """Steps under way at the primary: what is read meanwhile may show any of them, or none."""

    def __init__(self) -> None:
        self._begun = 0
        self.under_way = 0

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A step is under way."""
        self._begun += 1
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    def mark(self) -> int | None:
        """To ask `still` with; None while a step is under way."""
        return None if self.under_way else self._begun

    def still(self, mark: int | None) -> bool:
        """Whether no step was under way since."""
        return mark is not None and mark == self._begun


class ShardFollower:
    """See the module."""

    def __init__(
        self,
        shard: int,
        primary: MailboxStore,
        shadow: MailboxStore,
        runtime: Runtime,
        findings: Findings,
    ) -> None:
        self.shard = shard
        self._primary = primary
        self._shadow = shadow
        self._runtime = runtime
        self._findings = findings
        self._queue: deque[Followed] = deque()
        self._weight = 0
        self._working = False
        self._term = 0
        self._there: Standing | None = None
        self.standing: Standing | None = None
        """The primary's; None until it was opened, and once another process owns the shard."""
        self.lost = ""
        self.steps = Traffic()
        self.trims = Traffic()
        """Those of the steps that take what stands at or below a watermark."""

    def describe(self) -> ShadowShard:
        """How it follows."""
        there = SEQ_NONE if self._there is None else self._there.position
        here = SEQ_NONE if self.standing is None else self.standing.position
        return ShadowShard(self.shard, here, there, len(self._queue), self.lost)

    @property
    def level(self) -> bool:
        """Whether nothing waits and both stand at the same place."""
        return not self._queue and self._there == self.standing

    def watermark(self, lane: int) -> MailboxSeq:
        """The primary's W[lane]; SEQ_NONE until it was opened."""
        return SEQ_NONE if self.standing is None else self.standing.watermark(lane)

    def follow(self, item: Followed) -> None:
        """Queue what the primary did or said. Never blocks."""
        match item:
            case Opened() | Begun():
                self.standing = Standing.of(item.state)
            case Taken():
                self.standing = Standing.of(item.step)
            case Done() | Comparison():
                pass
        if isinstance(item, Opened):
            self._term = item.term
            self.lost = ""
        if self.lost or self.standing is None:
            return
        if self._weight + item.weight > BACKLOG_MAX:
            # A comparison that is left out proves nothing less; a step that is, everything.
            if not isinstance(item, Comparison):
                self._give_up(f"it is behind by more than {BACKLOG_MAX} entries")
            return
        self._queue.append(item)
        self._weight += item.weight
        if not self._working:
            self._working = True
            self._runtime.spawn(self._work(), f"mailbox-shadow:{self.shard}")

    def change_places(self) -> None:
        """Follow the other way round. Only while it is level."""
        self._primary, self._shadow = self._shadow, self._primary

    def _give_up(self, why: str) -> None:
        self.lost = why
        self._queue.clear()
        self._weight = 0

    def _is_due(self, item: Followed) -> bool:
        """Unless it was given up, or the shard was opened anew, since it was begun."""
        return bool(self._queue) and self._queue[0] is item

    def _lose(self, item: Followed, why: str) -> None:
        if self._is_due(item):
            self._give_up(why)

    async def _work(self) -> None:
        try:
            while self._queue:
                item = self._queue[0]
                await self._take(item)
                if self._is_due(item):
                    self._queue.popleft()
                    self._weight -= item.weight
        finally:
            self._working = False

    async def _take(self, item: Followed) -> None:
        match item:
            case Opened():
                await self._open(item)
            case Begun():
                await self._begin(item)
            case Taken():
                await self._apply(item)
            case Done():
                await self._applied(item, item.asked, item.call)
            case Comparison():
                await self._compare(item)

    # --- each kind ---

    async def _open(self, item: Opened) -> None:
        asked = f"open_shard({self.shard}, {item.term})"
        applied = await self._applied(
            item, asked, lambda shadow: shadow.open_shard(self.shard, item.term, item.first)
        )
        if applied is None:
            return
        state = applied[0]
        here, there = Standing.of(item.state), Standing.of(state)
        if not there.covers(here):
            self._lose(item, f"it stands at seq {there.position}, the primary at {here.position}")
            return
        if state.floor < item.state.floor:
            # A crash between the two: raising the floor again is all that the shadow lacks.
            raised = await self._applied(
                item,
                "expire_buckets",
                lambda shadow: shadow.expire_buckets(self.shard, item.term, item.state.floor, 1),
            )
            if raised is None:
                return
            state = replace(state, floor=item.state.floor)
        self._there = there
        if here == there:
            self._findings.compare(asked, item.state, state)

    async def _begin(self, item: Begun) -> None:
        asked = f"begin_epoch({self.shard}, {item.boundary})"
        applied = await self._applied(
            item, asked, lambda shadow: shadow.begin_epoch(self.shard, item.term, item.boundary)
        )
        if applied is not None:
            self._there = Standing.of(applied[0])
            self._findings.compare(asked, item.state, applied[0])

    async def _apply(self, item: Taken) -> None:
        if self._there is None:
            return
        step = fitted(item.step, self._there)
        if step is None:
            self._lose(item, f"it lacks what came before seq {item.step.position}")
            return
        alike = step == item.step
        asked = f"apply({self.shard}, through {step.position})"
        applied = await self._applied(item, asked, lambda shadow: shadow.apply(step))
        if applied is None:
            return
        verdicts, tries = applied
        self._there = Standing.of(step)
        if alike:
            # Of a step that was tried before, an engine may call its own work a duplicate.
            seen = _verdicts if tries == 1 else _blocks
            self._findings.compare(asked, seen(item.verdicts), seen(verdicts))

    async def _compare(self, item: Comparison) -> None:
        if self._there != item.standing:
            return
        try:
            answer = await item.read(self._shadow)
            # Another owner's steps are no difference: it follows them itself.
            comparable = plain(answer) == plain(item.answer) or await self._is_ours()
        except QimError:
            # One of them is away: what is not compared is not counted.
            return
        if comparable:
            self._findings.compare(item.asked, item.answer, answer)

    async def _is_ours(self) -> bool:
        """Whether the shard's term is still this process's. Raises UNAVAILABLE."""
        state = await self._primary.shard_state(self.shard)
        return state is not None and state.term == self._term

    async def _applied(
        self,
        item: Followed,
        asked: str,
        call: Callable[[MailboxStore], Awaitable[Outcome[T]]],
    ) -> tuple[T, int] | None:
        """What the shadow answers in the end, and after how many tries; None if it is lost."""
        tries = 0
        while self._is_due(item):
            tries += 1
            match await call(self._shadow):
                case Applied(value):
                    return value, tries
                case Unknown() | NotApplied(refusal=Refusal.UNREACHABLE | Refusal.NO_SPACE):
                    await self._runtime.sleep(RETRY_S)
                case NotApplied() as refused:
                    await self._refused(item, asked, refused)
        return None

    async def _refused(self, item: Followed, asked: str, refused: NotApplied) -> None:
        if refused.refusal is Refusal.STALE_EPOCH:
            try:
                ours = await self._is_ours()
            except QimError:
                await self._runtime.sleep(RETRY_S)
                return
            if not ours:
                if self._is_due(item):
                    self._give_up("")
                    self.standing = None
                return
        self._findings.differ(asked, "applied", repr(refused))
        self._lose(item, f"it refused a step ({refused.refusal.value})")


def _verdicts(verdicts: Sequence[RecordVerdict]) -> object:
    return tuple(verdicts)


def _blocks(verdicts: Sequence[RecordVerdict]) -> object:
    return tuple((one.applied | one.duplicate, one.digest_differs) for one in verdicts)
