"""The authoritative store: tenants, shard epochs, conversations with head, events, outbox,
idempotency and memberships.

It offers whole steps on one partition key (a conversation, or a shard's epoch), no transaction
across keys. Reads raise QimError(UNAVAILABLE) when the engine can't answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from qimd.core.ids import ConversationId, EventId, TenantId, UserId
from qimd.core.outcome import Outcome
from qimd.core.records import ConversationKey, Event, EventRef, Interval


class ShardKind(Enum):
    """What a lease and an epoch are for. All draw from one counter of the deployment."""

    WRITER = "writer"
    MAILBOX = "mailbox"
    SESSION = "session"


# --- tenants ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """A tenant and the Ed25519 public keys (32 raw bytes, by key id) of its users' tokens."""

    tenant: TenantId
    keys: Mapping[str, bytes]
    created_at_ms: int


class TenantStore(Protocol):
    """Tenants. Each step is idempotent by its content."""

    async def tenant(self, tenant: TenantId) -> TenantRecord | None:
        """The tenant; None if there is none."""

    async def create_tenant(self, record: TenantRecord) -> Outcome[TenantRecord]:
        """Create it; the stored one if it exists with the same keys; CONFLICT with others."""

    async def put_key(
        self, tenant: TenantId, key_id: str, public_key: bytes
    ) -> Outcome[TenantRecord]:
        """Add a key.

        CONFLICT if the key id exists with another key, NOT_FOUND without the tenant.
        """

    async def remove_key(self, tenant: TenantId, key_id: str) -> Outcome[TenantRecord]:
        """Remove a key, present or not. NOT_FOUND without the tenant."""


# --- shard epochs -----------------------------------------------------------------------------


class EpochStore(Protocol):
    """Fencing epochs: one counter of the deployment, `max(counter + 1, now_s)`."""

    async def raise_epoch(
        self, kind: ShardKind, shard: int, nonce: bytes, now_s: int
    ) -> Outcome[int]:
        """Draw a new epoch and make it the shard's, in one step.

        `nonce` (16 bytes, new for each try to acquire) resolves an unknown outcome: the same nonce
        again gives the epoch it was given, as long as that is still the shard's; STALE_EPOCH if
        another owner has raised it since.
        """


# --- conversations ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConversationState:
    """A conversation's head and what its writer must know to go on.

    (fencing_epoch, head_version) is the ConversationHead. The outbox is the events in
    (dispatched_through, head_version].
    """

    key: ConversationKey
    fencing_epoch: int
    head_version: int
    dispatched_through: int
    membership_version: int
    member_count: int
    last_created_at_ms: int
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """(sender, client_msg_id) within a conversation."""

    sender: UserId
    client_msg_id: str


