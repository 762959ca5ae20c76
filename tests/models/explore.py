"""A small explicit-state explorer: every order of events within the bounds, breadth first.

A model is a set of states and the steps between them. A state is one hashable value (tuples all
the way down), a step is named in words, and `problem` says what must never be true of a state.
Breadth first, so the path to a violation is a shortest one, and reads as the story of a bug.

Exhaustive means exhaustive: a model that outgrows its bound fails instead of passing for what it
has not seen.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

Steps = Iterable[tuple[str, S]]


class Model(Protocol[S]):
    """What is explored."""

    @property
    def name(self) -> str:
        """What the model is of."""

    @property
    def bounds(self) -> Mapping[str, int]:
        """What is limited, so that the states are finitely many."""

    def initial(self) -> S:
        """Where everything begins."""

    def steps(self, state: S) -> Steps[S]:
        """What may happen next, in any order, each with its words."""

    def problem(self, state: S) -> str:
        """What is wrong with a state; empty if nothing is."""


@dataclass(frozen=True, slots=True)
class Violation:
    """What went wrong, and a shortest way there."""

    problem: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        steps = "\n".join(f"  {number}. {words}" for number, words in enumerate(self.path, 1))
        return f"{self.problem}\n{steps}"


@dataclass(frozen=True, slots=True)
class Report:
    """What an exploration saw."""

    name: str
    bounds: Mapping[str, int]
    states: int
    steps: int
    depth: int
    seconds: float
    violation: Violation | None

    def __str__(self) -> str:
        bounds = ", ".join(f"{name} {bound}" for name, bound in self.bounds.items())
        verdict = "no violation" if self.violation is None else self.violation.problem
        return (
            f"{self.name} ({bounds}): {self.states:,} states, {self.steps:,} steps, "
            f"depth {self.depth}, {self.seconds:.1f} s: {verdict}"
        )


class TooManyStatesError(Exception):
    """The model has more states than it may have: nothing was proved."""


class _Search(Generic[S]):
    """The states seen, each with the step that first led to it."""

    def __init__(self, model: Model[S], states_max: int) -> None:
        self._model = model
        self._states_max = states_max
        self._came: dict[S, tuple[S, str] | None] = {model.initial(): None}
        self._steps = 0
        self._depth = 0

    def run(self) -> Report:
        began_s = time.perf_counter()
        violation = self._breadth_first()
        seconds = time.perf_counter() - began_s
        model = self._model
        return Report(
            model.name,
            model.bounds,
            len(self._came),
            self._steps,
            self._depth,
            seconds,
            violation,
        )

    def _breadth_first(self) -> Violation | None:
        level = [self._model.initial()]
        if problem := self._model.problem(level[0]):
            return Violation(problem, ())
        while level:
            following: list[S] = []
            for state in level:
                for words, reached in self._model.steps(state):
                    self._steps += 1
                    if reached in self._came:
                        continue
                    self._came[reached] = (state, words)
                    if problem := self._model.problem(reached):
                        return Violation(problem, self._path(reached))
                    following.append(reached)
            if len(self._came) > self._states_max:
                raise TooManyStatesError(f"{self._model.name}: more than {self._states_max:,}")
            self._depth += bool(following)
            level = following
        return None

    def _path(self, state: S) -> tuple[str, ...]:
        path: list[str] = []
        while (came := self._came[state]) is not None:
            state, words = came
            path.append(words)
        return tuple(reversed(path))


def explore(model: Model[S], states_max: int = 300_000) -> Report:
    """Visit every state of the model, or stop at the first violation.

    Raises TooManyStatesError beyond `states_max`.
    """
    # All of it is reachable until the end: a collector that looks for garbage finds none, each time
    # in more objects, and takes half of the run.
    gc.disable()
    try:
        return _Search(model, states_max).run()
    finally:
        gc.enable()
