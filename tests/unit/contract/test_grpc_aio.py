"""The strict codec over real loopback gRPC, asyncio: every kind of call, both sides."""

import asyncio
import inspect
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio
from tests.unit.contract import samples

from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch
from qim.gateway.v1.gateway_pb2 import ClientFrame, ServerFrame
from qim.gateway.v1.gateway_pb2_grpc import (
    GatewayServicer,
    GatewayStub,
    add_GatewayServicer_to_server,
)
from qimd.contract import codec
from qimd.contract.frames import error_frame, server_frame
from qimd.contract.grpc_aio import StrictChannel, StrictServerInterceptor
from qimd.contract.grpc_status import from_rpc_error
from qimd.contract.violation import ContractViolation, ReaderTooOld
from qimd.core.errors import ErrorCode, QimError

TIMEOUT_S = 10.0
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
GOOD = codec.encode(samples.dispatch())
BAD_DISPATCHES = sorted(samples.bad_dispatches().items())
EACH_BAD_DISPATCH = [pytest.param(data, id=name) for name, data in BAD_DISPATCHES]
BAD_CLIENT_FRAMES = sorted(samples.bad_client_frames().items())
BAD_SERVER_FRAMES = sorted(samples.bad_server_frames().items())


def relay_handlers(methods, *, strict):
    """Generic handlers of `test.Relay`: of GroupDispatch, or of bytes."""
    coding = (
        {
            "request_deserializer": GroupDispatch.FromString,
            "response_serializer": GroupDispatch.SerializeToString,
        }
        if strict
        else {}
    )
    handlers = {
        kind: getattr(grpc, f"{kind}_rpc_method_handler")(method, **coding)
        for kind, method in methods.items()
    }
    return grpc.method_handlers_generic_handler("test.Relay", handlers)


@asynccontextmanager
async def serving(*handlers, servicer=None, on_defect=None):
    interceptor = StrictServerInterceptor(on_defect) if on_defect else StrictServerInterceptor()
    server = aio.server(interceptors=[interceptor])
    server.add_generic_rpc_handlers(handlers)
    if servicer is not None:
        add_GatewayServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


def raw(channel, kind):
    return getattr(channel, kind)(f"/test.Relay/{kind}")


def strict(channel, kind):
    return getattr(StrictChannel(channel), kind)(
        f"/test.Relay/{kind}",
        request_serializer=GroupDispatch.SerializeToString,
        response_deserializer=GroupDispatch.FromString,
        _registered_method=True,
    )


class Relay:
    """Keeps what arrives; gives back what the contract took."""

    def __init__(self):
        self.arrived = []

    async def unary_unary(self, request, context):
        self.arrived.append(request)
        return request

    async def unary_stream(self, request, context):
        self.arrived.append(request)
        for _ in range(2):
            yield request

    async def stream_unary(self, requests, context):
        taken = [request async for request in requests]
        self.arrived += taken
        return next(request for request in taken if not isinstance(request, QimError))

    async def stream_stream(self, requests, context):
        async for request in requests:
            self.arrived.append(request)
            if not isinstance(request, QimError):
                yield request

    def handlers(self):
        return relay_handlers({kind: getattr(self, kind) for kind in KINDS}, strict=True)


class ReadWriteRelay:
    """The same with `context.read` and `context.write`."""

    def __init__(self):
        self.arrived = []

    async def stream_stream(self, requests, context):
        while (request := await context.read()) is not aio.EOF:
            self.arrived.append(request)
            if not isinstance(request, QimError):
                await context.write(request)

    def handlers(self):
        return relay_handlers({"stream_stream": self.stream_stream}, strict=True)


async def all_of(call):
    return [message async for message in call]


def assert_violation(error, message_name="qim.dispatch.v1.GroupDispatch"):
    """INVALID_ARGUMENT with ErrorInfo, read as anybody would and as the SDK does."""
    from google.rpc import error_details_pb2, status_pb2

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("CONTRACT_VIOLATION", "qim")
    assert message_name in status.message
    assert from_rpc_error(error).code is ErrorCode.CONTRACT_VIOLATION


