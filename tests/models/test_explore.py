"""The explorer: it sees every state, shows a shortest path, and never passes for what it missed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest
from tests.models.explore import TooManyStatesError, explore


@dataclass(frozen=True)
class Counter:
    """Counts up by one or two, to a limit; some number is wrong."""

    limit: int
    wrong: int | None = None
    name: str = "counter"

    @property
    def bounds(self) -> Mapping[str, int]:
        return {"limit": self.limit}

    def initial(self) -> int:
        return 0

    def steps(self, state: int) -> Iterator[tuple[str, int]]:
        for more in (1, 2):
            if state + more <= self.limit:
                yield f"add {more}", state + more

    def problem(self, state: int) -> str:
        return f"{state} is wrong" if state == self.wrong else ""


def test_all_states_are_seen_once() -> None:
    report = explore(Counter(10))
    assert (report.states, report.steps, report.violation) == (11, 19, None)
    assert "limit 10" in str(report)


def test_the_path_to_a_violation_is_a_shortest_one() -> None:
    violation = explore(Counter(10, wrong=5)).violation
    assert violation is not None
    assert len(violation.path) == 3
    assert sum(int(words.split()[1]) for words in violation.path) == 5
    assert "  3. add" in str(violation)


def test_a_wrong_beginning_has_no_path() -> None:
    violation = explore(Counter(10, wrong=0)).violation
    assert violation is not None
    assert violation.path == ()


def test_a_model_that_outgrows_its_bound_proves_nothing() -> None:
    with pytest.raises(TooManyStatesError):
        explore(Counter(100), states_max=50)
