"""A Redis, and a conversation in it, for the tests of what only Redis has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from tests import engines
from tests.contract.builders import START_MS, event, key, new, step, value
from tests.engines.redis import Redis

from qimd.adapters.redis import RedisStores, open_redis
from qimd.core.errors import QimError
from qimd.core.outcome import Outcome
from qimd.ports.store import ConversationState, ShardKind

NONCE = b"n" * 16


def url(address: str | None = None) -> str:
    return f"redis://{address or engines.address('redis')}"


def namespace() -> str:
    return f"test-{uuid4()}"


@asynccontextmanager
async def opened(address: str | None = None, **settings: Any) -> AsyncIterator[RedisStores]:
    stores = await open_redis(url(address), namespace(), **settings)
    try:
        yield stores
    finally:
        await stores.close()


def start(server: Redis) -> None:
    """Start it (again), and wait until it answers."""
    server.start()
    server.wait()


async def start_again(server: Redis, stores: RedisStores) -> None:
    """As `start`, and let the stores see it: no call reaches a start that was not seen before."""
    await asyncio.to_thread(start, server)
    with pytest.raises(QimError, match="started anew"):
        await stores.engine.fetch([("PING",)])


async def owned(stores: RedisStores) -> int:
    """A conversation under a new owner's epoch."""
    epochs, conversations = stores.epochs, stores.conversations
    epoch = value(await epochs.raise_epoch(ShardKind.WRITER, 0, NONCE, START_MS // 1000))
    value(await conversations.create_conversation(0, epoch, key(), START_MS))
    return epoch


async def message(
    stores: RedisStores, epoch: int, seq: int, *, size: int = 10
) -> Outcome[ConversationState]:
    """Commit the message at `seq`."""
    return await stores.conversations.commit(
        step(epoch, seq - 1, [new(event(seq, text="x" * size))])
    )


async def numbers(stores: RedisStores) -> list[int]:
    """The conversation's events."""
    return [each.conversation_seq for each in await stores.conversations.outbox(key(), 0, 1_000)]
