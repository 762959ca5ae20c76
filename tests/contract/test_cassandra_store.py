"""What is Cassandra's own about conversations: replies that are lost, writes that land late."""

import pytest
from tests.contract.builders import event, key, membership, value
from tests.contract.cassandra_engine import runs_here, shared_driver
from tests.contract.cassandra_faults import (
    FaultySession,
    commit,
    conversation,
    deployment,
    owner,
)

from qimd.adapters.scylla import ScyllaBackends
from qimd.core.outcome import Unknown
from qimd.core.parameters import IDEMPOTENCY_WINDOW_MS
from qimd.ports.store import Pending, Progress, ShardKind

pytestmark = runs_here


@pytest.fixture
async def session() -> FaultySession:
    return FaultySession(*shared_driver())


@pytest.fixture
async def backends(session: FaultySession) -> ScyllaBackends:
    return deployment(session)


async def seqs(backends: ScyllaBackends) -> list[int]:
    return [one.conversation_seq for one in await backends.conversations.outbox(key(), 0, 99)]


async def test_a_commit_whose_reply_was_lost_is_applied_once(
    backends: ScyllaBackends, session: FaultySession
) -> None:
    """WR-04, F19: one version step, and the same step again answers."""
    epoch = await conversation(backends)
    lost = session.lose_reply("UPDATE conversations")
    assert isinstance(await commit(backends, epoch, event(1)), Unknown)
    assert value(await commit(backends, epoch, event(1))).head_version == 1
    assert (await seqs(backends), lost.hits) == ([1], 1)


async def test_a_commit_that_lands_behind_its_repetition_is_applied_once(
    backends: ScyllaBackends, session: FaultySession
) -> None:
    """WR-04: a read that finds nothing proves nothing."""
    epoch = await conversation(backends)
    late = session.land_late("UPDATE conversations")
    assert isinstance(await commit(backends, epoch, event(1)), Unknown)
    assert await seqs(backends) == []
    value(await commit(backends, epoch, event(1)))
    await late.land()
    assert await seqs(backends) == [1]


async def test_a_late_commit_lands_on_a_head_that_no_successor_has_claimed_and_is_found(
    backends: ScyllaBackends, session: FaultySession
) -> None:
    old = await conversation(backends)
    late = session.land_late("UPDATE conversations")
    assert isinstance(await commit(backends, old, event(1)), Unknown)
    epoch = await owner(backends, b"m" * 16)
    assert await backends.conversations.pending(0) == []
    await late.land()
    assert await backends.conversations.pending(0) == [Pending(key(), 0, 1)]
    state = value(await backends.conversations.claim(0, epoch, key()))
    assert (state.head_version, state.fencing_epoch) == (1, epoch)


async def test_a_late_commit_never_lands_on_a_claimed_head(
    backends: ScyllaBackends, session: FaultySession
) -> None:
    """WR-01: exactly one seq 1."""
    old = await conversation(backends)
    late = session.land_late("UPDATE conversations")
    await commit(backends, old, event(1, text="late"))
    epoch = await owner(backends, b"m" * 16)
    value(await backends.conversations.claim(0, epoch, key()))
    await late.land()
    assert await seqs(backends) == []
    mine = event(1, text="the successor's")
    value(await commit(backends, epoch, mine))
    assert await backends.conversations.outbox(key(), 0, 10) == [mine]


async def test_late_progress_of_an_old_owner_is_fenced_by_the_claimed_head(
    backends: ScyllaBackends, session: FaultySession
) -> None:
    old = await conversation(backends)
    value(await commit(backends, old, event(1)))
    late = session.land_late("UPDATE conversations SET dispatched_through")
    (outcome,) = await backends.conversations.advance(0, old, [Progress(key(), 1)])
    assert isinstance(outcome, Unknown)
    epoch = await owner(backends, b"m" * 16)
    value(await backends.conversations.claim(0, epoch, key()))
    await late.land()
    assert await backends.conversations.pending(0) == [Pending(key(), 0, 1)]


