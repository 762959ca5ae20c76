"""What a fanout decides: what of a conversation's outbox is known, what may go out, what is done.

An outbox is the events in (dispatched_through, head]. The fanout hears of new ones from its writer
and reads inherited ones from the store; either way it dispatches them in order, without a hole, and
only ever says "done" of a prefix. Three positions stand for that:

    advanced ≤ durable ≤ head
    │          │         └ the last event known to be committed
    │          └ every record up to here is durable in the log
    └ the stored dispatched_through, as far as it is known

What is told may have holes (an old owner's late write that nobody told, a first word from a
conversation that the fanout has never seen). A hole is never guessed over: the outbox is read from
the store, and nothing behind the hole goes out before it is filled.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from typing import Final

from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.parameters import (
    DISPATCH_CHUNK_RECIPIENTS,
    GROUP_DISPATCH_BYTES_MAX,
    ID_BYTES_MAX,
)
from qimd.core.records import ConversationKey, Event

ENCODED_KEPT_BYTES: Final = 1024
"""Small encodings are not worth a copy of their event: a full backlog of them is 10 MiB."""

ACKNOWLEDGED_WITHIN_S: Final = 0.001
"""By then the acknowledgement of what was just committed has left."""

STREAM_WITHIN_S: Final = 0.01
"""What is committed so soon after a batch is taken for a part of a stream of messages."""

STREAM_PAUSE_S: Final = 0.05
"""Between two batches of a stream. What a batch sets off takes the process 10 ms: most of the time
is free for SENDs, and nobody sees by it that a message comes later."""

_RECIPIENT_BYTES_MAX: Final = ID_BYTES_MAX + 3 + 8
"""A recipient's share of a record: its id with tag and length, and a lane block's own bytes."""


class Standing(Enum):
    """How much of an outbox is known."""

    INHERITED = "inherited"
    """Found in the store: its head is to be claimed, then its events read."""
    UNVERIFIED = "unverified"
    """First heard of from the writer: whether it starts right behind what is dispatched is to be
    looked up.
    """
    HOLE = "hole"
    """Events up to `head` are to be read from the store."""
    SETTLED = "settled"
    """`waiting` is all of (durable, head]."""


@dataclass(slots=True)
class Outbox:
    """One conversation's outbox. `waiting` holds consecutive events from `durable + 1` on."""

    key: ConversationKey
    advanced: int
    durable: int
    head: int
    standing: Standing
    waiting: deque[Event] = field(default_factory=deque)
    queued: bool = False
    """It stands in its shard's queue, or in the batch under way."""

    @classmethod
    def inherited(cls, key: ConversationKey, dispatched_through: int, head: int) -> "Outbox":
        """One that the store lists as pending."""
        return cls(key, dispatched_through, dispatched_through, head, Standing.INHERITED)

    @classmethod
    def first_told(cls, key: ConversationKey, seq: int, *, known_tail: int | None) -> "Outbox":
        """One whose first event is told now. `known_tail` is where it was left empty, if that is
        remembered.
        """
        if known_tail is None:
            return cls(key, seq - 1, seq - 1, seq - 1, Standing.UNVERIFIED)
        return cls(key, known_tail, known_tail, known_tail, Standing.SETTLED)

    @property
    def size(self) -> int:
        """How many events it adds to the backlog."""
        return self.head - self.advanced

    @property
    def tail(self) -> int:
        """The last event held, or what is durable if none is."""
        return self.waiting[-1].conversation_seq if self.waiting else self.durable

    def tell(self, events: Sequence[Event]) -> None:
        """The writer committed these, in order. What is known already is passed over."""
        for event in events:
            seq = event.conversation_seq
            self.head = max(self.head, seq)
            if seq == self.tail + 1 and self.standing in {Standing.SETTLED, Standing.UNVERIFIED}:
                self.waiting.append(without_body(event))
            elif seq > self.tail and self.standing is Standing.SETTLED:
                self.standing = Standing.HOLE

    def found(self, head: int) -> bool:
        """The store lists it with this head; whether that was news."""
        if head <= self.head:
            return False
        self.head = head
        if self.standing is Standing.SETTLED:
            self.standing = Standing.HOLE
        return True

    def verify(self, dispatched_through: int, head: int) -> None:
        """What the store says of it, read after its first event was told, or with its claim."""
        self.head = max(self.head, head)
        if self.standing is Standing.UNVERIFIED and dispatched_through == self.durable:
            self.standing = Standing.SETTLED if self.tail == self.head else Standing.HOLE
            return
        self.waiting.clear()
        self.advanced = self.durable = dispatched_through
        self.standing = Standing.HOLE if self.durable < self.head else Standing.SETTLED

    def load(self, events: Sequence[Event]) -> bool:
        """Events read from the store behind `tail`; False if they leave the hole as it was."""
        before = self.tail
        for event in events:
            if event.conversation_seq != self.tail + 1:
                break
            self.waiting.append(without_body(event))
        self.head = max(self.head, self.tail)
        if self.tail == self.head:
            self.standing = Standing.SETTLED
        return self.tail > before or self.standing is Standing.SETTLED

    def run(self, limit: int) -> Sequence[Event]:
        """The next consecutive events to dispatch, at most `limit`. They stay until `done`."""
        return tuple(islice(self.waiting, limit))

    def done(self, through: int) -> None:
        """Every record up to `through` is durable in the log."""
        while self.waiting and self.waiting[0].conversation_seq <= through:
            self.waiting.popleft()
        self.durable = through

    def stored(self, through: int) -> None:
        """The progress up to `through` is durable in the store."""
        self.advanced = max(self.advanced, through)


