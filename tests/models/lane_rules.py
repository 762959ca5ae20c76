"""What keeps a mailbox shard right through refusals, retries and restarts, rule by rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.models import lanes
from tests.models.lane_store import Block, MailboxPromise, Shard, Step, TornPromise
from tests.models.lanes import LanesModel
from tests.models.rules import Removal

from qimd.core.records import LaneBlock
from qimd.core.seq import MailboxSeq
from qimd.mailbox import logic
from qimd.mailbox.logic import Arrived, Marks
from qimd.ports.mailbox import EpochBoundary, EpochMark, RecordStep, ShardState, resume_offset


def _models(store: MailboxPromise, *sizes: tuple[int, int, int, int]) -> list[LanesModel]:
    """The sizes: records, refused blocks, lost replies, restarts; the smallest first."""
    return [
        LanesModel(store, records, 2, refusals, losses, restarts)
        for records, refusals, losses, restarts in sizes
    ]


AT_ONCE: Final = _models(MailboxPromise(), (3, 1, 0, 0), (3, 1, 0, 1), (3, 1, 1, 1))
TORN: Final = _models(TornPromise(), (2, 0, 1, 1), (3, 0, 1, 1), (2, 1, 1, 1))
MODELS: Final = (AT_ONCE[-1], *TORN[-2:])


def _always(*_: object) -> bool:
    return True


def _never(*_: object) -> bool:
    return False


def _by_the_largest(marks: Sequence[EpochMark], fencing_epoch: int, _: MailboxSeq) -> bool:
    return any(mark.fencing_epoch > fencing_epoch for mark in marks)


def _no_marks(_: MailboxPromise, shard: Shard, step: Step) -> tuple[EpochMark, ...]:
    return shard.marks


def _marks_of_entries(_: MailboxPromise, shard: Shard, step: Step) -> tuple[EpochMark, ...]:
    written = {
        block.seq
        for block in step.blocks
        if any((block.event, lane) not in shard.done for lane in block.lanes)
    }
    return (*shard.marks, *(mark for mark in step.marks if mark.first_seq in written))


def _all_blocks(
    blocks: tuple[LaneBlock, ...], _: Mapping[int, MailboxSeq]
) -> tuple[LaneBlock, ...]:
    return blocks


def _retried_unjudged(_: Marks, batch: Sequence[Arrived], lane: int) -> tuple[RecordStep, ...]:
    return tuple(
        logic.record_step(arrived, blocks)
        for arrived in batch
        if (blocks := tuple(b for b in arrived.dispatch.blocks if b.lane == lane))
    )


def _nothing_lags(state: ShardState, _: RecordStep) -> dict[int, MailboxSeq]:
    return dict(state.lagging)


def _retry_ends_it(state: ShardState, lane: int, _: MailboxSeq) -> dict[int, MailboxSeq]:
    return {other: seq for other, seq in state.lagging.items() if other != lane}


def _from_the_position(boundary: EpochBoundary, after: MailboxSeq) -> int:
    return resume_offset(boundary, after) + 1


def _all_lanes(_: MailboxPromise, __: Shard, block: Block) -> tuple[int, ...]:
    return block.lanes


def _no_lane_lags(_: MailboxPromise, shard: Shard) -> Shard:
    return _opened(MailboxPromise(), shard)._replace(lagging=())


_opened = MailboxPromise.opened


def _newest_kept(_: MailboxPromise, shard: Shard) -> Shard:
    return shard._replace(marks=shard.marks[:1])


REMOVALS: Final = (
    Removal("a stale record is dropped", logic, "is_stale", _never, AT_ONCE, "stale, or a double"),
    Removal(
        "stale is judged by what came before, not by the largest epoch so far",
        logic,
        "is_stale",
        _by_the_largest,
        AT_ONCE,
        "stale, or a double",
    ),
    Removal(
        "epoch marks are durable",
        MailboxPromise,
        "marks_of",
        _no_marks,
        AT_ONCE,
        "stale, or a double",
    ),
    Removal(
        "a duplicate raises the mark, too",
        MailboxPromise,
        "marks_of",
        _marks_of_entries,
        AT_ONCE,
        "stale, or a double",
    ),
    Removal(
        "folding keeps the largest epoch's mark",
        MailboxPromise,
        "folded",
        _newest_kept,
        AT_ONCE,
        "stale, or a double",
    ),
    Removal(
        "a lane that lags is not overtaken",
        logic,
        "blocks_of_others",
        _all_blocks,
        AT_ONCE,
        "stale, or a double",
    ),
    Removal(
        "a retried block is judged again",
        logic,
        "plan_lane",
        _retried_unjudged,
        AT_ONCE,
        "stale, or a double",
    ),
    Removal(
        "a lane whose block is refused stands before it",
        logic,
        "set_aside",
        _nothing_lags,
        AT_ONCE,
        "lacks the entry",
    ),
    Removal(
        "a retried lane stands where it has come to",
        logic,
        "lagging_at",
        _retry_ends_it,
        AT_ONCE,
        "lacks the entry",
    ),
    Removal(
        "a lane reads on right behind its own W",
        lanes,
        "resume_offset",
        _from_the_position,
        AT_ONCE,
        "not finished",
    ),
    Removal(
        "which lanes lag is durable",
        MailboxPromise,
        "opened",
        _no_lane_lags,
        AT_ONCE,
        "stale, or a double",
    ),
    Removal(
        "a dispatch is written to a lane once",
        MailboxPromise,
        "fresh",
        _all_lanes,
        AT_ONCE,
        "stale, or a double",
    ),
    Removal(
        "a commit is only the present term's",
        MailboxPromise,
        "may_write",
        _always,
        AT_ONCE,
        "wrote after term",
    ),
    Removal("watermarks only rise", MailboxPromise, "only_rises", _always, AT_ONCE, "went back"),
    Removal(
        "entries are written before progress",
        TornPromise,
        "stages",
        (("marks",), ("progress",), ("entries",), ("watermarks",)),
        TORN,
        "lacks the entry",
    ),
    Removal(
        "entries are written before W",
        TornPromise,
        "stages",
        (("marks",), ("watermarks",), ("entries",), ("progress",)),
        TORN,
        "lacks the entry",
    ),
    Removal(
        "marks are written before W",
        TornPromise,
        "stages",
        (("entries",), ("progress",), ("watermarks",), ("marks",)),
        TORN,
        "stale, or a double",
    ),
    Removal(
        "progress is written before W",
        TornPromise,
        "stages",
        (("marks",), ("entries",), ("watermarks",), ("progress",)),
        TORN,
        "stale, or a double",
    ),
)
