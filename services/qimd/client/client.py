"""The client of one device: connect, send, receive.

```python
async with Client("localhost:7400", token=token) as client:
    await client.send("kitchen", "the kettle is on")
    async for event in client.events():
        match event:
            case Event():
                print(event.sender, event.body.decode(errors="replace"))
            case Rebased():
                print("some events are gone for good")
```
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Final

from qim.gateway.v1 import gateway_pb2
from qimd.client.backoff import Backoff
from qimd.client.config import ClientConfig, TokenProvider
from qimd.client.inbox import Events, Inbox
from qimd.client.link import RESEND, Link
from qimd.client.model import (
    History,
    Message,
    OutcomeUnknown,
    Reaction,
    ReadMark,
    Report,
    Sent,
    Session,
    as_body,
)
from qimd.client.positions import MemoryPositions, PositionStore
from qimd.client.stream import ClientFrame, ServerFrame, StreamLost
from qimd.client.wire import event_of, outgoing, sent_of, session_of
from qimd.contract.errors import error_of
from qimd.core.errors import ErrorCode, QimError, invalid, unavailable
from qimd.core.parameters import BODY_BYTES_MAX, FRAME_BYTES_MAX, SEND_EVENTS_MAX

_SEND_BYTES_MAX: Final = FRAME_BYTES_MAX // 2

_CLOSE_FLUSH_S: Final = 2.0
"""Closing waits no longer than this for the last ACK; the server is told at the next start else."""


class Client:
    """One device's client. Use it as an async context manager; one event loop, one task group.

    Every method may raise `ClientStopped` (`Replaced`, or the client was closed), and QimError for
    what the server refuses, with what to do in `error.entry`.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        token_provider: TokenProvider | None = None,
        positions: PositionStore | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        """Take `token` for a short run, or a `token_provider` that is asked at every connect.

        Raises QimError(INVALID_ARGUMENT) unless exactly one is given. `positions` keeps where this
        device is between runs; without it the server's copy is where it starts.
        """
        if bool(token) == (token_provider is not None):
            raise invalid("give either token or token_provider", "token")

        async def given() -> str:
            return token

        self._config = config or ClientConfig()
        self._inbox = Inbox(self._config, positions or MemoryPositions())
        self._link = Link(address, token_provider or given, self._config, self._inbox)
        self.user = ""
        self.device = ""
        self.tenant = ""

    async def __aenter__(self) -> "Client":
        """Connect. Raises what AUTH was answered, or UNAVAILABLE after `open_timeout_s`."""
        await self._inbox.load()
        self._link.start(lambda: self._inbox.run(self._link))
        try:
            async with asyncio.timeout(self._config.open_timeout_s):
                stream = await self._link.stream()
        except TimeoutError:
            await self._link.close()
            last = f"; the last try: {self._link.last_end}" if self._link.last_end else ""
            raise QimError(ErrorCode.UNAVAILABLE, f"could not connect{last}") from None
        except BaseException:
            await self._link.close()
            raise
        ok = stream.auth_ok
        self.tenant, self.user, self.device = ok.tenant_id, ok.user_id, ok.device_id
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Acknowledge what was taken, and leave no task and no call behind."""
        try:
            async with asyncio.timeout(_CLOSE_FLUSH_S):
                await self._inbox.flush(self._link.current())
        except (TimeoutError, QimError):
            # The position store holds it; the server learns it at the next connect.
            pass
        finally:
            await self._link.close()

    @property
    def reports(self) -> Sequence[Report]:
        """What this client saw that must not be, and reported to the server; newest last."""
        return tuple(self._inbox.reports)

    @property
    def connects(self) -> int:
        """Streams opened so far: above 1, the client has reconnected."""
        return self._link.connects

    # --- sending ------------------------------------------------------------------------------

    async def send(
        self,
        conversation: str,
        body: bytes | str,
        *,
        client_msg_id: str = "",
        timeout_s: float | None = None,
    ) -> Sent:
        """Send a message; it is durable when this returns.

        Sent again by itself, under one client_msg_id, while its outcome is unknown. Raises
        OutcomeUnknown at the deadline, and QimError where the server refuses it.
        """
        message = Message(as_body(body), client_msg_id)
        return _only(await self.send_many(conversation, [message], timeout_s=timeout_s))

    async def react(
        self,
        conversation: str,
        target_seq: int,
        reaction: str,
        *,
        client_msg_id: str = "",
        timeout_s: float | None = None,
    ) -> Sent:
        """React to the event at `target_seq`. Otherwise as `send`."""
        content = Reaction(reaction, target_seq, client_msg_id)
        return _only(await self.send_many(conversation, [content], timeout_s=timeout_s))

    async def send_many(
        self,
        conversation: str,
        contents: Sequence[Message | Reaction],
        *,
        timeout_s: float | None = None,
    ) -> list[Sent | QimError]:
        """Send any number of events of one conversation, in order; a result for each.

        They go in as few SENDs as the limits allow (100 events, 4 MiB), one after another. The
        valid ones of a SEND commit together; a refused one doesn't stop those behind it. At the
        deadline, those of a SEND that was not answered are OutcomeUnknown, and those behind it
        UNAVAILABLE: they were never sent. Raises OutcomeUnknown only if it is so for all of them.
        """
        deadline_s = self._deadline(timeout_s)
        events = [
            outgoing(content, content.client_msg_id or secrets.token_hex(16))
            for content in contents
        ]
        results: dict[int, Sent | QimError] = {
            index: _too_large(event)
            for index, event in enumerate(events)
            if event.ByteSize() > _SEND_BYTES_MAX
        }
        left = [index for index in range(len(events)) if index not in results]
        for batch in _batches([events[index] for index in left]):
            places, left = left[: len(batch)], left[len(batch) :]
            try:
                answered = await self._send_batch(conversation, batch, deadline_s)
            except OutcomeUnknown as unknown:
                if len(batch) == len(events):
                    raise
                results |= dict.fromkeys(places, unknown)
                results |= dict.fromkeys(left, unavailable("not sent: the deadline has passed"))
                break
            results |= zip(places, answered, strict=True)
        return [results[index] for index in range(len(events))]

    async def _send_batch(
        self, conversation: str, events: Sequence[gateway_pb2.OutgoingEvent], deadline_s: float
    ) -> list[Sent | QimError]:
        pause = Backoff(self._config.backoff_first_s, self._config.backoff_most_s)
        results: dict[int, Sent | QimError] = {}
        open_indexes = list(range(len(events)))
        try:
            async with asyncio.timeout_at(deadline_s):
                while True:
                    retry_after_ms = await self._try_send(
                        conversation, events, open_indexes, results
                    )
                    open_indexes = [i for i in open_indexes if i not in results]
                    if not open_indexes:
                        return [results[i] for i in range(len(events))]
                    await asyncio.sleep(max(pause.next_s(), retry_after_ms / 1000))
        except TimeoutError:
            ids = tuple(events[i].client_msg_id for i in open_indexes)
            unknown = OutcomeUnknown("SEND was not answered before the deadline", ids)
            if len(ids) == len(events):
                raise unknown from None
            return [results.get(i, unknown) for i in range(len(events))]

    async def _try_send(
        self,
        conversation: str,
        events: Sequence[gateway_pb2.OutgoingEvent],
        indexes: Sequence[int],
        results: dict[int, Sent | QimError],
    ) -> int:
        """Send those events once and note what is certain; the server's retry_after_ms."""
        stream = await self._link.stream()
        send = gateway_pb2.Send(conversation_id=conversation, events=[events[i] for i in indexes])
        retry_after_ms = 0
        try:
            answer = await stream.request(ClientFrame(send=send))
        except QimError as error:
            if error.code not in RESEND:
                raise
            return error.retry_after_ms
        for index, result in zip(indexes, answer.send_ack.results, strict=True):
            if result.WhichOneof("outcome") == "accepted":
                results[index] = sent_of(result)
                continue
            refusal = error_of(result.error)
            if refusal.code in RESEND:
                retry_after_ms = max(retry_after_ms, refusal.retry_after_ms)
            else:
                results[index] = refusal
        return retry_after_ms

    # --- receiving ----------------------------------------------------------------------------

    def events(self, *, until_caught_up: bool = False) -> Events:
        """Events in order, once each, as they come; `Rebased` where some are gone for good.

        Asking for the next one acknowledges the one before, unless `auto_ack` is off. With
        `until_caught_up` the iteration ends when the mailbox held nothing more. One task iterates.
        """
        return Events(self._inbox, self._link, until_caught_up=until_caught_up)

    async def ack(self) -> None:
        """Acknowledge everything handed over so far: kept durably here, then told to the server."""
        self._inbox.take_all()
        try:
            await self._inbox.flush(self._link.current())
        except StreamLost:
            # It is kept here; the server is told after the next page.
            return

    # --- asking -------------------------------------------------------------------------------

    async def history(self, conversation: str, *, before_seq: int = 0, limit: int = 100) -> History:
        """Events of a conversation below `before_seq` (0: from the end), the newest first taken."""
        pull = gateway_pb2.PullHistory(
            conversation_id=conversation, before_seq=before_seq, limit=limit
        )
        page = (await self._ask(ClientFrame(pull_history=pull))).history_page
        return History(tuple(event_of(event) for event in page.events), page.more)

    async def sessions(self, *, page_size: int = 0) -> AsyncIterator[Session]:
        """The user's conversations, the latest activity first, each once."""
        token = b""
        while True:
            pull = gateway_pb2.PullSessionList(page_token=token, limit=page_size)
            page = (await self._ask(ClientFrame(pull_session_list=pull))).session_list
            for session in page.sessions:
                yield session_of(session)
            token = page.next_page_token
            if not token:
                return

    async def mark_read(self, conversation: str, through_seq: int) -> ReadMark:
        """Raise the read mark; it never goes back."""
        mark = gateway_pb2.MarkRead(conversation_id=conversation, read_through_seq=through_seq)
        ok = (await self._ask(ClientFrame(mark_read=mark))).read_ok
        return ReadMark(ok.conversation_id, ok.read_through_seq, ok.unread_count)

    async def ping(self) -> int:
        """The server's time in milliseconds since the Unix epoch."""
        answer = await self._ask(ClientFrame(ping=gateway_pb2.Ping()))
        return answer.pong.server_time_ms

    async def _ask(self, frame: ClientFrame) -> ServerFrame:
        return await self._link.call(frame, self._deadline(None))

    def _deadline(self, timeout_s: float | None) -> float:
        seconds = self._config.request_timeout_s if timeout_s is None else timeout_s
        return asyncio.get_running_loop().time() + seconds


def _only(results: Sequence[Sent | QimError]) -> Sent:
    (result,) = results
    if isinstance(result, QimError):
        raise result
    return result


def _too_large(event: gateway_pb2.OutgoingEvent) -> QimError:
    """What no frame takes would end the stream, and everything else that is on its way."""
    return invalid(
        f"the event {event.client_msg_id} has {event.ByteSize()} bytes; a body has at most "
        f"{BODY_BYTES_MAX}",
        "events.message.body",
    )


def _batches(
    events: Sequence[gateway_pb2.OutgoingEvent],
) -> list[list[gateway_pb2.OutgoingEvent]]:
    """Cut into SENDs: at most 100 events, and under half of a frame's limit in bytes."""
    batches: list[list[gateway_pb2.OutgoingEvent]] = []
    size = 0
    for event in events:
        event_size = event.ByteSize() + 8
        full = not batches or len(batches[-1]) == SEND_EVENTS_MAX
        if full or size + event_size > _SEND_BYTES_MAX:
            batches.append([])
            size = 0
        batches[-1].append(event)
        size += event_size
    return batches
