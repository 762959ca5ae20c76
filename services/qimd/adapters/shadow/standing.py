"""Where a shard stands in one engine, and how a step of one fits the other.

After a crash the two need not be at the same place: the shadow may lack the last steps, or, if it
was the primary before, be ahead. Ahead is harmless: entries and progress are functions of the log,
so what it holds already is absorbed. A shadow that lacks something can't be mended by later steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from qimd.core.parameters import LANES
from qimd.core.seq import MailboxSeq
from qimd.ports.mailbox import ApplyStep, ShardState


@dataclass(frozen=True, slots=True)
class Standing:
    """A shard's watermarks, as `ports.mailbox.ShardState` has them."""

    next_offset: int
    position: MailboxSeq
    lagging: Mapping[int, MailboxSeq]

    @classmethod
    def of(cls, after: ShardState | ApplyStep) -> "Standing":
        """Where a state is, or where a step leads."""
        return cls(after.next_offset, after.position, dict(after.lagging))

    def watermark(self, lane: int) -> MailboxSeq:
        """W[lane]."""
        return self.lagging.get(lane, self.position)

    def covers(self, other: "Standing") -> bool:
        """Whether no lane is below the other's."""
        return all(self.watermark(lane) >= other.watermark(lane) for lane in range(LANES))


def fitted(step: ApplyStep, there: Standing) -> ApplyStep | None:
    """The step for an engine that stands `there`: the same one where both stand alike.

    No watermark of an engine that is ahead is lowered. None if the engine lacks what came before.
    """
    if step.expected_position > there.position:
        return None
    after = Standing.of(step)
    if after.covers(there):
        return replace(step, expected_position=there.position)
    position = max(step.position, there.position)
    marks = {lane: max(after.watermark(lane), there.watermark(lane)) for lane in range(LANES)}
    return replace(
        step,
        expected_position=there.position,
        next_offset=step.next_offset if position == step.position else there.next_offset,
        position=position,
        lagging={lane: mark for lane, mark in marks.items() if mark < position},
    )
