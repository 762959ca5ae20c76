"""Which faults and which crash points the worlds of a run have seen.

A fault that never happens is one that nobody survives. A run of `GATE_SEEDS` or more must have seen
each of these at least once, and fails if it has not: a generator that stops making something (for a
renamed call, say) would otherwise pass for a system that stands it.
"""

from collections import Counter
from typing import Final

from tests.sim.plan import CRASH_STEPS, ROOM_STEPS, Blow, Fate

GATE_SEEDS: Final = 2_000
"""From so many seeds on, coverage is demanded."""

FAULTS: Final = (
    *(fate.value for fate in Fate),
    *(blow.value for blow in Blow),
    "a block was refused",
    "a frozen owner wakes amid its successor's work",
    "another's cursor was tried",
    "the log is lost amid a run",
    *(f"no room for {step}" for step in ROOM_STEPS),
)

CRASH_POINTS: Final = tuple(
    f"crash {side} {step}" for step in CRASH_STEPS for side in ("before", "after")
)


def missing(seen: Counter[str]) -> list[str]:
    """What was to be seen and was not."""
    return [what for what in (*FAULTS, *CRASH_POINTS) if not seen[what]]


def table(seen: Counter[str]) -> list[str]:
    """What was seen, how often."""
    lines = ["faults"]
    lines += [f"  {seen[what]:>8}  {what}" for what in FAULTS]
    lines.append("crash points (before the effect / after it, before the reply)")
    for step in CRASH_STEPS:
        before, after = seen[f"crash before {step}"], seen[f"crash after {step}"]
        lines.append(f"  {before:>8} / {after:<8} {step}")
    return lines
