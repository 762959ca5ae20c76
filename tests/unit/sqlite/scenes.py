"""What several of these tests need: a held writer, an owned conversation, a shard with records."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from tests.contract.builders import block, event, key, new, ref, step, value

from qimd.adapters.sqlite import SqliteBackends
from qimd.core.ids import dispatch_id
from qimd.core.outcome import Applied, Outcome
from qimd.core.seq import SEQ_NONE, MailboxSeq, mailbox_seq
from qimd.ports.mailbox import ApplyStep, EpochBoundary, RecordStep
from qimd.ports.store import CommitStep, ShardKind


@asynccontextmanager
async def held(store: SqliteBackends) -> AsyncIterator[None]:
    """The writer is busy inside; what is written meanwhile queues up behind it."""
    inside, release = threading.Event(), threading.Event()

    def hold(db: sqlite3.Connection) -> Outcome[None]:
        inside.set()
        release.wait()
        return Applied(None)

    holding = asyncio.ensure_future(store.engine.write(hold))
    await asyncio.to_thread(inside.wait)
    try:
        yield
    finally:
        release.set()
        await holding


@contextmanager
def counted(store: SqliteBackends) -> Iterator[list[str]]:
    """What the writer's transactions ended as, from here on."""
    ends: list[str] = []
    store.engine.watch(
        committed=lambda: ends.append("ended"), rolled_back=lambda: ends.append("rolled back")
    )
    yield ends


async def queued(*calls: asyncio.Future[Any]) -> None:
    """Return when the calls have queued their jobs: each does so in its first turn."""
    await asyncio.sleep(0)
    assert not any(call.done() for call in calls)


def executed(statement: str) -> Callable[[sqlite3.Connection], Outcome[None]]:
    """A job that runs one statement."""

    def job(db: sqlite3.Connection) -> Outcome[None]:
        db.execute(statement)
        return Applied(None)

    return job


async def owned(store: SqliteBackends) -> int:
    """An epoch of writer shard 0 with an empty conversation."""
    epoch = value(await store.backends.epochs.raise_epoch(ShardKind.WRITER, 0, b"n" * 16, 7))
    value(await store.backends.conversations.create_conversation(0, epoch, key(), 1))
    return epoch


def message(epoch: int, seq: int, *, size: int = 10) -> CommitStep:
    return step(epoch, seq - 1, [new(event(seq, text="x" * size))])


async def opened_shard(store: SqliteBackends) -> MailboxSeq:
    """Mailbox shard 0 under term 1; its position."""
    first = EpochBoundary(1, 0, "cluster/topic")
    return value(await store.backends.mailbox.open_shard(0, 1, first)).position


def records(
    position: MailboxSeq, offsets: Sequence[int], users: Sequence[str], name: str
) -> ApplyStep:
    """A step that gives each user each record."""
    made = []
    for offset in offsets:
        of = event(offset + 1)
        made.append(
            RecordStep(
                seq=mailbox_seq(1, offset),
                ref=ref(of),
                dispatch_id=dispatch_id(of.event_id, 0, 0),
                content_digest=b"d" * 16,
                fencing_epoch=7,
                chunk_index=0,
                chunk_count=1,
                blocks=(block(5, *users),),
            )
        )
    return ApplyStep(
        request_id=name.encode(),
        shard=0,
        term=1,
        expected_position=position,
        records=made,
        marks=(),
        buckets=(),
        next_offset=offsets[-1] + 1,
        position=made[-1].seq if made else SEQ_NONE,
        lagging={},
        at_ms=1,
    )
