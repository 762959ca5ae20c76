"""What a mailbox shard decides: which records are stale, what is applied where, how far W stands.

A shard reads one partition of the dispatch log in order. Its watermark is one `position` plus the
lanes that lag behind it. What goes wrong here loses or doubles messages, so the rules are pure
functions of the log:

- A record is stale if a larger fencing epoch of its conversation *first appeared before it* in this
  shard (`ports.mailbox.is_stale`). Judged by place and not by "the largest epoch seen so far", a
  block that is retried, or replayed after a crash, gets the verdict that it got the first time,
  although a newer epoch has arrived since. Judged at the time of writing, it would be dropped, and
  lost.
- A lane whose block the store refuses stops; everything else goes on (`plan`). Behind the failed
  block the lane keeps no queue: it reads the log again from its own watermark, so nothing of it can
  overtake, and a restart has nothing to restore.
- Numbers only rise within a lane (`regression`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import lt
from typing import Final

from qimd.core.parameters import (
    BUCKET_DAYS_KEPT,
    LANE_RETRY_MAX_S,
    LANE_RETRY_MIN_S,
    LANE_STALL_ALERT_S,
    LANE_STALL_FAILOVER_S,
    LANES,
)
from qimd.core.records import ConversationKey, Dispatch, LaneBlock
from qimd.core.seq import SEQ_NONE, MailboxSeq, mailbox_seq, offset_of
from qimd.ports.mailbox import (
    DayBucket,
    EpochBoundary,
    EpochMark,
    RecordStep,
    ShardState,
    is_stale,
    lowest_watermark,
    watermark,
)

DAY_MS: Final = 24 * 3600 * 1000
Marks = Mapping[ConversationKey, tuple[EpochMark, ...]]


# --- the epoch filter (checkpoint 2) ----------------------------------------------------------


def raises_mark(marks: Sequence[EpochMark], fencing_epoch: int) -> bool:
    """Whether a record behind all marks brings a new largest epoch: a duplicate does, too."""
    return not marks or fencing_epoch > marks[-1].fencing_epoch


# --- a batch ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """A decoded record at its seq. `timestamp_ms` is the log's append time."""

    seq: MailboxSeq
    dispatch: Dispatch
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a batch writes: the blocks of the lanes that keep up, and the marks of all records."""

    records: tuple[RecordStep, ...]
    marks: tuple[tuple[ConversationKey, EpochMark], ...]
    buckets: tuple[DayBucket, ...]
    stale: int
    """Records dropped whole."""


def plan(state: ShardState, marks: Marks, batch: Sequence[Arrived]) -> Plan:
    """Decide about a batch behind the position. Blocks of lagging lanes are left to their retry.

    `marks` holds the history of each conversation of the batch.
    """
    records: list[RecordStep] = []
    new_marks: list[tuple[ConversationKey, EpochMark]] = []
    history: dict[ConversationKey, tuple[EpochMark, ...]] = {}
    stale = 0
    for arrived in batch:
        key, epoch = arrived.dispatch.ref.key, arrived.dispatch.fencing_epoch
        known = history.get(key) or marks.get(key, ())
        if is_stale(known, epoch, arrived.seq):
            stale += 1
            continue
        if raises_mark(known, epoch):
            mark = EpochMark(epoch, arrived.seq)
            new_marks.append((key, mark))
            history[key] = (*known, mark)
        blocks = blocks_of_others(arrived.dispatch.blocks, state.lagging)
        if blocks:
            records.append(record_step(arrived, blocks))
    buckets = new_buckets(state.buckets, batch)
    return Plan(tuple(records), tuple(new_marks), buckets, stale)


def plan_lane(marks: Marks, batch: Sequence[Arrived], lane: int) -> tuple[RecordStep, ...]:
    """What a lagging lane still has to write of records that the shard has passed already."""
    return tuple(
        record_step(arrived, blocks)
        for arrived in batch
        if (blocks := tuple(b for b in arrived.dispatch.blocks if b.lane == lane))
        and not is_stale(
            marks.get(arrived.dispatch.ref.key, ()), arrived.dispatch.fencing_epoch, arrived.seq
        )
    )


def blocks_of_others(
    blocks: tuple[LaneBlock, ...], lagging: Mapping[int, MailboxSeq]
) -> tuple[LaneBlock, ...]:
    """The blocks whose lane keeps up; the very tuple if all do, so that caches by identity hit."""
    if not lagging or not any(block.lane in lagging for block in blocks):
        return blocks
    return tuple(block for block in blocks if block.lane not in lagging)


def record_step(arrived: Arrived, blocks: Sequence[LaneBlock]) -> RecordStep:
    """A record with some of its blocks."""
    dispatch = arrived.dispatch
    return RecordStep(
        seq=arrived.seq,
        ref=dispatch.ref,
        dispatch_id=dispatch.dispatch_id,
        content_digest=dispatch.content_digest,
        fencing_epoch=dispatch.fencing_epoch,
        chunk_index=dispatch.chunk_index,
        chunk_count=dispatch.chunk_count,
        blocks=blocks,
    )


def lagging_at(state: ShardState, lane: int, seq: MailboxSeq) -> dict[int, MailboxSeq]:
    """The lanes that lag once this one stands at `seq`: one that met the position does not."""
    lagging = {other: at for other, at in state.lagging.items() if other != lane}
    if seq < state.position:
        lagging[lane] = seq
    return lagging


def set_aside(state: ShardState, record: RecordStep) -> dict[int, MailboxSeq]:
    """The lanes that lag once a record that is refused has been passed: all of its lanes stand
    where the shard stood before it, until each one's block is tried alone.
    """
    return {**state.lagging, **{block.lane: state.position for block in record.blocks}}


def split(batch: Sequence[Arrived], entries_max: int) -> Iterable[Sequence[Arrived]]:
    """Cut a batch where its recipients exceed `entries_max`; a single record is never cut."""
    start = entries = 0
    for index, arrived in enumerate(batch):
        recipients = arrived.dispatch.recipients
        if index > start and entries + recipients > entries_max:
            yield batch[start:index]
            start, entries = index, 0
        entries += recipients
    if start < len(batch):
        yield batch[start:]


def regression(lane_last: Sequence[MailboxSeq], records: Sequence[RecordStep]) -> int | None:
    """The first lane whose next entry would not be above its last one; None if there is none."""
    seqs = [max(lane_last), *(record.seq for record in records)]
    if all(map(lt, seqs, seqs[1:])):
        # Each is above whatever any lane holds: no need to ask which lanes it is for.
        return None
    last = list(lane_last)
    for record in records:
        for block in record.blocks:
            if record.seq <= last[block.lane]:
                return block.lane
            last[block.lane] = record.seq
    return None


def went_back(before: ShardState, after: ShardState) -> bool:
    """Whether some lane's watermark is lower than it was."""
    return any(watermark(after, lane) < watermark(before, lane) for lane in range(LANES))


