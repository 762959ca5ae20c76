"""Calls through a hop: they arrive whole, in order, batched, and each has one answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.unit.hops.fakes import TENANT, command, conversation, device, event, user
from tests.unit.hops.world import Process, World

from qim.conversation.v1.conversation_service_pb2 import (
    AddMembersRequest,
    CreateConversationRequest,
    RemoveMembersRequest,
)
from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.core.ids import UserId
from qimd.core.parameters import REQUEST_TIMEOUT_S
from qimd.core.records import DeliveredEvent
from qimd.core.seq import MailboxSeq
from qimd.ports.services import GapReport, Page, Rebased
from qimd.ports.store import ShardKind


async def direct_and_remote(
    near: Process, far: Process, name: str, *args: Any, **flags: Any
) -> None:
    """A call gives through the hop what it gives without one, and reaches the room the same."""
    room = {
        "conversations": far.conversations,
        "mailbox": far.mailbox,
        "sessions": far.sessions,
    }
    which, _, method = name.partition(".")
    through = getattr(getattr(near, f"to_{which}"), method)
    expected = await getattr(room[which], method)(*args, **flags)
    assert await through(*args, **flags) == expected
    assert room[which].calls[0] == room[which].calls[1]
    assert not getattr(near, which).calls


NAMED = {"tenant_id": TENANT, "conversation_id": "c"}
GAP = GapReport(1, conversation("c"), 3, 4, MailboxSeq(9))


@pytest.mark.parametrize(
    ("name", "args", "flags"),
    [
        ("conversations.CreateConversation", (CreateConversationRequest(**NAMED),), {}),
        ("conversations.AddMembers", (AddMembersRequest(**NAMED, user_ids=["a", "b"]),), {}),
        ("conversations.RemoveMembers", (RemoveMembersRequest(**NAMED, user_ids=["a"]),), {}),
        ("mailbox.open_device", (device("ann"),), {}),
        ("mailbox.pull", (device("ann"), b"token", 0, 2), {}),
        ("mailbox.ack", (device("ann"), 7, MailboxSeq(9)), {}),
        ("mailbox.read", (user("ann"), event(1).seq, 0), {}),
        ("mailbox.report", (user("ann"), GAP), {}),
        ("mailbox.rebase", (0,), {"dry_run": True}),
        ("sessions.list", (user("ann"), b"page", 20), {}),
        ("sessions.mark_read", (user("ann"), conversation("c"), 8), {}),
        ("sessions.rebuild", (0,), {"dry_run": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_call_gives_what_it_gives_in_process(
    near: Process, far: Process, name: str, args: tuple[object, ...], flags: dict[str, object]
) -> None:
    far.mailbox.boxes[UserId("ann")] = [event(seq) for seq in (1, 2, 3)]
    await direct_and_remote(near, far, name, *args, **flags)


async def test_a_commit_arrives_whole_and_has_a_result_for_each_draft(
    near: Process, far: Process
) -> None:
    sent = command("c", "m1", "bad", "m2")
    results = await near.to_writer.commit(sent)
    assert far.writer.commits == [sent]
    first, refused, second = results
    assert [first, second] == [far.writer.known["m1"], far.writer.known["m2"]]
    assert isinstance(refused, QimError)
    assert (refused.code, refused.field) == (ErrorCode.INVALID_ARGUMENT, "body")


async def test_a_rebased_cursor_arrives_as_one(near: Process, far: Process) -> None:
    far.mailbox.rebased = Rebased(MailboxSeq(1), MailboxSeq(2), b"token", MailboxSeq(3))
    assert await near.to_mailbox.pull(device("ann"), b"", 0, 0) == far.mailbox.rebased


async def test_a_page_of_the_largest_size_arrives_byte_for_byte(
    near: Process, far: Process
) -> None:
    events = [DeliveredEvent(event(seq).seq, bytes(2_000)) for seq in range(1, 501)]
    far.mailbox.boxes[UserId("ann")] = events
    page = await near.to_mailbox.pull(device("ann"), b"", 0, 0)
    assert isinstance(page, Page)
    assert page.events == events


async def test_an_error_arrives_with_all_that_it_says(near: Process, far: Process) -> None:
    far.mailbox.fails["pull"] = QimError(
        ErrorCode.RATE_LIMITED, "too fast", field="limit", retry_after_ms=70
    )
    with pytest.raises(QimError) as raised:
        await near.to_mailbox.pull(device("ann"), b"", 0, 0)
    error = raised.value
    assert (error.code, error.message, error.field, error.retry_after_ms) == (
        ErrorCode.RATE_LIMITED, "too fast", "limit", 70,
    )  # fmt: skip


async def test_an_unavailable_room_is_not_asked_twice(near: Process, far: Process) -> None:
    far.mailbox.fails["pull"] = unavailable("the lane is catching up")
    with pytest.raises(QimError, match="catching up"):
        await near.to_mailbox.pull(device("ann"), b"", 0, 0)
    assert far.mailbox.calls == ["pull ann"]


async def test_a_supplement_is_told_and_not_waited_for(
    hops: World, near: Process, far: Process
) -> None:
    await near.to_sessions.list(user("ann"), b"", 0)
    near.to_supplement.touched(conversation("c"), [UserId("ann"), UserId("bob")], 5)
    await hops.bell.until(lambda: "touched c ann bob 5" in far.sessions.calls)


async def test_a_supplement_without_a_known_owner_is_dropped(
    hops: World, near: Process, far: Process
) -> None:
    near.to_supplement.touched(conversation("c"), [UserId("ann")], 5)
    await hops.bell.until(lambda: (ShardKind.SESSION, 0) in hops.leases.views)
    await near.to_sessions.list(user("ann"), b"", 0)
    near.to_supplement.touched(conversation("c"), [UserId("ann")], 6)
    await hops.bell.until(lambda: "touched c ann 6" in far.sessions.calls)
    assert "touched c ann 5" not in far.sessions.calls


# --- in process -------------------------------------------------------------------------------


async def test_the_own_address_is_served_without_a_stream(hops: World, near: Process) -> None:
    hops.leases.give(near)
    await near.to_writer.commit(command("c", "m1"))
    await near.to_mailbox.open_device(device("ann"))
    await near.to_sessions.list(user("ann"), b"", 0)
    near.to_supplement.touched(conversation("c"), [UserId("ann")], 5)
    assert [len(each.calls) for each in (near.writer, near.mailbox, near.sessions)] == [1, 1, 2]
    assert near.sample("hop_frames_total") == 0


# --- order and batches ------------------------------------------------------------------------


async def test_calls_begin_in_the_order_in_which_they_were_made(
    near: Process, far: Process
) -> None:
    names = [f"m{number}" for number in range(300)]
    await asyncio.gather(*[near.to_writer.commit(command("c", name)) for name in names])
    assert [commit.drafts[0].client_msg_id for commit in far.writer.commits] == names


async def test_calls_keep_their_order_while_the_owner_is_being_found(
    hops: World, near: Process, far: Process
) -> None:
    assert not hops.leases.views
    commits = [near.to_writer.commit(command("c", f"m{number}")) for number in range(20)]
    await asyncio.gather(*commits)
    assert [each.drafts[0].client_msg_id for each in far.writer.commits] == [
        f"m{number}" for number in range(20)
    ]


async def test_who_calls_as_soon_as_the_owner_is_found_passes_nobody_who_waited_for_it(
    hops: World, near: Process, far: Process
) -> None:
    hops.leases.gate = asyncio.Event()
    look = near.directory.begin_look(ShardKind.WRITER, 0)

    async def latecomer() -> None:
        await look.done.wait()
        await near.to_writer.commit(command("c", "m2"))

    late = asyncio.ensure_future(latecomer())
    await hops.bell.until(lambda: bool(hops.leases.views))
    first = asyncio.ensure_future(near.to_writer.commit(command("c", "m1")))
    await asyncio.sleep(0)
    hops.leases.gate.set()
    await asyncio.gather(first, late)
    assert far.writer.calls == ["c m1", "c m2"]


async def test_a_busy_stream_carries_many_calls_a_frame_and_an_idle_one_a_call_a_frame(
    near: Process, far: Process
) -> None:
    for number in range(5):
        await near.to_writer.commit(command("c", f"idle{number}"))
    assert (near.sample("hop_frames_total"), near.sample("hop_items_total")) == (5, 5)
    await asyncio.gather(
        *[near.to_writer.commit(command(f"c{number}", f"m{number}")) for number in range(1000)]
    )
    frames = near.sample("hop_frames_total") - 5
    assert near.sample("hop_items_total") == 1005
    assert frames <= 50
    assert far.sample("hop_frames_total") - 5 <= 200


async def test_a_slow_call_holds_nobody_else(hops: World, near: Process, far: Process) -> None:
    gate = far.writer.hold("slow")
    slow = asyncio.ensure_future(near.to_writer.commit(command("slow", "m0")))
    await hops.bell.until(lambda: bool(far.writer.commits))
    await near.to_writer.commit(command("quick", "m1"))
    await near.to_mailbox.open_device(device("ann"))
    assert not slow.done()
    gate.set()
    await slow


# --- deadlines and cancellation ---------------------------------------------------------------


async def test_a_call_past_its_deadline_is_unavailable_and_ended_at_the_owner(
    hops: World, near: Process, far: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    far.mailbox.hold("open")
    passed = asyncio.Event()

    async def wait_for(coro: Coroutine[Any, Any, object], timeout_s: float) -> object:
        """Ends when the test says that the time has passed."""
        assert 0 < timeout_s <= REQUEST_TIMEOUT_S
        work, limit = asyncio.ensure_future(coro), asyncio.ensure_future(passed.wait())
        await asyncio.wait({work, limit}, return_when=asyncio.FIRST_COMPLETED)
        limit.cancel()
        if work.done():
            return work.result()
        work.cancel()
        raise TimeoutError

    monkeypatch.setattr(near.runtime, "wait_for", wait_for)
    call = asyncio.ensure_future(near.to_mailbox.open_device(device("ann")))
    await hops.bell.until(lambda: bool(far.mailbox.calls))
    now_s = near.runtime.monotonic_s()
    monkeypatch.setattr(near.runtime, "monotonic_s", lambda: now_s + REQUEST_TIMEOUT_S)
    passed.set()
    with pytest.raises(QimError) as raised:
        await call
    assert raised.value.code is ErrorCode.UNAVAILABLE
    await hops.bell.until(lambda: far.mailbox.cancelled == ["open ann"])


async def test_who_gives_up_is_told_to_the_owner_and_leaves_nothing_behind(
    hops: World, near: Process, far: Process
) -> None:
    far.mailbox.hold("open")
    caller = asyncio.ensure_future(near.to_mailbox.open_device(device("ann")))
    await hops.bell.until(lambda: "open ann" in far.mailbox.calls)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    # Long before the owner would have ended it by itself.
    async with asyncio.timeout(REQUEST_TIMEOUT_S / 2):
        await hops.bell.until(lambda: far.mailbox.cancelled == ["open ann"])
    # The stream is whole: the next call has its own answer.
    assert await near.to_mailbox.report(user("bob"), GAP) is True


async def test_a_cancelled_commit_does_not_hold_its_conversation(
    hops: World, near: Process, far: Process
) -> None:
    gate = far.writer.hold("c")
    first = asyncio.ensure_future(near.to_writer.commit(command("c", "m1")))
    await hops.bell.until(lambda: len(far.writer.commits) == 1)
    second = asyncio.ensure_future(near.to_writer.commit(command("c", "m2")))
    await hops.bell.until(lambda: len(far.writer.commits) == 2)
    first.cancel()
    gate.set()
    assert len(await second) == 1
    assert not near.to_writer._lines
