"""What goes wrong with Redis: lost replies, cancelled calls, no memory, no disk, kills."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests import engines
from tests.contract.builders import (
    ANNA,
    START_MS,
    key,
    refused,
    value,
)
from tests.contract.redis_scenes import (
    message,
    numbers,
    opened,
    owned,
    start,
    start_again,
    url,
)
from tests.engines.redis import Redis
from tests.support.disk import small_disk
from tests.support.wire import Wire

from qimd.adapters.redis import RedisStores, open_redis
from qimd.adapters.redis.engine import CONNECTIONS_MAX, ScriptFailed
from qimd.core.errors import ErrorCode, QimError
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.ports.store import ConversationState, IdempotencyKey

pytestmark = pytest.mark.skipif(
    engines.address("redis") is None, reason="Redis does not run here (make engines)"
)


@pytest.fixture
async def stores() -> AsyncIterator[RedisStores]:
    async with opened() as made:
        yield made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Redis]:
    """A Redis that a test may harm."""
    redis = Redis(tmp_path / "redis")
    with redis:
        yield redis


# --- calls that go wrong ----------------------------------------------------------------------


async def test_nobody_there_is_certainly_not_applied(server: Redis) -> None:
    async with opened(server.address) as stores:
        epoch = await owned(stores)
        await asyncio.to_thread(server.stop)
        assert refused(await message(stores, epoch, 1)) is Refusal.UNREACHABLE
        with pytest.raises(QimError) as failure:
            await stores.conversations.conversation(key())
        assert failure.value.code is ErrorCode.UNAVAILABLE
        await start_again(server, stores)
        assert value(await message(stores, epoch, 1)).head_version == 1


async def test_a_closed_store_is_certainly_not_asked(stores: RedisStores) -> None:
    epoch = await owned(stores)
    await stores.close()
    assert refused(await message(stores, epoch, 1)) is Refusal.UNREACHABLE


async def test_a_password_opens_the_door_and_is_never_told(tmp_path: Path) -> None:
    with Redis(tmp_path / "redis") as server:
        async with opened(server.address) as stores:
            await stores.engine.fetch([("CONFIG SET", "requirepass", "open-sesame")])
        async with opened(f":open-sesame@{server.address}") as stores:
            assert await owned(stores) > 0
            shown = repr(stores)
        with pytest.raises(QimError) as failure:
            await open_redis(url(f":close-sesame@{server.address}"), "test")
        assert failure.value.code is ErrorCode.UNAVAILABLE
        assert "sesame" not in f"{shown}{failure.value}"


async def test_a_lost_reply_is_resolved_by_the_same_step() -> None:
    """F19: one version step; the caller sees success by its request id."""
    address = engines.address("redis")
    assert address is not None
    async with Wire(address) as wire, opened(wire.address) as stores:
        epoch = await owned(stores)
        wire.lose_reply()
        assert isinstance(await message(stores, epoch, 1), Unknown)
        assert value(await message(stores, epoch, 1)).head_version == 1
        assert await numbers(stores) == [1]


async def test_a_server_that_does_not_answer_leaves_a_step_unknown(server: Redis) -> None:
    """F25's store: when it wakes up it does what it was sent, and then knows the step again."""
    async with opened(server.address, reply_timeout_s=1.0) as stores:
        epoch = await owned(stores)
        server.pause()
        assert isinstance(await message(stores, epoch, 1), Unknown)
        with pytest.raises(QimError):
            await numbers(stores)
        server.resume()
        assert value(await message(stores, epoch, 1)).head_version == 1
        assert await numbers(stores) == [1]


async def test_a_thousand_cancelled_calls_give_nobody_anothers_reply(stores: RedisStores) -> None:
    """F23: and all connections are free again."""
    engine, chance = stores.engine, random.Random(23)
    names = [engine.keys.key("cancelled", str(number)) for number in range(50)]
    await engine.fetch([("SET", name, name) for name in names])

    async def ask() -> None:
        asked = chance.sample(names, chance.randint(1, 5))
        assert await engine.fetch([("GET", name) for name in asked]) == asked

    cancelled = 0
    while cancelled < 1_000:
        calls = [asyncio.ensure_future(ask()) for _ in range(2 * CONNECTIONS_MAX)]
        for _ in range(chance.randint(0, 12)):
            await asyncio.sleep(0)
        for call in chance.sample(calls, CONNECTIONS_MAX):
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        cancelled += sum(isinstance(result, asyncio.CancelledError) for result in results)
        # A machine that is out of breath may answer nothing in time, but never a wrong thing.
        answered = [result for result in results if not isinstance(result, QimError)]
        assert {type(result) for result in answered} <= {type(None), asyncio.CancelledError}
    assert engine.calls_under_way == 0
    for _ in range(10):
        await asyncio.gather(*(ask() for _ in range(CONNECTIONS_MAX)))


