"""Tells what the models covered: a run that shows no bounds shows nothing."""

from collections.abc import Callable

import pytest
from tests.models.explore import Report
from tests.support import told


@pytest.fixture
def tell(pytestconfig: pytest.Config) -> Callable[[Report], None]:
    """Keep a report for the summary."""
    return lambda report: told.tell(pytestconfig, "models", str(report))
