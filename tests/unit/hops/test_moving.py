"""Streams that are lost, shards that move, processes that drain: what callers notice of it."""

import asyncio

import pytest
from tests.unit.hops.fakes import command, device
from tests.unit.hops.world import Process, World

from qimd.core.errors import ErrorCode, QimError
from qimd.core.parameters import REQUEST_TIMEOUT_S
from qimd.ports.store import ShardKind


async def code_of(call: "asyncio.Future[object]") -> ErrorCode:
    with pytest.raises(QimError) as raised:
        await call
    return raised.value.code


# --- shards that move -------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ErrorCode.NOT_OWNER, ErrorCode.STALE_EPOCH])
async def test_a_read_follows_its_shard(
    hops: World, near: Process, far: Process, error: ErrorCode
) -> None:
    await near.to_mailbox.open_device(device("ann"))
    heir = await hops.process("heir")
    hops.leases.give(heir)
    far.mailbox.fails["open"] = QimError(error, "moved")
    assert (await near.to_mailbox.open_device(device("ann"))).cursor_token == b"token"
    assert len(far.mailbox.calls) == 2
    assert len(heir.mailbox.calls) == 1


async def test_a_commit_that_is_alone_follows_its_shard(
    hops: World, near: Process, far: Process
) -> None:
    await near.to_writer.commit(command("c", "m1"))
    heir = await hops.process("heir")
    hops.leases.give(heir)
    far.writer.fails["c"] = QimError(ErrorCode.NOT_OWNER, "moved")
    [accepted] = await near.to_writer.commit(command("c", "m2"))
    assert accepted == heir.writer.known["m2"]


async def test_what_is_sent_while_a_commit_follows_its_shard_comes_behind_it(
    hops: World, near: Process, far: Process
) -> None:
    await near.to_writer.commit(command("c", "m1"))
    far.writer.fails["c"] = QimError(ErrorCode.NOT_OWNER, "moved")
    hops.leases.give(None)
    views = len(hops.leases.views)
    first = asyncio.ensure_future(near.to_writer.commit(command("c", "m2")))
    await hops.bell.until(lambda: len(hops.leases.views) > views)
    later = [
        asyncio.ensure_future(near.to_writer.commit(command("c", f"m{n}"))) for n in range(3, 9)
    ]
    heir = await hops.process("heir")
    hops.leases.give(heir)
    await asyncio.gather(first, *later)
    sent = [commit.drafts[0].client_msg_id for commit in heir.writer.commits]
    assert sent == [f"m{n}" for n in range(2, 9)]


async def test_nothing_passes_a_commit_however_often_it_is_tried_again(
    hops: World, near: Process, far: Process
) -> None:
    await near.to_writer.commit(command("c", "m1"))
    views = len(hops.leases.views)
    moved = QimError(ErrorCode.NOT_OWNER, "moved")
    far.writer.fails_once["c"] = [moved, moved]
    first = asyncio.ensure_future(near.to_writer.commit(command("c", "m2")))
    # It has failed once, and looks for the owner; what is made from now on waits for it.
    await hops.bell.until(lambda: len(hops.leases.views) > views)
    second = asyncio.ensure_future(near.to_writer.commit(command("c", "m3")))
    await asyncio.gather(first, second)
    assert far.writer.calls == ["c m1", "c m2", "c m2", "c m2", "c m3"]


async def test_of_several_commits_of_a_conversation_none_is_made_again_elsewhere(
    hops: World, near: Process, far: Process
) -> None:
    gate = far.writer.hold("c")
    calls = [asyncio.ensure_future(near.to_writer.commit(command("c", f"m{n}"))) for n in range(4)]
    other = asyncio.ensure_future(near.to_writer.commit(command("alone", "m9")))
    await hops.bell.until(lambda: len(far.writer.commits) == 5)
    await other
    heir = await hops.process("heir")
    hops.leases.give(heir)
    far.writer.fails["c"] = QimError(ErrorCode.NOT_OWNER, "moved")
    gate.set()
    assert [await code_of(call) for call in calls] == [ErrorCode.UNAVAILABLE] * 4
    assert not heir.writer.commits
    # The client sends again under the same client_msg_ids, in its order.
    for number in range(4):
        await near.to_writer.commit(command("c", f"m{number}"))
    assert len(heir.writer.commits) == 4