async def test_cancelled_steps_are_resolved_by_the_same_steps(stores: RedisStores) -> None:
    """A caller that went away took nothing back: each event exists once, whoever asked again."""
    epoch, chance = await owned(stores), random.Random(7)
    for seq in range(1, 101):
        call = asyncio.ensure_future(message(stores, epoch, seq))
        for _ in range(chance.randint(0, 8)):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert value(await message(stores, epoch, seq)).head_version == seq
    assert await numbers(stores) == list(range(1, 101))
    assert stores.engine.calls_under_way == 0


async def test_a_server_that_forgot_its_scripts_is_taught_them_again(server: Redis) -> None:
    async with opened(server.address) as stores:
        epoch = await owned(stores)
        value(await message(stores, epoch, 1))
        await stores.engine.fetch([("SCRIPT FLUSH",)])
        assert value(await message(stores, epoch, 2)).head_version == 2


async def test_a_wrong_command_is_a_defect_and_no_outage(stores: RedisStores) -> None:
    with pytest.raises(ScriptFailed, match="NO-SUCH-COMMAND"):
        await stores.engine.fetch([("NO-SUCH-COMMAND",)])


async def test_each_start_of_the_server_has_a_run_id_of_its_own(server: Redis) -> None:
    async with opened(server.address) as stores:
        first = stores.run_id
    server.stop()
    start(server)
    async with opened(server.address) as stores:
        assert stores.run_id != first


# --- no room, no master, no power -------------------------------------------------------------


async def test_without_memory_a_step_is_refused_whole_and_old_keys_can_go(server: Redis) -> None:
    async with opened(server.address) as stores:
        epoch = await owned(stores)
        value(await message(stores, epoch, 1))
        before = await stores.conversations.conversation(key())
        await stores.engine.fetch([("CONFIG SET", "maxmemory", 1)])
        assert refused(await message(stores, epoch, 2)) is Refusal.NO_SPACE
        assert await stores.conversations.conversation(key()) == before
        assert await numbers(stores) == [1]
        assert await stores.conversations.expire_idempotency(START_MS + 2, 10) == 1
        assert await stores.conversations.prior_results(key(), [IdempotencyKey(ANNA, "m1")]) == {}
        await stores.engine.fetch([("CONFIG SET", "maxmemory", 0)])
        assert value(await message(stores, epoch, 2)).head_version == 2


async def until_full(stores: RedisStores, epoch: int, seq: int) -> Outcome[ConversationState]:
    """Commit large messages from `seq` on; the first outcome that is not Applied."""
    while isinstance(outcome := await message(stores, epoch, seq, size=60_000), Applied):
        seq += 1
    return outcome


async def test_a_full_disk_refuses_where_redis_syncs_each_second(tmp_path: Path) -> None:
    """It lives on (MISCONF) and takes writes again once there is room."""
    with (
        small_disk(tmp_path / "small") as disk,
        Redis(disk / "redis", "--appendfsync", "everysec") as redis,
    ):
        async with opened(redis.address, may_lose_acknowledged_writes=True) as stores:
            epoch = await owned(stores)
            ballast = disk / "ballast"
            ballast.write_bytes(b"b" * 8_000_000)
            assert refused(await until_full(stores, epoch, 1)) is Refusal.NO_SPACE
            head = (await numbers(stores))[-1]
            ballast.unlink()
            async with asyncio.timeout(30):
                while isinstance(await message(stores, epoch, head + 1), NotApplied):
                    """It looks for room by itself, ten times a second."""
            assert await numbers(stores) == list(range(1, head + 2))


async def test_a_full_disk_stops_a_redis_that_syncs_each_write_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    """It can't keep its word, so it ends; what it acknowledged is there when it starts again."""
    with small_disk(tmp_path / "small") as disk, Redis(disk / "redis") as redis:
        async with opened(redis.address) as stores:
            epoch = await owned(stores)
            ballast = disk / "ballast"
            ballast.write_bytes(b"b" * 8_000_000)
            assert isinstance(await until_full(stores, epoch, 1), Unknown)
            ballast.unlink()
            await start_again(redis, stores)
            kept = await numbers(stores)
            assert kept == list(range(1, len(kept) + 1))
            assert kept
            last = await message(stores, epoch, len(kept) + 1, size=60_000)
            assert value(last).head_version == len(kept) + 1


async def test_what_was_acknowledged_outlives_a_kill(server: Redis) -> None:
    async with opened(server.address) as stores:
        epoch = await owned(stores)
        for seq in range(1, 51):
            value(await message(stores, epoch, seq))
        await asyncio.to_thread(server.kill)
        await start_again(server, stores)
        assert await numbers(stores) == list(range(1, 51))
        assert value(await message(stores, epoch, 51)).head_version == 51


async def test_a_master_that_became_a_replica_takes_nothing(server: Redis) -> None:
    async with opened(server.address) as stores:
        epoch = await owned(stores)
        await stores.engine.fetch([("REPLICAOF", "127.0.0.1", 1)])
        assert refused(await message(stores, epoch, 1)) is Refusal.UNREACHABLE
        await stores.engine.fetch([("REPLICAOF", "NO", "ONE")])
        assert value(await message(stores, epoch, 1)).head_version == 1
