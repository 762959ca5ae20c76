"""What only the projection in Redis has: steps in parts, a lost tail."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests import engines
from tests.contract.builders import ANNA, BEN, CARL, DORA, key, refused, user, value
from tests.contract.test_projection import INITIAL, TERM, group, project_step, said
from tests.engines.redis import Redis

from qimd.adapters.redis import RedisStores, open_redis
from qimd.adapters.redis import projection as module
from qimd.core.outcome import NotApplied, Outcome, Refusal, Unknown
from qimd.ports.projection import PartitionCheckpoint, ProjectionStore, ProjectStep

pytestmark = pytest.mark.skipif(
    engines.address("redis") is None, reason="Redis does not run here (make engines)"
)

NAMES = (ANNA, BEN, CARL, DORA)
STEP = project_step(
    0,
    5,
    group(said(1), said(2), users=[ANNA, BEN]),
    group(said(1, CARL), users=[CARL], conversation=key("c")),
    group(said(3, ANNA), users=[ANNA, BEN, CARL]),
    group(said(4), users=[DORA]),
)


@asynccontextmanager
async def opened(address: str | None, namespace: str = "test") -> AsyncIterator[RedisStores]:
    made = await open_redis(f"redis://{address}", namespace)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def stores(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisStores]:
    """Where a step goes in parts of a group or two."""
    monkeypatch.setattr(module, "PART_ROWS_MAX", 3)
    async with opened(engines.address("redis"), f"test-{uuid4()}") as made:
        yield made


async def all_rows(store: ProjectionStore) -> Sequence[object]:
    return [list(await store.rows(user(name), None, 9)) for name in NAMES]


async def projected_whole(step: ProjectStep) -> Sequence[object]:
    """What the rows are after a step that went in one part."""
    async with opened(engines.address("redis"), f"test-{uuid4()}") as stores:
        value(await stores.projection.open_partition(0, TERM, INITIAL))
        value(await stores.projection.project(step))
        return await all_rows(stores.projection)


async def test_a_step_in_parts_is_the_same_step(
    stores: RedisStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.projection
    value(await store.open_partition(0, TERM, INITIAL))
    value(await store.project(STEP))
    after = await all_rows(store)
    assert await store.checkpoint(0) == PartitionCheckpoint(INITIAL.meta, 5)
    assert refused(await store.project(STEP)) is Refusal.HEAD_MOVED
    assert await all_rows(store) == after
    monkeypatch.undo()
    assert await projected_whole(STEP) == after


@pytest.mark.parametrize("parts", [0, 1, 2])
async def test_a_step_that_is_cut_short_is_projected_again_whole(
    stores: RedisStores, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    store, run = stores.projection, stores.engine.run
    value(await store.open_partition(0, TERM, INITIAL))
    done = 0

    async def runs_out_of_room(*call: Any) -> Outcome[list[Any]]:
        nonlocal done
        done += 1
        return await run(*call) if done <= parts else NotApplied(Refusal.NO_SPACE)

    monkeypatch.setattr(stores.engine, "run", runs_out_of_room)
    cut = await store.project(STEP)
    # What wrote rows must not be taken for a step that did nothing.
    assert isinstance(cut, Unknown) if parts else refused(cut) is Refusal.NO_SPACE
    assert await store.checkpoint(0) == INITIAL
    monkeypatch.undo()
    value(await store.project(STEP))
    assert await all_rows(store) == await projected_whole(STEP)


async def test_a_step_that_a_restart_takes_back_is_projected_again(tmp_path: Path) -> None:
    """As under `everysec`: the end of the append-only file is cut within the step."""
    with Redis(tmp_path / "redis") as server:
        async with opened(server.address) as stores:
            value(await stores.projection.open_partition(0, TERM, INITIAL))
            value(await stores.projection.project(STEP))
        server.kill()
        [file] = (server.folder / "appendonlydir").glob("*.incr.aof")
        file.write_bytes(file.read_bytes()[:-20])
        server.start()
        server.wait()
        async with opened(server.address) as stores:
            store = stores.projection
            assert await store.checkpoint(0) == INITIAL
            assert await all_rows(store) == [[], [], [], []]
            builds_on_it = project_step(5, 6, group(said(9)))
            assert refused(await store.project(builds_on_it)) is Refusal.HEAD_MOVED
            value(await store.project(STEP))
            assert await all_rows(store) == await projected_whole(STEP)