# --- what a client sends, refused by the server -------------------------------------------------


@pytest.mark.parametrize("data", EACH_BAD_DISPATCH)
async def test_a_broken_request_of_a_unary_call_never_arrives(data):
    relay = Relay()
    async with serving(relay.handlers()) as channel:
        with pytest.raises(aio.AioRpcError) as refused:
            await raw(channel, "unary_unary")(data, timeout=TIMEOUT_S)
        assert_violation(refused.value)
        with pytest.raises(aio.AioRpcError) as refused:
            await all_of(raw(channel, "unary_stream")(data, timeout=TIMEOUT_S))
        assert_violation(refused.value)
    assert relay.arrived == []


@pytest.mark.parametrize("relay_type", [Relay, ReadWriteRelay])
async def test_broken_messages_of_a_stream_arrive_as_violations_and_the_stream_lives_on(relay_type):
    relay = relay_type()
    bad = [data for _, data in BAD_DISPATCHES]
    async with serving(relay.handlers()) as channel:
        call = raw(channel, "stream_stream")(timeout=TIMEOUT_S)
        for data in bad:
            await call.write(data)
            await call.write(GOOD)
            assert await call.read() == GOOD
        await call.done_writing()
        assert await call.read() is aio.EOF
        assert await call.code() is grpc.StatusCode.OK
    assert [type(message) for message in relay.arrived] == [ContractViolation, GroupDispatch] * len(
        bad
    )


async def test_broken_messages_of_a_request_stream_never_arrive_as_empty_ones():
    relay = Relay()
    bad = [data for _, data in BAD_DISPATCHES]
    async with serving(relay.handlers()) as channel:
        response = await raw(channel, "stream_unary")(iter([*bad, GOOD]), timeout=TIMEOUT_S)
    assert response == GOOD
    assert [type(m) for m in relay.arrived] == [ContractViolation] * len(bad) + [GroupDispatch]


async def test_a_record_for_a_newer_reader_reaches_a_stream_as_what_it_is():
    relay = Relay()
    async with serving(relay.handlers()) as channel:
        call = raw(channel, "stream_stream")(timeout=TIMEOUT_S)
        await call.write(samples.plain(samples.dispatch(min_reader_version=9)))
        await call.done_writing()
        assert await call.read() is aio.EOF
    assert [type(message) for message in relay.arrived] == [ReaderTooOld]


# --- what a client sends, refused before it leaves ----------------------------------------------


@pytest.mark.parametrize("changes", [{"fencing_epoch": None}, {"fencing_epoch": 0}, {"blocks": []}])
async def test_a_message_that_breaks_the_contract_never_leaves_the_client(changes):
    relay = Relay()
    broken = samples.dispatch(**changes)
    async with serving(relay.handlers()) as channel:
        with pytest.raises(ContractViolation):
            await strict(channel, "unary_unary")(broken, timeout=TIMEOUT_S)
        with pytest.raises(ContractViolation):
            await all_of(strict(channel, "unary_stream")(broken, timeout=TIMEOUT_S))
        call = strict(channel, "stream_stream")(timeout=TIMEOUT_S)
        with pytest.raises(ContractViolation):
            await call.write(broken)
        await call.write(samples.dispatch())
        assert await call.read() == samples.dispatch()
        await call.done_writing()
        assert await call.read() is aio.EOF
    assert relay.arrived == [samples.dispatch()]


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_request_iterator_that_breaks_the_contract_tells_its_caller(asynchronous):
    relay = Relay()
    messages = [samples.dispatch(), samples.dispatch(fencing_epoch=0)]

    async def later():
        for message in messages:
            yield message

    def requests():
        return later() if asynchronous else iter(messages)

    async with serving(relay.handlers()) as channel:
        with pytest.raises(ContractViolation):
            await strict(channel, "stream_unary")(requests(), timeout=TIMEOUT_S)
        with pytest.raises(ContractViolation):
            await all_of(strict(channel, "stream_stream")(requests(), timeout=TIMEOUT_S))
        call = strict(channel, "stream_stream")(requests(), timeout=TIMEOUT_S)
        with pytest.raises(ContractViolation):
            await all_of(_drain(call))
    assert all(message == samples.dispatch() for message in relay.arrived)


