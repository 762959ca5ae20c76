"""What an application sees: events, results, sessions. Plain values, free of the wire format."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from qimd.core.errors import ErrorCode, QimError
from qimd.core.records import EventKind


@dataclass(frozen=True, slots=True)
class Event:
    """One numbered event of a conversation.

    `kind` is an EventKind, or a number that this version does not know yet. `mailbox_seq` is 0
    where the event was read from a conversation's history.
    """

    conversation: str
    seq: int
    """conversation_seq: 1, 2, 3 … without gaps in the conversation."""
    event_id: bytes
    """16 bytes, a pure function of (tenant, conversation, seq)."""
    kind: int
    sender: str
    """Empty for a membership change made by an administrator."""
    sender_device: str
    created_at_ms: int
    """Milliseconds since the Unix epoch; never decreases within a conversation."""
    client_msg_id: str = ""
    membership_version: int = 0
    body: bytes = field(default=b"", repr=False)
    """A message's body."""
    reaction: str = ""
    target_seq: int = 0
    """What a reaction is about."""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    mailbox_seq: int = 0

    def lets_in(self, user: str) -> bool:
        """It begins a membership of this user."""
        return self.kind == EventKind.MEMBERSHIP and user in self.added

    def lets_out(self, user: str) -> bool:
        """It ends a membership of this user."""
        return self.kind == EventKind.MEMBERSHIP and user in self.removed


@dataclass(frozen=True, slots=True)
class Rebased:
    """The mailbox's events in [lost_from_seq, lost_through_seq] (mailbox_seq) can't be served any
    more. What follows goes on behind them; `Client.history` may still hold what they were.
    """

    lost_from_seq: int
    lost_through_seq: int


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send. Under one `client_msg_id` it takes effect once."""

    body: bytes = field(repr=False)
    client_msg_id: str = ""
    """1 to 128 bytes; empty: the client makes one."""


@dataclass(frozen=True, slots=True)
class Reaction:
    """A reaction to send, to the event at `target_seq` of the conversation."""

    reaction: str
    target_seq: int
    client_msg_id: str = ""


@dataclass(frozen=True, slots=True)
class Sent:
    """Durable: it will reach every member's mailbox."""

    client_msg_id: str
    event_id: bytes
    seq: int
    created_at_ms: int
    duplicate: bool
    """An earlier SEND under this client_msg_id was the first."""


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation of the user's list."""

    conversation: str
    activity_at_ms: int
    unread: int
    """Others' messages above the read mark."""
    read_through_seq: int
    last_seq: int = 0
    last_event_id: bytes = b""
    last_kind: int = 0
    last_sender: str = ""
    preview: bytes = field(default=b"", repr=False)
    """The first 256 bytes of the last message's body, or the reaction."""


@dataclass(frozen=True, slots=True)
class ReadMark:
    """A read mark never goes back."""

    conversation: str
    read_through_seq: int
    unread: int


@dataclass(frozen=True, slots=True)
class History:
    """Events of a conversation, strictly increasing by seq; `more`: there are older ones."""

    events: tuple[Event, ...]
    more: bool


class ReportKind(IntEnum):
    """Numbers equal those of `qim.gateway.v1.ReportKind`."""

    GAP = 1
    DOUBLE = 2
    DISORDER = 3


@dataclass(frozen=True, slots=True)
class Report:
    """What must not be, seen below `covered_through` in [from_seq, through_seq] of a conversation.

    `confirmed` is the server's own finding; None until it answered.
    """

    kind: ReportKind
    conversation: str
    from_seq: int
    through_seq: int
    covered_through: int
    confirmed: bool | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """How far a device is in one conversation: the last seq that the application acknowledged, and
    whether the user was a member there.
    """

    seq: int
    member: bool = True


@dataclass(frozen=True, slots=True)
class Position:
    """Where a device is. Everything at or below `applied_seq` (mailbox_seq) is the application's;
    `heads` (by conversation) also tell what it took early, by push.
    """

    applied_seq: int
    heads: Mapping[str, Head] = field(default_factory=dict)


class ClientStopped(Exception):
    """The client stopped for good; `str()` says why. A new Client may be made."""


class Replaced(ClientStopped):
    """A newer stream of the same device took over. Two processes must not share a device id."""


class OutcomeUnknown(QimError):
    """A SEND was not answered in time: it may have taken effect, or may still.

    Send it again under the same `client_msg_ids`, as long after as a day: it takes effect once.
    """

    def __init__(self, message: str, client_msg_ids: tuple[str, ...]) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message)
        self.client_msg_ids = client_msg_ids


_LONE = re.compile("[\ud800-\udfff]")


def as_body(body: bytes | str) -> bytes:
    """The bytes of a body. Text is UTF-8; what came from undecodable input is replaced."""
    return body if isinstance(body, bytes) else _LONE.sub("\ufffd", body).encode()
