"""Public bugs of other systems, as one node meets them: each test names its case and right value.

docs/cases.md says which test shows which case; this file holds those that need a whole server.
"""

import asyncio
import json
import statistics
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from tests.e2e.support.idle import PINGS
from tests.e2e.support.stepped import SteppedServer
from tests.e2e.support.stream import PATIENCE_S, Stream, device_stream, message, refusal
from tests.e2e.support.tenancy import Operator, Tenancy, fresh, resident_bytes, samples
from tests.support.wire import Wire

from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import KICK_REASON_REPLACED, SendResult

pytestmark = pytest.mark.usefixtures("idle")

HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS


def accepted(result: SendResult) -> tuple[int, bytes]:
    """(seq, event id)."""
    assert result.WhichOneof("outcome") == "accepted", result
    return result.accepted.conversation_seq, result.accepted.event_id


# --- writer -----------------------------------------------------------------------------------


async def test_a_send_whose_ack_was_lost_is_answered_as_it_was_the_first_time(
    tenancy: Tenancy, operator: Operator
) -> None:
    """WR-03: both calls return the same seq (12) and server id; one row; receivers get one event.
    The same id with a different body is a conflict, not a silent replace."""
    room, ann, bob = fresh("c"), fresh("ann"), fresh("bob")
    await operator.create(room, [ann, bob])
    async with tenancy.device(ann) as stream:
        await stream.say(room, *(message(f"m{number}") for number in range(10)))
        # The connection is gone before anybody reads the ack.
        send = gateway_pb2.Send(conversation_id=room, events=[message("M", b"first")])
        await stream.send(send=send)
        async with asyncio.timeout(PATIENCE_S):
            while await operator.head(room) < 12:
                pass
    async with tenancy.device(ann, "another device") as stream:
        (again,) = await stream.say(room, message("M", b"first"))
        assert again.accepted.duplicate
        (twice,) = await stream.say(room, message("M", b"first"))
        (other,) = await stream.say(room, message("M", b"second"))
    assert accepted(again) == accepted(twice)
    assert accepted(again)[0] == 12
    assert refusal(other) == ("IDEMPOTENCY_CONFLICT", "send.events[0].client_msg_id")
    assert await operator.head(room) == 12
    for user in (ann, bob):
        events = [each.event for each in await operator.mailbox(user, 12)]
        assert [each.conversation_seq for each in events] == list(range(1, 13))
        assert (events[-1].event_id, events[-1].message.body) == (accepted(again)[1], b"first")


async def test_the_same_send_on_two_streams_at_once_is_one_event(
    tenancy: Tenancy, operator: Operator
) -> None:
    """WR-03, from two gateways at once: both return one seq and one id, and exactly one of them is
    the first."""
    room, ann = fresh("c"), fresh("ann")
    await operator.create(room, [ann])
    async with tenancy.device(ann, "phone") as phone, tenancy.device(ann, "tablet") as tablet:
        for number in range(50):
            (one,), (other,) = await asyncio.gather(
                phone.say(room, message(f"M{number}")), tablet.say(room, message(f"M{number}"))
            )
            assert accepted(one) == accepted(other)
            assert one.accepted.created_at_ms == other.accepted.created_at_ms
            assert one.accepted.duplicate + other.accepted.duplicate == 1
            assert accepted(one)[0] == number + 2
    assert await operator.head(room) == 51
    assert len(await operator.mailbox(ann, 51)) == 51


@pytest.fixture
async def stepped(tmp_path: Path) -> AsyncIterator[SteppedServer]:
    """A server whose wall clock the test steps."""
    with SteppedServer(tmp_path / "data") as server:
        yield server


def late(tenancy: Tenancy, offset_ms: int, user: str, device: str = "phone") -> str:
    """A token that is issued on a clock stepped so far."""
    now_s = int(time.time()) + offset_ms // 1000
    return tenancy.token(user, device, iat=now_s, exp=now_s + 3600)


