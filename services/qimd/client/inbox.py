"""The receiving side of a device: pulls pages, hands events over, acknowledges what was taken.

Items wait in one queue, in the order in which the application is to see them. A page puts its
`covered_through` behind its events as an item of its own, so that a position is reached exactly
when everything before it was taken, pushed events included. The next page is pulled only then: what
a PULL presents is really the application's.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from qim.gateway.v1 import gateway_pb2
from qimd.client.backoff import Backoff
from qimd.client.config import ClientConfig
from qimd.client.link import RESEND, Link
from qimd.client.logic import Sequencer
from qimd.client.model import Event, Head, Position, Rebased, Report
from qimd.client.positions import PositionStore
from qimd.client.stream import ClientFrame, Stream, StreamLost
from qimd.client.wire import delivered, report_frame
from qimd.core.errors import ErrorCode, QimError

REPORTS_KEPT: Final = 1_000
"""Reports that `Client.reports` shows; a broken mailbox must not fill the memory."""


@dataclass(frozen=True, slots=True)
class _Item:
    """Something to hand over, or a page's mark."""

    value: Event | Rebased | None = None
    position: int = 0
    """mailbox_seq reached once this was taken; 0: none (a pushed event)."""
    page: int = 0
    """The number of the pull whose mark this is; 0: not a mark."""
    caught_up: bool = False
    """On a mark: nothing more was ready."""


