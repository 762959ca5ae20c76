"""The called side of the streams: calls begin in the order in which they came, and do not wait for
one another.

What a peer may have under way, and what may wait for it, is bounded: at the bound its stream is not
read, so that it feels it in its own outbox and refuses its callers there.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import grpc

from qim.hop.v1 import hop_service_pb2 as hop
from qim.hop.v1.hop_service_pb2 import HopAnswer, HopCall, HopReply, HopRequest
from qimd.app.hops.credentials import Authenticate
from qimd.app.hops.outbox import Outbox
from qimd.app.hops.presence import RemotePresence
from qimd.app.hops.rooms import LocalRooms, answer, error_answer
from qimd.contract import codec
from qimd.contract.frames import EncodedFrame
from qimd.contract.hop_checks import UNANSWERED_CALLS
from qimd.contract.hops import reply_frame
from qimd.contract.violation import ContractViolation
from qimd.core.errors import ErrorCode, QimError, invalid, unavailable
from qimd.core.ids import ConversationId, TenantId, UserId
from qimd.core.parameters import DRAIN_GRACE_S
from qimd.core.records import ConversationKey
from qimd.ports.runtime import Runtime, Task
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics

_log = logger("hops")

SERVICE: Final = hop.DESCRIPTOR.services_by_name["HopService"]

CALLS_MAX: Final = 512
"""Calls of one peer under way here: if all of them bring full pages at once, that is 512 MiB."""

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""What waits for a peer that does not read; its next calls are not begun until it does."""