async def test_a_send_that_is_repeated_much_later_is_answered_as_it_was_the_first_time(
    stepped: SteppedServer,
) -> None:
    """WR-03, after 1 h, after 23 h and a restart: the same seq and id, one row, one event; another
    body is a conflict still."""
    tenancy = Tenancy(stepped)
    async with tenancy.operator() as operator, tenancy.device("ann") as stream:
        await operator.create("c", ["ann", "bob"])
        (first,) = await stream.say("c", message("M", b"first"))
    for offset_ms, restart in ((HOUR_MS + 1, False), (23 * HOUR_MS, True)):
        stepped.step_to(offset_ms)
        if restart:
            stepped.kill()
            stepped.start()
        async with device_stream(stepped.grpc, late(tenancy, offset_ms, "ann")) as stream:
            again, other = await stream.say("c", message("M", b"first"), message("N", b"next"))
            (conflict,) = await stream.say("c", message("M", b"second"))
        assert accepted(again) == accepted(first)
        assert (again.accepted.duplicate, accepted(other)[0]) == (True, 3)
        assert refusal(conflict) == ("IDEMPOTENCY_CONFLICT", "send.events[0].client_msg_id")
    async with tenancy.operator() as operator:
        seqs = [each.event.conversation_seq for each in await operator.mailbox("bob", 3)]
        assert seqs == [1, 2, 3]


async def test_a_clock_that_goes_back_gives_no_time_and_no_number_twice(
    stepped: SteppedServer,
) -> None:
    """WR-05: ids unique, seq strictly +1, created_at never decreases (clamped), through a step of
    2 s and a restart in it; beyond 2 s the writer refuses, and goes on by itself."""
    tenancy = Tenancy(stepped)
    results: list[SendResult] = []

    async def say(stream: Stream, name: str) -> SendResult:
        (result,) = await stream.say("c", message(name))
        return result

    async with tenancy.operator() as operator, tenancy.device("ann") as stream:
        await operator.create("c", ["ann"])
        results.append(await say(stream, "m1"))
        stepped.step_to(-2_000)
        results += [await say(stream, f"m{number}") for number in range(2, 5)]
        assert results[1].accepted.created_at_ms == results[0].accepted.created_at_ms
    stepped.kill()
    stepped.start()
    async with tenancy.operator() as operator, tenancy.device("ann") as stream:
        results += [await say(stream, f"m{number}") for number in range(5, 8)]
        stepped.step_to(-HOUR_MS)
        send = gateway_pb2.Send(conversation_id="c", events=[message("m8")])
        answer = await stream.ask(send=send)
        assert refusal(answer)[0] == "UNAVAILABLE"
        assert await operator.head("c") == 8
        stepped.step_to(0)
        results.append(await say(stream, "m8"))
        events = [each.event for each in await stream.mailbox(9)][1:]
    assert [accepted(result)[0] for result in results] == list(range(2, 10))
    assert len({accepted(result)[1] for result in results}) == len(results)
    times = [result.accepted.created_at_ms for result in results]
    assert times == sorted(times)
    assert [each.created_at_ms for each in events] == times
    assert [each.client_msg_id for each in events] == [f"m{number}" for number in range(1, 9)]


# --- fanout -----------------------------------------------------------------------------------


async def test_who_was_removed_gets_nothing_until_they_are_back(
    tenancy: Tenancy, operator: Operator
) -> None:
    """FAN-05: u gets nothing with seq above the removal (which u is told), can't send meanwhile,
    and after the re-add sends and receives from there on."""
    room, ann, u = fresh("c"), fresh("ann"), fresh("u")
    await operator.create(room, [ann, u])
    async with tenancy.device(ann) as stream, tenancy.device(u) as theirs:
        await stream.say(room, message("before"))
        # In one breath: whatever the fanout remembers of the membership is old by then.
        removed = (await operator.remove(room, [u])).conversation_seq
        await stream.say(room, *(message(f"secret{number}") for number in range(20)))
        send = gateway_pb2.Send(conversation_id=room, events=[message("let me in")])
        assert refusal(await theirs.ask(send=send)) == ("NOT_MEMBER", "")
        added = (await operator.add(room, [u])).conversation_seq
        await stream.say(room, message("after"))
        (back,) = await theirs.say(room, message("back"))
        wanted = [1, 2, removed, added, added + 1, accepted(back)[0]]
        assert [each.event.conversation_seq for each in await theirs.mailbox(6)] == wanted
        assert [each.conversation_seq for each in await theirs.history(room)] == wanted
        row = await theirs.session(room, wanted[-1])
        assert row.unread_count == 2
        whole = [each.event.conversation_seq for each in await stream.mailbox(wanted[-1])]
        assert whole == list(range(1, wanted[-1] + 1))


