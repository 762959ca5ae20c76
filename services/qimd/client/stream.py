"""One Gateway.Connect call: requests and their answers by request_id, and how it ended.

A write is done by a task of its own: in grpc.aio a cancelled `write` cancels the whole call, and an
application that gives up on one request must not lose the others'.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import grpc
import grpc.aio

from qim.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from qimd.client.config import ClientConfig
from qimd.contract.errors import error_of
from qimd.contract.grpc_aio import StrictChannel
from qimd.contract.grpc_status import from_rpc_error
from qimd.contract.violation import ContractViolation
from qimd.core.errors import ErrorCode, QimError
from qimd.core.parameters import CAPABILITIES, PROTOCOL_VERSION, PUSH_EVENTS

ClientFrame = gateway_pb2.ClientFrame
ServerFrame = gateway_pb2.ServerFrame


class StreamLost(QimError):
    """The stream ended with requests under way: their outcome is unknown."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message)


class Kicked(QimError):
    """The server ended the stream for good."""

    def __init__(self, reason: int) -> None:
        revoked = reason == gateway_pb2.KICK_REASON_TOKEN_REVOKED
        code = ErrorCode.TOKEN_REVOKED if revoked else ErrorCode.UNAVAILABLE
        super().__init__(code, f"the server closed the stream: KICKED, reason {reason}")
        self.replaced = reason == gateway_pb2.KICK_REASON_REPLACED


class Redirected(QimError):
    """The user belongs to another node."""

    def __init__(self, address: str, route_token: str) -> None:
        super().__init__(ErrorCode.NOT_OWNER, f"redirected to {address}")
        self.address = address
        self.route_token = route_token


class _Call(Protocol):
    """A call of the strict channel: what it reads is a ServerFrame or EOF."""

    async def read(self) -> object: ...
    async def write(self, frame: ClientFrame) -> None: ...
    async def done_writing(self) -> None: ...
    def cancel(self) -> bool: ...


