"""The strict codec over real loopback gRPC, synchronous: every kind of call, both sides."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
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
from qimd.contract.grpc_status import from_rpc_error
from qimd.contract.grpc_sync import StrictChannel, StrictServerInterceptor
from qimd.contract.violation import ContractViolation
from qimd.core.errors import ErrorCode, QimError

TIMEOUT_S = 10.0
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
GOOD = codec.encode(samples.dispatch())
BAD = [data for _, data in sorted(samples.bad_dispatches().items())]
EACH_BAD = [pytest.param(data, id=name) for name, data in sorted(samples.bad_dispatches().items())]


def relay_handlers(methods, *, strict):
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


@contextmanager
def serving(*handlers, servicer=None):
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, interceptors=[StrictServerInterceptor()])
        server.add_generic_rpc_handlers(handlers)
        if servicer is not None:
            add_GatewayServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield channel
        finally:
            server.stop(None).wait()


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
    def __init__(self):
        self.arrived = []

    def unary_unary(self, request, context):
        self.arrived.append(request)
        return request

    def unary_stream(self, request, context):
        self.arrived.append(request)
        yield request
        yield request

    def stream_unary(self, requests, context):
        taken = list(requests)
        self.arrived += taken
        return next(request for request in taken if not isinstance(request, QimError))

    def stream_stream(self, requests, context):
        for request in requests:
            self.arrived.append(request)
            if not isinstance(request, QimError):
                yield request

    def handlers(self):
        return relay_handlers({kind: getattr(self, kind) for kind in KINDS}, strict=True)


def assert_violation(error):
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(error).code is ErrorCode.CONTRACT_VIOLATION


@pytest.mark.parametrize("data", EACH_BAD)
def test_a_broken_request_of_a_unary_call_never_arrives(data):
    relay = Relay()
    with serving(relay.handlers()) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            raw(channel, "unary_unary")(data, timeout=TIMEOUT_S)
        assert_violation(refused.value)
        with pytest.raises(grpc.RpcError) as refused:
            list(raw(channel, "unary_stream")(data, timeout=TIMEOUT_S))
        assert_violation(refused.value)
    assert relay.arrived == []


def test_broken_messages_of_a_stream_arrive_as_violations_and_the_stream_lives_on():
    relay = Relay()
    sent = [message for data in BAD for message in (data, GOOD)]
    with serving(relay.handlers()) as channel:
        answers = list(raw(channel, "stream_stream")(iter(sent), timeout=TIMEOUT_S))
        assert raw(channel, "stream_unary")(iter(sent), timeout=TIMEOUT_S) == GOOD
    assert answers == [GOOD] * len(BAD)
    assert [type(m) for m in relay.arrived] == [ContractViolation, GroupDispatch] * len(BAD) * 2


@pytest.mark.parametrize("changes", [{"fencing_epoch": None}, {"fencing_epoch": 0}, {"blocks": []}])
def test_a_message_that_breaks_the_contract_never_leaves_the_client(changes):
    relay = Relay()
    broken = samples.dispatch(**changes)
    with serving(relay.handlers()) as channel:
        unary = strict(channel, "unary_unary")
        for call in (unary, unary.with_call, unary.future, strict(channel, "unary_stream")):
            with pytest.raises(ContractViolation):
                call(broken, timeout=TIMEOUT_S)
        assert unary(samples.dispatch(), timeout=TIMEOUT_S) == samples.dispatch()
    assert relay.arrived == [samples.dispatch()]


def test_a_request_iterator_that_breaks_the_contract_tells_its_caller():
    relay = Relay()
    messages = [samples.dispatch(), samples.dispatch(fencing_epoch=0)]
    with serving(relay.handlers()) as channel:
        stream_unary = strict(channel, "stream_unary")
        with pytest.raises(ContractViolation):
            stream_unary(iter(messages), timeout=TIMEOUT_S)
        with pytest.raises(ContractViolation):
            stream_unary.with_call(iter(messages), timeout=TIMEOUT_S)
        with pytest.raises(ContractViolation):
            stream_unary.future(iter(messages), timeout=TIMEOUT_S).result()
        with pytest.raises(ContractViolation):
            list(strict(channel, "stream_stream")(iter(messages), timeout=TIMEOUT_S))
    assert all(message == samples.dispatch() for message in relay.arrived)


def test_every_kind_of_call_carries_valid_messages():
    good = samples.dispatch()
    with serving(Relay().handlers()) as channel:
        unary, stream = strict(channel, "unary_unary"), strict(channel, "stream_unary")
        assert unary(good, timeout=TIMEOUT_S) == good
        assert unary.with_call(good, timeout=TIMEOUT_S)[0] == good
        future = unary.future(good, timeout=TIMEOUT_S)
        assert future.result() == good
        assert future.code() is grpc.StatusCode.OK
        assert list(strict(channel, "unary_stream")(good, timeout=TIMEOUT_S)) == [good, good]
        assert stream(iter([good]), timeout=TIMEOUT_S) == good
        assert stream.with_call(iter([good]), timeout=TIMEOUT_S)[0] == good
        assert stream.future(iter([good]), timeout=TIMEOUT_S).result() == good
        both = strict(channel, "stream_stream")(iter([good, good]), timeout=TIMEOUT_S)
        assert list(both) == [good, good]


def bytes_handlers(replies):
    methods = {
        "unary_unary": lambda request, context: replies[0],
        "stream_unary": lambda requests, context: replies[0],
        "unary_stream": lambda request, context: iter(replies),
        "stream_stream": lambda requests, context: iter(replies),
    }
    return relay_handlers(methods, strict=False)


@pytest.mark.parametrize("data", EACH_BAD)
def test_a_broken_response_is_never_an_empty_message(data):
    with serving(bytes_handlers([data])) as channel:
        unary = strict(channel, "unary_unary")
        with pytest.raises(ContractViolation):
            unary(samples.dispatch(), timeout=TIMEOUT_S)
        with pytest.raises(ContractViolation):
            unary.with_call(samples.dispatch(), timeout=TIMEOUT_S)
        with pytest.raises(ContractViolation):
            unary.future(samples.dispatch(), timeout=TIMEOUT_S).result()
        with pytest.raises(ContractViolation):
            strict(channel, "stream_unary")(iter([]), timeout=TIMEOUT_S)


@pytest.mark.parametrize("kind", ["unary_stream", "stream_stream"])
def test_reading_goes_on_behind_a_broken_response(kind):
    replies = [reply for data in BAD for reply in (data, GOOD)]
    request = samples.dispatch() if kind == "unary_stream" else iter([])
    with serving(bytes_handlers(replies)) as channel:
        call = strict(channel, kind)(request, timeout=TIMEOUT_S)
        for _ in BAD:
            with pytest.raises(ContractViolation):
                next(call)
            assert next(call) == samples.dispatch()
        assert list(call) == []


def test_what_a_handler_raises_ends_the_call_with_a_typed_status():
    broken = samples.dispatch(fencing_epoch=0)

    def unary_stream(request, context):
        yield samples.dispatch()
        yield broken

    def stream_unary(requests, context):
        raise QimError(ErrorCode.RATE_LIMITED, "slow down", retry_after_ms=20)

    def stream_stream(requests, context):
        yield samples.dispatch()
        raise KeyError("secret")

    methods = {
        "unary_unary": lambda request, context: broken,
        "unary_stream": unary_stream,
        "stream_unary": stream_unary,
        "stream_stream": stream_stream,
    }
    with serving(relay_handlers(methods, strict=True)) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            strict(channel, "unary_unary")(samples.dispatch(), timeout=TIMEOUT_S)
        assert_violation(refused.value)
        call = strict(channel, "unary_stream")(samples.dispatch(), timeout=TIMEOUT_S)
        assert next(call) == samples.dispatch()
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
        assert_violation(refused.value)
        with pytest.raises(grpc.RpcError) as refused:
            strict(channel, "stream_unary")(iter([]), timeout=TIMEOUT_S)
        error = from_rpc_error(refused.value)
        assert (error.code, error.retry_after_ms) == (ErrorCode.RATE_LIMITED, 20)
        call = strict(channel, "stream_stream")(iter([]), timeout=TIMEOUT_S)
        assert next(call) == samples.dispatch()
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
        assert refused.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(refused.value)


def test_a_status_that_a_handler_sets_itself_passes():
    def unary_unary(request, context):
        context.abort(grpc.StatusCode.NOT_FOUND, "none")

    handlers = relay_handlers({"unary_unary": unary_unary}, strict=True)
    with serving(handlers) as channel, pytest.raises(grpc.RpcError) as refused:
        strict(channel, "unary_unary")(samples.dispatch(), timeout=TIMEOUT_S)
    assert from_rpc_error(refused.value).code is ErrorCode.NOT_FOUND


def test_frames_and_refused_frames_alternate_on_one_stream():
    class PongServicer(GatewayServicer):
        def Connect(self, request_iterator, context):
            for frame in request_iterator:
                if isinstance(frame, ContractViolation):
                    yield error_frame(frame.request_id, frame)
                else:
                    yield server_frame(samples.pong(frame.request_id))

    bad = list(samples.bad_client_frames().values())
    sent = [message for data in bad for message in (data, samples.plain(samples.ping(8)))]
    with serving(servicer=PongServicer()) as channel:
        call = channel.stream_stream("/qim.gateway.v1.Gateway/Connect")
        answers = [codec.decode(ServerFrame, a) for a in call(iter(sent), timeout=TIMEOUT_S)]
        assert [a.error.code for a in answers[::2]] == [ErrorCode.CONTRACT_VIOLATION] * len(bad)
        assert answers[1::2] == [samples.pong(8)] * len(bad)

        stub = GatewayStub(StrictChannel(channel))
        assert list(stub.Connect(iter([samples.ping(1)]), timeout=TIMEOUT_S)) == [samples.pong(1)]
        with pytest.raises(ContractViolation):
            list(stub.Connect(iter([ClientFrame()]), timeout=TIMEOUT_S))
