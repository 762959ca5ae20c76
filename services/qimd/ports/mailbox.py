"""Where mailboxes live: entries, dispatch progress, epoch marks, watermarks, devices.

A mutating step is on one partition key: a mailbox shard, or a device. Reads raise
QimError(UNAVAILABLE) when the engine can't answer.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from qimd.core.ids import DispatchId, EventId, UserId
from qimd.core.outcome import Outcome
from qimd.core.records import ConversationKey, DeviceKey, EventRef, LaneBlock, UserKey
from qimd.core.seq import MailboxSeq, epoch_of, offset_of

REBUILD_IDENTITY: Final = "rebuild"
"""The `log_identity` of an epoch that numbers a rebuild manifest instead of a log: its "offsets"
are places in the manifest, from 0. A real identity holds a slash, so the two never meet."""


@dataclass(frozen=True, slots=True)
class EpochBoundary:
    """Where a shard_epoch begins: its first offset in the log of that identity."""

    shard_epoch: int
    first_offset: int
    log_identity: str


@dataclass(frozen=True, slots=True)
class EpochMark:
    """A fencing epoch of a conversation, with the mailbox_seq of its first record in this shard."""

    fencing_epoch: int
    first_seq: MailboxSeq


@dataclass(frozen=True, slots=True)
class DayBucket:
    """Records from `first_seq` on have log time on `day` (days since 1970) or later.

    A seq and not an offset, since offsets begin anew with a rebase and seqs never do.
    """

    day: int
    first_seq: MailboxSeq


@dataclass(frozen=True, slots=True)
class ShardState:
    """A mailbox shard as its owner finds it.

    `position`: everything at or below it is finished, but for the lanes in `lagging`, each with its
    own watermark. W[lane] is lagging.get(lane, position). `lane_last[lane]` is the seq of the last
    entry recorded for the lane (0: none). Nothing at or below `floor` can be pulled (W_floor of
    every lane, since it moves by day buckets alone).
    """

    shard: int
    term: int
    next_offset: int
    position: MailboxSeq
    lagging: Mapping[int, MailboxSeq]
    floor: MailboxSeq
    lane_last: tuple[MailboxSeq, ...]
    boundaries: tuple[EpochBoundary, ...]
    buckets: tuple[DayBucket, ...]


@dataclass(frozen=True, slots=True)
class RecordStep:
    """One record's blocks to materialise.

    `blocks` may be a part of the record's, or empty (a record that is only marked). `chunk_count`
    and `chunk_index` are the record's, for audit and trace.
    """

    seq: MailboxSeq
    ref: EventRef
    dispatch_id: DispatchId
    content_digest: bytes
    fencing_epoch: int
    chunk_index: int
    chunk_count: int
    blocks: Sequence[LaneBlock]


@dataclass(frozen=True, slots=True)
class ApplyStep:
    """Some records of one shard, in increasing seq, and where the shard stands after them.

    Applied only if the stored term is `term` and the stored position is `expected_position`;
    position, each lane's watermark and the floor only rise (HEAD_MOVED otherwise, nothing applied).
    Blocks, entries, progress, marks, buckets, lane_last and watermarks become visible together, or
    at least such that a retry is never dropped half-done and a duplicate never doubles. The same
    `request_id` again, if it is the shard's last, is Applied with the same result.

    Refusals: STALE_EPOCH (term), HEAD_MOVED, NO_SPACE, UNREACHABLE, REJECTED (the content of some
    block: narrow the step down to find it).
    """

    request_id: bytes
    shard: int
    term: int
    expected_position: MailboxSeq
    records: Sequence[RecordStep]
    marks: Sequence[tuple[ConversationKey, EpochMark]]
    buckets: Sequence[DayBucket]
    next_offset: int
    position: MailboxSeq
    lagging: Mapping[int, MailboxSeq]
    at_ms: int


@dataclass(frozen=True, slots=True)
class RecordVerdict:
    """What became of one RecordStep.

    `applied` and `duplicate` are lane masks; `digest_differs` says that the dispatch_id is known
    with other content: none of its blocks was applied.
    """

    applied: int
    duplicate: int
    digest_differs: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A mailbox entry: a reference to an event at its seq."""

    seq: MailboxSeq
    ref: EventRef


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device's durable position.

    Invariant: `acked` is never above `handed`, the largest covered_through that was handed to the
    device. Breaking it means that something else than a PULL moved the cursor.
    """

    acked: MailboxSeq
    handed: MailboxSeq


@dataclass(frozen=True, slots=True)
class MaterialisedRecord:
    """A record as the shard keeps it."""

    shard: int
    seq: MailboxSeq
    ref: EventRef
    dispatch_id: DispatchId
    fencing_epoch: int
    chunk_index: int
    chunk_count: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """A log record that a lagging lane still needs, kept beyond the log's retention.

    Nothing between `after` and `seq` is for a lane that lags behind `seq`, nor the record at `seq`
    if `value`, the record's bytes, is empty. So a reader sees whether what is kept is whole: each
    one's `after` must not be above what was reached before it. `timestamp_ms` is the log's.
    """

    after: MailboxSeq
    seq: MailboxSeq
    timestamp_ms: int
    value: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Collected:
    """How many dispatches were forgotten, and whether there may be more to forget at once."""

    forgotten: int
    more: bool


class MailboxStore(Protocol):
    """See the module."""

    @property
    def restarts(self) -> int:
        """How often this process has seen the engine start anew. A start of an engine that writes
        behind its acknowledgements may lack the last of what was acknowledged, so whoever believes
        what it read or wrote before reads it again.

        No call reaches a start that was not counted here when the call was made. So nothing builds
        on what is lost if `restarts` is compared right before each call.
        """

    # the shard's steps

    async def open_shard(self, shard: int, term: int, first: EpochBoundary) -> Outcome[ShardState]:
        """Make `term` the shard's and give its state; a shard that is new begins at `first`.

        STALE_EPOCH if the stored term is above. Repeating it changes nothing.
        """

    async def apply(self, step: ApplyStep) -> Outcome[Sequence[RecordVerdict]]:
        """See ApplyStep; a verdict for each record."""

    async def fold_marks(self, shard: int, term: int, below: MailboxSeq) -> Outcome[int]:
        """Fold a conversation's marks at or below `below` into the one of the largest epoch."""

    async def expire_buckets(
        self, shard: int, term: int, floor: MailboxSeq, limit: int
    ) -> Outcome[int]:
        """Raise the floor, then drop up to `limit` records with their entries at or below it; how
        many records went. The floor rises first: what is half gone is never pulled.
        """

    async def collect_progress(
        self, shard: int, term: int, through: MailboxSeq, limit: int
    ) -> Outcome[Collected]:
        """Forget the progress of dispatches, those first that were seen first, by a look at up to
        `limit` of the places where one was seen. Whoever brings such a dispatch again brings a new
        one.

        Each time that a dispatch was seen counts, also as a duplicate: its progress stays while one
        of them lies above `through`, the floor or a lane's watermark, or at a record that has not
        gone yet. STALE_EPOCH (term), NOT_FOUND without such a shard, UNREACHABLE.
        """

    async def begin_epoch(
        self, shard: int, term: int, boundary: EpochBoundary
    ) -> Outcome[ShardState]:
        """Append a boundary to the shard's (an operator's rebase, design section 7).

        In one atomic step: the boundary is appended, `next_offset` becomes its first_offset,
        `position` becomes `before_offset(shard_epoch, first_offset)`, and no lane lags any more.
        floor, lane_last, marks, buckets, entries and progress stay as they are, up to each lane's
        watermark. What an engine whose steps are not atomic holds above it, of steps that were not
        finished, or gets later, of steps under way, never shows and makes nothing a duplicate.

        Applied only if the stored term is `term` (STALE_EPOCH) and boundary.shard_epoch is the last
        boundary's plus 1 (CONFLICT). The boundary that is the shard's last one already: Applied
        with the state as it is now, nothing changed. NOT_FOUND without such a shard; NO_SPACE,
        UNREACHABLE as ever.
        """

    # records of lagging lanes, beyond the log's retention

    async def keep_records(
        self, shard: int, term: int, records: Sequence[KeptRecord]
    ) -> Outcome[None]:
        """Keep them durably; one that is there at the same seq already stays as it is.

        Refusals: STALE_EPOCH (term), NOT_FOUND without such a shard, NO_SPACE, UNREACHABLE,
        REJECTED.
        """

    async def kept_records(self, shard: int, after: MailboxSeq, limit: int) -> Sequence[KeptRecord]:
        """Up to `limit` kept records whose seq is above `after`, in order."""

    async def drop_kept(self, shard: int, term: int, through: MailboxSeq) -> Outcome[int]:
        """Drop those whose seq is at or below `through`; how many went. Fenced like keeping."""

    # the shard's reads

    async def shard_state(self, shard: int) -> ShardState | None:
        """The shard as it is stored, without making a term its own; None if it was never opened."""

    async def epoch_marks(
        self, shard: int, keys: Sequence[ConversationKey]
    ) -> Mapping[ConversationKey, Sequence[EpochMark]]:
        """The marks of some conversations, by increasing first_seq."""

    async def records_of(self, event_id: EventId) -> Sequence[MaterialisedRecord]:
        """What all shards hold of one event."""

    async def records_after(
        self, shard: int, after: MailboxSeq, limit: int
    ) -> Sequence[MaterialisedRecord]:
        """Records above `after`, in order."""

    async def dispatch_counts(
        self, event_ids: Sequence[EventId]
    ) -> Mapping[EventId, tuple[int, int]]:
        """(distinct dispatches that the shards hold, chunk_count) of each event that has one."""

    # a user's reads

    async def entries(
        self, user: UserKey, after: MailboxSeq, through: MailboxSeq, limit: int
    ) -> Sequence[Entry]:
        """Entries in (after, through], in order."""

    async def entry_seqs(
        self, user: UserKey, key: ConversationKey, from_seq: int, through_seq: int
    ) -> Mapping[int, MailboxSeq]:
        """conversation_seq → mailbox_seq of the user's entries of a conversation, in the range."""

    # devices

    async def open_device(self, device: DeviceKey, floor: MailboxSeq) -> Outcome[DeviceState]:
        """The device's state; a new one begins at `floor`, acked and handed."""

    async def ack(
        self, device: DeviceKey, position: MailboxSeq, handed: MailboxSeq
    ) -> Outcome[DeviceState]:
        """Raise `acked` to `position` and `handed` to `handed`; both only rise."""


