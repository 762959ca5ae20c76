"""What all measures share: pairs that are run in turn, medians, the table and its JSON form.

A figure of a shared machine means little by itself. Whatever is compared is therefore run in turn,
A B A B …, so that both meet the same neighbours, and medians are what is shown.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

Act = Callable[[], float]
"""One run of something; the figure that it gives."""

AT_LEAST: Final = "≥"
AT_MOST: Final = "≤"


class Wrong(Exception):
    """What was measured did not do its work right: a figure of it would mean nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the ratio should be."""

    sign: str
    bound: float

    def met_by(self, ratio: float) -> bool:
        """Whether a ratio is on the right side."""
        return ratio >= self.bound if self.sign == AT_LEAST else ratio <= self.bound

    def __str__(self) -> str:
        """As the table shows it."""
        return f"{self.sign} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Measure:
    """One row: `value` in `unit`, beside `against_value` of what it is compared `against`.

    `note` has the conditions that the reader needs, such as how many rounds, and how far they lay
    apart.
    """

    measure: str
    value: float
    unit: str
    against: str
    against_value: float
    target: Target | None = None
    note: str = ""

    @property
    def ratio(self) -> float:
        """Value / against_value."""
        return self.value / self.against_value if self.against_value else 0.0

    def document(self) -> Mapping[str, object]:
        """The row as JSON has it."""
        row: dict[str, object] = {
            "measure": self.measure,
            "value": _rounded(self.value),
            "unit": self.unit,
            "against": self.against,
            "against_value": _rounded(self.against_value),
            "ratio": _rounded(self.ratio),
        }
        if self.target is not None:
            row["target"] = str(self.target)
        if self.note:
            row["note"] = self.note
        return row


def _rounded(value: float) -> float:
    """Five digits: what lies beyond is noise."""
    return float(f"{value:.5g}")


@dataclass(frozen=True, slots=True)
class Pair:
    """Figures of two things that were run in turn."""

    ours: Sequence[float]
    theirs: Sequence[float]

    @property
    def value(self) -> float:
        """Our median."""
        return statistics.median(self.ours)

    @property
    def against(self) -> float:
        """Their median."""
        return statistics.median(self.theirs)

    @property
    def spread(self) -> str:
        """How the ratio varied from round to round."""
        ratios = sorted(a / b for a, b in zip(self.ours, self.theirs, strict=True) if b)
        middle = statistics.median(ratios)
        return f"{len(ratios)} rounds, ratio {ratios[0]:.2f}–{middle:.2f}–{ratios[-1]:.2f}"


def in_turn(ours: Act, theirs: Act, rounds: int, *, warm_up: int = 1) -> Pair:
    """Run two acts A B A B …; the first `warm_up` rounds are not counted."""
    figures: list[tuple[float, float]] = [(ours(), theirs()) for _ in range(warm_up + rounds)]
    counted = figures[warm_up:]
    return Pair([one for one, _ in counted], [other for _, other in counted])


def seconds(act: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def each_us(act: Callable[[], object], calls: int) -> Act:
    """An act that gives microseconds a call, over many calls.

    Of this thread's processor time: what only computes is not slower because others compute too.
    """

    def run() -> float:
        began = time.thread_time()
        for _ in range(calls):
            act()
        return (time.thread_time() - began) / calls * 1e6

    return run


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def demand(holds: bool, what: str) -> None:
    """Raise Wrong unless something holds."""
    if not holds:
        raise Wrong(what)


# --- what comes out ---------------------------------------------------------------------------


def write_json(path: Path, machine: Mapping[str, object], measures: Sequence[Measure]) -> None:
    """`{"machine": {…}, "measures": [{…}]}`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "measures": [each.document() for each in measures]}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def table(measures: Sequence[Measure]) -> str:
    """The measures as text, a row each."""
    rows = [("measure", "value", "unit", "against", "its value", "ratio", "target", "")]
    for each in measures:
        met = each.target is None or each.target.met_by(each.ratio)
        rows.append(
            (
                each.measure,
                _shown(each.value),
                each.unit,
                each.against,
                _shown(each.against_value),
                f"{each.ratio:.3g}",
                str(each.target or ""),
                "" if met else "missed",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
