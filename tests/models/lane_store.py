"""What the mailbox's store promises of a shard (`ports.mailbox`), as a model can explore it.

Each condition of ApplyStep is a method of its own, so that a test can take it away. The stages of a
step become visible one after the other: one stage for the engines that have an atomic step, four
for the one that has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from tests.models.dispatches import AT_MS, dispatch_of, shard_state

from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.parameters import LANES
from qimd.core.seq import SEQ_NONE, MailboxSeq, before_offset
from qimd.mailbox import logic
from qimd.mailbox.logic import Arrived
from qimd.ports.mailbox import EpochMark, RecordStep, ShardState, lowest_watermark, watermark

WATCHED: Final = (3, 7)
"""The lanes that have members. The others are idle, and move with the position."""

EVENTS: Final[Mapping[int, tuple[int, ...]]] = {1: (3, 7), 2: (3,)}
"""The lanes that each event's record is for."""


class Block(NamedTuple):
    """A record's recipients in some lanes, to be written at its seq."""

    seq: MailboxSeq
    event: int
    lanes: tuple[int, ...]


class Step(NamedTuple):
    """An ApplyStep. Issued again it is the same value, as its request_id says."""

    term: int
    expected_position: MailboxSeq
    blocks: tuple[Block, ...]
    marks: tuple[EpochMark, ...]
    next_offset: int
    position: MailboxSeq
    lagging: tuple[tuple[int, MailboxSeq], ...]


Verdicts = tuple[int, ...]
"""Of each block the mask of the lanes that it was written to."""


class Shard(NamedTuple):
    """What is durable."""

    term: int = 1
    next_offset: int = 0
    position: MailboxSeq = before_offset(1, 0)
    lagging: tuple[tuple[int, MailboxSeq], ...] = ()
    lane_last: tuple[MailboxSeq, ...] = (SEQ_NONE,) * len(WATCHED)
    marks: tuple[EpochMark, ...] = ()
    entries: frozenset[tuple[int, MailboxSeq]] = frozenset()
    """(lane, seq)."""
    done: frozenset[tuple[int, int]] = frozenset()
    """DispatchProgress: (event, lane)."""
    last_step: Step | None = None
    last_verdicts: Verdicts = ()
    served: tuple[MailboxSeq, ...] = (before_offset(1, 0),) * len(WATCHED)
    """The largest W of each lane that any reader can have seen. To judge by."""
    usurped: str = ""
    """What was written under a term that had been followed by then. To judge by."""


