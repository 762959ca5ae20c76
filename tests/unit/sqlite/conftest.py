"""A fresh file each test, on a clock that the test moves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.runtime import ManualRuntime

from qimd.adapters.sqlite import SqliteBackends, open_sqlite


@pytest.fixture
async def runtime() -> AsyncIterator[ManualRuntime]:
    async with ManualRuntime() as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "qim.db"


@pytest.fixture
async def store(path: Path, runtime: ManualRuntime) -> AsyncIterator[SqliteBackends]:
    made = await open_sqlite(path, runtime)
    yield made
    await made.close()
