"""A Cassandra whose commit log meets a full disk, and which is killed then."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.contract.builders import block, event, key, user, value
from tests.contract.cassandra_engine import runs_here
from tests.contract.cassandra_faults import commit, conversation
from tests.contract.owners import FIRST, TERM, record
from tests.contract.test_redis_mailbox import step_of
from tests.engines.cassandra import Cassandra
from tests.engines.process import HOST
from tests.support.disk import fill, small_disk

from qimd.adapters.scylla import ScyllaBackends, ScyllaSettings, open_scylla
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.records import Event
from qimd.core.seq import SEQ_NONE, offset_of
from qimd.ports.mailbox import ApplyStep, MailboxStore

pytestmark = runs_here

LEFT = 500_000
"""What the ballast leaves: some rounds of the test."""
USERS = [f"user-{number:03}" for number in range(64)]
BLOCKS = [block(lane, *USERS[lane::8]) for lane in range(8)]


async def test_what_was_acknowledged_before_the_disk_was_full_is_there_after_a_kill(
    tmp_path: Path,
) -> None:
    """What was applied is there afterwards, whole; what was not is told as such, and is applied
    once when it comes again.
    """
    with (
        small_disk(tmp_path / "small", 48) as disk,
        Cassandra(
            tmp_path / "cassandra",
            commitlog_directory=str(disk / "commitlog"),
            # Two of them are open at a time.
            commitlog_segment_size="4MiB",
        ) as cassandra,
    ):
        async with deployment(cassandra) as stores:
            epoch = await conversation(stores)
            value(await stores.mailbox.open_shard(0, TERM, FIRST))
            ballast = fill(disk, LEFT)
            committed, applied = await until_refused(stores, epoch)
        await asyncio.to_thread(cassandra.kill)
        ballast.unlink()
        cassandra.start()
        await asyncio.to_thread(cassandra.wait)

        async with deployment(cassandra) as stores:
            mailbox = stores.mailbox
            events = await stores.conversations.outbox(key(), 0, 1_000)
            assert len(events) in committed
            assert events == [message(seq) for seq in range(1, len(events) + 1)]
            state = await mailbox.shard_state(0)
            assert state is not None
            assert state.next_offset in applied
            await shows_everybody(mailbox, state.next_offset)

            # It comes again, and so does traffic.
            for seq in range(committed.start + 1, committed.start + 4):
                value(await commit(stores, epoch, message(seq)))
            for offset in range(state.next_offset, state.next_offset + 3):
                (verdict,) = value(await mailbox.apply(everybodys(offset)))
                assert verdict.duplicate == 0
            events = await stores.conversations.outbox(key(), 0, 1_000)
            assert events == [message(seq) for seq in range(1, committed.start + 4)]
            await shows_everybody(mailbox, state.next_offset + 3)


async def until_refused(stores: ScyllaBackends, epoch: int) -> tuple[range, range]:
    """Commit and apply in turn until there is no room; how many of each may be there."""
    committed = applied = 0
    while True:
        commitment = await commit(stores, epoch, message(committed + 1))
        committed += isinstance(commitment, Applied)
        step = await stores.mailbox.apply(everybodys(applied))
        applied += isinstance(step, Applied)
        if not isinstance(step, Applied):
            break
        assert isinstance(commitment, Applied), "there was no room, and then there was"
    assert min(committed, applied) > 3
    return there(committed, commitment), there(applied, step)


def there(applied: int, last: Outcome[object]) -> range:
    """How many may be there behind the last outcome: only an unknown one may have landed."""
    if isinstance(last, NotApplied):
        assert last.refusal in {Refusal.UNREACHABLE, Refusal.NO_SPACE}
    return range(applied, applied + 1 + isinstance(last, Unknown))


def message(seq: int) -> Event:
    return event(seq, text="x" * 20_000)


def everybodys(offset: int) -> ApplyStep:
    """The step of the record at an offset, which is for all users."""
    return step_of(offset, [record(offset, BLOCKS)])


async def shows_everybody(mailbox: MailboxStore, records: int) -> None:
    """Whether each user's mailbox up to W is the first so many records, and nothing else."""
    state = await mailbox.shard_state(0)
    assert state is not None
    for name in USERS:
        entries = await mailbox.entries(user(name), SEQ_NONE, state.position, 1_000)
        assert [offset_of(entry.seq) for entry in entries] == list(range(records))


@asynccontextmanager
async def deployment(cassandra: Cassandra) -> AsyncIterator[ScyllaBackends]:
    """As a process opens it at its start."""
    place = ScyllaSettings([HOST], "qim", "datacenter1", 1, port=cassandra.port)
    stores = await open_scylla(place, "small")
    try:
        yield stores
    finally:
        await stores.close()
