"""A stream's decisions: which frame is answered how in which phase, and where frames are cut.

Pure. `ACTS` is the whole state machine of what a client may say; how a stream ends is `link.End`.
"""

from collections.abc import Container, Iterator, Sequence
from enum import Enum
from typing import Final

from qimd.core.errors import ErrorCode, QimError, invalid
from qimd.core.parameters import (
    EXACT_INTEGER_MAX,
    HISTORY_PAGE_DEFAULT,
    PAGE_BYTES_MAX,
    PAGE_ENTRY_OVERHEAD_BYTES,
    PAGE_EVENTS_MAX,
    PROTOCOL_VERSION,
    PUSH_FRAME_EVENTS_MAX,
)

UNKNOWN_KIND: Final = ""
"""A frame whose arm this build does not know: it parsed, with the arm among unknown fields."""


class Phase(Enum):
    """How far a stream has come."""

    OPEN = "open"
    """No AUTH was accepted yet."""
    READY = "ready"


class Act(Enum):
    """What a frame causes."""

    AUTHENTICATE = "authenticate"
    REFUSE_BEFORE_AUTH = "refuse_before_auth"
    REFUSE_SECOND_AUTH = "refuse_second_auth"
    COMMIT = "commit"
    """Beside other requests, in call order: the writer keeps a conversation's order."""
    SERVE = "serve"
    """One after another: an ACK must see the PULL before it."""
    PONG = "pong"
    """At once: it waits for nothing."""
    REFUSE_KIND = "refuse_kind"


ACTS: Final[dict[tuple[Phase, str], Act]] = {
    (Phase.OPEN, "auth"): Act.AUTHENTICATE,
    (Phase.OPEN, "refresh"): Act.REFUSE_BEFORE_AUTH,
    (Phase.OPEN, "send"): Act.REFUSE_BEFORE_AUTH,
    (Phase.OPEN, "pull_mailbox"): Act.REFUSE_BEFORE_AUTH,
    (Phase.OPEN, "ack_mailbox"): Act.REFUSE_BEFORE_AUTH,
    (Phase.OPEN, "pull_session_list"): Act.REFUSE_BEFORE_AUTH,
    (Phase.OPEN, "mark_read"): Act.REFUSE_BEFORE_AUTH,
    (Phase.OPEN, "pull_history"): Act.REFUSE_BEFORE_AUTH,
    (Phase.OPEN, "report"): Act.REFUSE_BEFORE_AUTH,
    (Phase.OPEN, "ping"): Act.REFUSE_BEFORE_AUTH,
    (Phase.OPEN, UNKNOWN_KIND): Act.REFUSE_BEFORE_AUTH,
    (Phase.READY, "auth"): Act.REFUSE_SECOND_AUTH,
    # Tokens can't be renewed on a live stream yet; AUTH_OK's capabilities do not name it.
    (Phase.READY, "refresh"): Act.REFUSE_KIND,
    (Phase.READY, "send"): Act.COMMIT,
    (Phase.READY, "pull_mailbox"): Act.SERVE,
    (Phase.READY, "ack_mailbox"): Act.SERVE,
    (Phase.READY, "pull_session_list"): Act.SERVE,
    (Phase.READY, "mark_read"): Act.SERVE,
    (Phase.READY, "pull_history"): Act.SERVE,
    (Phase.READY, "report"): Act.SERVE,
    (Phase.READY, "ping"): Act.PONG,
    (Phase.READY, UNKNOWN_KIND): Act.REFUSE_KIND,
}


def refusal_of(act: Act) -> QimError | None:
    """The typed error of a frame that is refused for its kind; None if it is not."""
    match act:
        case Act.REFUSE_BEFORE_AUTH:
            return QimError(ErrorCode.UNAUTHENTICATED, "AUTH comes first on a stream")
        case Act.REFUSE_SECOND_AUTH:
            return invalid("the stream is authenticated already", "auth")
        case Act.REFUSE_KIND:
            return QimError(ErrorCode.UNIMPLEMENTED, "this kind of frame is not known here")
        case _:
            return None


def judge_request_id(request_id: int, under_way: Container[int]) -> QimError | None:
    """Whether an answer can name this request and no other."""
    if request_id == 0:
        return invalid("request_id is 0; requests are numbered from 1", "request_id")
    if request_id in under_way:
        return invalid("a request with this request_id is under way", "request_id")
    return None


def agreed_version(asked: int) -> int:
    """The protocol version of the stream. Raises QimError(INVALID_ARGUMENT) for 0.

    A newer client is spoken to in ours; what it says beyond that is answered by UNIMPLEMENTED.
    """
    if asked < 1:
        raise invalid("protocol_version is 0; versions begin at 1", "auth.protocol_version")
    return min(asked, PROTOCOL_VERSION)


def backlog_bucket(events: int) -> str:
    """The label `backlog` of `online_ready_latency`: what had to be pulled until nothing was left.

    Its edges are those of the seed's limits (7.0 section 6.2): none, and up to 10,000.
    """
    for most, label in ((0, "0"), (100, "1-100"), (1_000, "101-1000"), (10_000, "1001-10000")):
        if events <= most:
            return label
    return "10001+"


def cut_pushes(delivered: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Encoded events as PUSH_EVENTS frames, in order: at most 500 events and 1 MiB each."""
    start = size = 0
    for index, event in enumerate(delivered):
        grown = size + len(event) + PAGE_ENTRY_OVERHEAD_BYTES
        if index > start and (grown > PAGE_BYTES_MAX or index - start == PUSH_FRAME_EVENTS_MAX):
            yield delivered[start:index]
            start, size = index, 0
        size += len(event) + PAGE_ENTRY_OVERHEAD_BYTES
    if start < len(delivered):
        yield delivered[start:]


def history_limit(limit: int) -> int:
    """How many events a HISTORY_PAGE holds. Raises QimError(INVALID_ARGUMENT) above 500."""
    if not 0 <= limit <= PAGE_EVENTS_MAX:
        raise invalid(f"limit is {limit}; at most {PAGE_EVENTS_MAX} are allowed", "limit")
    return limit or HISTORY_PAGE_DEFAULT


def history_end(before_seq: int, head_version: int) -> int:
    """The conversation_seq below which a page lies: what was asked for (0: the end), up to the
    head.
    """
    return min(before_seq or EXACT_INTEGER_MAX, head_version + 1)


def cut_history(events: Sequence[bytes], limit: int) -> Sequence[bytes]:
    """The newest events that a page holds: at most `limit` and 1 MiB, and at least one."""
    size = 0
    taken = 0
    for event in reversed(events[-limit:]):
        size += len(event) + PAGE_ENTRY_OVERHEAD_BYTES
        if taken and size > PAGE_BYTES_MAX:
            break
        taken += 1
    return events[len(events) - taken :]
