"""A stream's life: AUTH, one answer a request, its deadlines, and every way it ends."""

import asyncio

import pytest
from tests.support.streams import StreamClient
from tests.unit.connection.world import FLOOR, World, delivered, encoded, world

from qim.common.v1 import error_pb2
from qim.conversation.v1.event_pb2 import Message
from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import ClientFrame, ServerFrame
from qimd.contract.violation import ContractViolation, Reason
from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.core.parameters import (
    CAPABILITIES,
    CONNECTION_REQUESTS_MAX,
    REQUEST_TIMEOUT_S,
    UNAUTH_CONNECTION_TIMEOUT_S,
)
from qimd.core.records import DeliveredEvent
from qimd.core.seq import mailbox_seq
from qimd.ports.services import Page

PING = gateway_pb2.Ping()
PULL = gateway_pb2.PullMailbox(cursor_token=b"cursor")


def kinds(frames: list[ServerFrame]) -> list[str | None]:
    return [frame.WhichOneof("frame") for frame in frames]


def send_frame(conversation: str = "c", count: int = 1) -> gateway_pb2.Send:
    return gateway_pb2.Send(
        conversation_id=conversation,
        events=[
            gateway_pb2.OutgoingEvent(client_msg_id=f"m{index}", message=Message(body=b"hi"))
            for index in range(count)
        ],
    )


async def one(place: World, client: StreamClient) -> ServerFrame:
    await place.runtime.settle()
    frames = client.received()
    assert len(frames) == 1, kinds(frames)
    return frames[0]


async def refusal(place: World, client: StreamClient, request_id: int) -> error_pb2.Error:
    frame = await one(place, client)
    assert frame.request_id == request_id
    assert frame.WhichOneof("frame") == "error"
    return frame.error


# --- AUTH -----------------------------------------------------------------------------------


async def test_auth_answers_with_the_identity_and_the_device_s_position() -> None:
    async with world() as place:
        client = await place.connect()
        request_id = client.auth("u1/tablet", version=7)
        frame = await one(place, client)
        assert frame.request_id == request_id
        ok = frame.auth_ok
        assert (ok.tenant_id, ok.user_id, ok.device_id) == ("acme", "u1", "tablet")
        assert (ok.protocol_version, tuple(ok.capabilities)) == (1, CAPABILITIES)
        assert ok.token_expires_at_ms == place.auth.expires_at_ms
        assert ok.server_time_ms == place.runtime.wall_ms()
        assert (ok.cursor_token, ok.last_applied_mailbox_seq) == (b"cursor", FLOOR)
        assert place.value("connections") == 1


async def test_a_frame_before_auth_is_unauthenticated_and_the_stream_lives_on() -> None:
    async with world() as place:
        client = await place.connect()
        for arm in ({"ping": PING}, {"pull_mailbox": PULL}, {"send": send_frame()}):
            request_id = client.request(**arm)
            error = await refusal(place, client, request_id)
            assert error.code == ErrorCode.UNAUTHENTICATED
        client.auth()
        assert (await one(place, client)).WhichOneof("frame") == "auth_ok"
        assert not place.writer.commits


async def test_a_refused_token_leaves_the_stream_usable() -> None:
    """AUT-07: a bad AUTH token is UNAUTHENTICATED, and the stream is usable afterwards."""
    async with world() as place:
        client = await place.connect()
        place.auth.refuses = QimError(ErrorCode.UNAUTHENTICATED, "the access token is not accepted")
        error = await refusal(place, client, client.auth())
        assert error.code == ErrorCode.UNAUTHENTICATED
        assert place.value("connections") == 0
        place.auth.refuses = None
        client.auth()
        assert (await one(place, client)).WhichOneof("frame") == "auth_ok"


async def test_a_mailbox_that_can_t_open_the_device_makes_auth_unavailable() -> None:
    async with world() as place:
        client = await place.connect()
        place.mailbox.raises = unavailable("the shard is being taken over")
        error = await refusal(place, client, client.auth())
        assert (error.code, error.retryable) == (ErrorCode.UNAVAILABLE, True)


async def test_protocol_version_0_is_refused() -> None:
    async with world() as place:
        client = await place.connect()
        error = await refusal(place, client, client.auth(version=0))
        assert (error.code, error.field) == (
            ErrorCode.INVALID_ARGUMENT,
            "auth.protocol_version",
        )


async def test_a_second_auth_is_refused_and_changes_nothing() -> None:
    async with world() as place:
        client = await place.login("u1")
        error = await refusal(place, client, client.auth("u2"))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "auth")
        assert list(place.service.online(place.mailbox.opened[0].tenant, ["u1", "u2"])) == ["u1"]  # type: ignore[list-item]


