"""Sending and staying connected: unknown outcomes, tokens, redirects, the end of a client."""

import asyncio
import gc
import weakref
from dataclasses import replace

import pytest
from tests.unit.client.gateway import (
    FAST,
    USER,
    ClientFrame,
    Gateway,
    Peer,
    ServerFrame,
    client_of,
    event,
    running,
)

from qim.gateway.v1 import gateway_pb2
from qimd.client import (
    Client,
    ClientStopped,
    ErrorCode,
    Message,
    OutcomeUnknown,
    QimError,
    Replaced,
    Sent,
)
from qimd.contract.errors import error_message


def own_tasks() -> set[str]:
    """The names of the client's tasks that are alive."""
    return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("qim-")}


async def test_a_message_is_sent_and_acknowledged(gateway: Gateway) -> None:
    async with client_of(gateway) as client:
        assert (client.tenant, client.user, client.device) == ("t", USER, "d")
        sent = await client.send("c", "hello", client_msg_id="m1")
    assert (sent.seq, sent.client_msg_id, sent.duplicate) == (1, "m1", False)
    (frame,) = gateway.seen("send")
    assert frame.send.events[0].message.body == b"hello"


async def test_a_lost_send_ack_is_resolved_under_the_same_client_msg_id(gateway: Gateway) -> None:
    """WR-03: both tries carry one client_msg_id, and the second returns the seq of the first."""

    async def commit_and_drop(peer: Peer, frame: ClientFrame) -> bool:
        if len(gateway.seen("send")) > 1:
            return False
        gateway.commit(frame)
        peer.drop()
        return True

    gateway.answers["send"] = commit_and_drop
    async with client_of(gateway) as client:
        sent = await client.send("c", "hello")
    first, second = gateway.seen("send")
    assert first.send == second.send
    assert (sent.seq, sent.duplicate) == (1, True)
    assert len(gateway.committed) == 1


@pytest.mark.parametrize(
    "code", [ErrorCode.UNAVAILABLE, ErrorCode.NOT_OWNER, ErrorCode.STALE_EPOCH]
)
async def test_an_unknown_outcome_is_sent_again(gateway: Gateway, code: ErrorCode) -> None:
    async def refuse_twice(peer: Peer, frame: ClientFrame) -> bool:
        if len(gateway.seen("send")) > 2:
            return False
        peer.error(frame.request_id, code)
        return True

    gateway.answers["send"] = refuse_twice
    async with client_of(gateway) as client:
        await client.send("c", "hello")
        assert client.connects == 1
    assert len({f.send.events[0].client_msg_id for f in gateway.seen("send")}) == 1


async def test_only_the_unknown_events_of_a_send_go_again(gateway: Gateway) -> None:
    async def second_unknown(peer: Peer, frame: ClientFrame) -> bool:
        if len(gateway.seen("send")) > 1:
            return False
        ack = gateway.commit(frame)
        unknown = error_message(QimError(ErrorCode.UNAVAILABLE, "not known"))
        refused = error_message(QimError(ErrorCode.INVALID_ARGUMENT, "too long"))
        ack.results[1].error.CopyFrom(unknown)
        ack.results[2].error.CopyFrom(refused)
        peer.send(request_id=frame.request_id, send_ack=ack)
        return True

    gateway.answers["send"] = second_unknown
    async with client_of(gateway) as client:
        results = await client.send_many("c", [Message(b"%d" % n, f"m{n}") for n in range(3)])
    assert [e.client_msg_id for e in gateway.seen("send")[1].send.events] == ["m1"]
    first, second, third = results
    assert isinstance(first, Sent)
    assert isinstance(second, Sent)
    assert isinstance(third, QimError)
    assert third.code is ErrorCode.INVALID_ARGUMENT