class Inbox:
    """Made before the link, which it listens to."""

    def __init__(self, config: ClientConfig, positions: PositionStore) -> None:
        self._config = config
        self._positions = positions
        self._sequencer: Sequencer | None = None
        self._wanted = asyncio.Event()
        """Nothing is pulled for an application that never asks for events."""
        self._due = asyncio.Event()
        """Wakes the pulling side: a push came, the stream changed, the application waits."""

        self._queue: deque[_Item] = deque()
        self._filled = asyncio.Event()
        self._current: _Item | None = None
        """Handed over; taken once the application asks for the next one."""
        self._unacked: deque[_Item] = deque()
        self._pulls = 0
        self._pulls_taken = 0
        self._taken = asyncio.Event()

        self._user = ""
        self._position = 0
        self._heads: dict[str, Head] = {}
        self._unsaved = False
        self._acked = 0
        self._pulled_on: Stream | None = None
        self._flushing = asyncio.Lock()
        self._unsent: deque[Report] = deque(maxlen=REPORTS_KEPT)
        self.reports: deque[Report] = deque(maxlen=REPORTS_KEPT)
        """What was seen that must not be, newest last."""

    async def load(self) -> None:
        """Read the stored position, before the first stream is opened."""
        stored = await self._positions.load()
        if stored is not None:
            self._position = stored.applied_seq
            self._heads = dict(stored.heads)

    # --- from the link ------------------------------------------------------------------------

    def on_open(self, stream: Stream) -> None:
        """A new stream was authenticated."""
        self._user = stream.auth_ok.user_id
        if self._sequencer is None:
            # What this device kept itself is its truth; one that kept nothing asks the server.
            self._position = self._position or stream.auth_ok.last_applied_mailbox_seq
            self._sequencer = Sequencer(self._user, self._position, self._heads)
        self._sequencer.lost_stream()
        self._due.set()

    def on_push(self, push: gateway_pb2.PushEvents) -> None:
        """PUSH_EVENTS: a hint."""
        if self._sequencer is None or not self._wanted.is_set():
            return
        for event in delivered(push.events):
            if len(self._queue) < self._config.queue_events_max:
                self._put([_Item(shown) for shown in self._sequencer.push((event,))])
            else:
                self._sequencer.hold(event)
        self._due.set()

    def on_down(self) -> None:
        """Whoever waits looks again: at a new stream, or at why there is none."""
        self._due.set()
        self._filled.set()
        self._taken.set()

    # --- to the application -------------------------------------------------------------------

    async def next_item(self, link: Link) -> _Item:
        """The next item, handed over: the one before counts as taken.

        Raises what stopped the link, once everything received before was handed over.
        """
        self._take_current()
        while not self._queue:
            if link.failure is not None:
                raise link.failure
            self._filled.clear()
            await self._filled.wait()
        self._current = self._queue.popleft()
        return self._current

    def want(self) -> int:
        """The application asks for events; the number of pulls that were answered before."""
        self._wanted.set()
        return self._pulls

    def look(self) -> None:
        """Pull now, even if nothing says that it is due."""
        if self._sequencer is not None:
            self._sequencer.behind = True
        self._due.set()

    def take_all(self) -> None:
        """Everything handed over so far is the application's, and acknowledged by it."""
        self._take_current()
        self._apply()

    def _take_current(self) -> None:
        item, self._current = self._current, None
        if item is None:
            return
        self._unacked.append(item)
        if self._config.auto_ack:
            self._apply()
        if item.page:
            self._pulls_taken = item.page
            self._taken.set()

    def _apply(self) -> None:
        for item in self._unacked:
            self._unsaved |= item.position > self._position
            self._position = max(self._position, item.position)
            if isinstance(item.value, Event):
                self._apply_event(item.value)
        self._unacked.clear()

    def _apply_event(self, event: Event) -> None:
        head = self._heads.get(event.conversation, Head(0))
        if event.seq > head.seq:
            stays = head.member and not event.lets_out(self._user)
            self._heads[event.conversation] = Head(event.seq, stays or event.lets_in(self._user))
            self._unsaved = True

    def _put(self, items: list[_Item]) -> None:
        if items:
            self._queue.extend(items)
            self._filled.set()

    # --- pulling ------------------------------------------------------------------------------

    async def run(self, link: Link) -> None:
        """Pull whenever a page is due, for as long as the link lives."""
        await self._wanted.wait()
        pause = Backoff(self._config.backoff_first_s, self._config.backoff_most_s)
        refused = False
        while True:
            await self._until_taken(link)
            stream = await link.stream()
            try:
                await self.flush(stream)
                # Only a position that was pulled and acknowledged clears a refusal of either.
                refused = refused and stream is not self._pulled_on
                await self._until_due(stream)
                advanced = await self._pull(stream)
                await self._send_reports(stream)
            except StreamLost:
                continue
            except QimError as error:
                if error.code is ErrorCode.CURSOR_INVALID and not refused:
                    # A token may have gone stale with the shard's epoch or the server's keys: a new
                    # stream brings a new one. A position that is refused twice is a real fault, and
                    # going on elsewhere would lose events without a word.
                    refused = True
                    stream.abandon("the cursor was refused")
                    continue
                if error.code not in RESEND:
                    raise
                advanced = False
            if advanced:
                pause.reset()
            elif self._order.behind:
                await asyncio.sleep(pause.next_s())

    @property
    def _order(self) -> Sequencer:
        if self._sequencer is None:
            raise RuntimeError("no stream was opened yet")
        return self._sequencer

    async def _until_taken(self, link: Link) -> None:
        while self._pulls_taken < self._pulls:
            if link.failure is not None:
                raise link.failure
            self._taken.clear()
            await self._taken.wait()

    async def _until_due(self, stream: Stream) -> None:
        while not (stream.ended.is_set() or self._order.behind):
            unconfirmed = self._order.unconfirmed
            if unconfirmed >= self._config.idle_pull_events:
                return
            self._due.clear()
            try:
                async with asyncio.timeout(
                    self._config.idle_pull_s if unconfirmed else self._config.poll_s
                ):
                    await self._due.wait()
            except TimeoutError:
                return

    async def _pull(self, stream: Stream) -> bool:
        """One page; whether it moved the position."""
        order = self._order
        before = order.covered_through
        pull = gateway_pb2.PullMailbox(
            cursor_token=stream.cursor_token,
            last_applied_mailbox_seq=before,
            limit=self._config.page_events,
        )
        answer = await stream.request(ClientFrame(pull_mailbox=pull))
        self._pulled_on = stream
        if answer.WhichOneof("frame") == "cursor_rebased":
            self._rebase(stream, answer.cursor_rebased)
        else:
            self._page(stream, answer.mailbox_page)
        return order.covered_through > before

    def _page(self, stream: Stream, page: gateway_pb2.MailboxPage) -> None:
        order = self._order
        stream.cursor_token = page.cursor_token or stream.cursor_token
        events = delivered(page.events)
        verdict = order.page(events, page.covered_through_seq, more=page.more)
        self._pulls += 1
        self._put([_Item(event, event.mailbox_seq) for event in verdict.show])
        self._put([_Item(position=order.covered_through)])
        self._put([_Item(event) for event in verdict.early])
        self._put([_Item(page=self._pulls, caught_up=not order.behind)])
        self._unsent.extend(verdict.reports)
        self.reports.extend(verdict.reports)

    def _rebase(self, stream: Stream, rebased: gateway_pb2.CursorRebased) -> None:
        stream.cursor_token = rebased.cursor_token
        self._order.rebased(rebased.last_applied_mailbox_seq)
        self._pulls += 1
        lost = Rebased(rebased.lost_from_seq, rebased.lost_through_seq)
        self._put([_Item(lost, rebased.last_applied_mailbox_seq), _Item(page=self._pulls)])

    # --- acknowledging and reporting ----------------------------------------------------------

    async def flush(self, stream: Stream | None) -> None:
        """Keep the acknowledged position here, then tell the server of it.

        Only a stream that has pulled may acknowledge: the server takes what it covered.
        """
        async with self._flushing:
            position = self._position
            if self._unsaved:
                self._unsaved = False
                await self._positions.save(Position(position, dict(self._heads)))
            if stream is None or stream is not self._pulled_on or position <= self._acked:
                return
            ack = gateway_pb2.AckMailbox(last_applied_mailbox_seq=position)
            await stream.request(ClientFrame(ack_mailbox=ack))
            self._acked = position

    async def _send_reports(self, stream: Stream) -> None:
        while self._unsent:
            report = self._unsent[0]
            answer = await stream.request(report_frame(report))
            self._unsent.popleft()
            found = replace(report, confirmed=answer.report_ok.confirmed)
            for index, kept in enumerate(self.reports):
                if kept is report:
                    self.reports[index] = found


class Events(AsyncIterator[Event | Rebased]):
    """What a client receives, in order, once each. Asking for the next one takes the one before."""

    def __init__(self, inbox: Inbox, link: Link, *, until_caught_up: bool) -> None:
        self._inbox = inbox
        self._link = link
        self._until_caught_up = until_caught_up
        self._after = inbox.want()
        if until_caught_up:
            inbox.look()

    def __aiter__(self) -> "Events":
        return self

    async def __anext__(self) -> Event | Rebased:
        """Raises what stopped the client."""
        while True:
            item = await self._inbox.next_item(self._link)
            if item.value is not None:
                return item.value
            if self._until_caught_up and item.caught_up and item.page > self._after:
                raise StopAsyncIteration
