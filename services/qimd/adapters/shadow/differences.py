"""What differs between two answers, and what is kept of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Final

from qimd.ports.runtime import Runtime
from qimd.ports.shadow import ShadowSample

SAMPLES_MAX: Final = 20
"""Enough to find the defect by; a defect that differs on every read must not fill the memory."""

SHOWN_CHARS_MAX: Final = 500
"""Of one side of a difference, which is narrowed down to the part that differs before."""

OnMismatch = Callable[[ShadowSample], None]


class Findings:
    """The comparisons of a pair of stores. `on_mismatch` is told of each difference."""

    def __init__(self, runtime: Runtime, on_mismatch: OnMismatch) -> None:
        self._runtime = runtime
        self._on_mismatch = on_mismatch
        self.compared = 0
        self.mismatches = 0
        self.samples: list[ShadowSample] = []

    def compare(self, asked: str, primary: object, shadow: object) -> None:
        """Count a comparison, and the difference if there is one."""
        self.compared += 1
        primary, shadow = plain(primary), plain(shadow)
        if primary != shadow:
            self.differ(asked, *narrowed(primary, shadow))

    def differ(self, asked: str, primary: str, shadow: str) -> None:
        """Count a difference and keep it."""
        sample = ShadowSample(asked, primary, shadow, self._runtime.wall_ms())
        self.mismatches += 1
        if len(self.samples) < SAMPLES_MAX:
            self.samples.append(sample)
        self._on_mismatch(sample)


def plain(answer: object) -> object:
    """The answer without what engines may choose: which type of sequence or mapping it is."""
    if isinstance(answer, Mapping):
        return {key: plain(value) for key, value in answer.items()}
    if isinstance(answer, Sequence) and not isinstance(answer, str | bytes):
        return tuple(plain(item) for item in answer)
    return answer


def narrowed(primary: object, shadow: object, path: str = "") -> tuple[str, str]:
    """Both sides of the first part that differs, each with the path to it."""
    if isinstance(primary, tuple) and isinstance(shadow, tuple):
        for place, (one, other) in enumerate(zip(primary, shadow, strict=False)):
            if one != other:
                return narrowed(one, other, f"{path}[{place}]")
        shared = min(len(primary), len(shadow))
        return _told(f"{path}[{shared}:]", primary[shared:], shadow[shared:])
    if isinstance(primary, dict) and isinstance(shadow, dict):
        for key in primary.keys() & shadow.keys():
            if primary[key] != shadow[key]:
                return narrowed(primary[key], shadow[key], f"{path}[{key!r}]")
        return _told(
            path,
            {key: value for key, value in primary.items() if key not in shadow},
            {key: value for key, value in shadow.items() if key not in primary},
        )
    if is_dataclass(primary) and type(primary) is type(shadow):
        for one in fields(primary):
            ours, theirs = getattr(primary, one.name), getattr(shadow, one.name)
            if ours != theirs:
                return narrowed(plain(ours), plain(theirs), f"{path}.{one.name}")
    return _told(path, primary, shadow)


def _told(path: str, primary: object, shadow: object) -> tuple[str, str]:
    place = f"{path.lstrip('.')}: " if path else ""
    return place + repr(primary)[:SHOWN_CHARS_MAX], place + repr(shadow)[:SHOWN_CHARS_MAX]
