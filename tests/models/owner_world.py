"""The world of `owners`: clients, owners, batches on their way, and what must hold of all of it."""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Final, NamedTuple

from tests.models.dispatches import KEY, Record, View, event_of, extend
from tests.models.promises import Step, Store

from qimd.fanout.logic import Outbox, Standing

NAMES: Final = "ABCD"


CHANGE: Final = 0
"""The first event is a membership change: it has no idempotency key, and an administrator who gets
no answer looks at the members instead of sending it again. The others are messages.
"""


class Client(NamedTuple):
    """One event and who asks for it: how often, and what the answer was."""

    sends: int = 0
    acked: int = 0
    """The conversation_seq of the SEND_ACK."""
    refused: bool = False
    """Told for certain that nothing was written, so it is not sent again."""


class Call(NamedTuple):
    """What an owner was asked for. `step` is None until it has a place behind the head."""

    event: int
    step: Step | None = None
    open_tries: int = 0


class Box(NamedTuple):
    """`fanout.logic.Outbox` as a value."""

    advanced: int
    durable: int
    head: int
    standing: Standing
    waiting: tuple[int, ...]


class Flight(NamedTuple):
    """The batch that an owner waits for."""

    number: int
    through: int
    size: int


class Owner(NamedTuple):
    """A writer shard's owner under one term, writer and fanout."""

    number: int
    """1 for the first owner, 2 for its successor …"""
    epoch: int
    call: Call | None = None
    head: int | None = None
    """The writer's guess of the head; None: to be claimed and read."""
    known: int | None = None
    """The last head that the writer has known."""
    scanned: bool = False
    box: Box | None = None
    tail: int | None = None
    """Where an outbox was left empty."""
    flight: Flight | None = None
    batches: int = 0


class Batch(NamedTuple):
    """Records on their way to the log: `left` will land in order, or be lost from some point on."""

    owner: int
    number: int
    landed: int
    left: tuple[Record, ...]


class World(NamedTuple):
    """Everything."""

    store: Store
    owners: tuple[Owner | None, ...]
    clients: tuple[Client, ...]
    late: tuple[Step, ...] = ()
    """Commits that nobody waits for any more, and that may land yet."""
    air: tuple[Batch, ...] = ()
    log: tuple[Record, ...] = ()
    faults: int = 0


def thaw(box: Box) -> Outbox:
    waiting = deque(event_of(seq) for seq in box.waiting)
    return Outbox(KEY, box.advanced, box.durable, box.head, box.standing, waiting)


def freeze(outbox: Outbox) -> Box:
    waiting = tuple(event.conversation_seq for event in outbox.waiting)
    return Box(outbox.advanced, outbox.durable, outbox.head, outbox.standing, waiting)


@cache
def view_of(log: tuple[Record, ...]) -> View:
    """The mailbox after a log."""
    return extend(view_of(log[:-1]), len(log) - 1, log[-1]) if log else View()


def answers_problem(world: World) -> str:
    """What clients were told is true of the store."""
    events = world.store.events
    if world.store.head != len(events):
        return f"the head says {world.store.head}, there are {len(events)} events"
    for message, client in enumerate(world.clients):
        if client.acked and events[client.acked - 1 : client.acked] != (message,):
            return f"{text(message)} was acknowledged at {client.acked}, and is not there"
        if client.refused and message in events:
            return f"{text(message)} was refused as not written, and is there"
        if events.count(message) > 1:
            return f"{text(message)} is there twice"
    return ""


def mailbox_problem(store: Store, view: View) -> str:
    """Every member finds the conversation's events, in order, each once."""
    if view.overtaken:
        return view.overtaken
    seqs = [entry.seq for entry in view.entries]
    if seqs != list(range(1, len(seqs) + 1)):
        return f"the mailbox holds the events {seqs}: out of order, or one is missing"
    for entry in view.entries:
        if store.events[entry.seq - 1] != entry.message:
            return f"the mailbox holds another event at {entry.seq} than the store"
    if store.dispatched_through > len(seqs):
        return f"progress says {store.dispatched_through}, the mailbox has {len(seqs)}: a loss"
    return ""


@cache
def healed_problem(store: Store, log: tuple[Record, ...], air: tuple[Batch, ...]) -> str:
    """Whatever happened: one more owner, undisturbed, brings every committed event to the mailbox,
    whether what is still on its way lands before its records or after them.
    """
    epoch, number = store.shard_epoch + 1, len(NAMES)
    outbox = Outbox.inherited(KEY, store.dispatched_through, store.head)
    outbox.verify(store.dispatched_through, store.head)
    outbox.load([event_of(seq) for seq in range(outbox.tail + 1, store.head + 1)])
    drained = tuple(
        Record(event.conversation_seq, store.events[event.conversation_seq - 1], epoch, number)
        for event in outbox.run(store.head)
    )
    on_its_way = tuple(record for batch in air for record in batch.left)
    for healed in ((*log, *on_its_way, *drained), (*log, *drained, *on_its_way)):
        view = view_of(healed)
        problem = mailbox_problem(store, view)
        if not problem and len(view.entries) < store.head:
            problem = f"the mailbox ends at {len(view.entries)}, the store at {store.head}"
        if problem:
            return f"after a take-over in peace {problem}"
    return ""


def text(event: int) -> str:
    return "a change of members" if event == CHANGE else f"message {event}"
