"""The server half of `grpc_aio`: handlers get checked messages, and every end has a typed status.

A request that the contract refuses ends a unary call with CONTRACT_VIOLATION; within a stream it
reaches the handler as the error value, and the stream lives on. Of a response, a message is encoded
strictly and an EncodedFrame goes out as its bytes.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc import aio

from qimd.contract import codec
from qimd.contract.binding import (
    Refused,
    contract_type,
    decode_or_refuse,
    defect,
    encode_response,
    inner_cancel,
    log_defect,
)
from qimd.contract.grpc_status import to_rpc_status
from qimd.core.errors import QimError


class StrictServerInterceptor(aio.ServerInterceptor):
    """Encodes, decodes and maps errors for every method of the contract; others pass through.

    Handlers are coroutines, or async generators where the response is a stream. `on_defect` is told
    of what escapes a handler and is no QimError; the client sees INTERNAL, and no detail.
    """

    def __init__(self, on_defect: Callable[[Exception], None] = log_defect) -> None:
        self._on_defect = on_defect

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method's handler, made strict; what serves no message of the contract as it is."""
        handler = await continuation(handler_call_details)
        request_type = contract_type(handler.request_deserializer) if handler else None
        if request_type is None:
            return handler
        if handler.response_streaming:
            return self._stream_response(handler, request_type)
        return self._unary_response(handler, request_type)

    def _unary_response(self, handler: Any, request_type: type[Message]) -> Any:
        async def respond(request: Any, context: Any) -> bytes:
            async with self._mapped(context):
                if handler.request_streaming:
                    requests = _decoded(request_type, request)
                    response = await handler.stream_unary(
                        requests, _StrictContext(context, request_type)
                    )
                else:
                    message = codec.decode(request_type, request)
                    response = await handler.unary_unary(message, context)
                return encode_response(response)
            raise AssertionError("unreachable: what is mapped ends the call")

        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(respond)
        return grpc.unary_unary_rpc_method_handler(respond)

    def _stream_response(self, handler: Any, request_type: type[Message]) -> Any:
        inner = handler.stream_stream if handler.request_streaming else handler.unary_stream

        def call(request: Any, context: Any) -> Any:
            strict = _StrictContext(context, request_type)
            if handler.request_streaming:
                return inner(_decoded(request_type, request), strict)
            return inner(codec.decode(request_type, request), strict)

        async def generate(request: Any, context: Any) -> AsyncGenerator[bytes, None]:
            async with self._mapped(context), aclosing(call(request, context)) as responses:
                async for response in responses:
                    yield encode_response(response)

        async def write(request: Any, context: Any) -> None:
            async with self._mapped(context):
                await call(request, context)

        behaviour = generate if inspect.isasyncgenfunction(inner) else write
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(behaviour)
        return grpc.unary_stream_rpc_method_handler(behaviour)

    @asynccontextmanager
    async def _mapped(self, context: Any) -> AsyncGenerator[None, None]:
        """Ends the call with the status of whatever the block raises."""
        try:
            yield
        except QimError as error:
            await _abort(context, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if context.cancelled() or (task is not None and task.cancelling()):
                raise
            # Raised from an inner step: as it is, the client would wait until its own deadline.
            await _abort(context, inner_cancel())
        except (aio.AbortError, grpc.RpcError):
            raise
        except Exception as error:  # noqa: BLE001 - the place that supervises a call
            self._on_defect(error)
            await _abort(context, defect())


async def _abort(context: Any, error: QimError) -> None:
    status = to_rpc_status(error)
    # Interceptors that look at how a call ended see this, and not `abort_with_status`.
    context.set_code(status.code)
    await context.abort_with_status(status)


async def _decoded(
    request_type: type[Message], requests: AsyncIterator[bytes]
) -> AsyncIterator[Message | Refused]:
    async for data in requests:
        yield decode_or_refuse(request_type, data)


class _StrictContext:
    """A servicer context whose `read` and `write` carry messages; the rest is the inner one's."""

    def __init__(self, inner: Any, request_type: type[Message]) -> None:
        self._inner = inner
        self._request_type = request_type

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read(self) -> Any:
        """The next request, or the refusal of one; aio.EOF at the end."""
        data = await self._inner.read()
        return data if data is aio.EOF else decode_or_refuse(self._request_type, data)

    async def write(self, response: Any) -> None:
        """Send a message or an EncodedFrame. Raises ContractViolation."""
        await self._inner.write(encode_response(response))
