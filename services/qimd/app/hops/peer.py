"""The calling side of one stream to another process.

A peer lives as long as its stream. Calls wait in its outbox until the stream is free to write, so
that they are begun in the order in which they were made. When the stream is lost, every call under
way fails as `Elsewhere`: it may have taken effect, and its answer will never come.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from grpc import StatusCode, aio

from qim.hop.v1.hop_service_pb2 import Hint, HopAnswer, HopCall, HopReply
from qimd.app.hops import asks
from qimd.app.hops.asks import Ask
from qimd.app.hops.failures import Elsewhere
from qimd.app.hops.options import MESSAGE_BYTES_MAX
from qimd.app.hops.outbox import Outbox
from qimd.contract import codec
from qimd.contract.errors import error_of
from qimd.contract.hops import request_frame
from qimd.contract.violation import ContractViolation
from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.ports.runtime import Runtime, Task
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics

R = TypeVar("R")
_Call = aio.StreamStreamCall[bytes, bytes]

_log = logger("hops")

METHOD: Final = "/qim.hop.v1.HopService/Exchange"

CALLS_MAX: Final = 4096
"""Calls to one process under way: what it takes a second, at the most."""

WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
"""What a process that does not read can make this one hold."""

_ITEM_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 16
"""One call, so that it fits a message with its tag and length."""

ChannelFactory = Callable[[str], aio.Channel]
"""A channel to an address, with `options.CHANNEL_OPTIONS`, and the deployment's TLS where there is.
"""

Credentials = Sequence[tuple[str, str]]
"""Metadata that proves this process to its peers."""


class PeerListener(Protocol):
    """Who wants to know what else comes of the streams."""

    def hinted(self, hint: Hint) -> None:
        """A mailbox has events for users here."""

    def lost(self, peer: "Peer") -> None:
        """The stream has ended, and the other side knows nothing of this process any more."""


class Peer:
    """One stream to the process at `address`, from `start` on."""

    def __init__(
        self,
        address: str,
        channel: aio.Channel,
        credentials: Credentials,
        listener: PeerListener,
        runtime: Runtime,
        metrics: Metrics,
    ) -> None:
        self.address = address
        self._channel = channel
        self._credentials = credentials
        self._listener = listener
        self._runtime = runtime
        self._outbox = Outbox(metrics)
        self._under_way: dict[int, asyncio.Future[HopAnswer | QimError]] = {}
        self._last_id = 0
        self._task: Task | None = None
        self.draining = False
        """It has said that it begins no new calls."""
        self.ended = False

    def start(self) -> None:
        """Open the stream; calls may be queued before and after."""
        self._task = self._runtime.spawn(self._run(), f"hop-peer:{self.address}")

    def close(self) -> None:
        """Give the stream up: it is lost."""
        if self._task is not None:
            self._task.cancel()
        self._end()

    def begin(self, ask: Ask[R], deadline_s: float) -> Coroutine[Any, Any, R]:
        """Queue a call, and give what waits for its answer until `deadline_s` (monotonic).

        Raises Elsewhere where no call can be made any more, UNAVAILABLE beyond the bounds.
        """
        if self.ended or self.draining:
            raise Elsewhere(f"the process at {self.address} takes no calls")
        if len(self._under_way) >= CALLS_MAX or self._outbox.waiting_bytes >= WAITING_BYTES_MAX:
            raise unavailable("too many calls wait for another process")
        self._last_id += 1
        call_id = self._last_id
        left_s = deadline_s - self._runtime.monotonic_s()
        ask.call.call_id = call_id
        ask.call.deadline_ms = max(1, int(left_s * 1000))
        encoded = codec.encode(ask.call)
        if len(encoded) > _ITEM_BYTES_MAX:
            raise QimError(
                ErrorCode.INVALID_ARGUMENT,
                "the call is larger than what processes send one another",
            )
        self._outbox.put(encoded)
        answer = asyncio.get_running_loop().create_future()
        self._under_way[call_id] = answer
        return self._answer(call_id, answer, ask, deadline_s)

    def tell(self, call: HopCall) -> bool:
        """Queue what has no answer; False, and nothing queued, where it can't be taken."""
        if self.ended or self._outbox.waiting_bytes >= WAITING_BYTES_MAX:
            return False
        self._outbox.put(codec.encode(call))
        return True

    async def _answer(
        self,
        call_id: int,
        arrives: "asyncio.Future[HopAnswer | QimError]",
        ask: Ask[R],
        deadline_s: float,
    ) -> R:
        async def arrived() -> HopAnswer | QimError:
            return await arrives

        try:
            answer = await self._runtime.wait_for(
                arrived(), deadline_s - self._runtime.monotonic_s()
            )
        except TimeoutError:
            raise Elsewhere(f"the process at {self.address} did not answer in time") from None
        finally:
            # Neither answered nor lost: nobody waits for it here any more.
            if self._under_way.pop(call_id, None) is not None:
                self.tell(asks.cancel(call_id))
        if isinstance(answer, QimError):
            raise answer
        try:
            return ask.read(answer)
        except QimError as error:
            if self.draining and error.code is ErrorCode.UNAVAILABLE:
                raise Elsewhere(f"the process at {self.address} drains") from error
            raise

    # --- the stream ---

    async def _run(self) -> None:
        """Write and read until the stream ends."""
        call: _Call = self._channel.stream_stream(METHOD)(metadata=tuple(self._credentials))
        writer = self._runtime.spawn(self._write(call), "hop-write")
        try:
            await self._read(call)
        except aio.AioRpcError as error:
            hint: dict[str, str] = {}
            if error.code() is StatusCode.UNAUTHENTICATED:
                hint["hint"] = "the other process was started with other --secrets, or certificates"
            _log.warning("a stream was lost", peer=self.address, status=error.code().name, **hint)
        except ContractViolation as violation:
            # Some call's answer was in it: whoever waits is told now, not at the deadline.
            _log.error("an unreadable reply of another process", error=violation)
        finally:
            writer.cancel()
            call.cancel()
            self._end()
            await self._channel.close()

    async def _write(self, call: _Call) -> None:
        try:
            while items := await self._outbox.frame():
                await call.write(request_frame(items))
        except (aio.AioRpcError, asyncio.InvalidStateError):
            # The call has ended; the read tells how.
            return

    async def _read(self, call: _Call) -> None:
        # Iterated: unlike `read()`, that ends by itself.
        async for data in call:
            for answer in codec.decode(HopReply, data).answers:
                if answer.call_id:
                    self._deliver(answer)
                else:
                    self._hear(answer)

    def _deliver(self, answer: HopAnswer) -> None:
        arrives = self._under_way.pop(answer.call_id, None)
        # An answer that crossed a cancellation is nobody's.
        if arrives is not None and not arrives.done():
            arrives.set_result(answer)

    def _hear(self, answer: HopAnswer) -> None:
        """What answers no call."""
        match answer.WhichOneof("answer"):
            case "hint":
                self._listener.hinted(answer.hint)
            case "draining":
                self.draining = True
            case "error":
                _log.error(
                    "another process refused a frame",
                    peer=self.address,
                    error=error_of(answer.error),
                )
            case _:
                _log.warning("another process sent what is not known here", peer=self.address)

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._outbox.abandon()
        lost, self._under_way = self._under_way, {}
        for arrives in lost.values():
            if not arrives.done():
                arrives.set_result(Elsewhere(f"the stream to {self.address} was lost"))
        self._listener.lost(self)
