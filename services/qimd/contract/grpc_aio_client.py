"""The client half of `grpc_aio`: calls that carry bytes, with the codec at both ends.

A message that the contract refuses raises ContractViolation before anything of it is sent, and the
stream lives on. A reply that it refuses raises from the read that met it, and later reads work.
Failed calls raise grpc's own errors: see `grpc_status.from_rpc_error`.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import grpc
from google.protobuf.message import Message
from grpc import aio

from qimd.contract import codec
from qimd.contract.binding import contract_type
from qimd.contract.violation import ContractViolation

Req = TypeVar("Req")
Resp = TypeVar("Resp")


class StrictChannel(aio.Channel):
    """An aio channel for generated stubs. Methods outside of the contract pass through as they are.

    It owns the channel it is given: closing closes that one.
    """

    def __init__(self, channel: aio.Channel) -> None:
        self._channel = channel

    def unary_unary(self, method: str, *codecs: Any, **options: Any) -> Any:
        return self._callable(self._channel.unary_unary, UnaryUnary, method, *codecs, **options)

    def unary_stream(self, method: str, *codecs: Any, **options: Any) -> Any:
        return self._callable(self._channel.unary_stream, UnaryStream, method, *codecs, **options)

    def stream_unary(self, method: str, *codecs: Any, **options: Any) -> Any:
        return self._callable(self._channel.stream_unary, StreamUnary, method, *codecs, **options)

    def stream_stream(self, method: str, *codecs: Any, **options: Any) -> Any:
        return self._callable(self._channel.stream_stream, StreamStream, method, *codecs, **options)

    def _callable(
        self,
        make: Callable[..., Any],
        call_type: Callable[..., Any],
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        **options: Any,
    ) -> Any:
        """A multi-callable. `options` is what generated code adds (`_registered_method`)."""
        response_type = contract_type(response_deserializer)
        if response_type is None:
            return make(method, request_serializer, response_deserializer, **options)
        inner = make(method, None, None, **options)
        streams_requests = call_type in {StreamUnary, StreamStream}

        def start_unary(request: Message, **call: Any) -> Any:
            return call_type(inner(codec.encode(request), **call), response_type)

        def start_stream(
            request_iterator: Iterable[Message] | AsyncIterable[Message] | None = None, **call: Any
        ) -> Any:
            if request_iterator is None:
                return call_type(inner(**call), response_type)
            requests = _Requests(request_iterator)
            return call_type(inner(aiter(requests), **call), response_type, requests)

        return start_stream if streams_requests else start_unary

    async def __aenter__(self) -> "StrictChannel":
        await self._channel.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._channel.__aexit__(exc_type, exc_val, exc_tb)

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()


class _Requests:
    """A request iterator, encoded. gRPC cancels the call when it raises, and tells nobody why."""

    def __init__(self, requests: Iterable[Message] | AsyncIterable[Message]) -> None:
        self._requests = requests
        self.refused: ContractViolation | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if isinstance(self._requests, AsyncIterable):
            async for request in self._requests:
                yield self._encode(request)
        else:
            for request in self._requests:
                yield self._encode(request)

    def _encode(self, request: Message) -> bytes:
        try:
            return codec.encode(request)
        except ContractViolation as refused:
            self.refused = refused
            raise


class _StrictCall(Generic[Req, Resp], aio.Call):
    """What every kind of call shares: everything but messages is the inner call's."""

    def __init__(self, inner: Any, response_type: type[Message], requests: _Requests | None = None):
        self._inner = inner
        self._response_type = response_type
        self._requests = requests

    def _decode(self, data: bytes) -> Resp:
        return cast("Resp", codec.decode(self._response_type, data))

    def _explain_cancel(self) -> None:
        """Raise what cancelled the call, if it was a refused request and not the caller."""
        task = asyncio.current_task()
        if self._requests and self._requests.refused and not (task and task.cancelling()):
            raise self._requests.refused from None

    def cancelled(self) -> bool:
        return bool(self._inner.cancelled())

    def done(self) -> bool:
        return bool(self._inner.done())

    def time_remaining(self) -> float | None:
        return cast("float | None", self._inner.time_remaining())

    def cancel(self) -> bool:
        return bool(self._inner.cancel())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._inner.add_done_callback(callback)

    async def initial_metadata(self) -> aio.Metadata:
        return cast("aio.Metadata", await self._inner.initial_metadata())

    async def trailing_metadata(self) -> aio.Metadata:
        return cast("aio.Metadata", await self._inner.trailing_metadata())

    async def code(self) -> grpc.StatusCode:
        return cast("grpc.StatusCode", await self._inner.code())

    async def details(self) -> str:
        return cast("str", await self._inner.details())

    async def wait_for_connection(self) -> None:
        await self._inner.wait_for_connection()


class _UnaryResponse(_StrictCall[Req, Resp]):
    """Awaiting it gives the response; cancelling the awaiting task cancels the call."""

    def __await__(self) -> Generator[None, None, Resp]:
        try:
            data = yield from self._inner.__await__()
        except asyncio.CancelledError:
            self._explain_cancel()
            raise
        return self._decode(data)


class _StreamResponse(_StrictCall[Req, Resp]):
    """`read()` or `async for`. After a refused reply, reading (or a new `async for`) goes on."""

    async def read(self) -> object | Resp:
        try:
            data = await self._inner.read()
        except asyncio.CancelledError:
            self._explain_cancel()
            raise
        return data if data is aio.EOF else self._decode(data)

    def __aiter__(self) -> AsyncIterator[Resp]:
        return _Responses(self, self._inner.__aiter__())


class _Responses(AsyncIterator[Resp]):
    """An iterator rather than a generator: a generator would end with the first refused reply."""

    def __init__(self, call: _StreamResponse[Any, Resp], inner: AsyncIterator[bytes]) -> None:
        self._call = call
        self._inner = inner

    async def __anext__(self) -> Resp:
        try:
            data = await anext(self._inner)
        except asyncio.CancelledError:
            self._call._explain_cancel()
            raise
        return self._call._decode(data)


class _StreamRequest(_StrictCall[Req, Resp]):
    """`write()` encodes first: a refused message costs nothing but its own error."""

    async def write(self, request: Req) -> None:
        await self._inner.write(codec.encode(cast("Message", request)))

    async def done_writing(self) -> None:
        await self._inner.done_writing()


class UnaryUnary(_UnaryResponse[Req, Resp], aio.UnaryUnaryCall[Req, Resp]):
    """One request, one response."""


class UnaryStream(_StreamResponse[Req, Resp], aio.UnaryStreamCall[Req, Resp]):
    """One request, many responses."""


class StreamUnary(
    _StreamRequest[Req, Resp], _UnaryResponse[Req, Resp], aio.StreamUnaryCall[Req, Resp]
):
    """Many requests, one response."""


class StreamStream(
    _StreamRequest[Req, Resp], _StreamResponse[Req, Resp], aio.StreamStreamCall[Req, Resp]
):
    """Many requests, many responses."""
