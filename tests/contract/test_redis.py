"""What only Redis has: its gate, its namespaces, and what is laid out by hand in it."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests import engines
from tests.contract.builders import (
    START_MS,
    event,
    key,
    membership,
    new,
    step,
    value,
)
from tests.contract.redis_scenes import NONCE, message, namespace, opened, owned, url
from tests.engines.redis import Redis

from qimd.adapters.redis import GateRefused, RedisStores, open_redis
from qimd.adapters.redis.conversations import MEMBERS_PER_CALL
from qimd.adapters.redis.engine import Command, RedisEngine
from qimd.adapters.redis.gates import gate
from qimd.adapters.redis.keys import Keyspace
from qimd.adapters.redis.scripts import load
from qimd.core.ids import UserId
from qimd.core.records import EventKind, Interval
from qimd.ports.store import Pending, ShardKind

pytestmark = pytest.mark.skipif(
    engines.address("redis") is None, reason="Redis does not run here (make engines)"
)


@pytest.fixture
async def stores() -> AsyncIterator[RedisStores]:
    async with opened() as made:
        yield made


# --- the gate ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "flags"),
    [
        ("aof_enabled", ("--appendonly", "no")),
        ("appendfsync", ("--appendfsync", "everysec")),
        ("appendfsync", ("--appendfsync", "no")),
        ("no-appendfsync-on-rewrite", ("--no-appendfsync-on-rewrite", "yes")),
        ("maxmemory_policy", ("--maxmemory-policy", "allkeys-lru")),
        ("redis_mode", ("--cluster-enabled", "yes")),
        ("role", ("--replicaof", "127.0.0.1 1")),
    ],
)
async def test_a_redis_that_may_lose_what_was_acknowledged_is_refused(
    tmp_path: Path, setting: str, flags: Sequence[str]
) -> None:
    with (
        Redis(tmp_path / "redis", *flags) as redis,
        pytest.raises(GateRefused, match=setting) as refusal,
    ):
        await open_redis(url(redis.address), namespace())
    assert refusal.value.setting == setting


async def test_who_accepts_losing_acknowledged_writes_says_so(tmp_path: Path) -> None:
    with Redis(tmp_path / "redis", "--appendfsync", "everysec") as redis:
        async with opened(redis.address, may_lose_acknowledged_writes=True) as stores:
            assert await owned(stores) > 0


class Doctored(RedisEngine):
    """The Redis that runs, but for one line of what it says of itself."""

    def __init__(self, line: str) -> None:
        super().__init__(url(), namespace())
        self._line = line.encode()

    async def fetch(self, commands: Sequence[Command]) -> list[Any]:
        info, *others = await super().fetch(commands)
        name, _, _ = self._line.partition(b":")
        lines = info.splitlines()
        assert any(line.startswith(name + b":") for line in lines)
        kept = [self._line if line.startswith(name + b":") else line for line in lines]
        return [b"\r\n".join(kept), *others]


@pytest.mark.parametrize(
    "line",
    [
        "redis_version:6.2.14",
        "redis_version:6.9.99",
        "redis_version:unstable",
        "redis_mode:sentinel",
        "cluster_enabled:1",
        "role:slave",
        "aof_enabled:0",
        "aof_last_write_status:err",
        "maxmemory_policy:volatile-ttl",
    ],
)
async def test_each_line_of_the_gate_refuses_by_its_name(line: str) -> None:
    engine = Doctored(line)
    setting, _, found = line.partition(":")
    with pytest.raises(GateRefused) as refusal:
        await gate(engine)
    assert (refusal.value.setting, refusal.value.found) == (setting, found)
    await engine.close()


@pytest.mark.parametrize("name", ["", "a:b", "a b", "é", "x" * 65])
def test_what_is_no_namespace_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        Keyspace(name)


async def test_two_deployments_of_one_redis_never_meet(stores: RedisStores) -> None:
    await owned(stores)
    async with opened() as others:
        assert await others.conversations.conversation(key()) is None
        assert list(await others.conversations.conversation_page(10)) == []
        assert await others.conversations.first_log() is None


# --- what is laid out by hand -------------------------------------------------------------------


async def test_a_conversation_that_moved_shards_is_pending_at_its_new_one(
    stores: RedisStores,
) -> None:
    epoch = await owned(stores)
    value(await message(stores, epoch, 1))
    raised = await stores.epochs.raise_epoch(ShardKind.WRITER, 5, NONCE, START_MS // 1000)
    value(await stores.conversations.claim(5, value(raised), key()))
    assert list(await stores.conversations.pending(0)) == []
    assert list(await stores.conversations.pending(5)) == [Pending(key(), 0, 1)]


async def test_unread_messages_are_counted_by_the_senders_of_each_conversation(
    stores: RedisStores,
) -> None:
    """More senders than a byte holds, each with a number of its own; a reaction is nobody's."""
    epoch = await owned(stores)
    senders = [UserId(f"user-{number}") for number in range(300)]
    events = [event(seq, sender=sender) for seq, sender in enumerate(senders, start=1)]
    events.append(event(301, sender=senders[0], kind=EventKind.REACTION))
    events.append(event(302, sender=senders[255]))
    for batch in (events[:200], events[200:]):
        head = batch[0].conversation_seq - 1
        value(await stores.conversations.commit(step(epoch, head, list(map(new, batch)))))

    async def unread(reader: UserId, after: int) -> int:
        return await stores.conversations.count_unread(key(), reader, [Interval(1)], after, 302)

    assert await unread(UserId("nobody"), 0) == 301
    assert await unread(senders[0], 0) == 300
    assert await unread(senders[255], 0) == 299
    assert await unread(senders[0], 299) == 2
    assert await unread(senders[255], 301) == 0


def test_a_script_says_in_its_first_line_whether_it_writes() -> None:
    """Else Redis would begin it where there is no room, and stop it half-way."""
    with pytest.raises(ValueError, match="does not begin"):
        load("sized")


# --- many -------------------------------------------------------------------------------------


async def test_members_of_a_large_conversation_come_whole_over_many_pages(
    stores: RedisStores,
) -> None:
    epoch = await owned(stores)
    users = [f"user-{number:06}" for number in range(2 * MEMBERS_PER_CALL)]
    chunks = [users[start : start + 1_000] for start in range(0, len(users), 1_000)]
    changes = [membership(seq, added=added) for seq, added in enumerate(chunks, start=1)]
    leaving = membership(len(changes) + 1, removed=users[::3])
    for change in (*changes, leaving):
        value(
            await stores.conversations.commit(
                step(epoch, change.conversation_seq - 1, [new(change)])
            )
        )
    before, after = len(changes), len(changes) + 1
    assert list(await stores.conversations.members_at(key(), before)) == users
    stayed = [user for number, user in enumerate(users) if number % 3]
    assert list(await stores.conversations.members_at(key(), after)) == stayed
    found = await stores.conversations.current_members(key(), [UserId(user) for user in users[:6]])
    assert found == {user: 1 for user in users[:6] if user in stayed}
    page = await stores.conversations.member_page(key(), "", len(users))
    assert [user for user, _ in page] == stayed