# --- mailbox ----------------------------------------------------------------------------------


async def test_a_position_beyond_what_was_delivered_is_never_stored(
    tenancy: Tenancy, operator: Operator
) -> None:
    """MBX-06: an ack of 10 when W = 9 is CURSOR_INVALID (also -1 and 2^63-1); the stored one stays
    9; 8 after 9 is a no-op; and when 10 arrives unread = 1 on all devices."""
    room, ann, u = fresh("c"), fresh("ann"), fresh("u")
    await operator.create(room, [ann, u])
    async with tenancy.device(ann) as stream:
        await stream.say(room, *(message(f"m{number}") for number in range(8)))
    async with tenancy.device(u) as phone, tenancy.device(u, "tablet") as tablet:
        seqs = [each.mailbox_seq for each in await phone.mailbox(9)]
        covered = (await phone.pull(seqs[-1])).mailbox_page.covered_through_seq
        # Its own PULLs count, not another device's.
        assert refusal(await tablet.ack(seqs[0])) == ("CURSOR_INVALID", "")
        assert (await phone.ack(seqs[8])).ack_ok.last_applied_mailbox_seq == seqs[8]
        await phone.mark_read(room, 9)
        for beyond in (covered + 1, (1 << 64) - 1, (1 << 63) - 1, (1 << 63), 1 << 62):
            assert refusal(await phone.ack(beyond)) == ("CURSOR_INVALID", ""), beyond
            assert refusal(await phone.pull(beyond)) == ("CURSOR_INVALID", ""), beyond
        assert (await phone.ack(seqs[7])).ack_ok.last_applied_mailbox_seq == seqs[8]
        assert (await phone.ack(0)).ack_ok.last_applied_mailbox_seq == seqs[8]
        async with tenancy.device(ann) as stream:
            await stream.say(room, message("the tenth"))
        for device in (phone, tablet):
            assert (await device.session(room, 10)).unread_count == 1
        (tenth,) = await phone.mailbox(1, after=seqs[8])
        assert tenth.event.conversation_seq == 10
    async with tenancy.device(u) as phone:
        assert phone.auth_ok.last_applied_mailbox_seq == seqs[8]


async def test_a_position_that_was_trimmed_is_rebased_before_any_event(
    stepped: SteppedServer,
) -> None:
    """MBX-08: CURSOR_REBASED names the range that can't be served before any event, when all is
    trimmed and when something came after; never a plain success, never an empty 'up to date'."""
    tenancy = Tenancy(stepped)
    month_ms = 31 * DAY_MS

    async with tenancy.operator() as operator, tenancy.device("u") as phone:
        await operator.create("c", ["ann", "u"])
        async with tenancy.device("ann") as stream:
            await stream.say("c", *(message(f"old{number}") for number in range(4)))
        seqs = [each.mailbox_seq for each in await phone.mailbox(5)]
        await phone.ack(seqs[1])
    # A month passes while nobody is there; what a start finds too old goes at once.
    stepped.kill()
    stepped.step_to(month_ms)
    stepped.start()
    async with device_stream(stepped.grpc, late(tenancy, month_ms, "u")) as phone:
        assert phone.auth_ok.last_applied_mailbox_seq == seqs[1]
        async with asyncio.timeout(PATIENCE_S):
            while (answer := await phone.pull(seqs[1])).WhichOneof("frame") == "mailbox_page":
                pass
        rebased = answer.cursor_rebased
        assert rebased.lost_from_seq == seqs[1] + 1
        assert rebased.lost_through_seq >= seqs[-1]
        async with device_stream(stepped.grpc, late(tenancy, month_ms, "ann")) as stream:
            await stream.say("c", message("new1"), message("new2"))
        again = (await phone.pull(seqs[1])).cursor_rebased
        assert (again.lost_from_seq, again.lost_through_seq) == (
            rebased.lost_from_seq,
            rebased.lost_through_seq,
        )
        events = await phone.mailbox(
            2, after=again.last_applied_mailbox_seq, token=again.cursor_token
        )
        assert [each.event.client_msg_id for each in events] == ["new1", "new2"]
        assert events[0].mailbox_seq > again.lost_through_seq
    async with device_stream(stepped.grpc, late(tenancy, month_ms, "u", "tablet")) as tablet:
        # A device that was never here begins where something can be had.
        assert tablet.auth_ok.watermark_floor_seq == again.lost_through_seq
        start = tablet.auth_ok.last_applied_mailbox_seq
        names = [each.event.client_msg_id for each in await tablet.mailbox(2, after=start)]
        assert names == ["new1", "new2"]


