"""What must be shown on the real engines.

`--chaos` (`make chaos`) adds what takes minutes, and ends with a table of what each test counted.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests import engines
from tests.e2e.engines.deployment import STEADY_LEASE, Deployment, deployed
from tests.support.told import tell

from qimd.app.demo_verdict import Verdict

_NEEDED = ("redis", "etcd", "kafka")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos", action="store_true", help="also what takes minutes, and a table")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "chaos: takes minutes; runs with --chaos alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = [name for name in _NEEDED if engines.address(name) is None]
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        if missing:
            text = f"{', '.join(missing)} does not run here (make engines)"
            item.add_marker(pytest.mark.skip(reason=text))
        elif item.get_closest_marker("chaos") and not config.getoption("--chaos", default=False):
            item.add_marker(pytest.mark.skip(reason="make chaos runs it"))


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    """One with short leases, its store in Redis."""
    async with deployed(tmp_path) as made:
        yield made


@pytest.fixture
async def steady(tmp_path: Path) -> AsyncIterator[Deployment]:
    """One whose owners are changed by the test alone, its store in Redis."""
    async with deployed(tmp_path, lease=STEADY_LEASE) as made:
        yield made


@pytest.fixture
def shown(request: pytest.FixtureRequest) -> Iterator[Callable[[Verdict], None]]:
    """What the table at the end says of this test: call it with what was counted."""
    began_s = time.monotonic()
    verdicts: list[Verdict] = []
    yield verdicts.append
    if not request.config.getoption("--chaos", default=False):
        return
    for verdict in verdicts:
        tell(
            request.config,
            "what was shown",
            f"{request.node.name:<72} {time.monotonic() - began_s:6.1f} s  "
            f"{verdict.events_acknowledged:>5} acknowledged, {verdict.triples_found:>6} triples of "
            f"{verdict.triples_expected}, zeros {sum(verdict.zeros.values()):g}",
        )
