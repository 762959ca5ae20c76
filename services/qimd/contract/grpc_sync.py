"""The strict codec on the synchronous gRPC stack: as `grpc_aio`, for scripts and tools.

stub = TenantServiceStub(StrictChannel(grpc.insecure_channel(address)))
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from qimd.contract import codec
from qimd.contract.binding import (
    Refused,
    contract_type,
    decode_or_refuse,
    defect,
    encode_response,
    log_defect,
)
from qimd.contract.grpc_status import to_rpc_status
from qimd.contract.violation import ContractViolation
from qimd.core.errors import QimError

__all__ = ["StrictChannel", "StrictServerInterceptor"]


class StrictChannel(grpc.Channel):
    """A channel for generated stubs. Methods outside of the contract pass through as they are.

    It owns the channel it is given: closing closes that one.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def unary_unary(self, method: str, *codecs: Any, **options: Any) -> Any:
        return _multi_callable(self._channel.unary_unary, _Unary, method, *codecs, **options)

    def unary_stream(self, method: str, *codecs: Any, **options: Any) -> Any:
        return _multi_callable(self._channel.unary_stream, _Unary, method, *codecs, **options)

    def stream_unary(self, method: str, *codecs: Any, **options: Any) -> Any:
        return _multi_callable(self._channel.stream_unary, _Stream, method, *codecs, **options)

    def stream_stream(self, method: str, *codecs: Any, **options: Any) -> Any:
        return _multi_callable(self._channel.stream_stream, _Stream, method, *codecs, **options)

    def subscribe(
        self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False
    ) -> None:
        self._channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        self._channel.unsubscribe(callback)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> "StrictChannel":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.close()


def _multi_callable(
    make: Callable[..., Any],
    kind: "type[_Unary | _Stream]",
    method: str,
    request_serializer: Callable[[Any], bytes] | None = None,
    response_deserializer: Callable[[bytes], Any] | None = None,
    **options: Any,
) -> Any:
    response_type = contract_type(response_deserializer)
    if response_type is None:
        return make(method, request_serializer, response_deserializer, **options)
    return kind(make(method, None, None, **options), response_type)


class _Unary:
    """Calls with one request: refused before anything is sent."""

    def __init__(self, inner: Any, response_type: type[Message]) -> None:
        self._inner = inner
        self._type = response_type

    def __call__(self, request: Message, *args: Any, **call: Any) -> Any:
        return _result(self._inner(codec.encode(request), *args, **call), self._type, None)

    def with_call(self, request: Message, *args: Any, **call: Any) -> Any:
        data, rpc = self._inner.with_call(codec.encode(request), *args, **call)
        return codec.decode(self._type, data), rpc

    def future(self, request: Message, *args: Any, **call: Any) -> "_Call":
        return _Call(self._inner.future(codec.encode(request), *args, **call), self._type, None)


class _Stream:
    """Calls with many requests: a refused one ends the call, and is raised to the caller."""

    def __init__(self, inner: Any, response_type: type[Message]) -> None:
        self._inner = inner
        self._type = response_type

    def __call__(self, requests: Iterable[Message], *args: Any, **call: Any) -> Any:
        encoded = _Requests(requests)
        with encoded.explaining():
            return _result(self._inner(encoded, *args, **call), self._type, encoded)

    def with_call(self, requests: Iterable[Message], *args: Any, **call: Any) -> Any:
        encoded = _Requests(requests)
        with encoded.explaining():
            data, rpc = self._inner.with_call(encoded, *args, **call)
        return codec.decode(self._type, data), rpc

    def future(self, requests: Iterable[Message], *args: Any, **call: Any) -> "_Call":
        encoded = _Requests(requests)
        return _Call(self._inner.future(encoded, *args, **call), self._type, encoded)


class _Requests:
    """A request iterator, encoded on gRPC's own thread, which turns what it raises into UNKNOWN.

    It raises at a refused message: if it ended there, the server would take the part that it got
    for the whole.
    """

    def __init__(self, requests: Iterable[Message]) -> None:
        self._requests = iter(requests)
        self.refused: ContractViolation | None = None

    def __iter__(self) -> "_Requests":
        return self

    def __next__(self) -> bytes:
        message = next(self._requests)
        try:
            return codec.encode(message)
        except ContractViolation as refused:
            self.refused = refused
            raise

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Raises the refusal in place of the status that it led to."""
        try:
            yield
        except grpc.RpcError:
            if self.refused is not None:
                raise self.refused from None
            raise


def _result(result: Any, response_type: type[Message], requests: _Requests | None) -> Any:
    if isinstance(result, bytes):
        return codec.decode(response_type, result)
    return _Call(result, response_type, requests)


class _Call:
    """A call under way: a future of one response, or an iterator of many.

    After a refused reply, iterating goes on with the next one.
    """

    def __init__(
        self, inner: Any, response_type: type[Message], requests: _Requests | None
    ) -> None:
        self._inner = inner
        self._type = response_type
        self._requests = requests

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __iter__(self) -> "_Call":
        return self

    def __next__(self) -> Message:
        return codec.decode(self._type, self._explained(self._inner.__next__))

    def result(self, timeout: float | None = None) -> Message:
        """The response of a future."""
        return codec.decode(self._type, self._explained(lambda: self._inner.result(timeout)))

    def _explained(self, take: Callable[[], bytes]) -> bytes:
        if self._requests is None:
            return take()
        with self._requests.explaining():
            return take()


class StrictServerInterceptor(grpc.ServerInterceptor):
    """As its namesake in `grpc_aio`, for handlers that are functions and generators."""

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Any],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method's handler, made strict; what serves no message of the contract as it is."""
        handler = continuation(handler_call_details)
        request_type = contract_type(handler.request_deserializer) if handler else None
        if request_type is None:
            return handler
        make, inner = _KINDS[handler.request_streaming, handler.response_streaming](handler)
        streams_requests = handler.request_streaming

        def admitted(request: Any) -> Any:
            if streams_requests:
                return _decoded(request_type, request)
            return codec.decode(request_type, request)

        def respond(request: Any, context: Any) -> bytes:
            with _mapped(context):
                return encode_response(inner(admitted(request), context))
            raise AssertionError("unreachable: what is mapped ends the call")

        def generate(request: Any, context: Any) -> Iterator[bytes]:
            with _mapped(context):
                yield from map(encode_response, inner(admitted(request), context))

        return make(generate if handler.response_streaming else respond)


_KINDS: Final[dict[tuple[bool, bool], Callable[[Any], tuple[Callable[..., Any], Any]]]] = {
    (False, False): lambda h: (grpc.unary_unary_rpc_method_handler, h.unary_unary),
    (False, True): lambda h: (grpc.unary_stream_rpc_method_handler, h.unary_stream),
    (True, False): lambda h: (grpc.stream_unary_rpc_method_handler, h.stream_unary),
    (True, True): lambda h: (grpc.stream_stream_rpc_method_handler, h.stream_stream),
}


def _decoded(request_type: type[Message], requests: Iterator[bytes]) -> Iterator[Message | Refused]:
    for data in requests:
        yield decode_or_refuse(request_type, data)


@contextmanager
def _mapped(context: Any) -> Iterator[None]:
    try:
        yield
    except QimError as error:
        context.abort_with_status(to_rpc_status(error))
    except Exception as error:
        if type(error) is Exception and not error.args:
            raise  # That is how `context.abort` ends a handler: its status is set.
        log_defect(error)
        context.abort_with_status(to_rpc_status(defect()))