async def test_a_refusal_is_told_at_once(gateway: Gateway) -> None:
    async def limited(peer: Peer, frame: ClientFrame) -> bool:
        refusal = QimError(ErrorCode.RATE_LIMITED, "slow down", retry_after_ms=3_000)
        peer.send(request_id=frame.request_id, error=error_message(refusal))
        return True

    gateway.answers["send"] = limited
    async with client_of(gateway) as client:
        with pytest.raises(QimError) as caught:
            await client.send("c", "hello")
    assert (caught.value.code, caught.value.retry_after_ms) == (ErrorCode.RATE_LIMITED, 3_000)
    assert len(gateway.seen("send")) == 1


async def test_a_deadline_names_what_is_unknown(gateway: Gateway) -> None:
    async def silent(peer: Peer, frame: ClientFrame) -> bool:
        return True

    gateway.answers["send"] = silent
    async with client_of(gateway) as client:
        with pytest.raises(OutcomeUnknown) as caught:
            await client.send("c", "hello", client_msg_id="m1", timeout_s=0.05)
        assert caught.value.client_msg_ids == ("m1",)
        assert await client.ping() == 5, "the stream lives on"
        assert client.connects == 1


async def test_a_stream_that_answers_nothing_is_given_up(gateway: Gateway) -> None:
    async def silent_first(peer: Peer, frame: ClientFrame) -> bool:
        return peer is gateway.peers[0]

    gateway.answers["ping"] = silent_first
    async with client_of(gateway, replace(FAST, answer_timeout_s=0.05)) as client:
        assert await client.ping() == 5
        assert client.connects == 2


async def test_many_messages_go_in_few_frames_and_in_order(gateway: Gateway) -> None:
    async with client_of(gateway) as client:
        small = await client.send_many("c", [Message(b"%d" % n) for n in range(250)])
        assert [r.seq for r in small if isinstance(r, Sent)] == list(range(1, 251))
        assert [len(f.send.events) for f in gateway.seen("send")] == [100, 100, 50]
        large = await client.send_many("c", [Message(bytes(64 * 1024)) for _ in range(100)])
        assert [r.seq for r in large if isinstance(r, Sent)] == list(range(251, 351))


async def test_what_no_frame_takes_is_refused_here_and_holds_up_nothing(gateway: Gateway) -> None:
    async with client_of(gateway) as client:
        contents = [Message(b"first"), Message(bytes(5 << 20), "huge"), Message(b"last")]
        first, huge, last = await client.send_many("c", contents)
        assert isinstance(first, Sent)
        assert isinstance(last, Sent)
        assert isinstance(huge, QimError)
        assert huge.code is ErrorCode.INVALID_ARGUMENT
        assert "at most 65536" in huge.message
        with pytest.raises(QimError, match="at most 65536"):
            await client.send("c", bytes(5 << 20))
    assert [len(frame.send.events) for frame in gateway.seen("send")] == [2]


async def test_at_the_deadline_each_of_many_tells_what_became_of_it(gateway: Gateway) -> None:
    asked = 0

    async def first_alone(peer: Peer, frame: ClientFrame) -> bool:
        nonlocal asked
        asked += 1
        return asked > 1

    gateway.answers["send"] = first_alone
    async with client_of(gateway) as client:
        contents = [Message(b"%d" % n) for n in range(250)]
        results = await client.send_many("c", contents, timeout_s=0.3)
    assert all(isinstance(one, Sent) for one in results[:100])
    assert all(isinstance(one, OutcomeUnknown) for one in results[100:200])
    for one in results[200:]:
        assert isinstance(one, QimError)
        assert (one.code, one.message) == (
            ErrorCode.UNAVAILABLE,
            "not sent: the deadline has passed",
        )


async def test_a_restarted_server_is_found_again(gateway: Gateway) -> None:
    async with client_of(gateway) as client:
        gateway.peer.drop()
        await gateway.until(lambda: len(gateway.peers) == 2)
        assert (await client.send("c", "hello")).seq == 1


