"""Prints what the models covered: a run that shows no bounds shows nothing."""

from collections.abc import Callable

import pytest
from tests.models.explore import Report

_REPORTS = pytest.StashKey[list[Report]]()


@pytest.fixture
def tell(pytestconfig: pytest.Config) -> Callable[[Report], None]:
    """Keep a report for the summary."""
    return pytestconfig.stash.setdefault(_REPORTS, []).append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    reports = config.stash.get(_REPORTS, [])
    if reports:
        terminalreporter.section("models")
        for report in reports:
            terminalreporter.write_line(str(report))