class Stream:
    """A stream from AUTH to its end. Made by `open_stream`; ended by the server, or by `close`."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        call: _Call,
        config: ClientConfig,
        on_push: Callable[[gateway_pb2.PushEvents], None],
    ) -> None:
        self._channel = channel
        self._call = call
        self._config = config
        self._on_push = on_push
        self._next_id = 1
        self._waiting: dict[int, asyncio.Future[ServerFrame]] = {}
        self._out: asyncio.Queue[ClientFrame | None] = asyncio.Queue()
        self._end: QimError | None = None
        self._answers = False
        """The server has said something, and was not found silent since."""
        self.ended = asyncio.Event()
        """Set once nothing can be asked any more; `end` says why."""
        self.leaving = asyncio.Event()
        """Set when new requests belong on another stream: ended, or the server drains."""
        self.auth_ok = gateway_pb2.AuthOk()
        self.cursor_token = b""
        """The newest that the server gave on this stream."""
        self._tasks: tuple[asyncio.Task[None], ...] = (
            asyncio.create_task(self._read(), name="qim-read"),
            asyncio.create_task(self._write(), name="qim-write"),
        )

    @property
    def end(self) -> QimError:
        """Why it ended."""
        return self._end or StreamLost("the stream was closed")

    async def request(self, frame: ClientFrame) -> ServerFrame:
        """The frame's answer.

        Raises the QimError of an ERROR answer; StreamLost if the stream ended, or had to be ended
        because no answer came in time; ContractViolation, with nothing sent.
        """
        if self.ended.is_set():
            raise StreamLost(str(self.end))
        request_id = frame.request_id = self._next_id
        self._next_id += 1
        answer: asyncio.Future[ServerFrame] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        sent = ClientFrame()
        sent.CopyFrom(frame)
        self._out.put_nowait(sent)
        try:
            async with asyncio.timeout(self._config.answer_timeout_s):
                return await answer
        except TimeoutError:
            self._answers = False
            self._finish(StreamLost("the server did not answer in time"))
            raise StreamLost("the server did not answer in time") from None
        finally:
            self._waiting.pop(request_id, None)

    def abandon(self, reason: str) -> None:
        """End it from this side; requests under way are lost with it."""
        self._finish(StreamLost(reason))

    async def idle(self) -> None:
        """Return once no request is under way."""
        while self._waiting:
            await asyncio.wait(list(self._waiting.values()))
            # The waiters run before the next look: each takes its own entry out.
            await asyncio.sleep(0)

    async def close(self) -> None:
        """End it and everything that belongs to it.

        A server that answers ends its side as well, within `close_timeout_s`: gRPC then holds
        nothing of the event loop's, which may close right after.
        """
        self._finish(StreamLost("the stream was closed"))
        while not self._out.empty():
            # Its caller was told that it is lost.
            self._out.get_nowait()
        # A cancelled task keeps its frame, and the frame this stream: as long as that circle waits
        # for the garbage collector, so does the connection.
        tasks, self._tasks = self._tasks, ()
        try:
            if self._answers:
                self._out.put_nowait(None)
                await asyncio.wait(tasks, timeout=self._config.close_timeout_s)
        finally:
            for task in tasks:
                task.cancel()
            # A call that is abandoned is never collected.
            self._call.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                await self._channel.close()

    # --- the two directions -------------------------------------------------------------------

    async def _write(self) -> None:
        try:
            while (frame := await self._out.get()) is not None:
                try:
                    await self._call.write(frame)
                except ContractViolation as error:
                    self._answer(frame.request_id, error)
            await self._call.done_writing()
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            # The reader learns the call's status; this side knows only that it is over.
            return

    async def _read(self) -> None:
        try:
            while True:
                frame = await self._call.read()
                if not isinstance(frame, ServerFrame):
                    return self._finish(StreamLost("the server ended the stream"))
                self._answers = True
                if not self.ended.is_set():
                    self._take(frame)
        except grpc.RpcError as error:
            self._finish(_lost(from_rpc_error(error)))
        except ContractViolation as error:
            # An answer that can't be read is somebody's: no request of the stream can be trusted.
            self._finish(StreamLost(f"the server broke the contract: {error.reason}"))
        finally:
            # grpc.aio raises CancelledError for a call that the *server* cancelled, too.
            self._finish(StreamLost("the call was cancelled"))

    def _take(self, frame: ServerFrame) -> None:
        kind = frame.WhichOneof("frame")
        if frame.request_id:
            if kind == "error":
                self._answer(frame.request_id, error_of(frame.error))
            else:
                self._answer(frame.request_id, frame)
        elif kind == "push_events":
            self._on_push(frame.push_events)
        elif kind == "kicked":
            self._finish(Kicked(frame.kicked.reason))
        elif kind == "redirect":
            self._finish(Redirected(frame.redirect.address, frame.redirect.route_token))
        elif kind == "going_away":
            self.leaving.set()
        elif kind == "error":
            self._finish(error_of(frame.error))
        # Anything else is from a newer server, and not for this client.

    def _answer(self, request_id: int, answer: ServerFrame | QimError) -> None:
        waiting = self._waiting.get(request_id)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, QimError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def _finish(self, reason: QimError) -> None:
        if self.ended.is_set():
            return
        self._end = reason
        self.ended.set()
        self.leaving.set()
        for request_id in list(self._waiting):
            self._answer(request_id, StreamLost(str(reason)))


def _lost(error: QimError) -> QimError:
    """A status that any request may be tried again after, unless it says what is wrong."""
    if error.code in (ErrorCode.INTERNAL, ErrorCode.UNAVAILABLE):
        return StreamLost(error.message)
    return error


async def open_stream(
    address: str,
    token: str,
    route_token: str,
    config: ClientConfig,
    on_push: Callable[[gateway_pb2.PushEvents], None],
) -> Stream:
    """An authenticated stream. Raises QimError: what AUTH was answered, or StreamLost."""
    options = config.channel_options()
    channel = (
        grpc.aio.secure_channel(address, config.credentials, options=options)
        if config.credentials is not None
        else grpc.aio.insecure_channel(address, options=options)
    )
    gateway = gateway_pb2_grpc.GatewayStub(StrictChannel(channel))
    call = gateway.Connect(timeout=config.stream_life_s)
    stream = Stream(channel, call, config, on_push)
    auth = gateway_pb2.Auth(
        protocol_version=PROTOCOL_VERSION,
        capabilities=[c for c in CAPABILITIES if config.push_events or c != PUSH_EVENTS],
        access_token=token,
        route_token=route_token,
    )
    try:
        async with asyncio.timeout(config.connect_timeout_s):
            answer = await stream.request(ClientFrame(auth=auth))
        if answer.WhichOneof("frame") != "auth_ok":
            raise StreamLost("AUTH was not answered by AUTH_OK")
    except TimeoutError:
        await stream.close()
        raise StreamLost(f"no AUTH_OK within {config.connect_timeout_s:g} s") from None
    except QimError as error:
        await stream.close()
        # What ended the stream says more than that the request was lost with it.
        raise (stream.end if isinstance(error, StreamLost) else error) from None
    except BaseException:
        await stream.close()
        raise
    stream.auth_ok = answer.auth_ok
    stream.cursor_token = answer.auth_ok.cursor_token
    return stream