async def test_not_owner_is_unavailable_to_clients_after_the_deadline(
    hops: World, near: Process, far: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    far.mailbox.fails["open"] = QimError(ErrorCode.NOT_OWNER, "moved")
    call = asyncio.ensure_future(near.to_mailbox.open_device(device("ann")))
    await hops.bell.until(lambda: len(far.mailbox.calls) >= 3)
    assert not call.done()
    now_s = near.runtime.monotonic_s()
    monkeypatch.setattr(near.runtime, "monotonic_s", lambda: now_s + REQUEST_TIMEOUT_S)
    assert await code_of(call) is ErrorCode.UNAVAILABLE
    # Each try had a look at the lease before it: the directory paces them.
    assert len(far.mailbox.calls) <= len(hops.leases.views)


async def test_a_shard_that_nobody_owns_is_waited_for(
    hops: World, near: Process, far: Process
) -> None:
    hops.leases.give(None)
    call = asyncio.ensure_future(near.to_mailbox.open_device(device("ann")))
    await hops.bell.until(lambda: len(hops.leases.views) >= 2)
    assert not call.done()
    hops.leases.give(far, ShardKind.MAILBOX)
    await call


async def test_a_shard_comes_home_without_a_stream(
    hops: World, near: Process, far: Process
) -> None:
    await near.to_mailbox.open_device(device("ann"))
    hops.leases.give(near)
    far.mailbox.fails["open"] = QimError(ErrorCode.NOT_OWNER, "moved")
    await near.to_mailbox.open_device(device("ann"))
    assert near.mailbox.calls == ["open ann"]


# --- streams that are lost --------------------------------------------------------------------


async def test_a_read_under_way_is_made_again_over_a_new_stream(
    hops: World, near: Process, far: Process
) -> None:
    far.mailbox.hold("open")
    call = asyncio.ensure_future(near.to_mailbox.open_device(device("ann")))
    await hops.bell.until(lambda: len(far.mailbox.calls) == 1)
    heir = await hops.process("heir")
    hops.leases.give(heir)
    await far.kill()
    await call
    assert heir.mailbox.calls == ["open ann"]


async def test_a_commit_of_unknown_outcome_that_is_alone_is_resolved_by_its_repetition(
    hops: World, near: Process, far: Process
) -> None:
    heir = await hops.process("heir")
    gate = far.writer.hold("c")
    call = asyncio.ensure_future(near.to_writer.commit(command("c", "m1")))
    await hops.bell.until(lambda: len(far.writer.commits) == 1)
    # It took effect, and the answer was lost: the next owner's store knows the client_msg_id.
    [first] = await heir.writer.commit(command("c", "m1"))
    hops.leases.give(heir)
    await far.kill()
    [again] = await call
    assert not isinstance(first, QimError)
    assert not isinstance(again, QimError)
    assert again.duplicate
    assert again.event_id == first.event_id
    gate.set()


async def test_commits_of_unknown_outcome_are_unavailable_and_never_come_out_of_order(
    hops: World, near: Process, far: Process
) -> None:
    far.writer.hold("c")
    calls = [asyncio.ensure_future(near.to_writer.commit(command("c", f"m{n}"))) for n in range(3)]
    await hops.bell.until(lambda: len(far.writer.commits) == 3)
    heir = await hops.process("heir")
    hops.leases.give(heir)
    await far.kill()
    assert [await code_of(call) for call in calls] == [ErrorCode.UNAVAILABLE] * 3
    assert not heir.writer.commits
    assert not near.to_writer._lines


async def test_a_process_that_starts_again_at_its_address_is_found(
    hops: World, near: Process, far: Process
) -> None:
    await near.to_mailbox.open_device(device("ann"))
    await far.kill()
    again = await hops.process("again", port=far.port)
    assert again.address == far.address
    await near.to_mailbox.open_device(device("ann"))
    assert again.mailbox.calls == ["open ann"]


async def test_calls_to_an_address_where_nobody_is_find_the_new_owner(
    hops: World, near: Process, far: Process
) -> None:
    await far.kill()
    call = asyncio.ensure_future(near.to_mailbox.open_device(device("ann")))
    await hops.bell.until(lambda: len(hops.leases.views) >= 2)
    heir = await hops.process("heir")
    hops.leases.give(heir)
    await call


async def test_the_calls_of_a_lost_stream_end_at_the_owner(
    hops: World, near: Process, far: Process
) -> None:
    gate = far.mailbox.hold("open")
    call = asyncio.ensure_future(near.to_mailbox.open_device(device("ann")))
    await hops.bell.until(lambda: len(far.mailbox.calls) == 1)
    near.peers.close()
    async with asyncio.timeout(REQUEST_TIMEOUT_S / 2):
        await hops.bell.until(lambda: far.mailbox.cancelled == ["open ann"])
    gate.set()
    await call


# --- draining ---------------------------------------------------------------------------------


async def test_a_draining_process_answers_what_is_under_way_and_takes_nothing_new(
    hops: World, near: Process, far: Process
) -> None:
    await near.to_writer.commit(command("c", "m1"))
    gate = far.mailbox.hold("open")
    under_way = asyncio.ensure_future(near.to_mailbox.open_device(device("ann")))
    await hops.bell.until(lambda: len(far.mailbox.calls) == 1)
    views = len(hops.leases.views)
    drained = asyncio.ensure_future(far.handlers.drain())
    # One is asked before the word of it has come, one after; both wait for the next owner.
    crossing = asyncio.ensure_future(near.to_writer.commit(command("c", "m2")))
    await hops.bell.until(lambda: len(hops.leases.views) > views)
    later = asyncio.ensure_future(near.to_writer.commit(command("d", "m3")))
    gate.set()
    assert (await under_way).cursor_token == b"token"
    await drained
    heir = await hops.process("heir")
    hops.leases.give(heir)
    await asyncio.gather(crossing, later)
    assert far.writer.calls == ["c m1"]
    assert sorted(heir.writer.calls) == ["c m2", "d m3"]


async def test_a_drain_ends_in_time_whatever_is_under_way(
    hops: World, near: Process, far: Process
) -> None:
    far.mailbox.hold("open")
    call = asyncio.ensure_future(near.to_mailbox.open_device(device("ann")))
    await hops.bell.until(lambda: len(far.mailbox.calls) == 1)
    await far.handlers.drain(grace_s=0.05)
    call.cancel()


async def test_a_new_stream_to_a_draining_process_is_sent_away(
    hops: World, near: Process, far: Process
) -> None:
    await far.handlers.drain()
    call = asyncio.ensure_future(near.to_mailbox.open_device(device("ann")))
    await hops.bell.until(lambda: len(hops.leases.views) >= 2)
    assert not far.mailbox.calls
    heir = await hops.process("heir")
    hops.leases.give(heir)
    await call


async def test_with_its_stream_every_shard_of_a_process_is_looked_up_anew(
    hops: World, near: Process, far: Process
) -> None:
    await near.to_mailbox.open_device(device("ann"))
    await near.to_writer.commit(command("c", "m1"))
    heir = await hops.process("heir")
    hops.leases.give(heir)
    near.peers.at(far.address).close()
    # Neither call goes to the old owner first.
    await near.to_mailbox.open_device(device("ann"))
    await near.to_writer.commit(command("c", "m2"))
    assert (len(far.mailbox.calls), len(far.writer.calls)) == (1, 1)
