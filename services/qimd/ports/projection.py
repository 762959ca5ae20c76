"""Where the session projection lives: rows, read marks, checkpoints (seed 004 is binding)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from qimd.core.ids import UserId
from qimd.core.outcome import Outcome
from qimd.core.records import ConversationKey, UserKey

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class CheckpointMeta:
    """What a checkpoint belongs to; any mismatch is SESSION_PROJECTION_DIRTY."""

    format_version: int
    topic: str
    partitions: int
    cluster_id: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class PartitionCheckpoint:
    """The next offset to project of one partition."""

    meta: CheckpointMeta
    next_offset: int


@dataclass(frozen=True, slots=True)
class ProjectedEvent:
    """What a session row needs of an event."""

    conversation_seq: int
    kind: int
    sender: UserId | None
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class ProjectionGroup:
    """Events of one conversation, in increasing conversation_seq, for the same distinct users."""

    key: ConversationKey
    events: Sequence[ProjectedEvent]
    users: Sequence[UserId]


@dataclass(frozen=True, slots=True)
class ProjectStep:
    """A batch of one partition: rows first, then the checkpoint by compare-and-set.

    For each user of a group: activity becomes the largest created_at; of the events above the row's
    applied_seq alone: unread grows by those that are others' messages above the read mark, and an
    own event moves the read mark to itself if nothing unread stood before it; applied_seq becomes
    the last. So a replay, also one with other batch bounds, changes nothing.

    Refusals: STALE_EPOCH (term), HEAD_MOVED (another owner moved the checkpoint), NO_SPACE,
    UNREACHABLE.
    """

    partition: int
    term: int
    expected_next: int
    next_offset: int
    groups: Sequence[ProjectionGroup]


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One conversation in a user's list. `applied_seq` is the last event the user received."""

    key: ConversationKey
    activity_ms: int
    applied_seq: int
    unread: int
    read_through: int


@dataclass(frozen=True, slots=True)
class RestoredRow:
    """A user's row as the store's events give it (`row.key` names tenant and conversation).

    It is a truth for ever: `unread` was counted for this very applied_seq and read_through.
    """

    user: UserId
    row: SessionRow


@dataclass(frozen=True, slots=True)
class RestoreStep:
    """Rows of one partition, of a rebuild. The checkpoint and the read marks stay as they are.

    Each row takes the place of the stored one, or is added, if the stored read mark (0 if there is
    none) is the row's `read_through` and the stored applied_seq is not above the row's; otherwise
    what is stored stays. So a repetition changes nothing, whenever it lands.

    Refusals: STALE_EPOCH (term), NOT_FOUND (the partition was never opened), NO_SPACE, UNREACHABLE.
    """

    partition: int
    term: int
    rows: Sequence[RestoredRow]


@dataclass(frozen=True, slots=True)
class PagePosition:
    """A place in a list that is ordered by (activity, conversation_id), the largest first."""

    activity_ms: int
    conversation: str


class ProjectionStore(Protocol):
    """See the module."""

    @property
    def restarts(self) -> int:
        """As `ports.mailbox.MailboxStore.restarts`."""

    async def checkpoint(self, partition: int) -> PartitionCheckpoint | None:
        """The stored checkpoint; None if there is none."""

    async def open_partition(
        self, partition: int, term: int, initial: PartitionCheckpoint
    ) -> Outcome[PartitionCheckpoint]:
        """Make `term` the partition's; a missing checkpoint begins as `initial`. STALE_EPOCH if the
        stored term is above. It never changes a checkpoint that is there.
        """

    async def project(self, step: ProjectStep) -> Outcome[None]:
        """See ProjectStep."""

    # a rebuild

    async def read_marks(self, places: Sequence[tuple[UserKey, ConversationKey]]) -> Sequence[int]:
        """The read mark of each place, in their order, one round trip; 0 where there is none."""

    async def restore(self, step: RestoreStep) -> Outcome[Sequence[int]]:
        """See RestoreStep. Gives the indexes, in `step.rows`, of the rows that were left out since
        their read mark is another: count them again.
        """

    async def reset_checkpoint(
        self, partition: int, term: int, expected: PartitionCheckpoint, wanted: PartitionCheckpoint
    ) -> Outcome[None]:
        """Replace the checkpoint `expected`, of whatever log, by `wanted`; Applied too if `wanted`
        is stored already. STALE_EPOCH (term), HEAD_MOVED if another one is stored, NOT_FOUND
        without the partition.
        """

    # a user's reads

    async def rows(
        self, user: UserKey, below: PagePosition | None, limit: int
    ) -> Sequence[SessionRow]:
        """The user's rows below a position, the largest first."""

    async def row(self, user: UserKey, key: ConversationKey) -> SessionRow | None:
        """One row."""

    async def mark_read(
        self, user: UserKey, key: ConversationKey, read_through: int, applied_seq: int, unread: int
    ) -> Outcome[SessionRow]:
        """Raise the read mark to `read_through` and set unread, if the row's applied_seq is still
        `applied_seq` and the stored mark is not above `read_through`. HEAD_MOVED otherwise: then
        `unread` was counted for other events, or from a mark that another device has passed; count
        again.
        With the stored mark itself only unread is set. Read marks survive a rebuild of the rows.
        """