# --- what a server sends, refused by the client -------------------------------------------------


def bytes_handlers(replies):
    """A server that does not know the contract."""

    async def unary_unary(request, context):
        return replies[0]

    async def stream_unary(requests, context):
        async for _ in requests:
            pass
        return replies[0]

    async def unary_stream(request, context):
        for reply in replies:
            yield reply

    async def stream_stream(requests, context):
        async for _ in requests:
            for reply in replies:
                yield reply

    methods = locals()
    return relay_handlers({kind: methods[kind] for kind in KINDS}, strict=False)


@pytest.mark.parametrize("data", EACH_BAD_DISPATCH)
async def test_a_broken_response_is_never_an_empty_message(data):
    async with serving(bytes_handlers([data])) as channel:
        with pytest.raises(ContractViolation):
            await strict(channel, "unary_unary")(samples.dispatch(), timeout=TIMEOUT_S)
        with pytest.raises(ContractViolation):
            await strict(channel, "stream_unary")(iter([samples.dispatch()]), timeout=TIMEOUT_S)


async def test_reading_goes_on_behind_a_broken_response():
    bad = [data for _, data in BAD_DISPATCHES]
    replies = [reply for data in bad for reply in (data, GOOD)]
    async with serving(bytes_handlers(replies)) as channel:
        call = strict(channel, "unary_stream")(samples.dispatch(), timeout=TIMEOUT_S)
        for _ in bad:
            with pytest.raises(ContractViolation):
                await call.read()
            assert await call.read() == samples.dispatch()
        assert await call.read() is aio.EOF

        call = strict(channel, "stream_stream")(timeout=TIMEOUT_S)
        await call.write(samples.dispatch())
        await call.done_writing()
        for _ in bad:
            with pytest.raises(ContractViolation):
                await call.read()
            assert await call.read() == samples.dispatch()
        assert await call.read() is aio.EOF


async def test_iterating_goes_on_behind_a_broken_response():
    async with serving(bytes_handlers([b"\x08", GOOD])) as channel:
        call = strict(channel, "unary_stream")(samples.dispatch(), timeout=TIMEOUT_S)
        responses = aiter(call)
        with pytest.raises(ContractViolation):
            await anext(responses)
        assert await anext(responses) == samples.dispatch()
        with pytest.raises(StopAsyncIteration):
            await anext(responses)


# --- what a server sends, refused before it leaves ----------------------------------------------


async def test_a_response_that_breaks_the_contract_ends_the_call_with_a_typed_status():
    broken = samples.dispatch(fencing_epoch=0)

    async def unary_unary(request, context):
        return broken

    async def stream_unary(requests, context):
        return broken

    async def unary_stream(request, context):
        yield samples.dispatch()
        yield broken

    async def stream_stream(requests, context):
        await context.write(samples.dispatch())
        await context.write(broken)

    methods = locals()
    handlers = relay_handlers({kind: methods[kind] for kind in KINDS}, strict=True)
    async with serving(handlers) as channel:
        with pytest.raises(aio.AioRpcError) as refused:
            await strict(channel, "unary_unary")(samples.dispatch(), timeout=TIMEOUT_S)
        assert_violation(refused.value)
        with pytest.raises(aio.AioRpcError) as refused:
            await strict(channel, "stream_unary")(iter([]), timeout=TIMEOUT_S)
        assert_violation(refused.value)
        for call in (
            strict(channel, "unary_stream")(samples.dispatch(), timeout=TIMEOUT_S),
            strict(channel, "stream_stream")(timeout=TIMEOUT_S),
        ):
            assert await call.read() == samples.dispatch()
            with pytest.raises(aio.AioRpcError) as refused:
                await call.read()
            assert_violation(refused.value)