async def test_without_auth_the_stream_is_closed_at_the_deadline_and_not_before() -> None:
    async with world() as place:
        client = await place.connect()
        stream = place.stream_of(client)
        await place.runtime.advance(UNAUTH_CONNECTION_TIMEOUT_S - 0.001)
        client.request(ping=PING)
        await place.runtime.settle()
        assert not stream.closed.is_set()
        await place.runtime.advance(0.001)
        assert stream.closed.is_set()
        assert stream.error is not None
        assert stream.error.code is ErrorCode.UNAUTHENTICATED
        assert kinds(client.received()) == ["error", "error"]


async def test_an_authenticated_stream_outlives_the_auth_deadline() -> None:
    async with world() as place:
        client = await place.login()
        await place.runtime.advance(UNAUTH_CONNECTION_TIMEOUT_S * 3)
        client.request(ping=PING)
        assert (await one(place, client)).WhichOneof("frame") == "pong"


# --- requests -------------------------------------------------------------------------------


async def test_request_id_0_and_one_under_way_are_typed_errors() -> None:
    async with world() as place:
        client = await place.login()
        client.send(ClientFrame(request_id=0, ping=PING))
        error = await refusal(place, client, 0)
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "request_id")
        gate = place.writer.gates["c"] = asyncio.Event()
        client.send(ClientFrame(request_id=9, send=send_frame()))
        client.send(ClientFrame(request_id=9, ping=PING))
        error = await refusal(place, client, 9)
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "request_id")
        gate.set()
        assert (await one(place, client)).WhichOneof("frame") == "send_ack"
        client.send(ClientFrame(request_id=9, ping=PING))
        assert (await one(place, client)).WhichOneof("frame") == "pong"


async def test_a_refused_frame_costs_itself_alone() -> None:
    async with world() as place:
        client = await place.login()
        client.send(
            ContractViolation("qim.gateway.v1.ClientFrame", Reason.NON_CANONICAL, request_id=44)
        )
        error = await refusal(place, client, 44)
        assert error.code == ErrorCode.CONTRACT_VIOLATION
        client.send(ContractViolation("qim.gateway.v1.ClientFrame", Reason.MALFORMED))
        assert (await refusal(place, client, 0)).code == ErrorCode.CONTRACT_VIOLATION
        client.request(ping=PING)
        pong = await one(place, client)
        assert pong.pong.server_time_ms == place.runtime.wall_ms()
        assert place.value("errors_total", {"code": "CONTRACT_VIOLATION"}) == 2


async def test_a_kind_from_a_newer_client_and_refresh_are_unimplemented() -> None:
    async with world() as place:
        client = await place.login()
        newer = ClientFrame.FromString(
            ClientFrame(request_id=77).SerializeToString() + b"\xfa\x01\x00"
        )
        client.send(newer)
        assert (await refusal(place, client, 77)).code == ErrorCode.UNIMPLEMENTED
        request_id = client.request(refresh=gateway_pb2.Refresh(refresh_token="r"))
        assert (await refusal(place, client, request_id)).code == ErrorCode.UNIMPLEMENTED
        client.request(ping=PING)
        assert (await one(place, client)).WhichOneof("frame") == "pong"


async def test_requests_are_served_one_after_another_and_sends_beside_them() -> None:
    async with world() as place:
        client = await place.login()
        place.mailbox.gate = asyncio.Event()
        pull = client.request(pull_mailbox=PULL)
        ack = client.request(ack_mailbox=gateway_pb2.AckMailbox(last_applied_mailbox_seq=FLOOR))
        send = client.request(send=send_frame())
        ping = client.request(ping=PING)
        await place.runtime.settle()
        assert {frame.request_id for frame in client.received()} == {send, ping}
        assert place.mailbox.calls == ["pull begins"]
        place.mailbox.gate.set()
        await place.runtime.settle()
        assert [frame.request_id for frame in client.received()] == [pull, ack]
        assert place.mailbox.calls == ["pull begins", "pull ends", "ack"]


async def test_sends_reach_the_writer_in_the_order_they_were_sent() -> None:
    async with world() as place:
        client = await place.login()
        gate = place.writer.gates["slow"] = asyncio.Event()
        first = client.request(send=send_frame("slow"))
        others = [client.request(send=send_frame(f"c{index}")) for index in range(5)]
        await place.runtime.settle()
        order = [command.key.conversation for command in place.writer.commits]
        assert order == ["slow", "c0", "c1", "c2", "c3", "c4"]
        assert [frame.request_id for frame in client.received()] == others
        gate.set()
        assert (await one(place, client)).request_id == first


