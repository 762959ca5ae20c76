"""One suite per port, over every engine: `engine` is a fresh deployment of each in turn."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.engines import Engine, opened


@pytest.fixture(params=["memory", "torn", "sqlite"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with opened(request.param, tmp_path) as made:
        yield made