# --- how handlers end ---------------------------------------------------------------------------


def failing(error):
    async def unary_unary(request, context):
        raise error

    async def unary_stream(request, context):
        yield samples.dispatch()
        raise error

    return relay_handlers({"unary_unary": unary_unary, "unary_stream": unary_stream}, strict=True)


async def test_an_error_of_a_handler_arrives_with_its_code_field_and_delay():
    error = QimError(ErrorCode.RATE_LIMITED, "slow down", field="send", retry_after_ms=1500)
    async with serving(failing(error)) as channel:
        with pytest.raises(aio.AioRpcError) as refused:
            await strict(channel, "unary_unary")(samples.dispatch(), timeout=TIMEOUT_S)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        call = strict(channel, "unary_stream")(samples.dispatch(), timeout=TIMEOUT_S)
        assert await call.read() == samples.dispatch()
        with pytest.raises(aio.AioRpcError) as late:
            await call.read()
    for raised in (refused.value, late.value):
        got = from_rpc_error(raised)
        assert (got.code, got.message, got.field, got.retry_after_ms) == (
            ErrorCode.RATE_LIMITED,
            "slow down",
            "send",
            1500,
        )


async def test_a_cancel_inside_a_handler_becomes_unavailable_while_the_call_lives():
    """GW-01: the client gets a terminal, retryable status at once, not at its own deadline."""
    async with serving(failing(asyncio.CancelledError())) as channel:
        with pytest.raises(aio.AioRpcError) as refused:
            await strict(channel, "unary_unary")(samples.dispatch(), timeout=TIMEOUT_S)
        call = strict(channel, "unary_stream")(samples.dispatch(), timeout=TIMEOUT_S)
        assert await call.read() == samples.dispatch()
        with pytest.raises(aio.AioRpcError) as late:
            await call.read()
    for raised in (refused.value, late.value):
        assert raised.code() is grpc.StatusCode.UNAVAILABLE
        assert from_rpc_error(raised).retryable


async def test_a_client_that_cancels_cancels_the_handler():
    started, ended = asyncio.Event(), asyncio.Event()

    async def unary_unary(request, context):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def stream_stream(requests, context):
        started.set()
        try:
            async for _ in requests:
                yield samples.dispatch()
        finally:
            ended.set()

    handlers = relay_handlers(
        {"unary_unary": unary_unary, "stream_stream": stream_stream}, strict=True
    )
    async with serving(handlers) as channel:
        task = asyncio.ensure_future(
            _awaited(strict(channel, "unary_unary")(samples.dispatch(), timeout=TIMEOUT_S))
        )
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(ended.wait(), TIMEOUT_S)

        started.clear()
        ended.clear()
        call = strict(channel, "stream_stream")(timeout=TIMEOUT_S)
        await call.write(samples.dispatch())
        assert await call.read() == samples.dispatch()
        assert call.cancel()
        await asyncio.wait_for(ended.wait(), TIMEOUT_S)
        assert call.cancelled()


async def _awaited(call):
    return await call


async def test_a_defect_tells_the_client_nothing_but_that_there_is_one():
    seen = []
    async with serving(failing(KeyError("secret")), on_defect=seen.append) as channel:
        with pytest.raises(aio.AioRpcError) as refused:
            await strict(channel, "unary_unary")(samples.dispatch(), timeout=TIMEOUT_S)
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(refused.value)
    assert from_rpc_error(refused.value).code is ErrorCode.INTERNAL
    assert [type(defect) for defect in seen] == [KeyError]


async def test_a_status_that_a_handler_sets_itself_passes():
    async def unary_unary(request, context):
        await context.abort(grpc.StatusCode.NOT_FOUND, "none")

    async with serving(relay_handlers({"unary_unary": unary_unary}, strict=True)) as channel:
        with pytest.raises(aio.AioRpcError) as refused:
            await strict(channel, "unary_unary")(samples.dispatch(), timeout=TIMEOUT_S)
    assert from_rpc_error(refused.value).code is ErrorCode.NOT_FOUND