async def test_beyond_the_most_requests_under_way_the_stream_is_not_read() -> None:
    async with world() as place:
        client = await place.login()
        gate = place.writer.gates["c"] = asyncio.Event()
        for _ in range(CONNECTION_REQUESTS_MAX + 10):
            client.request(send=send_frame())
        await place.runtime.settle()
        assert len(place.writer.commits) == CONNECTION_REQUESTS_MAX
        assert place.stream_of(client).inbox.qsize() == 10
        gate.set()
        await place.runtime.settle()
        assert len(client.received()) == CONNECTION_REQUESTS_MAX + 10


async def test_a_request_without_an_answer_in_time_is_unavailable() -> None:
    async with world() as place:
        client = await place.login()
        place.writer.gates["c"] = asyncio.Event()
        request_id = client.request(send=send_frame())
        await place.runtime.advance(REQUEST_TIMEOUT_S - 0.001)
        assert not client.received()
        await place.runtime.advance(0.001)
        error = await refusal(place, client, request_id)
        assert (error.code, error.retryable) == (ErrorCode.UNAVAILABLE, True)


@pytest.mark.parametrize("arm", ["pull_mailbox", "send"])
async def test_an_inner_cancel_is_an_answer_and_not_a_silence(arm: str) -> None:
    """GW-01: the client gets UNAVAILABLE (retryable), and the slot is released."""
    async with world() as place:
        client = await place.login()
        place.mailbox.raises = place.writer.raises = asyncio.CancelledError()
        content: dict[str, object] = {"pull_mailbox": PULL, "send": send_frame()}
        request_id = client.request(**{arm: content[arm]})
        error = await refusal(place, client, request_id)
        assert (error.code, error.retryable) == (ErrorCode.UNAVAILABLE, True)
        place.mailbox.raises = place.writer.raises = None
        client.send(ClientFrame(request_id=request_id, pull_mailbox=PULL))
        assert (await one(place, client)).WhichOneof("frame") == "mailbox_page"


async def test_a_defect_is_one_internal_answer_and_is_counted() -> None:
    async with world() as place:
        client = await place.login()
        place.mailbox.raises = KeyError("secret")
        error = await refusal(place, client, client.request(pull_mailbox=PULL))
        assert error.code == ErrorCode.INTERNAL
        assert "secret" not in error.message
        assert place.value("defects_total", {"task": "request"}) == 1
        place.mailbox.raises = None
        client.request(pull_mailbox=PULL)
        assert (await one(place, client)).WhichOneof("frame") == "mailbox_page"


async def test_an_ack_is_bound_by_what_this_stream_was_handed() -> None:
    """MBX-06 (the connection's part): what no PULL of the stream covered is not acknowledged."""
    async with world() as place:
        client = await place.login()
        tenth = mailbox_seq(1, 10)
        ack = gateway_pb2.AckMailbox(last_applied_mailbox_seq=tenth)
        error = await refusal(place, client, client.request(ack_mailbox=ack))
        assert error.code == ErrorCode.CURSOR_INVALID
        place.mailbox.pages = [Page((), tenth, more=False)]
        client.request(pull_mailbox=PULL)
        client.request(ack_mailbox=ack)
        await place.runtime.settle()
        assert kinds(client.received()) == ["mailbox_page", "ack_ok"]
        assert place.mailbox.handed == [(tenth, FLOOR), (tenth, tenth)]


async def test_online_ready_is_measured_once_to_the_page_that_leaves_nothing() -> None:
    async with world() as place:
        client = await place.login()
        event = DeliveredEvent(mailbox_seq(1, 3), encoded(3))
        place.mailbox.pages = [
            Page([event], event.seq, more=True),
            Page([], event.seq, more=False),
        ]
        await place.runtime.advance(0.5)
        for _ in range(3):
            client.request(pull_mailbox=PULL)
            await place.runtime.settle()
        labels = {"backlog": "1-100"}
        assert place.value("online_ready_latency_count", labels) == 1
        assert place.value("online_ready_latency_sum", labels) == pytest.approx(0.5)


# --- the end --------------------------------------------------------------------------------