class HopHandlers:
    """Serves `qim.hop.v1.HopService` over the rooms of this process.

    `presence` is where connection processes register their users, if this one has a mailbox.
    """

    def __init__(
        self,
        *,
        rooms: LocalRooms,
        presence: RemotePresence | None,
        authenticate: Authenticate,
        runtime: Runtime,
        metrics: Metrics,
    ) -> None:
        self._rooms = rooms
        self._presence = presence
        self._authenticate = authenticate
        self._runtime = runtime
        self._metrics = metrics
        self._streams: dict[_Stream, None] = {}
        self._draining = False
        self._all_ended = asyncio.Event()

    def service(self) -> grpc.GenericRpcHandler:
        """For a server with the `StrictServerInterceptor`, which decodes and encodes."""
        exchange = grpc.stream_stream_rpc_method_handler(
            # Typed for gRPC's synchronous API; it gives EncodedFrames to the strict interceptor.
            cast("Any", self.exchange),
            request_deserializer=HopRequest.FromString,
            response_serializer=HopReply.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE.full_name, {"Exchange": exchange})

    async def exchange(
        self,
        frames: AsyncIterator[HopRequest | QimError],
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> AsyncIterator[EncodedFrame]:
        """One peer's stream: the frames for it, until either side ends.

        Raises QimError(UNAUTHENTICATED).
        """
        self._authenticate(context)
        stream = _Stream(self._rooms, self._presence, self._runtime, self._metrics)
        self._streams[stream] = None
        # A call that ends while gRPC writes drops this generator, and its `finally` runs only when
        # the collector finds it.
        context.add_done_callback(cast("Any", lambda _: self._ended(stream)))
        reader = self._runtime.spawn(stream.read(frames), "hop-read")
        if self._draining:
            stream.drain()
        try:
            while items := await stream.outbox.frame():
                yield reply_frame(items)
        finally:
            self._ended(stream)
            reader.cancel()

    async def drain(self, grace_s: float = DRAIN_GRACE_S) -> None:
        """Refuse new calls, answer those under way, and end the streams, within `grace_s`."""
        self._draining = True
        for stream in list(self._streams):
            stream.drain()
        if self._streams:
            self._all_ended.clear()
            try:
                await self._runtime.wait_for(self._all_ended.wait(), grace_s)
            except TimeoutError:
                _log.warning("streams of other processes outlived the drain")

    def _ended(self, stream: "_Stream") -> None:
        stream.end()
        self._streams.pop(stream, None)
        if not self._streams:
            self._all_ended.set()


class _Stream:
    """One peer's calls. Everything but `read` is synchronous."""

    def __init__(
        self,
        rooms: LocalRooms,
        presence: RemotePresence | None,
        runtime: Runtime,
        metrics: Metrics,
    ) -> None:
        self._rooms = rooms
        self._presence = presence
        self._runtime = runtime
        self._metrics = metrics
        self.outbox = Outbox(metrics)
        self._registered = presence.join(self.outbox) if presence is not None else None
        self._under_way: dict[int, Task] = {}
        self._answered = asyncio.Event()
        self._draining = False
        self._input_ended = False
        self._over = False

    async def read(self, frames: AsyncIterator[HopRequest | QimError]) -> None:
        """Begin the peer's calls until it ends its side or is gone."""
        try:
            async for frame in frames:
                if isinstance(frame, QimError):
                    # It costs the calls in it alone; the peer hears of it, and reads on.
                    _log.error("an unreadable frame of another process", error=frame)
                    self.outbox.put(error_answer(0, frame))
                    continue
                for call in frame.calls:
                    await self._capacity()
                    self._take(call)
        except grpc.aio.BaseError:
            # The call ended under the read.
            pass
        finally:
            self._input_ended = True
            self._close_if_done()

    def drain(self) -> None:
        """Begin nothing new, and end once what is under way was answered."""
        if not self._draining:
            self._draining = True
            self.outbox.put(codec.encode(HopAnswer(draining=hop.Draining())))
            self._close_if_done()

    def end(self) -> None:
        """The call is over: nobody waits for its answers any longer."""
        if self._over:
            return
        self._over = True
        if self._presence is not None and self._registered is not None:
            self._presence.leave(self._registered)
        under_way, self._under_way = self._under_way, {}
        for task in under_way.values():
            task.cancel()
        self.outbox.abandon()
        self._answered.set()

    # --- calls ---

    async def _capacity(self) -> None:
        """Return once another call may be begun."""
        while len(self._under_way) >= CALLS_MAX:
            self._answered.clear()
            await self._answered.wait()
        await self.outbox.room(ANSWER_BYTES_MAX)

    def _take(self, call: HopCall) -> None:
        if self._over:
            return
        kind = call.WhichOneof("call")
        if kind in UNANSWERED_CALLS:
            self._hear(call)
        elif call.call_id == 0:
            # A newer peer's, of a kind that has no answer.
            _log.warning("another process told what is not known here")
        elif self._draining:
            self.outbox.put(error_answer(call.call_id, unavailable("the process is draining")))
        elif call.call_id in self._under_way:
            refusal = invalid("another call of the stream under way has this call_id", "call_id")
            self.outbox.put(error_answer(call.call_id, refusal))
        else:
            serving = self._serve(call)
            self._under_way[call.call_id] = self._runtime.spawn(serving, "hop-call")

    def _hear(self, call: HopCall) -> None:
        """What has no answer."""
        tenant = TenantId(call.tenant_id)
        match call.WhichOneof("call"):
            case "presence" if self._presence is not None and self._registered is not None:
                change = call.presence
                self._presence.change(
                    self._registered,
                    tenant,
                    map(UserId, change.online_user_ids),
                    map(UserId, change.offline_user_ids),
                )
            case "touched" if self._rooms.supplement is not None:
                touched = call.touched
                self._rooms.supplement.touched(
                    ConversationKey(tenant, ConversationId(touched.conversation_id)),
                    [UserId(user) for user in touched.user_ids],
                    touched.created_at_ms,
                )
            case "cancel":
                task = self._under_way.pop(call.cancel.call_id, None)
                if task is not None:
                    task.cancel()
                    self._finished()
            case _:
                pass

    async def _serve(self, call: HopCall) -> None:
        encoded = await self._outcome(call)
        # One that was cancelled has no answer.
        if self._under_way.pop(call.call_id, None) is not None:
            self.outbox.put(encoded)
            self._finished()

    async def _outcome(self, call: HopCall) -> bytes:
        """The call's answer, whatever it comes to: each has exactly one."""
        try:
            return await self._runtime.wait_for(answer(self._rooms, call), call.deadline_ms / 1000)
        except ContractViolation as violation:
            # Ours, not the caller's: its frame was decoded long ago.
            error = self._defect(violation)
        except QimError as refusal:
            error = refusal
        except TimeoutError:
            error = unavailable("no answer in time")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something inside was cancelled, the call was not: its caller must hear of it.
            error = unavailable("the call was interrupted")
        except Exception as defect:  # noqa: BLE001 - the one place that supervises calls.
            error = self._defect(defect)
        return error_answer(call.call_id, error)

    def _defect(self, error: Exception) -> QimError:
        self._metrics.defects_total.labels("hop-call").inc()
        _log.error("a call of another process failed by a defect", exc_info=error)
        return QimError(ErrorCode.INTERNAL, "a defect of the server; it was logged")

    def _finished(self) -> None:
        self._answered.set()
        self._close_if_done()

    def _close_if_done(self) -> None:
        """End the stream once nothing more can come of it."""
        if (self._draining or self._input_ended) and not self._under_way:
            self.outbox.close()
