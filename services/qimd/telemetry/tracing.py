"""Trace context, and where spans go.

An event carries a W3C `traceparent` from its SEND through the log:
`00-<trace id: 32 hex>-<span id: 16 hex>-<flags: 2 hex>`. The span id is the SEND's; the event's
stages are its children, in whichever process. Whether a trace is recorded is decided once, at the
SEND, and is the flag: every stage follows it. Logs show the trace id alone, as `trace_id`.

Rooms tell of a stage when it is over, a batch at a time, with times of their own clock. So nothing
is open across an await, and what is not recorded costs a call that does nothing.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from qimd.core.ids import TenantId
from qimd.core.records import ConversationKey, Event, EventRef

COMMIT: Final = "commit"
DISPATCH: Final = "dispatch"
MAILBOX: Final = "mailbox"
SESSION: Final = "session"
PUSH: Final = "push"
HINT: Final = "hint"
PUSHED: Final = "PUSH_EVENTS"

SAMPLED: Final = 1
"""The bit of the flags that says: recorded."""

_TRACE_PARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_ZERO_TRACE: Final = "0" * 32
_ZERO_SPAN: Final = "0" * 16
_SHARE_BITS: Final = 64
_ODD_DIGITS: Final = frozenset("13579bdf")


class TraceContext(NamedTuple):
    """A traceparent that was read."""

    trace_id: str
    span_id: str
    sampled: bool


class Traced(NamedTuple):
    """An event that passed a stage; `mailbox_seq` where it has one."""

    trace_parent: str
    event: Event | EventRef
    mailbox_seq: int = 0


class Spans(Protocol):
    """Takes what was done. No call blocks or raises."""

    def new_trace(self, random_bytes: Callable[[int], bytes]) -> str:
        """The traceparent of a SEND that begins. `random_bytes` is the runtime's."""

    def sent(
        self, trace_parent: str, key: ConversationKey, events: int, began_s: float, error: str
    ) -> None:
        """A SEND was answered: `error` is its code's name, empty after a SEND_ACK.

        `began_s` (monotonic) is when its frame came.
        """

    def served(self, name: str, tenant: TenantId, began_s: float, error: str) -> None:
        """Another request of a stream was answered: a trace of its own, recorded or not by chance.

        `name` is its frame's. `began_s` (monotonic) is when its turn came.
        """

    def stage(self, name: str, began_s: float, traced: Iterable[Traced], **attributes: int) -> None:
        """Events passed a stage together, from `began_s` (monotonic) until now.

        `traced` is read only if something may be recorded. `attributes` are the batch's.
        """


class NoSpans:
    """The default: nothing is recorded, and no trace is begun that anybody else would record."""

    def new_trace(self, random_bytes: Callable[[int], bytes]) -> str:
        return new_trace_parent(random_bytes, share=0.0)

    def sent(
        self, trace_parent: str, key: ConversationKey, events: int, began_s: float, error: str
    ) -> None:
        return

    def served(self, name: str, tenant: TenantId, began_s: float, error: str) -> None:
        return

    def stage(self, name: str, began_s: float, traced: Iterable[Traced], **attributes: int) -> None:
        return


NO_SPANS: Final = NoSpans()


def new_trace_parent(random_bytes: Callable[[int], bytes], share: float) -> str:
    """A new trace, sampled in `share` (0 to 1) of the cases. `random_bytes` is the runtime's.

    The trace id's low half decides, as in OpenTelemetry's sampler by ratio.
    """
    trace_id = random_bytes(16)
    drawn = int.from_bytes(trace_id[-_SHARE_BITS // 8 :])
    sampled = drawn < round(share * (1 << _SHARE_BITS))
    return f"00-{trace_id.hex()}-{random_bytes(8).hex()}-{'01' if sampled else '00'}"


def context_of(trace_parent: str) -> TraceContext | None:
    """What a traceparent says; None if the text is not a valid one.

    The specification makes the all-zero ids invalid.
    """
    match = _TRACE_PARENT.fullmatch(trace_parent)
    if match is None or match[1] == _ZERO_TRACE or match[2] == _ZERO_SPAN:
        return None
    return TraceContext(match[1], match[2], bool(int(match[3], 16) & SAMPLED))


def recorded(trace_parent: str) -> str:
    """The traceparent, or nothing if its trace is not recorded: what a hint carries on."""
    # The last digit's bit refuses nearly all at a glance.
    if trace_parent[-1:] not in _ODD_DIGITS or context_of(trace_parent) is None:
        return ""
    return trace_parent


def trace_id_of(trace_parent: str) -> str:
    """The trace id, 32 hex digits; empty if the text is not a valid traceparent."""
    context = context_of(trace_parent)
    return "" if context is None else context.trace_id
