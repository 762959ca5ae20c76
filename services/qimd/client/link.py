"""Keeps one live stream: connects, backs off, follows redirects, and knows when to stop for good.

How a stream ends decides what follows:

| end | then |
| --- | --- |
| lost, SLOW_CONSUMER, server's deadline | connect anew, after a pause |
| GOING_AWAY | finish what is under way, connect anew |
| TOKEN_EXPIRED, UNAUTHENTICATED | once more with a new token of the provider, then stop |
| REDIRECT | connect to the address that it names |
| KICKED replaced | stop: Replaced |
| TOKEN_REVOKED, PERMISSION_DENIED, … | stop with the error |
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from qim.gateway.v1 import gateway_pb2
from qimd.client.backoff import Backoff
from qimd.client.config import ClientConfig, TokenProvider
from qimd.client.model import ClientStopped, Replaced
from qimd.client.stream import (
    ClientFrame,
    Kicked,
    Redirected,
    ServerFrame,
    Stream,
    StreamLost,
    open_stream,
)
from qimd.core.errors import ErrorCode, QimError

RESEND: Final = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.NOT_OWNER, ErrorCode.STALE_EPOCH})
"""The same request, with the same ids, is worth trying again at once. Rate limits are not: when to
go on is the application's to decide."""

_NEW_TOKEN: Final = frozenset({ErrorCode.TOKEN_EXPIRED, ErrorCode.UNAUTHENTICATED})
_RECONNECT: Final = RESEND | {ErrorCode.SLOW_CONSUMER, ErrorCode.RATE_LIMITED}


class Listener(Protocol):
    """What a link tells of its streams. Called on the event loop; never blocks."""

    def on_open(self, stream: Stream) -> None:
        """A new stream was authenticated."""

    def on_push(self, push: gateway_pb2.PushEvents) -> None:
        """PUSH_EVENTS came."""

    def on_down(self) -> None:
        """The stream ended, or the link stopped for good."""


class Link:
    """The connection of one device, for as long as the client lives."""

    def __init__(
        self,
        address: str,
        token_provider: TokenProvider,
        config: ClientConfig,
        listener: Listener,
    ) -> None:
        self._address = address
        self._token_provider = token_provider
        self._config = config
        self._listener = listener
        self._stream: Stream | None = None
        self._failure: Exception | None = None
        self._changed = asyncio.Condition()
        self._redirect: Redirected | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._partings: set[asyncio.Task[None]] = set()
        """Streams that end beside the one that follows them."""
        self.connects = 0
        """Streams opened so far."""
        self.last_end: QimError | None = None
        """Why the last attempt or stream ended."""

    @property
    def failure(self) -> Exception | None:
        """Why it stopped for good; None while it lives."""
        return self._failure

    def current(self) -> Stream | None:
        """The live stream, if there is one now."""
        return self._stream

    def start(self, beside: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin to connect, and run a companion for as long as the link lives."""
        for coroutine, name in ((self._keep_connected(), "qim-link"), (beside(), "qim-inbox")):
            self._tasks.append(asyncio.create_task(self._supervise(coroutine), name=name))

    async def close(self) -> None:
        """Stop for good. Whatever waits for the link is told."""
        await self._fail(ClientStopped("the client is closed"))
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*self._partings, return_exceptions=True)

    async def stream(self) -> Stream:
        """The live stream, waited for. Raises what stopped the link."""
        async with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._stream is not None and not self._stream.leaving.is_set():
                    return self._stream
                await self._changed.wait()

    async def call(self, frame: ClientFrame, deadline_s: float) -> ServerFrame:
        """The answer to a request that may be repeated, over as many streams as it takes.

        `deadline_s` is the event loop's time. Raises QimError: the server's refusal, or
        UNAVAILABLE once the deadline has passed; ClientStopped.
        """
        pause = Backoff(self._config.backoff_first_s, self._config.backoff_most_s)
        last: QimError | None = None
        try:
            async with asyncio.timeout_at(deadline_s):
                while True:
                    stream = await self.stream()
                    try:
                        return await stream.request(frame)
                    except StreamLost as error:
                        last = error
                    except QimError as error:
                        if error.code not in RESEND:
                            raise
                        last = error
                        await asyncio.sleep(max(pause.next_s(), error.retry_after_ms / 1000))
        except TimeoutError:
            said = f"; the last try: {last}" if last is not None else ""
            raise QimError(ErrorCode.UNAVAILABLE, f"no answer before the deadline{said}") from last

    # --- supervision --------------------------------------------------------------------------

    async def _supervise(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - supervises: a defect must reach the caller
            await self._fail(error)

    async def _keep_connected(self) -> None:
        pause = Backoff(self._config.backoff_first_s, self._config.backoff_most_s)
        fresh_token_tried = False
        while True:
            began_s, connects = asyncio.get_running_loop().time(), self.connects
            try:
                end = await self._serve(await self._open())
            except QimError as error:
                # It is kept, and the frames that it came through hold a stream's connection.
                end = error
                end.__traceback__ = end.__context__ = None
            self.last_end = end
            if self.connects > connects:
                fresh_token_tried = False
            if asyncio.get_running_loop().time() - began_s > self._config.backoff_most_s:
                # A server that accepts and drops at once must not be met in a tight loop.
                pause.reset()
            if isinstance(end, Redirected):
                self._redirect = end
            elif end.code in _NEW_TOKEN:
                if fresh_token_tried:
                    return await self._fail(end)
                # The provider gives a new one at once; a token that is refused twice is no
                # accident of time.
                fresh_token_tried = True
                continue
            elif isinstance(end, Kicked) and end.replaced:
                return await self._fail(Replaced("a newer stream of this device took over"))
            elif end.code not in _RECONNECT:
                return await self._fail(end)
            await asyncio.sleep(pause.next_s())

    async def _open(self) -> Stream:
        redirect, self._redirect = self._redirect, None
        token = await self._token_provider()
        return await open_stream(
            redirect.address if redirect else self._address,
            token,
            redirect.route_token if redirect else "",
            self._config,
            self._listener.on_push,
        )

    async def _serve(self, stream: Stream) -> QimError:
        """Offer the stream until it ends; why it did."""
        try:
            self.connects += 1
            self._listener.on_open(stream)
            await self._publish(stream)
            await stream.leaving.wait()
            if not stream.ended.is_set():
                await self._drain(stream)
            return stream.end
        finally:
            self._stream = None
            self._listener.on_down()
            parting = asyncio.create_task(stream.close(), name="qim-parting")
            self._partings.add(parting)
            parting.add_done_callback(self._partings.discard)

    async def _drain(self, stream: Stream) -> None:
        try:
            async with asyncio.timeout(self._config.answer_timeout_s):
                await stream.idle()
        except TimeoutError:
            return

    async def _publish(self, stream: Stream) -> None:
        async with self._changed:
            self._stream = stream
            self._changed.notify_all()

    async def _fail(self, error: Exception) -> None:
        async with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()
        self._listener.on_down()
