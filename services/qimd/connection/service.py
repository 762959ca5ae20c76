"""The connection room: from AUTH to the end of a stream.

A stream has a reader, a writer, a worker for requests in order, and a timer (AUTH's, then the
token's). Whatever ends it calls `Link.finish`; `handle` waits for that, lets what is under way be
answered, says farewell and closes.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final, TypeVar

from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import ClientFrame, ServerFrame
from qimd.connection.link import End, Link, Stream, by_client, by_error, replaced
from qimd.connection.logic import (
    ACTS,
    UNKNOWN_KIND,
    Act,
    Phase,
    agreed_version,
    judge_request_id,
    refusal_of,
)
from qimd.connection.presence import Presence
from qimd.connection.requests import Requests
from qimd.connection.sends import Sends, prepare
from qimd.contract.frames import EncodedFrame, error_frame, server_frame
from qimd.contract.violation import ContractViolation
from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.core.ids import TenantId, UserId
from qimd.core.parameters import (
    CAPABILITIES,
    DRAIN_GRACE_S,
    PUSH_EVENTS,
    REQUEST_TIMEOUT_S,
    UNAUTH_CONNECTION_TIMEOUT_S,
)
from qimd.core.records import DeviceKey
from qimd.ports.runtime import Runtime
from qimd.ports.services import (
    Admission,
    Authenticator,
    Hint,
    Identity,
    Mailbox,
    OpenedDevice,
    Sessions,
    Writer,
)
from qimd.ports.store import ConversationStore
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import NO_SPANS, Spans

T = TypeVar("T")
_log = logger("connection")
_FLUSH_GRACE_S: Final = 1.0
"""What a farewell gets to leave in; the stream ends with or without it."""
_EXPIRY_LOOK_S: Final = 60.0
"""`exp` is wall time and sleeping is not: a step of the clock is noticed within a minute."""


class ConnectionService:
    """Serves clients' streams, and is the `ports.services.PushHints` of those.

    A `presence` that was made before gives the mailbox its hints before the connection, which needs
    the mailbox, exists.
    """

    def __init__(
        self,
        *,
        auth: Authenticator,
        admission: Admission,
        writer: Writer,
        mailbox: Mailbox,
        sessions: Sessions,
        conversations: ConversationStore,
        runtime: Runtime,
        metrics: Metrics,
        presence: Presence | None = None,
        spans: Spans = NO_SPANS,
    ) -> None:
        self._auth = auth
        self._mailbox = mailbox
        self._runtime = runtime
        self._metrics = metrics
        self._spans = spans
        self._presence = presence or Presence(runtime, metrics, spans)
        self._sends = Sends(admission=admission, writer=writer, metrics=metrics)
        self._requests = Requests(
            mailbox=mailbox,
            sessions=sessions,
            conversations=conversations,
            runtime=runtime,
            metrics=metrics,
        )
        self._links: dict[Link, None] = {}
        self._draining = False
        self._all_ended = asyncio.Event()

    # --- ports.services.PushHints ---

    def online(self, tenant: TenantId, users: Collection[UserId]) -> Collection[UserId]:
        """Those of the users with a live stream here."""
        return self._presence.online(tenant, users)

    def push(self, hints: Sequence[Hint]) -> None:
        """Queue hints, in order, for the users' streams. Never blocks."""
        self._presence.push(hints)

    # --- a stream's life ---

    async def handle(self, stream: Stream) -> None:
        """Serve one stream from its first frame until it is closed."""
        if self._draining:
            await stream.close(unavailable("the server is going away; connect to another"))
            return
        link = Link(stream, self._runtime.monotonic_s())
        self._links[link] = None
        try:
            for vital in (link.write, lambda: self._read(link), lambda: self._work(link)):
                self._spawn(link, self._vital(link, vital), "stream")
            self._spawn(link, self._expect_auth(link), "stream-auth-deadline")
            await self._part(link, await link.ended())
        finally:
            self._presence.remove(link)
            link.cancel()
            del self._links[link]
            if not self._links:
                self._all_ended.set()

    async def drain(self, grace_s: float = DRAIN_GRACE_S) -> None:
        """Tell every stream that this server goes away, answer what is under way, and close them.

        Returns when they are closed, at the latest a little after `grace_s`.
        """
        self._draining = True
        going = gateway_pb2.GoingAway(grace_ms=int(grace_s * 1000))
        farewell = server_frame(ServerFrame(going_away=going))
        for link in list(self._links):
            link.send(farewell)
            link.finish(End(None, None, patience_s=grace_s))
        if self._links:
            self._all_ended.clear()
            try:
                await self._runtime.wait_for(self._all_ended.wait(), grace_s + 1.0)
            except TimeoutError:
                _log.warning("streams outlived the drain", count=len(self._links))

    async def _part(self, link: Link, end: End) -> None:
        """Answer what is under way, say farewell, close."""
        self._presence.remove(link)
        if end.patience_s > 0:
            await self._in_time(link.idle(), end.patience_s)
            if end.farewell is not None:
                link.send(end.farewell)
            await self._in_time(link.flushed(), _FLUSH_GRACE_S)
        # A reader may have turned out to be slow while we waited for it: then that is its end.
        error = link.end.error
        if error is not None:
            self._metrics.errors_total.labels(error.code.name).inc()
        await link.stream.close(error)

    async def _in_time(self, wait: Coroutine[Any, Any, None], timeout_s: float) -> bool:
        try:
            await self._runtime.wait_for(wait, timeout_s)
        except TimeoutError:
            return False
        return True

    def _spawn(self, link: Link, coro: Coroutine[Any, Any, None], name: str) -> None:
        link.runs(self._runtime.spawn(coro, name))

    async def _vital(self, link: Link, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run what the stream can't live without: after a defect there its client sees an end."""
        try:
            await run()
        finally:
            link.finish(by_error(QimError(ErrorCode.INTERNAL, "a defect of the server")))

    # --- reading ---

    async def _read(self, link: Link) -> None:
        while not link.ending:
            frame = await link.stream.receive()
            if frame is None:
                link.finish(by_client())
            elif isinstance(frame, ContractViolation):
                # A frame that the contract refuses costs itself alone.
                self._refuse(link, frame.request_id, frame)
            elif isinstance(frame, QimError):
                self._refuse(link, 0, frame)
            elif not link.ending:
                await self._take(link, frame)
                await link.capacity()

    async def _take(self, link: Link, frame: ClientFrame) -> None:
        request_id = frame.request_id
        act = ACTS.get((link.phase, frame.WhichOneof("frame") or UNKNOWN_KIND), Act.REFUSE_KIND)
        refusal = judge_request_id(request_id, link.under_way) or refusal_of(act)
        if refusal is not None:
            self._refuse(link, request_id, refusal)
            return
        if act is Act.PONG:
            pong = gateway_pb2.Pong(server_time_ms=self._runtime.wall_ms())
            link.send(server_frame(ServerFrame(request_id=request_id, pong=pong)))
            return
        link.begin(request_id)
        if act is Act.AUTHENTICATE:
            await self._authenticate(link, request_id, frame.auth)
        elif act is Act.COMMIT:
            await self._send(link, frame)
        else:
            link.requests.put_nowait(frame)

    def _refuse(self, link: Link, request_id: int, error: QimError) -> None:
        """Answer with an ERROR that is not the end of a request under way."""
        self._metrics.errors_total.labels(error.code.name).inc()
        link.send(error_frame(request_id, error))

    def _answer(self, link: Link, request_id: int, answer: EncodedFrame | QimError) -> None:
        if isinstance(answer, QimError):
            self._metrics.errors_total.labels(answer.code.name).inc()
            answer = error_frame(request_id, answer)
        link.answer(request_id, answer)

    # --- AUTH ---

    async def _authenticate(self, link: Link, request_id: int, auth: gateway_pb2.Auth) -> None:
        started_s = self._runtime.monotonic_s()
        proved = await self._outcome("auth", self._prove(auth))
        if isinstance(proved, QimError):
            self._answer(link, request_id, proved)
            return
        if link.ending:
            # Answered all the same: the end waits for what is under way.
            self._answer(link, request_id, unavailable("the stream ends; connect again"))
            return
        # From here to AUTH_OK nothing awaits: no PUSH_EVENTS can come before it. And presence is
        # registered before any PULL is served, so what a PULL does not find is hinted.
        identity, opened, version = proved
        link.identity = identity
        link.wants_pushes = PUSH_EVENTS in auth.capabilities
        link.phase = Phase.READY
        link.handed = opened.last_applied
        link.authenticated_at_s = started_s
        older = self._presence.register(link)
        if older is not None:
            older.finish(replaced())
        self._answer(link, request_id, self._auth_ok(request_id, identity, opened, version))
        self._spawn(link, self._expire(link, identity.expires_at_ms), "stream-token-expiry")

    async def _prove(self, auth: gateway_pb2.Auth) -> tuple[Identity, OpenedDevice, int]:
        version = agreed_version(auth.protocol_version)
        identity = await self._auth.verify_access_token(auth.access_token)
        return identity, await self._mailbox.open_device(identity.device), version

    def _auth_ok(
        self, request_id: int, identity: Identity, opened: OpenedDevice, version: int
    ) -> EncodedFrame:
        device = identity.device
        return server_frame(
            ServerFrame(
                request_id=request_id,
                auth_ok=gateway_pb2.AuthOk(
                    protocol_version=version,
                    capabilities=CAPABILITIES,
                    tenant_id=device.tenant,
                    user_id=device.user,
                    device_id=device.device,
                    token_expires_at_ms=identity.expires_at_ms,
                    server_time_ms=self._runtime.wall_ms(),
                    cursor_token=opened.cursor_token,
                    last_applied_mailbox_seq=opened.last_applied,
                    watermark_floor_seq=opened.floor,
                ),
            )
        )

    async def _expect_auth(self, link: Link) -> None:
        await self._runtime.sleep(UNAUTH_CONNECTION_TIMEOUT_S)
        if link.phase is Phase.OPEN:
            link.finish(by_error(QimError(ErrorCode.UNAUTHENTICATED, "no AUTH came in time")))

    async def _expire(self, link: Link, expires_at_ms: int) -> None:
        while (left_ms := expires_at_ms - self._runtime.wall_ms()) > 0:
            await self._runtime.sleep(min(left_ms / 1000, _EXPIRY_LOOK_S))
        error = QimError(ErrorCode.TOKEN_EXPIRED, "the stream's access token has expired")
        link.finish(by_error(error))

    # --- requests ---

    async def _send(self, link: Link, frame: ClientFrame) -> None:
        """Prepare and admit here, in order; commit beside the requests that follow."""
        arrived_s = self._runtime.monotonic_s()
        device = _device_of(link)
        try:
            prepared = prepare(device, frame.send)
        except QimError as error:
            self._answer(link, frame.request_id, error)
            return
        refused = await self._outcome("admission", self._sends.admit(device, prepared))
        if isinstance(refused, QimError):
            self._answer(link, frame.request_id, refused)
            return
        trace_parent = self._spans.new_trace(self._runtime.random_bytes)

        async def acknowledge() -> None:
            commit = self._sends.commit(frame.request_id, device, prepared, trace_parent)
            answer = await self._outcome("send", commit)
            self._answer(link, frame.request_id, answer)
            error = _code_of(answer)
            if not error:
                self._metrics.send_ack_latency.observe(self._runtime.monotonic_s() - arrived_s)
            events = len(prepared.names)
            self._spans.sent(trace_parent, prepared.key, events, arrived_s, error)

        self._spawn(link, acknowledge(), "stream-send")

    async def _work(self, link: Link) -> None:
        """Serve queued requests one after another, each once there is room for its answer."""
        while True:
            frame = await link.requests.get()
            began_s = self._runtime.monotonic_s()
            device = _device_of(link)
            if not link.has_room and not await self._in_time(link.room(), REQUEST_TIMEOUT_S):
                link.overrun()
                return
            answer = await self._outcome("request", self._requests.serve(link, device, frame))
            self._answer(link, frame.request_id, answer)
            kind = frame.WhichOneof("frame") or UNKNOWN_KIND
            self._spans.served(kind.upper(), device.tenant, began_s, _code_of(answer))

    async def _outcome(self, name: str, coro: Coroutine[Any, Any, T]) -> T | QimError:
        """What a request came to, in time and as a value: every request has its one answer."""
        try:
            return await self._runtime.wait_for(coro, REQUEST_TIMEOUT_S)
        except ContractViolation as violation:
            # Ours, not the client's: its own frame was decoded long ago.
            return self._defect(name, violation)
        except QimError as error:
            return error
        except TimeoutError:
            return unavailable(f"no answer within {REQUEST_TIMEOUT_S:.0f} s")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something inside was cancelled, the stream was not: its client must hear of it.
            return unavailable("the request was interrupted")
        except Exception as error:  # noqa: BLE001 - the one place that supervises requests.
            return self._defect(name, error)

    def _defect(self, name: str, error: Exception) -> QimError:
        self._metrics.defects_total.labels(name).inc()
        _log.error("a request failed by a defect", request=name, exc_info=error)
        return QimError(ErrorCode.INTERNAL, "a defect of the server; it was logged")


def _code_of(answer: EncodedFrame | QimError) -> str:
    """The name of the answer's error; empty for another answer."""
    return answer.code.name if isinstance(answer, QimError) else ""


def _device_of(link: Link) -> DeviceKey:
    if link.identity is None:
        raise RuntimeError("a request is served after AUTH only")
    return link.identity.device
