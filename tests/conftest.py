"""Shows at the end what tests have told (`tests.support.told`)."""

from typing import Any

import pytest
from tests.support import told


def pytest_sessionfinish(session: pytest.Session) -> None:
    told.hand_over(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # A worker that died has handed nothing over.
    told.take_over(node.config, getattr(node, "workeroutput", {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    told.show(config, terminalreporter)