async def test_progress_that_drains_a_conversation_leaves_the_note_of_a_commit_under_way(
    backends: ScyllaBackends, session: FaultySession
) -> None:
    """Else a crash behind that commit would leave its event to nobody."""
    epoch = await conversation(backends)
    value(await commit(backends, epoch, event(1)))
    late = session.land_late("UPDATE conversations\nSET fencing_epoch")
    assert isinstance(await commit(backends, epoch, event(2)), Unknown)
    await backends.conversations.advance(0, epoch, [Progress(key(), 1)])
    assert await backends.conversations.pending(0) == []
    await late.land()
    assert await backends.conversations.pending(0) == [Pending(key(), 1, 2)]


async def test_notes_go_with_the_progress_that_covers_them(
    backends: ScyllaBackends, session: FaultySession
) -> None:
    async def notes() -> list[str]:
        select = "SELECT conversation FROM pending WHERE deployment = ? AND writer_shard = ?"
        rows = await session.rows(select, backends.deployment, 0)
        return [conversation for (conversation,) in rows]

    epoch = await conversation(backends)
    value(await commit(backends, epoch, event(1)))
    session.land_late("DELETE FROM pending")
    await backends.conversations.advance(0, epoch, [Progress(key(), 1)])
    assert await notes() == ["standup"]
    assert await backends.conversations.pending(0) == []
    assert await notes() == []


async def test_a_conversation_that_moves_with_an_outbox_is_pending_where_it_is_claimed(
    backends: ScyllaBackends,
) -> None:
    epoch = await conversation(backends)
    value(await commit(backends, epoch, event(1)))
    other = value(await backends.epochs.raise_epoch(ShardKind.WRITER, 1, b"o" * 16, 0))
    value(await backends.conversations.claim(1, other, key()))
    assert await backends.conversations.pending(0) == []
    assert await backends.conversations.pending(1) == [Pending(key(), 0, 1)]


async def test_an_epoch_whose_reply_was_lost_is_drawn_once(
    backends: ScyllaBackends, session: FaultySession
) -> None:
    epochs = backends.epochs
    late = session.land_late("UPDATE epochs")
    session.lose_reply("UPDATE epochs")
    for _ in range(2):
        assert isinstance(await epochs.raise_epoch(ShardKind.WRITER, 0, b"n" * 16, 100), Unknown)
    await late.land()
    assert value(await epochs.raise_epoch(ShardKind.WRITER, 0, b"n" * 16, 100)) == 100
    assert value(await epochs.raise_epoch(ShardKind.WRITER, 1, b"m" * 16, 100)) == 101


async def test_what_a_client_msg_id_gave_is_kept_for_longer_than_it_must_be(
    backends: ScyllaBackends, session: FaultySession
) -> None:
    """The engine forgets it by itself."""
    epoch = await conversation(backends)
    value(await commit(backends, epoch, event(1)))
    rows = await session.rows(
        "SELECT kind, TTL(event_id) FROM conversations"
        " WHERE deployment = ? AND tenant = ? AND conversation = ?",
        backends.deployment,
        key().tenant,
        key().conversation,
    )
    event_row, result_row = rows
    assert event_row == (1, None)
    assert IDEMPOTENCY_WINDOW_MS // 1000 + 3_000 < result_row[1] <= 2 * 24 * 3600


async def test_more_rows_than_a_page_of_the_driver_are_read_whole(
    backends: ScyllaBackends,
) -> None:
    epoch = await conversation(backends)
    names = [f"user-{n:04}" for n in range(6_000)]
    for seq in range(1, 7):
        some = names[(seq - 1) * 1_000 : seq * 1_000]
        state = value(await commit(backends, epoch, membership(seq, added=some)))
    assert state.member_count == 6_000
    assert await backends.conversations.members_at(key(), 6) == names
