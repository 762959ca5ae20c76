"""The projection's decisions: whether it may start, and how a batch of records becomes rows.

Pure. The gates are those of seed 004: what can't be proved to be the same log, complete from the
checkpoint on, is refused with its reason, which makes the projection dirty.

**Folding.** A batch holds one record for each event and chunk; most of them repeat the recipients
of the one before. Records of one conversation for the same users become one group, so that a
(user, conversation) is written once for the whole group. Groups are applied in order, so a record
may join an earlier group only if nothing between them concerns its users: `_Fold` says when.

**Stale epochs.** The projection judges none. A record exists only for a committed event, and its
content is a pure function of that event; whoever appends an event has seen those below it in the
log, or appends them first, and of an ordered run a prefix lands. So the first copies of a
conversation's events come in order, whichever epochs they carry, and the others are at or below
`applied_seq` and change nothing. To drop a stale copy would need marks that outlive the term, as
the mailbox's do: dropped by one owner, and its successor begins behind it, the next copy would
raise `applied_seq` past an event that nobody counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from qimd.core.ids import UserId
from qimd.core.records import ConversationKey, Dispatch, LaneBlock, LogIdentity
from qimd.ports.log import LogSettings, Watermarks
from qimd.ports.projection import (
    FORMAT_VERSION,
    CheckpointMeta,
    PartitionCheckpoint,
    ProjectedEvent,
    ProjectionGroup,
)

_ZERO_TOPIC_ID: Final = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Dirty:
    """Why the projection can't be proved complete. `reason` reaches operators, not clients."""

    reason: str


# --- start gates ------------------------------------------------------------------------------


def meta_of(identity: LogIdentity) -> CheckpointMeta:
    """What a checkpoint of this log says it belongs to."""
    return CheckpointMeta(
        format_version=FORMAT_VERSION,
        topic=identity.topic,
        partitions=identity.partitions,
        cluster_id=identity.cluster_id,
        topic_id=identity.topic_id,
    )


def judge_identity(
    first: LogIdentity, before: LogIdentity, after: LogIdentity, partitions: int
) -> Dirty | None:
    """Whether one log was looked at all along, and it is one whose identity can be proved.

    `before` and `after` were read on either side of the watermarks; `first` is the inspection's
    (equal to `before` at the inspection itself).
    """
    if not first == before == after:
        return Dirty("the log's identity changed while it was looked at")
    if first.topic_id in ("", _ZERO_TOPIC_ID) or not first.cluster_id:
        return Dirty("the log has no topic id or cluster id, so its identity can't be proved")
    if first.partitions != partitions:
        return Dirty(f"the topic has {first.partitions} partitions, not exactly {partitions}")
    return None


def judge_retention(settings: LogSettings, recovery_window_ms: int) -> Dirty | None:
    """Whether the log keeps what a stop of the recovery window's length needs."""
    if settings.retention_ms is None:
        return Dirty("the log does not tell its retention.ms, or it can't be read")
    if settings.retention_ms < 0:
        return Dirty("retention.ms is -1: nothing bounds it, so nothing proves it")
    if settings.retention_ms < recovery_window_ms:
        return Dirty(
            f"retention.ms is {settings.retention_ms}, below the recovery window of "
            f"{recovery_window_ms}"
        )
    return None


def judge_checkpoint(
    stored: PartitionCheckpoint | None, meta: CheckpointMeta, marks: Watermarks
) -> PartitionCheckpoint | Dirty:
    """Where to project from: the stored checkpoint, or the log's beginning if it is all there."""
    if stored is None:
        if marks.low > 0:
            return Dirty(f"there is no checkpoint, and the log begins at {marks.low}, not at 0")
        return PartitionCheckpoint(meta, 0)
    if stored.meta != meta:
        return Dirty("the checkpoint belongs to another log, format or partition count")
    if not marks.low <= stored.next_offset <= marks.high:
        return Dirty(
            f"the checkpoint at {stored.next_offset} is outside of the log's "
            f"[{marks.low}, {marks.high}]"
        )
    return stored


def judge_first_log(identity: LogIdentity, noted: str | None) -> Dirty | None:
    """Whether a partition without a checkpoint may begin with this log.

    `noted` is the log that the deployment's dispatches first went to, None if there was none; read
    behind the identity.
    """
    if noted is None or noted == identity.text:
        return None
    return Dirty(f"there is no checkpoint, and dispatches went to another log before ({noted})")