def raised_lane_last(
    lane_last: Sequence[MailboxSeq], records: Sequence[RecordStep], applied: Sequence[int]
) -> tuple[MailboxSeq, ...]:
    """lane_last after records of which the lanes in the masks `applied` were recorded."""
    last = list(lane_last)
    # Of records for the same lanes the last one counts, and is the largest: seqs increase.
    for mask, seq in dict(zip(applied, (record.seq for record in records), strict=True)).items():
        for lane in lanes_of(mask):
            last[lane] = max(last[lane], seq)
    return tuple(last)


def lanes_of(mask: int) -> Iterable[int]:
    """The lanes in a mask, in order."""
    return (lane for lane in range(LANES) if mask >> lane & 1)


def recipients(blocks: Iterable[LaneBlock], mask: int) -> int:
    """How many users the blocks of the lanes in a mask have."""
    return sum(len(block.users) for block in blocks if mask >> block.lane & 1)


# --- day buckets ------------------------------------------------------------------------------


def day_of(at_ms: int) -> int:
    """Days since 1970."""
    return at_ms // DAY_MS


def new_buckets(known: Sequence[DayBucket], batch: Sequence[Arrived]) -> tuple[DayBucket, ...]:
    """Buckets that a batch begins: log time that goes back stays in the bucket that is open."""
    day = known[-1].day if known else -1
    begun: list[DayBucket] = []
    for arrived in batch:
        if (own := day_of(arrived.timestamp_ms)) > day:
            day = own
            begun.append(DayBucket(own, arrived.seq))
    return tuple(begun)


