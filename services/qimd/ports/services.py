"""What rooms need of one another, bound by `app.wiring` in process or to a gRPC client."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from qimd.core.errors import QimError
from qimd.core.ids import DeviceId, TenantId, UserId
from qimd.core.lease import Term
from qimd.core.records import (
    Accepted,
    ConversationKey,
    DeliveredEvent,
    DeviceKey,
    Draft,
    Event,
    SessionItem,
    UserKey,
)
from qimd.core.seq import MailboxSeq

# --- auth and admission -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a verified access token names, until when."""

    device: DeviceKey
    token_id: str
    expires_at_ms: int


class Authenticator(Protocol):
    """Checks credentials. Raises QimError(UNAUTHENTICATED, TOKEN_EXPIRED or TOKEN_REVOKED)."""

    async def verify_access_token(self, token: str) -> Identity:
        """The identity that the token proves."""


class Admission(Protocol):
    """Decides before anything is written."""

    async def admit(
        self, sender: UserKey, key: ConversationKey, events: int, reactions: int
    ) -> None:
        """Return to admit. Raises QimError(RATE_LIMITED or FANOUT_QUOTA_EXCEEDED)."""


# --- writer -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """Drafts of one sender for one conversation, committed together as far as they are valid."""

    key: ConversationKey
    sender: UserId
    sender_device: DeviceId
    drafts: Sequence[Draft]
    trace_parent: str = ""


class Writer(Protocol):
    """The writer room, to the connection and to internal callers."""

    async def commit(self, command: Commit) -> Sequence[Accepted | QimError]:
        """A result for each draft, in order.

        Calls for one conversation commit in the order in which they were made (before their first
        await). Raises QimError if none of them can be done:
        NOT_MEMBER, NOT_OWNER, UNAVAILABLE …
        """


class Fanout(Protocol):
    """The fanout room, to the writer: both are one owner of a writer shard."""

    def committed(self, term: Term, events: Sequence[Event]) -> None:
        """Events of one conversation were committed, right behind those told before.

        Never blocks.
        """

    def backlog(self, shard: int) -> int:
        """Committed events of the shard that are not dispatched yet."""


# --- mailbox ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenedDevice:
    """What AUTH_OK tells a device of its mailbox."""

    cursor_token: bytes = field(repr=False)
    last_applied: MailboxSeq
    floor: MailboxSeq


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a mailbox. `cursor_token` is empty unless it replaces the client's."""

    events: Sequence[DeliveredEvent]
    covered_through: MailboxSeq
    more: bool
    cursor_token: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Rebased:
    """The position can't be served: [lost_from, lost_through] is gone."""

    lost_from: MailboxSeq
    lost_through: MailboxSeq
    cursor_token: bytes = field(repr=False)
    last_applied: MailboxSeq


@dataclass(frozen=True, slots=True)
class GapReport:
    """What a client saw: kind 1 gap, 2 double, 3 disorder (`qim.gateway.v1.ReportKind`)."""

    kind: int
    key: ConversationKey
    from_seq: int
    through_seq: int
    covered_through: MailboxSeq


class Mailbox(Protocol):
    """The mailbox room, to the connection and to internal callers."""

    async def open_device(self, device: DeviceKey) -> OpenedDevice:
        """The device's stored position and a new cursor token. Raises UNAVAILABLE, NOT_OWNER."""

    async def pull(
        self, device: DeviceKey, cursor_token: bytes, last_applied: int, limit: int
    ) -> Page | Rebased:
        """A page from `last_applied` on. Raises CURSOR_INVALID, UNAVAILABLE, NOT_OWNER."""

    async def ack(self, device: DeviceKey, last_applied: int, handed: MailboxSeq) -> MailboxSeq:
        """The stored position after it. `handed` is the largest covered_through that the device was
        handed. Raises CURSOR_INVALID if last_applied is above W or above `handed`.
        """

    async def read(self, user: UserKey, after: int, limit: int) -> Page:
        """A page for an internal caller; it moves and checks no cursor."""

    async def report(self, user: UserKey, report: GapReport) -> bool:
        """Whether the server finds the report true."""


@dataclass(frozen=True, slots=True)
class RebasePlan:
    """What an operator's rebase of a mailbox shard will touch, or has touched.

    `first_offset` is where the log's epoch begins: its low watermark in a plan. `events` counts
    what the rebuild goes through; members may have some of it already.
    """

    shard: int
    fault: str
    rebuild_epoch: int
    log_epoch: int
    log_identity: str
    first_offset: int
    conversations: int
    events: int


class MailboxOperations(Protocol):
    """The mailbox room, to an operator."""

    async def rebase(self, shard: int, *, dry_run: bool) -> RebasePlan:
        """The way out of a shard's fault. Raises NOT_OWNER, INVALID_ARGUMENT for a shard that has
        nothing to mend, UNAVAILABLE if it failed: it may be asked for again.
        """


# --- session ----------------------------------------------------------------------------------


class Sessions(Protocol):
    """The session room, to the connection and to internal callers."""

    async def list(
        self, user: UserKey, page_token: bytes, limit: int
    ) -> tuple[Sequence[SessionItem], bytes]:
        """A page and the next page's token (empty on the last). Raises SESSION_PROJECTION_DIRTY,
        INVALID_ARGUMENT for a page token that is not one.
        """

    async def mark_read(self, user: UserKey, key: ConversationKey, through: int) -> tuple[int, int]:
        """(read mark, unread) after it."""


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What a rebuild of a dirty projection partition will touch, or has touched.

    The log is read on from `next_offset`: its high watermark, taken first. `conversations` and
    `events` are what the rebuild goes through, those of other partitions' users too; `rows` is what
    it wrote, 0 in a plan.
    """

    partition: int
    dirty: str
    log_identity: str
    next_offset: int
    conversations: int
    events: int
    rows: int


class SessionOperations(Protocol):
    """The session room, to an operator."""

    async def rebuild(self, partition: int, *, dry_run: bool) -> RebuildPlan:
        """The way out of dirty where a restart is none. Raises NOT_OWNER, INVALID_ARGUMENT for a
        partition that is not dirty, UNAVAILABLE if it failed: it may be asked for again.
        """


class SessionSupplement(Protocol):
    """The low-latency supplement from the mailbox: activity only, best effort, no checkpoint."""

    def touched(self, key: ConversationKey, users: Collection[UserId], created_at_ms: int) -> None:
        """These users' conversation was active. Never blocks; may be dropped."""


# --- push -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hint:
    """An event for some online users. `delivered` is the encoded DeliveredEvent: made once.

    `trace_parent` is of the event's SEND; empty unless its trace is recorded.
    """

    tenant: TenantId
    users: Collection[UserId]
    delivered: bytes = field(repr=False)
    trace_parent: str = ""


class PushHints(Protocol):
    """Who is online here, and hints to them. A lost hint costs latency, never data."""

    def online(self, tenant: TenantId, users: Collection[UserId]) -> Collection[UserId]:
        """Those of the users with a live stream here."""

    def push(self, hints: Sequence[Hint]) -> None:
        """Queue hints, in order, for the users' streams. Never blocks."""
