"""One gateway a test."""

from collections.abc import AsyncIterator

import pytest
from tests.unit.client.gateway import Gateway, running


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with running() as made:
        yield made
