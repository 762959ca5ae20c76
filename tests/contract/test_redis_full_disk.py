"""A Redis whose append-only file meets a full disk, and which is killed then."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from tests import engines
from tests.contract.builders import block, event, ref, user, value
from tests.contract.owners import FIRST, TERM, record
from tests.contract.redis_scenes import namespace, start, url
from tests.contract.test_redis_mailbox import step_of
from tests.engines.redis import Redis
from tests.support.disk import fill, small_disk

from qimd.adapters.redis import RedisStores, open_redis
from qimd.core.outcome import Applied
from qimd.core.seq import SEQ_MAX, SEQ_NONE, offset_of
from qimd.ports.mailbox import ApplyStep, MailboxStore

pytestmark = pytest.mark.skipif(
    engines.address("redis") is None, reason="Redis does not run here (make engines)"
)

LEFT = 4_000_000
"""What the ballast leaves."""
USERS = [f"user-{number:03}" for number in range(800)]
"""So many that a full disk cuts some step in its midst."""
BLOCKS = [block(lane, *USERS[lane::8]) for lane in range(8)]


async def offsets(store: MailboxStore, name: str) -> list[int]:
    """At which each of the user's entries is."""
    return [
        offset_of(entry.seq) for entry in await store.entries(user(name), SEQ_NONE, SEQ_MAX, 1_000)
    ]


@pytest.mark.parametrize("appendfsync", ["everysec", "always"])
async def test_a_checkpoint_goes_back_with_its_entries_and_never_beyond_them(
    tmp_path: Path, appendfsync: str
) -> None:
    """F22: each user has the records below the checkpoint, and no other; what is read again is
    applied once, and what comes once more at a later offset is absorbed.
    """
    lossy = appendfsync == "everysec"
    with (
        small_disk(tmp_path / "small") as disk,
        Redis(disk / "redis", "--appendfsync", appendfsync) as redis,
    ):
        opened = partial(deployment, redis.address, namespace(), may_lose_acknowledged_writes=lossy)
        async with opened() as stores:
            store = stores.mailbox
            value(await store.open_shard(0, TERM, FIRST))
            ballast = fill(disk, LEFT)
            acknowledged = 0
            while isinstance(await store.apply(everybodys(acknowledged)), Applied):
                acknowledged += 1
        await asyncio.to_thread(redis.kill)
        ballast.unlink()
        await asyncio.to_thread(start, redis)

        async with opened() as stores:
            store = stores.mailbox
            state = await store.shard_state(0)
            assert state is not None
            kept = state.next_offset
            # One step's outcome was told to nobody.
            assert kept <= acknowledged + 1
            # The write that found no room had been acknowledged before it was to be synced.
            assert kept < acknowledged if lossy else kept >= acknowledged
            for name in USERS:
                assert await offsets(store, name) == list(range(kept))

            last = max(kept, acknowledged)
            for offset in range(kept, last):
                (verdict,) = value(await store.apply(everybodys(offset)))
                assert verdict.duplicate == 0
            again = record(last, BLOCKS, of=ref(event(1)))
            (verdict,) = value(await store.apply(step_of(last, [again])))
            assert (verdict.applied, verdict.duplicate) == (0, 0xFF)
            for name in USERS:
                assert await offsets(store, name) == list(range(last))


def everybodys(offset: int) -> ApplyStep:
    """The step of the record at an offset, which is for all users."""
    return step_of(offset, [record(offset, BLOCKS)])


@asynccontextmanager
async def deployment(
    address: str, name: str, *, may_lose_acknowledged_writes: bool
) -> AsyncIterator[RedisStores]:
    """As a process opens it at its start."""
    stores = await open_redis(
        url(address), name, may_lose_acknowledged_writes=may_lose_acknowledged_writes
    )
    try:
        yield stores
    finally:
        await stores.close()
