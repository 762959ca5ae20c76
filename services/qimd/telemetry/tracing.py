"""Trace context: the W3C `traceparent` that an event carries from SEND to PUSH through the log.

`00-<trace id: 32 hex>-<span id: 16 hex>-<flags: 2 hex>`. Events keep it as text; logs show the
trace id alone, under `trace_id`.
"""

import re
from collections.abc import Callable
from typing import Final

_TRACE_PARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_ZERO_TRACE: Final = "0" * 32
_ZERO_SPAN: Final = "0" * 16


def new_trace_parent(random_bytes: Callable[[int], bytes]) -> str:
    """A new sampled trace. `random_bytes` is the runtime's."""
    return f"00-{random_bytes(16).hex()}-{random_bytes(8).hex()}-01"


def trace_id_of(trace_parent: str) -> str:
    """The trace id, 32 hex digits; empty if the text is not a valid traceparent.

    The specification makes the all-zero ids invalid.
    """
    match = _TRACE_PARENT.fullmatch(trace_parent)
    if match is None or match[1] == _ZERO_TRACE or match[2] == _ZERO_SPAN:
        return ""
    return match[1]