@dataclass(frozen=True, slots=True)
class PriorResult:
    """What the first SEND under an idempotency key gave."""

    event_id: EventId
    conversation_seq: int
    created_at_ms: int
    content_digest: bytes


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to commit. `idempotency` is None for a membership change."""

    event: Event
    idempotency: IdempotencyKey | None
    content_digest: bytes
    client_msg_id: str = ""


@dataclass(frozen=True, slots=True)
class CommitStep:
    """k consecutive events of one conversation, `expected_head + 1` first.

    Applied in one atomic step with head, pending mark, idempotency records and membership
    intervals, only if: the shard's epoch is `epoch`; the stored head_version is `expected_head`;
    the stored head's (fencing_epoch, head_version) is below (epoch, new version); and no
    idempotency key exists. Refusals: STALE_EPOCH, HEAD_MOVED, DUPLICATE (read `prior_results`),
    NO_SPACE, REJECTED.

    The same `request_id` again gives Applied if the step was applied and is the conversation's
    last.
    """

    request_id: bytes
    writer_shard: int
    epoch: int
    key: ConversationKey
    expected_head: int
    events: Sequence[NewEvent]


@dataclass(frozen=True, slots=True)
class Progress:
    """Outbox progress of one conversation: everything up to `through` is durable in the log."""

    key: ConversationKey
    through: int


@dataclass(frozen=True, slots=True)
class Pending:
    """A conversation with a non-empty outbox."""

    key: ConversationKey
    dispatched_through: int
    head_version: int


@dataclass(frozen=True, slots=True)
class AuditRange:
    """Dispatched but not yet audited events of a conversation: (audited_through,
    dispatched_through].
    """

    key: ConversationKey
    audited_through: int
    dispatched_through: int


class ConversationStore(Protocol):
    """Conversations: the writer's steps, the fanout's progress, and everybody's reads."""

    # steps of the writer

    async def create_conversation(
        self, writer_shard: int, epoch: int, key: ConversationKey, created_at_ms: int
    ) -> Outcome[ConversationState]:
        """Create it with an empty head (version 0), or give the one that exists.

        Fenced as `claim`.
        """

    async def claim(
        self, writer_shard: int, epoch: int, key: ConversationKey
    ) -> Outcome[ConversationState]:
        """Raise the head's fencing_epoch to `epoch` and give the state as it is from then on.

        STALE_EPOCH if the shard's or the head's epoch is above `epoch`, or the shard's is not it;
        NOT_FOUND without such a conversation. Repeating it changes nothing.
        """

    async def commit(self, step: CommitStep) -> Outcome[ConversationState]:
        """See CommitStep. Gives the state after it."""

    async def prior_results(
        self, key: ConversationKey, keys: Sequence[IdempotencyKey]
    ) -> Mapping[IdempotencyKey, PriorResult]:
        """Those of the keys that exist."""

    async def expire_idempotency(self, before_ms: int, limit: int) -> int:
        """Forget keys whose event was created before `before_ms`; how many went."""

    # steps of the fanout

    async def note_first_log(self, log_identity: str) -> Outcome[str]:
        """Note which log the deployment's dispatches go to, before the first one does.

        Gives what is noted: the first identity that ever was stays. So a shard that is opened only
        after that log was lost can tell that the one it finds is not the first.
        """

    async def pending(self, writer_shard: int) -> Sequence[Pending]:
        """The conversations of a writer shard with a non-empty outbox."""

    async def outbox(self, key: ConversationKey, after: int, limit: int) -> Sequence[Event]:
        """Committed events above `after`, in order."""

    async def advance(
        self, writer_shard: int, epoch: int, progress: Sequence[Progress]
    ) -> Sequence[Outcome[None]]:
        """Raise dispatched_through, one outcome for each conversation, one round trip for all.

        Fenced by the shard's epoch (STALE_EPOCH). A `through` at or below the stored one changes
        nothing and is Applied; one above the head is HEAD_MOVED.
        """

    # reads

    async def first_log(self) -> str | None:
        """What `note_first_log` noted; None before anything was dispatched."""

    async def conversation(self, key: ConversationKey) -> ConversationState | None:
        """The state, without claiming it."""

    async def conversation_page(
        self, limit: int, after: ConversationKey | None = None
    ) -> Sequence[ConversationState]:
        """Up to `limit` conversations of all tenants, in the byte order of (tenant, conversation),
        above `after`: so that all can be paged through.
        """

    async def members_at(self, key: ConversationKey, conversation_seq: int) -> Sequence[UserId]:
        """Who is a member right after the event at this seq, in byte order."""

    async def current_members(
        self, key: ConversationKey, users: Sequence[UserId]
    ) -> Mapping[UserId, int]:
        """Those of the users that are members now, with the added_seq of each."""

    async def member_page(
        self, key: ConversationKey, after: str, limit: int
    ) -> Sequence[tuple[UserId, int]]:
        """Members now, above `after` in byte order, with added_seq."""

    async def intervals(self, key: ConversationKey, user: UserId) -> Sequence[Interval]:
        """The user's memberships, oldest first."""

    async def events(self, refs: Sequence[EventRef]) -> Mapping[EventId, bytes]:
        """Encoded ConversationEvents by event id, one round trip; what isn't there is left out."""

    async def history(
        self, key: ConversationKey, intervals: Sequence[Interval], before_seq: int, limit: int
    ) -> Sequence[Event]:
        """Up to `limit` events below `before_seq` (0: from the end) that the intervals see: the
        newest ones, in increasing order.
        """

    async def count_unread(
        self,
        key: ConversationKey,
        user: UserId,
        intervals: Sequence[Interval],
        after: int,
        through: int,
    ) -> int:
        """Messages by others in (after, through] that the intervals see."""

    async def find_event(self, event_id: EventId) -> tuple[Event, int] | None:
        """The event and the fencing epoch that it was committed under; None if there is none."""

    # the auditor's

    async def audit_ranges(
        self, limit: int, after: ConversationKey | None = None
    ) -> Sequence[AuditRange]:
        """Up to `limit` conversations with dispatched events that were not audited yet, in the byte
        order of (tenant, conversation), above `after`: so that all can be paged through.
        """

    async def event_ids(
        self, key: ConversationKey, after: int, through: int
    ) -> Sequence[tuple[int, EventId]]:
        """(conversation_seq, event_id) in (after, through]."""

    async def set_audited(self, key: ConversationKey, through: int) -> Outcome[None]:
        """Raise audited_through; it only rises."""


def key_of(tenant: str, conversation: str) -> ConversationKey:
    """A ConversationKey from checked texts."""
    return ConversationKey(TenantId(tenant), ConversationId(conversation))
