"""The plain values that flow from room to room. Encoding them is the contract's work."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from qimd.core.ids import ConversationId, DeviceId, DispatchId, EventId, TenantId, UserId
from qimd.core.seq import MailboxSeq


class EventKind(IntEnum):
    """Numbers equal those of `qim.conversation.v1.EventKind`; others are carried, not made."""

    MESSAGE = 1
    REACTION = 2
    MEMBERSHIP = 3


@dataclass(frozen=True, slots=True)
class ConversationKey:
    """A conversation of a tenant."""

    tenant: TenantId
    conversation: ConversationId


@dataclass(frozen=True, slots=True)
class UserKey:
    """A user of a tenant."""

    tenant: TenantId
    user: UserId


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """A device of a user."""

    tenant: TenantId
    user: UserId
    device: DeviceId

    @property
    def owner(self) -> UserKey:
        """The user."""
        return UserKey(self.tenant, self.user)


@dataclass(frozen=True, slots=True)
class Interval:
    """A membership: the user sees the events in [added_seq, removed_seq], the removal included.

    `removed_seq` is 0 while the user is a member. Recipients of a message at seq n are those with
    added_seq <= n and (removed_seq == 0 or n < removed_seq); the membership events at added_seq and
    removed_seq themselves are seen too.
    """

    added_seq: int
    removed_seq: int = 0

    def sees(self, conversation_seq: int) -> bool:
        """Whether the event at this seq lies inside, the own removal included."""
        return self.added_seq <= conversation_seq and (
            self.removed_seq == 0 or conversation_seq <= self.removed_seq
        )


@dataclass(frozen=True, slots=True)
class Event:
    """A committed event with what its dispatch pins, so that a replay builds the same records."""

    key: ConversationKey
    conversation_seq: int
    event_id: EventId
    kind: int
    sender: UserId | None
    sender_device: DeviceId | None
    created_at_ms: int
    membership_version: int
    routing_version: int
    chunk_recipients: int
    encoded: bytes = field(repr=False)
    """The `ConversationEvent`, strictly encoded once: pages and pushes carry these bytes."""
    trace_parent: str = ""
    added: tuple[UserId, ...] = ()
    removed: tuple[UserId, ...] = ()
    """Membership events alone; strictly increasing by bytes."""


@dataclass(frozen=True, slots=True)
class EventRef:
    """What a mailbox keeps of an event: a reference."""

    key: ConversationKey
    conversation_seq: int
    event_id: EventId
    kind: int
    sender: UserId | None
    created_at_ms: int


class LaneBlock(NamedTuple):
    """Recipients of a record that share a lane, strictly increasing by bytes.

    A tuple and no dataclass: a record of 500 recipients has 64 of them, made and hashed as a part
    of each record that is read, and both are done in C.
    """

    lane: int
    users: tuple[UserId, ...]


def lane_mask(blocks: Iterable[LaneBlock]) -> int:
    """The lanes of blocks: bit i for lane i."""
    mask = 0
    for block in blocks:
        mask |= 1 << block.lane
    return mask


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """What proves that two looks at a topic see the same log."""

    cluster_id: str
    topic: str
    topic_id: str
    """The topic's UUID as text, never the zero one."""
    partitions: int

    @property
    def text(self) -> str:
        """`<cluster id>/<topic id>`, as each record carries it.

        Injective: the UUID is last and fixed.
        """
        return f"{self.cluster_id}/{self.topic_id}"


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A GroupDispatch in core terms: what the codec gives for strictly decoded bytes."""

    fencing_epoch: int
    ref: EventRef
    dispatch_id: DispatchId
    sender_device: DeviceId | None
    membership_version: int
    routing_version: int
    mailbox_shard: int
    chunk_index: int
    chunk_count: int
    log_identity: str
    min_reader_version: int
    trace_parent: str
    blocks: tuple[LaneBlock, ...]
    content_digest: bytes
    """16 bytes over what the event fixes: conversation, seq, kind, sender, membership_version,
    recipients. The same dispatch_id with another digest breaks an invariant."""

    @property
    def lane_mask(self) -> int:
        """The lanes that it touches: bit i for lane i."""
        return lane_mask(self.blocks)

    @property
    def recipients(self) -> int:
        """How many users it is for."""
        return sum(len(block.users) for block in self.blocks)


@dataclass(frozen=True, slots=True)
class DeliveredEvent:
    """An event at its place in a mailbox. `encoded` is the ConversationEvent's bytes."""

    seq: MailboxSeq
    encoded: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Draft:
    """An event that somebody wants to send. `body` is the message's, or the reaction's text."""

    client_msg_id: str
    kind: int
    body: bytes = field(repr=False)
    target_seq: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """Durable: it will reach every member's mailbox."""

    event_id: EventId
    conversation_seq: int
    created_at_ms: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class EventSummary:
    """The last event of a conversation that the user received."""

    conversation_seq: int
    event_id: EventId
    kind: int
    sender: UserId | None
    created_at_ms: int
    preview: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SessionItem:
    """One conversation of a user's list."""

    key: ConversationKey
    last_event: EventSummary | None
    activity_ms: int
    unread: int
    read_through: int