# --- session list -----------------------------------------------------------------------------


async def test_own_messages_are_never_unread(tenancy: Tenancy, operator: Operator) -> None:
    """SES-01: unread = 0 for u, who sent 1-3, on both devices, and 3 for the other member; u's own
    message does not mark an earlier foreign one as read."""
    room, u, other = fresh("c"), fresh("u"), fresh("other")
    await operator.create(room, [u, other])
    async with (
        tenancy.device(u) as phone,
        tenancy.device(u, "tablet") as tablet,
        tenancy.device(other) as theirs,
    ):
        await phone.say(room, *(message(f"m{number}") for number in range(3)))
        for device in (phone, tablet):
            assert (await device.session(room, 4)).unread_count == 0
        assert (await theirs.session(room, 4)).unread_count == 3
        await theirs.say(room, message("foreign"))
        await phone.say(room, message("own"))
        for device in (phone, tablet):
            row = await device.session(room, 6)
            assert (row.unread_count, row.read_through_seq < 5) == (1, True)


async def test_a_row_that_was_read_stays_listed(tenancy: Tenancy, operator: Operator) -> None:
    """SES-02: after MARK_READ(max) the row is still listed with unread 0, the same last message and
    order; clearing when nothing is unread succeeds too."""
    u, other = fresh("u"), fresh("other")
    rooms = [fresh("c"), fresh("c")]
    async with tenancy.device(u) as stream, tenancy.device(other) as theirs:
        for room in rooms:
            await operator.create(room, [u, other])
            await theirs.say(room, message("m1", b"last"))
            await stream.session(room, 2)
        before = await stream.sessions()
        assert [row.conversation_id for row in before] == rooms[::-1]
        for _ in range(2):
            read = await stream.mark_read(rooms[0], (1 << 63) - 1)
            assert (read.read_through_seq, read.unread_count) == (2, 0)
            after = await stream.sessions()
            assert [row.conversation_id for row in after] == rooms[::-1]
            assert [row.last_event for row in after] == [row.last_event for row in before]
            assert [row.unread_count for row in after] == [1, 0]


async def test_read_marks_of_two_people_are_two(tenancy: Tenancy, operator: Operator) -> None:
    """SES-04: u.read = 5 and unread = 4 while peer.read = 9; marks of one user's devices merge by
    max."""
    room, u, peer = fresh("c"), fresh("u"), fresh("peer")
    await operator.create(room, [u, peer])
    async with tenancy.device(u) as ours, tenancy.device(peer) as theirs:
        await theirs.say(room, *(message(f"m{number}") for number in range(8)))
        for device in (ours, theirs):
            await device.session(room, 9)
        assert (await ours.mark_read(room, 5)).read_through_seq == 5
        assert (await theirs.mark_read(room, 9)).read_through_seq == 9
        row, theirs_row = await ours.session(room, 9), await theirs.session(room, 9)
        assert (row.read_through_seq, row.unread_count) == (5, 4)
        assert (theirs_row.read_through_seq, theirs_row.unread_count) == (9, 0)
        async with tenancy.device(u, "tablet") as tablet:
            assert (await tablet.mark_read(room, 3)).read_through_seq == 5
            assert (await tablet.mark_read(room, 7)).read_through_seq == 7
        row = await ours.session(room, 9)
        assert (row.read_through_seq, row.unread_count) == (7, 2)


# --- gateway ----------------------------------------------------------------------------------


