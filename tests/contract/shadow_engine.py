"""Mailboxes in memory with SQLite as their shadow: what holds for each holds for the pair.

At the end of each test the shadow must have followed all of it without a difference.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tests.contract.engines import Engine, memory_engine, sqlite_engine
from tests.support.runtime import ManualRuntime

from qimd.adapters.shadow import NamedStore, ShadowMailboxStore
from qimd.ports.shadow import ShadowReport

LOOKS_MAX = 10_000


@asynccontextmanager
async def shadow_engine(runtime: ManualRuntime, folder: Path) -> AsyncIterator[Engine]:
    primary = memory_engine(runtime)
    async with sqlite_engine(runtime, folder) as shadow:
        pair = ShadowMailboxStore(
            NamedStore("memory", primary.backends.mailbox),
            NamedStore("sqlite", shadow.backends.mailbox),
            runtime=runtime,
            route=lambda _user: (0, 0),
            compared_share=1.0,
            on_mismatch=lambda _sample: None,
        )
        yield replace(primary, name="shadow", backends=replace(primary.backends, mailbox=pair))
        report = await followed(pair, shadow)
        assert list(report.samples) == []
        assert report.obstacle == ""


async def followed(pair: ShadowMailboxStore, shadow: Engine) -> ShadowReport:
    """The pair once nothing waits: SQLite works in a thread, which each read of it waits for."""
    for _ in range(LOOKS_MAX):
        report = pair.describe()
        if not report.devices_waiting and not any(one.waiting for one in report.shards):
            return report
        await shadow.backends.mailbox.shard_state(0)
    raise TimeoutError("the shadow does not draw level")
