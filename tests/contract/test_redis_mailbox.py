"""What only mailboxes in Redis have: calls in parts, strings that go by the day, a lost tail."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from tests import engines
from tests.contract.builders import ANNA, BEN, block, device, event, key, ref, refused, user, value
from tests.contract.owners import FIRST, TERM, at, kept_record, record
from tests.engines.redis import Redis

from qimd.adapters.redis import RedisStores, open_redis
from qimd.adapters.redis import mailbox as module
from qimd.core.errors import QimError
from qimd.core.outcome import Refusal
from qimd.core.seq import SEQ_MAX, SEQ_NONE, MailboxSeq, before_offset
from qimd.ports.mailbox import ApplyStep, DayBucket, EpochMark, MailboxStore, RecordStep

pytestmark = pytest.mark.skipif(
    engines.address("redis") is None, reason="Redis does not run here (make engines)"
)

NAMES = [f"user-{n}" for n in range(7)]


@asynccontextmanager
async def opened(address: str | None, namespace: str = "test") -> AsyncIterator[RedisStores]:
    made = await open_redis(f"redis://{address}", namespace)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def stores() -> AsyncIterator[RedisStores]:
    async with opened(engines.address("redis"), f"test-{uuid4()}") as made:
        yield made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Redis]:
    """A Redis that a test may harm."""
    with Redis(tmp_path / "redis") as redis:
        yield redis


def step_of(first: int, records: list[RecordStep], *buckets: DayBucket) -> ApplyStep:
    """A step from before the record at offset `first` to behind its own records."""
    return ApplyStep(
        request_id=f"request {first:8}".encode(),
        shard=0,
        term=TERM,
        expected_position=before_offset(1, 0) if first == 0 else at(first - 1),
        records=records,
        marks=[(key(f"c{n}"), EpochMark(epoch, at(first))) for n in range(9) for epoch in (3, 5)],
        buckets=buckets,
        next_offset=first + len(records),
        position=at(first + len(records) - 1),
        lagging={},
        at_ms=1,
    )


async def two_days(store: MailboxStore) -> None:
    """Four records for everybody: three on day 100, one on day 101."""
    value(await store.open_shard(0, TERM, FIRST))
    everybody = [block(0, *NAMES[:4]), block(9, *NAMES[4:])]
    days = [DayBucket(100, at(0)), DayBucket(101, at(3))]
    records = [record(n, everybody) for n in range(4)]
    value(await store.apply(step_of(0, records, *days)))


async def kinds(stores: RedisStores) -> set[bytes]:
    """Of what kinds there are keys of mailboxes."""
    prefix = stores.engine.keys.prefix("mailbox")
    [found] = await stores.engine.fetch([("KEYS", prefix + b"*")])
    return {name[len(prefix) :].split(b":")[0] for name in found}


async def seqs(store: MailboxStore, name: str) -> list[MailboxSeq]:
    return [entry.seq for entry in await store.entries(user(name), SEQ_NONE, SEQ_MAX, 99)]


async def test_a_day_that_expired_leaves_nothing_however_many_users_it_had(
    stores: RedisStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_USERS_MAX", 2)
    store = stores.mailbox
    await two_days(store)
    value(await store.open_device(device(), SEQ_NONE))
    kept = {b"shard", b"epochs", b"days", b"marks", b"folding", b"progress", b"device"}
    assert await kinds(stores) > kept
    assert value(await store.expire_buckets(0, TERM, at(2), 9)) == 3
    prefix = stores.engine.keys.prefix("mailbox")
    [strings] = await stores.engine.fetch([("KEYS", prefix + b"entries:*")])
    assert len(strings) == len(NAMES)
    for name in NAMES:
        assert await seqs(store, name) == [at(3)]
    assert value(await store.expire_buckets(0, TERM, at(3), 9)) == 1
    assert await kinds(stores) == kept | {b"seen"}
    assert value(await store.collect_progress(0, TERM, at(3), 9)).forgotten == 4
    assert await kinds(stores) == kept - {b"progress"}


async def test_what_takes_parts_takes_all_of_them(
    stores: RedisStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("FOLD_CONVERSATIONS", "DROP_KEPT_MAX", "ENTRY_SEQS_MAX"):
        monkeypatch.setattr(module, limit, 2)
    store = stores.mailbox
    await two_days(store)
    assert value(await store.fold_marks(0, TERM, at(9))) == 9
    assert b"folding" not in await kinds(stores)
    value(await store.keep_records(0, TERM, [kept_record(n, 0) for n in range(1, 8)]))
    assert value(await store.drop_kept(0, TERM, at(6))) == 6
    assert [one.seq for one in await store.kept_records(0, SEQ_NONE, 9)] == [at(7)]
    found = await store.entry_seqs(user(NAMES[0]), key(), 1, 9)
    assert found == {n + 1: at(n) for n in range(4)}


async def test_entries_of_a_user_that_moved_come_in_order_from_both_shards(
    stores: RedisStores,
) -> None:
    store = stores.mailbox
    for shard in (0, 1):
        value(await store.open_shard(shard, TERM, FIRST))
        records = [record(n, [block(0, ANNA)], shard=shard) for n in range(shard, 8, 2)]
        value(await store.apply(replace(step_of(0, records), shard=shard, position=at(7))))
    assert await seqs(store, ANNA) == [at(n) for n in range(8)]
    page = await store.entries(user(), at(1), at(6), 3)
    assert [entry.seq for entry in page] == [at(n) for n in range(2, 5)]
    value(await store.expire_buckets(1, TERM, at(4), 9))
    assert await seqs(store, ANNA) == [at(n) for n in (0, 2, 4, 5, 6, 7)]


async def test_where_there_is_no_memory_days_can_still_go(server: Redis) -> None:
    async with opened(server.address) as stores:
        store = stores.mailbox
        await two_days(store)
        more = step_of(4, [record(4, [block(0, ANNA)])])
        await stores.engine.fetch([("CONFIG SET", "maxmemory", 1)])
        assert refused(await store.apply(more)) is Refusal.NO_SPACE
        assert value(await store.open_shard(0, TERM, FIRST)).position == at(3)
        assert value(await store.expire_buckets(0, TERM, at(2), 9)) == 3
        await stores.engine.fetch([("CONFIG SET", "maxmemory", 0)])
        value(await store.apply(more))
        assert await seqs(store, ANNA) == [at(4)]


@pytest.mark.parametrize("call", ["read", "step"])
async def test_no_call_reaches_a_start_that_was_not_seen_when_it_was_made(
    server: Redis, call: str
) -> None:
    """Its caller believes what that start may have lost."""
    steps = [step_of(n, [record(n, [block(0, ANNA)])]) for n in range(2)]
    async with opened(server.address) as stores:
        store = stores.mailbox
        value(await store.open_shard(0, TERM, FIRST))
        for step in steps:
            value(await store.apply(step))
        await asyncio.to_thread(cut_off_the_end, server)
        assert store.restarts == 0
        if call == "read":
            with pytest.raises(QimError, match="started anew"):
                await seqs(store, ANNA)
        else:
            builds_on_it = step_of(2, [record(2, [block(0, ANNA)])])
            assert refused(await store.apply(builds_on_it)) is Refusal.UNREACHABLE
        assert store.restarts == stores.projection.restarts == 1
        assert await seqs(store, ANNA) == [at(0)]
        value(await store.apply(steps[1]))
        assert await seqs(store, ANNA) == [at(0), at(1)]
        assert store.restarts == 1


def cut_off_the_end(server: Redis) -> None:
    """Start the server anew without the end of its append-only file, as `everysec` may."""
    server.kill()
    [file] = (server.folder / "appendonlydir").glob("*.incr.aof")
    file.write_bytes(file.read_bytes()[:-20])
    server.start()
    server.wait()


async def test_a_step_that_a_restart_takes_back_goes_whole(server: Redis) -> None:
    """As under `everysec`: the end of the append-only file is cut within the step."""
    steps = [step_of(n, [record(n, [block(0, ANNA), block(5, BEN)])]) for n in range(2)]
    async with opened(server.address) as stores:
        value(await stores.mailbox.open_shard(0, TERM, FIRST))
        value(await stores.mailbox.apply(steps[0]))
        before = await stores.mailbox.shard_state(0)
        value(await stores.mailbox.apply(steps[1]))
    await asyncio.to_thread(cut_off_the_end, server)
    async with opened(server.address) as stores:
        store = stores.mailbox
        assert await store.shard_state(0) == before
        assert await seqs(store, ANNA) == await seqs(store, BEN) == [at(0)]
        assert list(await store.records_of(ref(event(2)).event_id)) == []
        builds_on_it = step_of(2, [record(2, [block(0, ANNA)])])
        assert refused(await store.apply(builds_on_it)) is Refusal.HEAD_MOVED
        assert [verdict.duplicate for verdict in value(await store.apply(steps[1]))] == [0]
        assert await seqs(store, ANNA) == [at(0), at(1)]