async def test_a_server_that_drains_answers_what_is_under_way_first(gateway: Gateway) -> None:
    held: list[tuple[Peer, ClientFrame]] = []

    async def hold(peer: Peer, frame: ClientFrame) -> bool:
        held.append((peer, frame))
        return len(held) == 1

    gateway.answers["send"] = hold
    async with client_of(gateway) as client:
        sending = asyncio.create_task(client.send("c", "hello"))
        await gateway.until(lambda: len(held) == 1)
        old, frame = held[0]
        old.send(going_away=gateway_pb2.GoingAway(grace_ms=1_000))
        old.send(request_id=frame.request_id, send_ack=gateway.commit(frame))
        assert (await sending).seq == 1
        await gateway.until(lambda: len(gateway.peers) == 2)
        assert len(gateway.seen("send")) == 1, "nothing had to be sent again"
        await client.ping()
        assert gateway.live == 1


async def test_a_slow_consumer_reconnects_and_catches_up_by_pull(gateway: Gateway) -> None:
    gateway.deliver(event(1, 10, added=(USER,)))
    async with client_of(gateway) as client:
        events = client.events()
        await anext(events)
        gateway.deliver(event(2, 20))
        gateway.peer.error(0, ErrorCode.SLOW_CONSUMER)
        async with asyncio.timeout(10):
            second = await anext(events)
        assert client.connects == 2
        assert getattr(second, "seq", 0) == 2


async def test_a_replaced_client_stops_for_good(gateway: Gateway) -> None:
    async with client_of(gateway) as client:
        waiting = asyncio.ensure_future(anext(client.events()))
        kicked = gateway_pb2.Kicked(reason=gateway_pb2.KICK_REASON_REPLACED)
        gateway.peer.send(kicked=kicked)
        with pytest.raises(Replaced):
            await waiting
        with pytest.raises(Replaced):
            await client.send("c", "hello")
    assert len(gateway.peers) == 1, "it must not fight for the device"


async def test_a_revoked_token_stops_the_client(gateway: Gateway) -> None:
    async with client_of(gateway) as client:
        gateway.peer.send(kicked=gateway_pb2.Kicked(reason=gateway_pb2.KICK_REASON_TOKEN_REVOKED))
        with pytest.raises(QimError) as caught:
            await anext(client.events())
    assert caught.value.code is ErrorCode.TOKEN_REVOKED


async def test_an_expired_token_is_replaced_by_the_provider(gateway: Gateway) -> None:
    tokens = iter(("first", "second", "third"))

    async def provider() -> str:
        return next(tokens)

    async with Client(gateway.address, token_provider=provider, config=FAST) as client:
        gateway.peer.error(0, ErrorCode.TOKEN_EXPIRED)
        await gateway.until(lambda: len(gateway.peers) == 2)
        await client.ping()
    assert [f.auth.access_token for f in gateway.seen("auth")] == ["first", "second"]


async def test_a_token_that_is_refused_twice_ends_the_attempt(gateway: Gateway) -> None:
    async def refuse(peer: Peer, frame: ClientFrame) -> bool:
        peer.error(frame.request_id, ErrorCode.TOKEN_EXPIRED)
        return True

    gateway.answers["auth"] = refuse
    with pytest.raises(QimError) as caught:
        await client_of(gateway).__aenter__()
    assert caught.value.code is ErrorCode.TOKEN_EXPIRED
    assert len(gateway.seen("auth")) == 2
    assert own_tasks() == set()


async def test_a_redirect_is_followed_with_its_route_token(gateway: Gateway) -> None:
    async with running() as other:

        async def redirect(peer: Peer, frame: ClientFrame) -> bool:
            peer.send(redirect=gateway_pb2.Redirect(address=other.address, route_token="this way"))
            return True

        gateway.answers["auth"] = redirect
        async with client_of(gateway) as client:
            await client.ping()
        assert other.seen("auth")[0].auth.route_token == "this way"


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    config = replace(FAST, open_timeout_s=0.2)
    with pytest.raises(QimError) as caught:
        await Client("127.0.0.1:1", token="t", config=config).__aenter__()
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert own_tasks() == set()