async def test_a_device_that_lost_its_network_comes_back_on_a_newer_stream(
    tenancy: Tenancy, operator: Operator
) -> None:
    """GW-06 on one node: the newer stream stays and is not kicked, the token still works, and what
    was under way on the dead one is not lost."""
    room, d, ann = fresh("c"), fresh("d"), fresh("ann")
    await operator.create(room, [d, ann])
    token = tenancy.token(d)
    async with Wire(tenancy.server.grpc) as network, Stream(network.address) as dead:
        await dead.auth(token)
        await dead.mailbox(1)
        send = gateway_pb2.Send(conversation_id=room, events=[message("under way")])
        await dead.send(send=send)
        async with asyncio.timeout(PATIENCE_S):
            while await operator.head(room) < 2:
                pass
        network.cut()
        async with device_stream(tenancy.server.grpc, token) as newer:
            (again,) = await newer.say(room, message("under way"))
            assert (accepted(again)[0], again.accepted.duplicate) == (2, True)
            async with tenancy.device(ann) as stream:
                await stream.say(room, message("hello"))
            events = [each.event.conversation_seq for each in await newer.mailbox(3)]
            assert events == [1, 2, 3]
            assert await newer.ping()
            # The end of the old one's call, whenever it is noticed, ends nothing of the new.
            await dead.__aexit__(None, None, None)
            assert await newer.ping()
            kinds = {frame.WhichOneof("frame") for frame in newer.unasked()}
            assert kinds <= {"push_events"}
            async with device_stream(tenancy.server.grpc, token) as newest:
                assert await newest.ping()
                frame = await newer.next_of("kicked")
                assert frame.kicked.reason == KICK_REASON_REPLACED
                assert (await newer.ended()).code is grpc.StatusCode.OK


MESSAGE_BYTES = 16 * 1024
BATCH = 20
BATCHES = 100
SENT_BYTES = MESSAGE_BYTES * BATCH * BATCHES
"""32 MB: what gRPC holds for a client that does not read (4 to 5 MB) and the queue of 4 MiB, four
times over."""


async def test_a_client_that_does_not_read_holds_nothing_and_nobody(
    tenancy: Tenancy, operator: Operator
) -> None:
    """GW-05: the outbound queue is bounded in bytes; at the bound the stream ends with
    SLOW_CONSUMER and the client catches up by PULL. Memory stays flat, others' latency as it was.
    """
    room, slow, ann, bob = fresh("c"), fresh("slow"), fresh("ann"), fresh("bob")
    await operator.create(room, [slow, ann, bob])

    async def talk(sender: Stream, reader: Stream, name: str) -> tuple[float, int]:
        """Send the batches. (Median of the seconds from a SEND to the push of its last event at the
        reader, by how much the server has grown.)"""
        resident = resident_bytes(tenancy.server)
        taken: list[float] = []
        for batch in range(BATCHES):
            events = [message(f"{name}{batch}.{n}", bytes(MESSAGE_BYTES)) for n in range(BATCH)]
            began_s = time.monotonic()
            results = await sender.say(room, *events)
            await reader.pushed(accepted(results[-1])[0])
            taken.append(time.monotonic() - began_s)
        return statistics.median(taken), resident_bytes(tenancy.server) - resident

    async with tenancy.device(ann) as sender, tenancy.device(bob) as reader:
        quiet_s, quiet_bytes = await talk(sender, reader, "quiet")
        async with tenancy.device(slow) as stopped:
            # It never reads on: everything from here is pushed to it, and waits.
            slow_s, slow_bytes = await talk(sender, reader, "slow")
            ended = await stopped.ended()
    assert (ended.code, ended.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_CONSUMER")
    assert samples(tenancy.server)['errors_total{code="SLOW_CONSUMER"}'] >= 1
    # The engine's caches grow with what is stored, the less the fuller they are.
    assert slow_bytes < quiet_bytes + SENT_BYTES / 2, (slow_bytes, quiet_bytes)
    # Twice, and a little for a machine that is busy. Had the others waited for the slow one, the
    # pushes would not have come at all.
    assert slow_s < 2 * quiet_s + 0.05
    count = 2 * BATCHES * BATCH
    async with tenancy.device(slow) as back:
        seqs = [each.event.conversation_seq for each in await back.mailbox(count + 1)]
    assert seqs == list(range(1, count + 2))


def test_an_idle_stream_lives_past_its_pings(idle: "subprocess.Popen[str]") -> None:
    """GW-02: a client that pings at the documented interval, on a stream with no events, stays up
    past 3 pings: with gRPC's own minimum a server says GOAWAY at the fifth."""
    told, _ = idle.communicate(timeout=4 * PATIENCE_S)
    assert idle.returncode == 0
    seen = json.loads(told)
    assert seen["pings"] >= PINGS
    assert (seen["goaways"], seen["answered"], seen["events"]) == (0, True, [])
