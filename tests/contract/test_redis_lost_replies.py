"""A commit whose reply is lost once it was made: the script is in the server by then.

The first call of a script is two, of which the first one asks for what is not there yet: to lose
its reply is to lose a commit that was never tried.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import engines
from tests.contract.builders import value
from tests.contract.redis_scenes import message, numbers, opened, owned
from tests.engines.redis import Redis
from tests.support.wire import Wire

from qimd.core.outcome import Unknown

pytestmark = pytest.mark.skipif(
    engines.address("redis") is None, reason="Redis does not run here (make engines)"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Redis]:
    """One that knows no script yet."""
    with Redis(tmp_path / "redis") as redis:
        yield redis


async def test_a_commit_whose_reply_is_lost_is_there_and_known_again(server: Redis) -> None:
    """F19: one version step; the caller sees success by its request id."""
    async with Wire(server.address) as wire, opened(wire.address) as stores:
        epoch = await owned(stores)
        value(await message(stores, epoch, 1))
        wire.lose_reply()
        assert isinstance(await message(stores, epoch, 2), Unknown)
        assert await numbers(stores) == [1, 2]
        assert value(await message(stores, epoch, 2)).head_version == 2
        assert await numbers(stores) == [1, 2]


async def test_a_server_that_wakes_up_does_what_it_was_sent_and_knows_it_again(
    server: Redis,
) -> None:
    """F25's store."""
    async with opened(server.address, reply_timeout_s=1.0) as stores:
        epoch = await owned(stores)
        value(await message(stores, epoch, 1))
        server.pause()
        assert isinstance(await message(stores, epoch, 2), Unknown)
        server.resume()
        async with asyncio.timeout(30):
            while await numbers(stores) != [1, 2]:
                pass
        assert value(await message(stores, epoch, 2)).head_version == 2
        assert await numbers(stores) == [1, 2]