def expired_floor(state: ShardState, now_ms: int) -> MailboxSeq:
    """Where the floor may stand now: below the oldest bucket kept. It never goes back.

    A lane that lags holds it: what it has not written yet must not count as gone.
    """
    end = _end_of_days(state, before=day_of(now_ms) - BUCKET_DAYS_KEPT)
    return max(state.floor, min(end, lowest_watermark(state)))


def collectable(state: ShardState, now_ms: int, window_ms: int) -> MailboxSeq:
    """Through where every record came longer ago than the replay safety window; days are whole."""
    return _end_of_days(state, before=day_of(now_ms - window_ms))


def reached_ms(state: ShardState) -> int:
    """No later than the log time of the last record that was read."""
    return state.buckets[-1].day * DAY_MS if state.buckets else 0


def _end_of_days(state: ShardState, *, before: int) -> MailboxSeq:
    """The last seq of the days before one; SEQ_NONE without any."""
    over = [bucket for bucket in state.buckets if bucket.day < before]
    if not over:
        return SEQ_NONE
    others = state.buckets[len(over) :]
    return MailboxSeq(others[0].first_seq - 1) if others else state.position


# --- a lane that lags -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stall:
    """A lagging lane's retry. Times are monotonic seconds."""

    since_s: float
    attempts: int = 0
    due_s: float = 0.0
    alerted: bool = False

    def failed(self, now_s: float, jitter: float) -> "Stall":
        """After another failure; `jitter` in [0, 1)."""
        wait_s = retry_wait_s(self.attempts, jitter)
        return Stall(self.since_s, self.attempts + 1, now_s + wait_s, self.alerted)

    def stalled_s(self, now_s: float) -> float:
        """How long the lane has stood."""
        return now_s - self.since_s

    def alert_due(self, now_s: float) -> bool:
        """Stands for `lane_stall_alert` and nobody was told."""
        return not self.alerted and self.stalled_s(now_s) >= LANE_STALL_ALERT_S

    def failover_due(self, now_s: float) -> bool:
        """Stands for `lane_stall_failover`: another node may do better."""
        return self.stalled_s(now_s) >= LANE_STALL_FAILOVER_S

    def told(self) -> "Stall":
        """After the alert."""
        return Stall(self.since_s, self.attempts, self.due_s, alerted=True)


def retry_wait_s(attempts: int, jitter: float) -> float:
    """Exponential back-off from `LANE_RETRY_MIN_S` to `LANE_RETRY_MAX_S`, half of it jittered, so
    that shards which failed together do not come back together.
    """
    full: float = min(LANE_RETRY_MIN_S * (1 << min(attempts, 16)), LANE_RETRY_MAX_S)
    return full * (0.5 + jitter / 2)


# --- start gates ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a shard refuses. `reason` is a class that callers may see; `detail` is for the log."""

    reason: str
    detail: str


def retention_fault(retention_ms: int | None, window_ms: int) -> Fault | None:
    """The log must keep records for the recovery window, provably: −1 and "unknown" are no proof.

    −1 means "for ever" to Kafka; seed 004 refuses it with what can't be read, since it also is what
    a misread setting looks like.
    """
    if retention_ms is None or retention_ms < 0:
        return Fault("retention_unknown", f"the log's retention reads {retention_ms}")
    if retention_ms < window_ms:
        return Fault("retention_short", f"{retention_ms} ms, below the window of {window_ms} ms")
    return None


def range_fault(next_offset: int, low: int, high: int) -> Fault | None:
    """The shard's next record must still be there, or be the next to come."""
    if low <= next_offset <= high:
        return None
    return Fault("out_of_range", f"position {next_offset} is outside [{low}, {high}]")


def seq_at(boundary: EpochBoundary, offset: int) -> MailboxSeq:
    """The seq of the record at an offset of the epoch that `boundary` begins."""
    return mailbox_seq(boundary.shard_epoch, offset)


def offset_behind(seq: MailboxSeq) -> int:
    """The offset after the record at `seq`."""
    return offset_of(seq) + 1
