"""What a hop refuses: more than its bounds, strangers, and peers with a defect."""

import asyncio
from typing import Any

import grpc
import pytest
from tests.unit.hops.fakes import TENANT, command, device, user
from tests.unit.hops.world import SECRET, Process, World

from qim.hop.v1.hop_service_pb2 import HopCall, HopReply, HopRequest, OpenDevice
from qimd.app.hops import peer, server
from qimd.app.hops.options import CHANNEL_OPTIONS
from qimd.app.hops.peer import METHOD
from qimd.contract.hops import request_frame
from qimd.contract.violation import ContractViolation, Reason
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import UserId
from qimd.core.records import DeliveredEvent
from qimd.core.seq import MailboxSeq

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


async def test_a_peer_that_does_not_read_its_answers_has_no_more_calls_begun(
    hops: World, far: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ANSWER_BYTES_MAX", 1024 * 1024)
    # More than gRPC itself holds for a peer that does not read.
    page = [DeliveredEvent(MailboxSeq(1), bytes(1024 * 1024))]
    far.mailbox.boxes[UserId("ann")] = page
    other = await hops.process("other")
    async with Raw(far) as raw:
        for number in range(1, 31):
            pull = opening(number)
            pull.pull_mailbox.SetInParent()
            await raw.call.write(request_frame([pull.SerializeToString()]))
            await other.to_sessions.list(user("ann"), b"", 0)
        assert 1 < len(far.mailbox.calls) < 30
        answered = 0
        while answered < 30:
            answered += len(HopReply.FromString(await raw.call.read()).answers)


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


@pytest.mark.parametrize(
    "defect",
    [RuntimeError("the body of a message"), ContractViolation("qim.M", Reason.ZERO, field="body")],
    ids=["any", "what this side can't encode"],
)
async def test_a_defect_of_a_room_is_internal_and_says_no_more(
    near: Process, far: Process, defect: Exception
) -> None:
    far.mailbox.fails["open"] = defect
    with pytest.raises(QimError) as raised:
        await near.to_mailbox.open_device(device("ann"))
    assert raised.value.code is ErrorCode.INTERNAL
    assert "body" not in raised.value.message
    far.defects_expected = 1