async def test_the_stream_ends_at_its_token_s_exp() -> None:
    """AUT-03: the old expiry stands, and the stream closes at it."""
    async with world() as place:
        place.auth.expires_at_ms = place.runtime.wall_ms() + 90_000
        client = await place.login()
        stream = place.stream_of(client)
        await place.runtime.advance(89.999)
        assert not stream.closed.is_set()
        await place.runtime.advance(0.001)
        (frame,) = client.received()
        assert (frame.request_id, frame.error.code) == (0, ErrorCode.TOKEN_EXPIRED)
        assert stream.error is not None
        assert stream.error.code is ErrorCode.TOKEN_EXPIRED
        assert place.value("connections") == 0


async def test_a_newer_stream_of_the_device_replaces_the_older_after_its_answers() -> None:
    """GW-06: the newer stays connected and is not kicked; nothing in flight is lost."""
    async with world() as place:
        older = await place.login("u/phone")
        gate = place.writer.gates["c"] = asyncio.Event()
        sent = older.request(send=send_frame())
        await place.runtime.settle()
        newer = await place.login("u/phone")
        await place.runtime.settle()
        assert not older.received()
        gate.set()
        await place.runtime.settle()
        answer, kicked = older.received()
        assert (answer.request_id, answer.WhichOneof("frame")) == (sent, "send_ack")
        assert kicked.kicked.reason == gateway_pb2.KICK_REASON_REPLACED
        assert place.stream_of(older).closed.is_set()
        assert place.stream_of(older).error is None
        place.push(["u"], delivered(1))
        await place.runtime.settle()
        assert not place.stream_of(newer).closed.is_set()
        assert kinds(newer.received()) == ["push_events"]
        assert place.value("connections") == 1


async def test_another_device_of_the_user_is_not_kicked() -> None:
    async with world() as place:
        phone = await place.login("u/phone")
        await place.login("u/tablet")
        await place.runtime.settle()
        assert not phone.received()
        assert place.value("connections") == 2


async def test_a_client_that_ends_its_side_gets_its_answers_and_a_clean_end() -> None:
    async with world() as place:
        client = await place.login()
        gate = place.writer.gates["c"] = asyncio.Event()
        request_id = client.request(send=send_frame())
        client.send(None)
        await place.runtime.settle()
        gate.set()
        assert (await one(place, client)).request_id == request_id
        stream = place.stream_of(client)
        assert stream.closed.is_set()
        assert stream.error is None
        assert place.value("connections") == 0


async def test_draining_says_so_answers_what_is_under_way_and_closes() -> None:
    async with world() as place:
        client = await place.login()
        gate = place.writer.gates["c"] = asyncio.Event()
        sent = client.request(send=send_frame())
        await place.runtime.settle()
        drained = asyncio.Event()

        async def drain() -> None:
            await place.service.drain(5.0)
            drained.set()

        place.runtime.spawn(drain(), "drain")
        going = await one(place, client)
        assert going.going_away.grace_ms == 5_000
        client.request(ping=PING)
        gate.set()
        assert (await one(place, client)).request_id == sent
        assert place.stream_of(client).closed.is_set()
        assert drained.is_set()
        late = await place.connect()
        stream = place.stream_of(late)
        assert stream.error is not None
        assert stream.error.code is ErrorCode.UNAVAILABLE


async def test_a_drain_does_not_wait_longer_than_its_grace() -> None:
    async with world() as place:
        client = await place.login()
        place.writer.gates["c"] = asyncio.Event()
        client.request(send=send_frame())
        await place.runtime.settle()
        place.runtime.spawn(place.service.drain(2.0), "drain")
        await place.runtime.advance(2.0)
        assert place.stream_of(client).closed.is_set()


async def test_a_drain_answers_an_auth_that_was_under_way_and_waits_no_longer() -> None:
    async with world() as place:
        gate = place.mailbox.open_gate = asyncio.Event()
        client = await place.connect()
        client.auth()
        await place.runtime.settle()
        place.runtime.spawn(place.service.drain(5.0), "drain")
        await place.runtime.settle()
        gate.set()
        await place.runtime.settle()
        going, answer = client.received()
        assert going.WhichOneof("frame") == "going_away"
        assert (answer.request_id, answer.error.code) == (1, error_pb2.ERROR_CODE_UNAVAILABLE)
        assert place.stream_of(client).closed.is_set()
        assert place.value("connections") == 0


async def test_a_cancelled_handler_leaves_nothing_behind() -> None:
    async with world() as place:
        client = await place.connect()
        stream = place.stream_of(client)
        task = place.runtime.spawn(place.service.handle(stream), "second")
        await place.runtime.settle()
        client.auth()
        client.auth()
        await place.runtime.settle()
        before = place.runtime.sleepers()
        task.cancel()
        await place.runtime.settle()
        assert task.done()
        assert place.runtime.sleepers() < before