async def test_metadata_and_deadlines_pass_through():
    async def unary_unary(request, context):
        metadata = dict(context.invocation_metadata())
        assert 0 < context.time_remaining() < TIMEOUT_S + 1
        await context.send_initial_metadata((("x-got", metadata["x-sent"]),))
        return request

    async with serving(relay_handlers({"unary_unary": unary_unary}, strict=True)) as channel:
        call = strict(channel, "unary_unary")(
            samples.dispatch(), timeout=TIMEOUT_S, metadata=(("x-sent", "yes"),)
        )
        assert await call == samples.dispatch()
        assert dict(await call.initial_metadata())["x-got"] == "yes"
        assert await call.code() is grpc.StatusCode.OK
        assert call.done()


# --- the gateway's stream, with its generated stub -----------------------------------------------


class PongServicer(GatewayServicer):
    """Answers PING by PONG and a refused frame by ERROR."""

    def __init__(self):
        self.arrived = []

    async def Connect(self, request_iterator, context):
        async for frame in request_iterator:
            self.arrived.append(frame)
            if isinstance(frame, ContractViolation):
                yield error_frame(frame.request_id, frame)
            else:
                yield server_frame(samples.pong(frame.request_id))


async def test_a_stream_of_frames_works_after_every_refused_frame():
    servicer = PongServicer()
    assert inspect.isasyncgenfunction(servicer.Connect)
    async with serving(servicer=servicer) as channel:
        call = channel.stream_stream("/qim.gateway.v1.Gateway/Connect")(timeout=TIMEOUT_S)
        for name, data in BAD_CLIENT_FRAMES:
            await call.write(data)
            answer = codec.decode(ServerFrame, await call.read())
            assert answer.error.code == ErrorCode.CONTRACT_VIOLATION, name
            await call.write(samples.plain(samples.ping(8)))
            assert codec.decode(ServerFrame, await call.read()) == samples.pong(8)
        await call.done_writing()
        assert await call.read() is aio.EOF
    assert all(isinstance(f, ContractViolation) or f.request_id for f in servicer.arrived)


async def test_a_generated_stub_speaks_frames_both_ways():
    async with serving(servicer=PongServicer()) as channel, StrictChannel(channel) as owned:
        call = GatewayStub(owned).Connect(timeout=TIMEOUT_S)
        with pytest.raises(ContractViolation):
            await call.write(ClientFrame())
        for request_id in (1, 2):
            await call.write(samples.ping(request_id))
            assert await call.read() == samples.pong(request_id)
        await call.done_writing()
        assert [frame async for frame in _drain(call)] == []


async def _drain(call):
    while (frame := await call.read()) is not aio.EOF:
        yield frame


async def test_a_client_reads_on_behind_every_refused_server_frame():
    good = samples.plain(samples.pong(1))

    async def connect(requests, context):
        for _, data in BAD_SERVER_FRAMES:
            yield data
            yield good

    handlers = {"Connect": grpc.stream_stream_rpc_method_handler(connect)}
    generic = grpc.method_handlers_generic_handler("qim.gateway.v1.Gateway", handlers)
    async with serving(generic) as channel:
        call = GatewayStub(StrictChannel(channel)).Connect(timeout=TIMEOUT_S)
        await call.done_writing()
        for _ in BAD_SERVER_FRAMES:
            with pytest.raises(ContractViolation):
                await call.read()
            assert await call.read() == samples.pong(1)
        assert await call.read() is aio.EOF


async def test_methods_outside_of_the_contract_pass_as_they_are():
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc

    server = aio.server(interceptors=[StrictServerInterceptor()])
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with StrictChannel(aio.insecure_channel(f"127.0.0.1:{port}")) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        await server.stop(None)


def test_an_error_that_this_build_does_not_know_keeps_its_meaning():
    error = aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, None, None, "late")
    assert from_rpc_error(error).code is ErrorCode.UNAVAILABLE