def judge_record(dispatch: Dispatch, partition: int, log_identity: str) -> Dirty | None:
    """Whether a record belongs where it was found."""
    if dispatch.log_identity != log_identity:
        return Dirty("a record was produced to another log")
    if dispatch.mailbox_shard != partition:
        return Dirty(f"a record of mailbox shard {dispatch.mailbox_shard} is in this partition")
    return None


# --- folding ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoldedStep:
    """The groups of some consecutive records; `records` of them, and `rows` row writes in all."""

    groups: tuple[ProjectionGroup, ...]
    records: int
    rows: int


def fold(dispatches: Sequence[Dispatch | None], rows_max: int) -> tuple[FoldedStep, ...]:
    """Consecutive records as steps of at most `rows_max` row writes (one record may exceed it).

    None stands for a record that projects nothing: quarantined. Applying the steps is the
    same as applying the records one by one.
    """
    steps: list[FoldedStep] = []
    current = _Fold()
    for dispatch in dispatches:
        if dispatch is not None and not current.take(dispatch, rows_max):
            steps.append(current.step())
            current = _Fold()
            current.take(dispatch, rows_max)
        current.records += 1
    if current.records:
        steps.append(current.step())
    return tuple(steps)


_Span = tuple[tuple[int, str], tuple[int, str]]
"""The first and the last of some users by (lane, user), the order in which they are cut."""


class _Group:
    """A group in the making. `span` bounds its users; None if a record lists one twice."""

    __slots__ = ("events", "key", "span", "users")

    def __init__(self, key: ConversationKey, users: tuple[UserId, ...], span: _Span | None) -> None:
        self.key = key
        self.users = users
        self.span = span
        self.events: list[ProjectedEvent] = []

    def apart(self, other: "_Group") -> bool:
        """Whether they certainly share no user; chunks of one event are apart by their spans."""
        if self.span is None or other.span is None:
            return False
        return self.span[1] < other.span[0] or other.span[1] < self.span[0]


class _Fold:
    """The groups of one step, and which of them a conversation's next record may join."""

    def __init__(self) -> None:
        self.records = 0
        self._rows = 0
        self._order: list[_Group] = []
        self._of: dict[ConversationKey, list[_Group]] = {}
        # By the identity of blocks, which most records share, and the batch keeps alive.
        self._audiences: dict[int, tuple[tuple[UserId, ...], _Span | None]] = {}

    def take(self, dispatch: Dispatch, rows_max: int) -> bool:
        """Put a record into its group; False if it needs a new one and the step is full."""
        place = id(dispatch.blocks)
        if place not in self._audiences:
            self._audiences[place] = _audience_of(dispatch.blocks)
        group = _Group(dispatch.ref.key, *self._audiences[place])
        event = _event_of(dispatch)
        of_conversation = self._of.setdefault(group.key, [])
        for index in range(len(of_conversation) - 1, -1, -1):
            earlier = of_conversation[index]
            if earlier.users is group.users or earlier.users == group.users:
                # These very users have this event already: a replay in one batch.
                if event.conversation_seq > earlier.events[-1].conversation_seq:
                    earlier.events.append(event)
                return True
            if not earlier.apart(group):
                # It may concern the same users: this record must come after it.
                break
        if self._order and self._rows + len(group.users) > rows_max:
            return False
        group.events.append(event)
        of_conversation.append(group)
        self._order.append(group)
        self._rows += len(group.users)
        return True

    def step(self) -> FoldedStep:
        """What was taken."""
        groups = tuple(
            ProjectionGroup(group.key, tuple(group.events), group.users) for group in self._order
        )
        return FoldedStep(groups, self.records, self._rows)


def _audience_of(blocks: Sequence[LaneBlock]) -> tuple[tuple[UserId, ...], _Span | None]:
    listed = sum(len(block.users) for block in blocks)
    users = tuple(dict.fromkeys(chain.from_iterable(block.users for block in blocks)))
    if len(users) < listed:
        return users, None
    first, last = blocks[0], blocks[-1]
    return users, ((first.lane, first.users[0]), (last.lane, last.users[-1]))


def _event_of(dispatch: Dispatch) -> ProjectedEvent:
    ref = dispatch.ref
    return ProjectedEvent(ref.conversation_seq, ref.kind, ref.sender, ref.created_at_ms)


# --- read marks -------------------------------------------------------------------------------


def clamp_mark(stored: int, wanted: int, applied_seq: int) -> int:
    """The read mark after MARK_READ: it only rises, and never above what the user has."""
    return max(stored, min(wanted, applied_seq))