def without_body(event: Event) -> Event:
    """The event without its encoding, if that is large: a record holds no body, and a log that is
    down for ten minutes must not cost 10,000 bodies of 64 KiB.
    """
    return replace(event, encoded=b"") if len(event.encoded) > ENCODED_KEPT_BYTES else event


def largest_record_bytes(chunk_recipients: int) -> int:
    """No record of `chunk_recipients` users a chunk is larger."""
    more = chunk_recipients - DISPATCH_CHUNK_RECIPIENTS
    return GROUP_DISPATCH_BYTES_MAX + more * _RECIPIENT_BYTES_MAX


# --- batches ---------------------------------------------------------------------------------


def hold_s(now_s: float, last_batch_s: float) -> float:
    """How long to hold back what waits now. `last_batch_s` is when the last batch was done.

    What follows a commit (its dispatch, the mailbox, the session list) runs in the process that
    takes the next SEND, and costs about as much for fifty messages as for one. So a message that
    comes by itself is dispatched as soon as its acknowledgement has left, and those of a stream are
    gathered.
    """
    since_s = now_s - last_batch_s
    left_s = STREAM_PAUSE_S - since_s if since_s < STREAM_WITHIN_S else 0.0
    return max(left_s, ACKNOWLEDGED_WITHIN_S)


# --- deliveries --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a batch: sent again as a whole unless `settled`."""

    settled: bool
    rejected: tuple[int, ...] = ()
    """Indexes of records that can never be appended. They go to quarantine."""
    detail: str = ""


def judge(outcomes: Sequence[Outcome[None]]) -> Verdict:
    """Judge the deliveries of one batch.

    Anything but "appended" and "can never be appended" leaves the whole batch to be sent again, by
    a new producer: what landed behind a record that did not would otherwise overtake it.
    """
    rejected: list[int] = []
    for index, outcome in enumerate(outcomes):
        match outcome:
            case Applied():
                pass
            case NotApplied(refusal=Refusal.REJECTED):
                rejected.append(index)
            case NotApplied(refusal=refusal, detail=detail):
                return Verdict(False, detail=f"{refusal.value}: {detail}")
            case Unknown(detail=detail):
                return Verdict(False, detail=f"unknown: {detail}")
    return Verdict(True, tuple(rejected))
