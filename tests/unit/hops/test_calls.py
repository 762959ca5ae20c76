"""Calls through a hop: they arrive whole, in order, batched, and each has one answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc
import pytest
from tests.unit.hops.world import (
    SECRET,
    TENANT,
    Process,
    World,
    command,
    conversation,
    device,
    event,
    user,
)

from qim.hop.v1.hop_service_pb2 import HopCall, HopReply, HopRequest, OpenDevice
from qimd.app.hops import peer, server
from qimd.app.hops.options import CHANNEL_OPTIONS
from qimd.app.hops.peer import METHOD
from qimd.contract.hops import request_frame
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
    room = {"writer": far.writer, "mailbox": far.mailbox, "sessions": far.sessions}
    which, _, method = name.partition(".")
    through = getattr(getattr(near, f"to_{which}"), method)
    expected = await getattr(room[which], method)(*args, **flags)
    assert await through(*args, **flags) == expected
    assert room[which].calls[0] == room[which].calls[1]
    assert not getattr(near, which).calls


GAP = GapReport(1, conversation("c"), 3, 4, MailboxSeq(9))


@pytest.mark.parametrize(
    ("name", "args", "flags"),
    [
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


# --- bounds -----------------------------------------------------------------------------------


async def test_beyond_the_calls_under_way_a_call_is_refused_at_once(
    hops: World, near: Process, far: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "CALLS_MAX", 3)
    gate = far.mailbox.hold("open")
    held = [asyncio.ensure_future(near.to_mailbox.open_device(device(str(n)))) for n in range(3)]
    await hops.bell.until(lambda: len(far.mailbox.calls) == 3)
    with pytest.raises(QimError) as raised:
        await near.to_mailbox.open_device(device("4"))
    assert raised.value.code is ErrorCode.UNAVAILABLE
    assert len(far.mailbox.calls) == 3
    gate.set()
    await asyncio.gather(*held)
    await near.to_mailbox.open_device(device("5"))


async def test_beyond_the_bytes_that_wait_a_call_is_refused_at_once(
    hops: World, near: Process, far: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "WAITING_BYTES_MAX", 10_000)
    await near.to_writer.commit(command("c", "m0"))
    calls = [near.to_writer.commit(command(f"c{n}", f"m{n}", body=bytes(4_000))) for n in range(9)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [result for result in results if isinstance(result, QimError)]
    assert {error.code for error in refused} == {ErrorCode.UNAVAILABLE}
    assert len(refused) == 6
    assert len(far.writer.commits) == 4


async def test_a_call_larger_than_a_frame_may_be_costs_itself_alone(
    near: Process, far: Process
) -> None:
    body = bytes(64 * 1024)
    with pytest.raises(QimError) as raised:
        await near.to_writer.commit(command("c", *[f"m{n}" for n in range(70)], body=body))
    assert raised.value.code is ErrorCode.INVALID_ARGUMENT
    # What fits a client's frame fits.
    await near.to_writer.commit(command("c", *[f"m{n}" for n in range(63)], body=body))
    assert len(far.writer.commits) == 1


async def test_a_process_takes_no_more_of_a_stream_than_it_may_have_under_way(
    hops: World, near: Process, far: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CALLS_MAX", 4)
    gate = far.mailbox.hold("open")
    calls = [asyncio.ensure_future(near.to_mailbox.open_device(device(str(n)))) for n in range(20)]
    await hops.bell.until(lambda: len(far.mailbox.calls) == 4)
    # A call over another stream comes while that one is not read: these four are all of it.
    other = await hops.process("other")
    await other.to_sessions.list(user("ann"), b"", 0)
    assert len(far.mailbox.calls) == 4
    gate.set()
    await asyncio.gather(*calls)
    assert far.mailbox.calls == [f"open {n}" for n in range(20)]


# --- what a peer may not do -------------------------------------------------------------------


class Raw:
    """A stream of bytes to a process, as a peer with a defect would have it."""

    def __init__(self, process: Process, metadata: Any = SECRET.credentials) -> None:
        self.channel = grpc.aio.insecure_channel(process.address, CHANNEL_OPTIONS)
        self.call = self.channel.stream_stream(METHOD)(metadata=metadata)

    async def __aenter__(self) -> "Raw":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.cancel()
        await self.channel.close()

    async def exchange(self, data: bytes) -> HopReply:
        await self.call.write(data)
        return HopReply.FromString(await self.call.read())


def opening(call_id: int) -> HopCall:
    return HopCall(
        call_id=call_id,
        deadline_ms=10_000,
        tenant_id=TENANT,
        user_id="ann",
        device_id="phone",
        open_device=OpenDevice(),
    )


async def test_a_frame_that_is_none_has_a_typed_answer_and_the_stream_lives_on(
    far: Process,
) -> None:
    async with Raw(far) as raw:
        for broken in (b"\xff\xff", b"", HopRequest(calls=[opening(0)]).SerializeToString()):
            [answer] = (await raw.exchange(broken)).answers
            assert (answer.call_id, answer.error.code) == (0, ErrorCode.CONTRACT_VIOLATION)
        [answer] = (await raw.exchange(request_frame([opening(1).SerializeToString()]))).answers
        assert answer.device_opened.cursor_token == b"token"


async def test_a_call_of_a_newer_peer_is_unimplemented_and_the_others_are_served(
    far: Process,
) -> None:
    newer = b"\x08\x01\x10\x01" + b"\xfa\x3f\x00"
    async with Raw(far) as raw:
        frame = request_frame([newer, opening(2).SerializeToString()])
        first, second = (await raw.exchange(frame)).answers
        assert (first.call_id, first.error.code) == (1, ErrorCode.UNIMPLEMENTED)
        assert second.call_id == 2


async def test_the_owner_ends_a_call_by_itself_when_nobody_can_wait_for_it_any_more(
    far: Process,
) -> None:
    far.mailbox.hold("open")
    call = opening(1)
    call.deadline_ms = 1
    async with Raw(far) as raw:
        [answer] = (await raw.exchange(request_frame([call.SerializeToString()]))).answers
        assert (answer.call_id, answer.error.code) == (1, ErrorCode.UNAVAILABLE)
    assert far.mailbox.cancelled == ["open ann"]


async def test_a_call_id_that_is_under_way_is_refused(hops: World, far: Process) -> None:
    far.mailbox.hold("open")
    async with Raw(far) as raw:
        await raw.call.write(request_frame([opening(1).SerializeToString()]))
        await hops.bell.until(lambda: len(far.mailbox.calls) == 1)
        # It is the first that goes on.
        [answer] = (await raw.exchange(request_frame([opening(1).SerializeToString()]))).answers
        assert answer.error.field == "call_id"
        assert len(far.mailbox.calls) == 1


@pytest.mark.parametrize("metadata", [(), (("x-qim-hop", "no-secret-of-this-deployment"),)])
async def test_nobody_without_the_credential_is_let_in(far: Process, metadata: Any) -> None:
    async with Raw(far, metadata) as raw:
        assert await raw.call.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not far.mailbox.calls


async def test_an_unreadable_reply_fails_whoever_waits_at_once(
    hops: World, near: Process, far: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "answer", _garbage)
    call = asyncio.ensure_future(near.to_mailbox.open_device(device("ann")))
    await hops.bell.until(lambda: len(hops.leases.views) >= 2)
    monkeypatch.undo()
    assert (await call).cursor_token == b"token"


async def _garbage(*_: object) -> bytes:
    return b"\xff\xff"


async def test_a_defect_of_a_room_is_internal_and_says_no_more(near: Process, far: Process) -> None:
    far.mailbox.fails["open"] = RuntimeError("the body of a message")
    with pytest.raises(QimError) as raised:
        await near.to_mailbox.open_device(device("ann"))
    assert raised.value.code is ErrorCode.INTERNAL
    assert "body" not in raised.value.message
    far.defects_expected = 1
