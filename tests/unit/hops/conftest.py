"""Two processes and what they share."""

from collections.abc import AsyncIterator

import pytest
from tests.unit.hops.world import Process, World, world


@pytest.fixture
async def hops() -> AsyncIterator[World]:
    async with world() as made:
        yield made


@pytest.fixture
async def near(hops: World) -> Process:
    """The process that calls."""
    return await hops.process("near")


@pytest.fixture
async def far(hops: World) -> Process:
    """The process that owns every shard."""
    process = await hops.process("far")
    hops.leases.give(process)
    return process