async def test_a_cancelled_request_costs_no_other_request(gateway: Gateway) -> None:
    async def silent(peer: Peer, frame: ClientFrame) -> bool:
        return True

    gateway.answers["send"] = silent
    async with client_of(gateway) as client:
        sending = [asyncio.create_task(client.send("c", "hello")) for _ in range(5)]
        await gateway.until(lambda: len(gateway.seen("send")) == 5)
        for task in sending:
            task.cancel()
        results = await asyncio.gather(*sending, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert await client.ping() == 5
        assert client.connects == 1


async def test_cancelling_the_whole_client_leaves_no_task_and_no_call(gateway: Gateway) -> None:
    async def run() -> None:
        async with client_of(gateway) as client:
            async for _ in client.events():
                pass

    running_client = asyncio.create_task(run())
    await gateway.until(lambda: bool(gateway.seen("pull_mailbox")))
    running_client.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running_client
    assert own_tasks() == set()
    async with asyncio.timeout(10):
        await gateway.peer.gone.wait()


async def test_a_closed_client_frees_its_connection_at_once(gateway: Gateway) -> None:
    """A connection that waits for the garbage collector is one that the server must keep."""
    gc.disable()
    try:
        async with client_of(gateway) as client:
            await client.ping()
            stream = weakref.ref(await client._link.stream())
            assert stream() is not None
        # One turn of the loop lets go of the tasks that have just ended.
        await asyncio.sleep(0)
        assert stream() is None
    finally:
        gc.enable()


async def test_a_closed_client_says_so(gateway: Gateway) -> None:
    async with client_of(gateway) as client:
        pass
    with pytest.raises(ClientStopped):
        await client.send("c", "hello")
    assert own_tasks() == set()


async def test_an_unknown_answer_and_a_newer_frame_harm_nothing(gateway: Gateway) -> None:
    newer = ServerFrame.FromString(b"\xa2\x06\x03new")
    assert newer.WhichOneof("frame") is None
    async with client_of(gateway) as client:
        gateway.peer.send(request_id=77, pong=gateway_pb2.Pong())
        gateway.peer.out.put_nowait(newer)
        assert await client.ping() == 5
        assert client.connects == 1


async def test_a_frame_that_breaks_the_contract_costs_the_stream_and_nothing_else(
    gateway: Gateway,
) -> None:
    async with client_of(gateway) as client:
        gateway.peer.send(request_id=0, pong=gateway_pb2.Pong())
        await gateway.until(lambda: len(gateway.peers) == 2)
        assert await client.ping() == 5


async def test_a_token_or_a_provider_is_demanded() -> None:
    with pytest.raises(QimError) as caught:
        Client("127.0.0.1:1")
    assert caught.value.field == "token"


async def test_a_server_that_never_said_anything_is_left_at_once() -> None:
    """What accepts and is silent is not waited for on the way out: `connect_timeout_s` is all."""
    config = replace(FAST, connect_timeout_s=0.05, open_timeout_s=0.2, close_timeout_s=3600.0)
    came: list[asyncio.StreamWriter] = []
    listener = await asyncio.start_server(lambda _reader, writer: came.append(writer), "127.0.0.1")
    host, port = listener.sockets[0].getsockname()
    async with listener, asyncio.timeout(30):
        with pytest.raises(QimError, match="could not connect"):
            async with Client(f"{host}:{port}", token="t", config=config):
                pass
        for writer in came:
            writer.close()
            await writer.wait_closed()
    assert came


async def test_a_server_that_goes_away_slowly_holds_up_neither_the_next_stream_nor_the_end(
    gateway: Gateway,
) -> None:
    """The old stream parts beside the new one, and is over once the client is."""
    asked, leave = asyncio.Event(), asyncio.Event()

    async def linger(peer: Peer, frame: ClientFrame) -> bool:
        peer.send(going_away=gateway_pb2.GoingAway(grace_ms=1))
        asked.set()
        await leave.wait()
        return False

    async with client_of(gateway, replace(FAST, close_timeout_s=15.0)) as client:
        gateway.answers["send"] = linger
        given_up = asyncio.create_task(client.send("c", "held", client_msg_id="m1"))
        await asyncio.wait_for(asked.wait(), 10)
        given_up.cancel()
        await gateway.until(lambda: len(gateway.seen("auth")) == 2)
        assert gateway.live == 2
        leave.set()
    assert not own_tasks()
