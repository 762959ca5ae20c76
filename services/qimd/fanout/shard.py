"""One writer shard under one term: its outboxes, whose turn it is, and how far each has come."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

from qimd.core.lease import Term
from qimd.core.records import ConversationKey, Event
from qimd.fanout.logic import Outbox, Standing
from qimd.ports.runtime import Runtime
from qimd.ports.store import Pending
from qimd.telemetry.metrics import Metrics

TAILS_KEPT_MAX: Final = 65_536
"""Empty outboxes whose last event is remembered: each saves a read when its conversation goes on,
and takes about 300 bytes.
"""


class Shard:
    """Synchronous: what is told and what is done changes it between two awaits of the loops."""

    def __init__(self, term: Term, runtime: Runtime, metrics: Metrics) -> None:
        self.term = term
        self.wake = asyncio.Event()
        """Something waits to be dispatched."""
        self.moved_on = asyncio.Event()
        """Some outbox's progress is to be stored."""
        self.progress_ended = asyncio.Event()
        """The task that stores progress has ended."""
        self.scanned_s: float | None = None
        """When the store was last asked for pending conversations (monotonic)."""
        self.backlog = 0
        """Committed events that are not dispatched yet."""
        self.last_batch_s = float("-inf")
        """When the last batch was done, well or not (monotonic)."""
        self.halted = ""
        """Why nothing is produced until a restart."""
        self._runtime = runtime
        self._gauge = metrics.outbox_backlog.labels(str(term.shard))
        self._gauge.set(0)
        self._outboxes: dict[ConversationKey, Outbox] = {}
        self._ready: deque[Outbox] = deque()
        self._moved: dict[ConversationKey, Outbox] = {}
        self._tails: OrderedDict[ConversationKey, int] = OrderedDict()

    def may_write(self) -> bool:
        """Judged at each write, against the clock."""
        return self.term.may_write(self._runtime.monotonic_s())

    # --- what comes in ---

    def told(self, events: Sequence[Event]) -> None:
        """The writer committed events of one conversation."""
        if not events:
            return
        key = events[0].key
        outbox = self._outboxes.get(key)
        before = outbox.size if outbox else 0
        if outbox is None:
            seq, tail = events[0].conversation_seq, self._tails.pop(key, None)
            outbox = Outbox.first_told(key, seq, known_tail=tail)
            self._outboxes[key] = outbox
        outbox.tell(events)
        self._resized(outbox, before)
        self._queue_up(outbox)

    def found(self, pending: Sequence[Pending]) -> None:
        """The store's list of conversations with a non-empty outbox."""
        for listed in pending:
            outbox = self._outboxes.get(listed.key)
            if outbox is None:
                # What was dispatched here is listed if that came about while the list was on its
                # way, or if the store has lost the progress: the claim tells.
                self._tails.pop(listed.key, None)
                outbox = Outbox.inherited(
                    listed.key, listed.dispatched_through, listed.head_version
                )
                self._outboxes[listed.key] = outbox
                self._resized(outbox, 0)
            else:
                before = outbox.size
                if not outbox.found(listed.head_version):
                    continue
                self._resized(outbox, before)
            self._queue_up(outbox)

    def verified(self, outbox: Outbox, dispatched_through: int, head: int) -> None:
        """The store's word on an outbox."""
        before = outbox.size
        outbox.verify(dispatched_through, head)
        self._resized(outbox, before)

    def loaded(self, outbox: Outbox, events: Sequence[Event]) -> bool:
        """Events read for an outbox; False if they leave its hole as it was."""
        before = outbox.size
        filled = outbox.load(events)
        self._resized(outbox, before)
        return filled

    # --- whose turn it is ---

    @property
    def waiting(self) -> int:
        """Outboxes that have something to dispatch."""
        return len(self._ready)

    def next(self) -> Outbox:
        """The outbox whose turn it is; it comes back by `again` or by `dispatched`."""
        return self._ready.popleft()

    def again(self, outboxes: Sequence[Outbox], *, first: bool = False) -> None:
        """Let them wait again, in this order: what was tried and not done goes `first`."""
        for outbox in outboxes:
            outbox.queued = True
        if first:
            self._ready.extendleft(reversed(outboxes))
        else:
            self._ready.extend(outboxes)
        if self._ready:
            self.wake.set()

    def _queue_up(self, outbox: Outbox) -> None:
        if not outbox.queued:
            outbox.queued = True
            self._ready.append(outbox)
        self.wake.set()

    # --- what is done ---

    def dispatched(self, outbox: Outbox, through: int) -> None:
        """Every record of an outbox up to `through` is durable in the log."""
        outbox.queued = False
        if through > outbox.durable:
            outbox.done(through)
        if outbox.durable > outbox.advanced:
            self._moved[outbox.key] = outbox
            self.moved_on.set()
        if outbox.waiting or outbox.standing is not Standing.SETTLED:
            self._queue_up(outbox)
        else:
            self._drop_if_empty(outbox)

    def to_store(self) -> Sequence[Outbox]:
        """The outboxes whose progress is to be stored; they stay until `stored`."""
        self.moved_on.clear()
        return tuple(self._moved.values())

    def stored(self, outbox: Outbox, through: int) -> None:
        """The progress of an outbox is durable in the store."""
        before = outbox.size
        outbox.stored(through)
        self._resized(outbox, before)
        if outbox.advanced >= outbox.durable:
            self._moved.pop(outbox.key, None)
            self._drop_if_empty(outbox)

    def _drop_if_empty(self, outbox: Outbox) -> None:
        if outbox.size or outbox.queued or outbox.standing is not Standing.SETTLED:
            return
        self._outboxes.pop(outbox.key, None)
        self._tails[outbox.key] = outbox.head
        if len(self._tails) > TAILS_KEPT_MAX:
            self._tails.popitem(last=False)

    def _resized(self, outbox: Outbox, before: int) -> None:
        self.backlog += outbox.size - before
        self._gauge.set(self.backlog)
