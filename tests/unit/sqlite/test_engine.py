"""Group commit, isolation of jobs, cancelled callers, closing."""

import asyncio
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contract.builders import key, refused, value
from tests.support.runtime import ManualRuntime
from tests.unit.sqlite.scenes import counted, executed, held, message, owned, queued

from qimd.adapters.sqlite import SqliteBackends, open_sqlite
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import TenantId
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.ports.store import TenantRecord


def tenant(name: str) -> TenantRecord:
    return TenantRecord(TenantId(name), {"k": b"k" * 32}, 1)


def add(name: str) -> Callable[[sqlite3.Connection], Outcome[None]]:
    return executed(f"INSERT INTO tenants VALUES ('{name}', 1)")


async def names(store: SqliteBackends) -> list[str]:
    return await store.engine.read(
        lambda db: [row[0] for row in db.execute("SELECT tenant FROM tenants ORDER BY 1")]
    )


async def test_what_queued_up_commits_once_and_a_refused_job_leaves_the_others(
    store: SqliteBackends,
) -> None:
    with counted(store) as ends:
        async with held(store):
            calls = [
                asyncio.ensure_future(store.engine.write(add(name)))
                for name in ("a", "b", "a", "c")
            ]
            await queued(*calls)
        outcomes = await asyncio.gather(*calls)
    assert [isinstance(outcome, Applied) for outcome in outcomes] == [True, True, False, True]
    assert refused(outcomes[2]) is Refusal.REJECTED
    assert ends == ["ended", "rolled back", "ended"]
    assert await names(store) == ["a", "b", "c"]


async def test_a_job_that_is_not_applied_leaves_nothing_behind(store: SqliteBackends) -> None:
    def job(db: sqlite3.Connection) -> Outcome[None]:
        db.execute("INSERT INTO tenants VALUES ('half', 1)")
        return NotApplied(Refusal.HEAD_MOVED)

    assert refused(await store.engine.write(job)) is Refusal.HEAD_MOVED
    assert await names(store) == []


async def test_a_defect_in_a_job_reaches_its_caller_alone(store: SqliteBackends) -> None:
    def broken(db: sqlite3.Connection) -> Outcome[None]:
        db.execute("INSERT INTO tenants VALUES ('half', 1)")
        raise LookupError("a defect")

    async with held(store):
        good = asyncio.ensure_future(store.engine.write(add("a")))
        bad = asyncio.ensure_future(store.engine.write(broken))
        wrong = asyncio.ensure_future(
            store.engine.write(lambda db: Applied(db.execute("SELECT nothing")))
        )
        await queued(good, bad, wrong)
    assert isinstance(await good, Applied)
    with pytest.raises(LookupError):
        await bad
    with pytest.raises(sqlite3.OperationalError):
        await wrong
    assert await names(store) == ["a"]


async def test_a_cancelled_caller_does_not_take_its_job_back(store: SqliteBackends) -> None:
    """Its outcome is unknown to it; the same step again says that it was applied."""
    epoch = await owned(store)
    conversations = store.backends.conversations
    async with held(store):
        call = asyncio.ensure_future(conversations.commit(message(epoch, 1)))
        await queued(call)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    state = value(await conversations.commit(message(epoch, 1)))
    assert state.head_version == 1
    assert len(await conversations.outbox(key(), 0, 10)) == 1


async def test_each_read_sees_the_writes_that_were_answered_before_it(
    store: SqliteBackends,
) -> None:
    for count in range(1, 101):
        value(await store.backends.tenants.create_tenant(tenant(f"t{count:03}")))
        seen = await asyncio.gather(*(names(store) for _ in range(3)))
        assert [len(one) for one in seen] == [count] * 3


async def test_close_finishes_what_is_queued(path: Path, runtime: ManualRuntime) -> None:
    store = await open_sqlite(path, runtime)
    async with held(store):
        calls = [
            asyncio.ensure_future(store.backends.tenants.create_tenant(tenant(f"t{number}")))
            for number in range(600)
        ]
        await queued(*calls)
        closing = asyncio.ensure_future(store.close())
        await queued(closing)
    await closing
    assert all(isinstance(outcome, Applied) for outcome in await asyncio.gather(*calls))
    assert not path.with_name("qim.db-wal").exists()
    store = await open_sqlite(path, runtime)
    assert len(await names(store)) == 600
    await store.close()


async def test_a_closed_store_refuses_and_closing_again_is_harmless(
    path: Path, runtime: ManualRuntime
) -> None:
    store = await open_sqlite(path, runtime)
    await store.close()
    await store.close()
    outcome = await store.backends.tenants.create_tenant(tenant("a"))
    assert refused(outcome) is Refusal.UNREACHABLE
    with pytest.raises(QimError) as caught:
        await store.backends.tenants.tenant(TenantId("a"))
    assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_a_file_that_can_not_be_read_is_unavailable(
    path: Path, runtime: ManualRuntime
) -> None:
    store = await open_sqlite(path, runtime)
    for number in range(300):
        value(await store.backends.tenants.create_tenant(tenant(f"{number:0128}")))
    await store.close()
    store = await open_sqlite(path, runtime)
    os.truncate(path, 4096)
    with pytest.raises(QimError) as caught:
        await store.backends.tenants.tenant(TenantId(f"{299:0128}"))
    assert caught.value.code is ErrorCode.UNAVAILABLE
    await store.close()