class MailboxPromise:
    """`ports.mailbox.ApplyStep`, condition by condition."""

    stages = (("marks", "entries", "progress", "watermarks"),)
    """What becomes visible together."""

    def is_repeated(self, shard: Shard, step: Step) -> bool:
        """The same request_id, if it is the shard's last."""
        return shard.last_step == step

    def may_write(self, shard: Shard, step: Step) -> bool:
        """Only under the current term."""
        return shard.term == step.term

    def is_expected(self, shard: Shard, step: Step) -> bool:
        """Only behind the position that the owner knows."""
        return shard.position == step.expected_position

    def only_rises(self, shard: Shard, step: Step) -> bool:
        """Position and each lane's watermark."""
        before, after = shard_state_of(shard), shard_state_of(moved(shard, step))
        return all(watermark(after, lane) >= watermark(before, lane) for lane in WATCHED)

    def fresh(self, shard: Shard, block: Block) -> tuple[int, ...]:
        """The lanes of a block that its dispatch has not been written to."""
        return tuple(lane for lane in block.lanes if (block.event, lane) not in shard.done)

    def marks_of(self, shard: Shard, step: Step) -> tuple[EpochMark, ...]:
        """The marks with the step's, each epoch once, where it came first."""
        known = [mark.fencing_epoch for mark in shard.marks]
        new = (mark for mark in step.marks if mark.fencing_epoch not in known)
        return tuple(sorted((*shard.marks, *new), key=lambda mark: mark.first_seq))

    def folded(self, shard: Shard) -> Shard:
        """fold_marks below every lane's W: the largest epoch's stays."""
        below = lowest_watermark(shard_state_of(shard))
        old = [mark for mark in shard.marks if mark.first_seq <= below]
        if len(old) < 2:
            return shard
        kept = max(old, key=lambda mark: mark.fencing_epoch)
        return shard._replace(marks=(kept, *shard.marks[len(old) :]))

    def opened(self, shard: Shard) -> Shard:
        """What a new owner learns of the shard. Mailboxes and progress it never reads."""
        return shard._replace(
            entries=frozenset(), done=frozenset(), last_step=None, last_verdicts=(), served=()
        )

    def apply(
        self, shard: Shard, step: Step, stages: int | None = None
    ) -> tuple[Shard, Outcome[Verdicts]]:
        """The step, or only its first stages."""
        if self.is_repeated(shard, step):
            return shard, Applied(shard.last_verdicts)
        if not self.may_write(shard, step):
            return shard, NotApplied(Refusal.STALE_EPOCH)
        if not self.is_expected(shard, step) or not self.only_rises(shard, step):
            return shard, NotApplied(Refusal.HEAD_MOVED)
        if step.term < shard.term:
            usurped = f"term {step.term} wrote after term {shard.term} began"
            shard = shard._replace(usurped=usurped)
        fresh, seen = list[Block](), shard
        for block in step.blocks:
            fresh.append(block._replace(lanes=self.fresh(seen, block)))
            seen = _write(seen, step, "progress", fresh)
        for stage in self.stages[:stages]:
            for part in stage:
                shard = self._write(shard, step, part, fresh)
        return shard, Applied(masks(fresh))

    def _write(self, shard: Shard, step: Step, part: str, fresh: list[Block]) -> Shard:
        if part == "marks":
            return shard._replace(marks=self.marks_of(shard, step))
        return _write(shard, step, part, fresh)


class TornPromise(MailboxPromise):
    """An engine without a step over all of it (Scylla): one write after the other, in an order in
    which any prefix is safe (design section 7).
    """

    stages = (("marks",), ("entries",), ("progress",), ("watermarks",))


@cache
def shard_state_of(shard: Shard) -> ShardState:
    last = dict(zip(WATCHED, shard.lane_last, strict=True))
    return shard_state(
        shard.position,
        shard.next_offset,
        shard.lagging,
        tuple(last.get(lane, SEQ_NONE) for lane in range(LANES)),
    )


def moved(shard: Shard, step: Step) -> Shard:
    return shard._replace(
        next_offset=step.next_offset, position=step.position, lagging=step.lagging
    )


def _write(shard: Shard, step: Step, part: str, fresh: list[Block]) -> Shard:
    """One of the writes of which a step consists."""
    match part:
        case "entries":
            new = {(lane, block.seq) for block in fresh for lane in block.lanes}
            return shard._replace(entries=shard.entries | new)
        case "progress":
            done = {(block.event, lane) for block in fresh for lane in block.lanes}
            return shard._replace(done=shard.done | done)
        case _:
            return risen_by(moved(shard, step), fresh, masks(fresh))._replace(
                last_step=step, last_verdicts=masks(fresh)
            )


def masks(blocks: list[Block]) -> Verdicts:
    return tuple(sum(1 << lane for lane in block.lanes) for block in blocks)


def risen_by(shard: Shard, blocks: Sequence[Block], verdicts: Verdicts) -> Shard:
    """lane_last after blocks, by the room's own function."""
    steps = [_record_step(block) for block in blocks]
    risen = logic.raised_lane_last(shard_state_of(shard).lane_last, steps, verdicts)
    return shard._replace(lane_last=tuple(risen[lane] for lane in WATCHED))


@cache
def _record_step(block: Block) -> RecordStep:
    dispatch = dispatch_of(block.event, 1, EVENTS[block.event])
    return logic.record_step(Arrived(block.seq, dispatch, AT_MS), dispatch.blocks)


def seen_by_readers(shard: Shard) -> Shard:
    state = shard_state_of(shard)
    risen = tuple(
        max(served, watermark(state, lane))
        for lane, served in zip(WATCHED, shard.served, strict=True)
    )
    return shard._replace(served=risen)
