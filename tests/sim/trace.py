"""What the ports took and gave, in order: hashed when runs are compared, told when one is read.

Two runs of one seed are the same run if and only if their digests are: each call goes in with its
time, its process, its arguments and what came back, and the loop's count of steps ends it. A
coarser trace (names of calls, say) would stay equal while worlds drift apart. Such a trace costs a
tenth of a run, so that a run of which only the outcome is asked for writes nothing down.
"""

import hashlib
from enum import Enum
from typing import Final

from qimd.adapters.memory import Call

WIDTH_MAX: Final = 200
"""What of a call a person reads."""

_HANDLES: Final = frozenset({"open_producer", "open_reader"})


class Detail(Enum):
    """How much of a run is written down. The run itself is the same."""

    OUTCOME = "what failed"
    DIGEST = "and what tells two runs apart"
    TIMELINE = "and what a person reads"


class Trace:
    """`note` is called at each thing that happened, `call` at each effect on an engine."""

    def __init__(self, detail: Detail) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._hashed = detail is not Detail.OUTCOME
        self._kept = detail is Detail.TIMELINE
        self.lines: list[str] = []

    def note(self, now_s: float, actor: str, what: str) -> None:
        """Into the digest; kept as a line of the timeline too, if lines are kept."""
        if self._hashed:
            self._hash.update(f"{now_s:.6f} {actor} {what}".encode())
        if self._kept:
            self.lines.append(f"{now_s:9.3f}  {actor:<8} {what}")

    def call(self, now_s: float, actor: str, call: Call, reply: object, *, shown: bool) -> None:
        """A port's call with what it gave; `shown` in the timeline too."""
        if not self._hashed:
            return
        # A handle on an engine is no data: its text would be its address.
        given = type(reply).__name__ if call.op in _HANDLES else repr(reply)
        self._hash.update(f"{now_s:.6f} {actor} {call!r} {call.content!r} {given}".encode())
        if self._kept and shown:
            key = getattr(call.key, "conversation", None) or call.key
            text = f"{call.op} {key} → {given}"
            text = text if len(text) <= WIDTH_MAX else f"{text[:WIDTH_MAX]}…"
            self.lines.append(f"{now_s:9.3f}  {actor:<8} {text}")

    def digest(self, steps: int) -> str:
        """The run's fingerprint; empty if nothing was written down."""
        if not self._hashed:
            return ""
        whole = self._hash.copy()
        whole.update(steps.to_bytes(8, "big"))
        return whole.hexdigest()