def mask_users(blocks: Sequence[LaneBlock], mask: int) -> list[UserId]:
    """The users of the blocks whose lane is in the mask."""
    users: list[UserId] = []
    for block in blocks:
        if mask >> block.lane & 1:
            users.extend(block.users)
    return users


# --- what these values mean, for every room that reads them ----------------------------------


def watermark(state: ShardState, lane: int) -> MailboxSeq:
    """W[lane]: every record at or below it is finished for that lane."""
    return state.lagging.get(lane, state.position)


def lowest_watermark(state: ShardState) -> MailboxSeq:
    """The smallest W: every record at or below it is finished for all lanes."""
    return min((state.position, *state.lagging.values()))


def resume_offset(boundary: EpochBoundary, after: MailboxSeq) -> int:
    """The log offset behind the seq `after`, in the epoch that `boundary` begins."""
    if epoch_of(after) < boundary.shard_epoch:
        return boundary.first_offset
    return offset_of(after) + 1


def finished(state: ShardState, offset: int) -> bool:
    """Whether every lane has finished all records below an offset of the epoch that is current."""
    return resume_offset(state.boundaries[-1], lowest_watermark(state)) >= offset


def is_stale(marks: Sequence[EpochMark], fencing_epoch: int, seq: MailboxSeq) -> bool:
    """Whether a larger epoch first appeared before `seq`. `marks` are by increasing first_seq."""
    before = bisect_left(marks, seq, key=lambda mark: mark.first_seq)
    # Only an epoch that was the largest so far left a mark: the last one before is the largest.
    return before > 0 and marks[before - 1].fencing_epoch > fencing_epoch


def reach(kept: Sequence[KeptRecord], after: MailboxSeq) -> MailboxSeq:
    """How far kept records, the next ones behind `after`, are whole; `after` if not at all."""
    for record in kept:
        if record.after > after:
            break
        after = record.seq
    return after
