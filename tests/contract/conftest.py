"""One suite per port, over every engine: `engine` is a fresh deployment of each in turn.

A suite names its engines in `ENGINES`. A real one that does not run here is left out, and named at
the end; in CI that is a failure.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests import engines
from tests.contract.engines import Engine, opened
from tests.support.told import tell

EMBEDDED = ("memory", "sqlite")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" not in metafunc.fixturenames:
        return
    wanted = getattr(metafunc.module, "ENGINES", EMBEDDED)
    missing = {name for name in wanted if name in engines.ENGINES and not engines.address(name)}
    if missing and os.environ.get("CI") == "true":
        pytest.fail(f"not running: {', '.join(sorted(missing))}; see `make engines`", pytrace=False)
    for name in missing:
        tell(metafunc.config, "left out, since they do not run here (make engines)", name)
    here = [name for name in wanted if name not in missing]
    metafunc.parametrize("engine", here, indirect=True)


@pytest.fixture
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with opened(request.param, tmp_path) as made:
        yield made
