"""What the state machines share: an engine on an event loop of its own, and how outcomes are read.

A machine draws calls and compares each answer with a plain model, written from the docstrings of
the port and from nothing else. Where a docstring lets several refusals apply, any of them is right.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine
from tests import engines
from tests.contract.engines import Engine, opened

from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal

T = TypeVar("T")

EXAMPLES: Final = os.environ.get("QIM_PROPERTY_EXAMPLES")
"""So many new cases instead of those of every run (`make property EXAMPLES=n`)."""

SETTINGS: Final = settings(
    max_examples=int(EXAMPLES or 40),
    stateful_step_count=40,
    deadline=None,
    # The same cases in every run: a gate that fails must fail again.
    derandomize=EXAMPLES is None,
    suppress_health_check=[HealthCheck.too_slow],
)


REAL_SETTINGS: Final = settings(SETTINGS, max_examples=int(EXAMPLES or 3))
"""Of an engine that runs as a server: every call is a round trip, and conditional writes take
Cassandra some 15 ms each."""


def runs_here(engine: str) -> pytest.MarkDecorator:
    """Leaves a machine out where its engine does not run."""
    missing = engines.address(engine) is None
    return pytest.mark.skipif(missing, reason=f"{engine} does not run here (make engines)")


class EngineMachine(RuleBasedStateMachine):
    """A machine over a fresh deployment of one engine."""

    engine_name: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._folder = tempfile.TemporaryDirectory(prefix="qim-property-")
        self.engine: Engine = self.do(
            self._stack.enter_async_context(opened(self.engine_name, Path(self._folder.name)))
        )

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """What a call of a port gives."""
        return self._runner.run(work)

    def teardown(self) -> None:
        self.do(self._stack.aclose())
        self._runner.close()
        self._folder.cleanup()


def agree(outcome: Outcome[T], refusals: set[Refusal]) -> T | None:
    """What an applied step gave; None if it was refused, for one of the reasons that there are."""
    if isinstance(outcome, Applied):
        assert not refusals, f"applied in spite of {refusals}"
        return outcome.value
    assert isinstance(outcome, NotApplied), outcome
    assert outcome.refusal in refusals, f"refused: {outcome}, expected one of {refusals or 'none'}"
    return None
