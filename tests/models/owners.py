"""Writer and fanout: owners of one writer shard, each of which may pause for ever between any two
of its steps, call a store whose replies get lost or land late, and produce batches that fail.

Why it is hard. A lease may end early, so two owners believe in one shard, and nothing but the
epochs in the store and in the log keeps them apart. A paused owner wakes up with a head, an outbox
and a batch in flight that are history, and goes on where it stopped. A lost reply says nothing of
whether a commit was applied, is refused, or will land minutes later.

What runs here is the rooms' own logic: `writer.logic` judges outcomes and prior results,
`fanout.logic.Outbox` knows what may go out and what is done, `fanout.logic.judge` settles a batch,
`mailbox.logic.plan` filters the log. The store is `promises`; the log lands a prefix of each batch,
in order, as `ports.log.Producer` promises. What the services do between two decisions is written
out again below, one step for each await.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from tests.models.dispatches import KEY, Record, event_of
from tests.models.explore import Steps
from tests.models.owner_world import (
    CHANGE,
    NAMES,
    Batch,
    Box,
    Call,
    Client,
    Flight,
    Owner,
    World,
    answers_problem,
    freeze,
    healed_problem,
    mailbox_problem,
    text,
    thaw,
    view_of,
)
from tests.models.promises import Step, Store, StorePromise

from qimd.core.errors import QimError
from qimd.core.ids import content_digest
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.records import Accepted
from qimd.fanout import logic as fanout
from qimd.fanout.logic import Outbox, Standing
from qimd.ports.store import PriorResult
from qimd.writer import logic as writer

T = TypeVar("T")

RUN_MAX: Final = 2
"""Events of a run: enough for a batch that fails in its middle."""


@dataclass(frozen=True)
class OwnersModel:
    """See the module."""

    store: StorePromise
    owners: int
    messages: int
    sends: int
    """How often a client sends one message."""
    batches: int
    """Batches that each owner produces."""
    faults: int
    """Lost replies, late landings, refusals and failed batches, in all."""

    @property
    def name(self) -> str:
        return f"owners of a writer shard, a store that {self.store.name}"

    @property
    def bounds(self) -> Mapping[str, int]:
        return {
            "owners": self.owners,
            "events": self.messages,
            "sends of each": self.sends,
            "batches an owner": self.batches,
            "faults": self.faults,
        }

    def initial(self) -> World:
        # What was computed under other rules must not answer for these.
        view_of.cache_clear()
        healed_problem.cache_clear()
        return World(Store(), (), (Client(),) * self.messages)

    # --- what may happen ---

    def steps(self, world: World) -> Steps[World]:
        if len(world.owners) < self.owners:
            yield self._takeover(world)
        for step in world.late:
            late = tuple(other for other in world.late if other is not step)
            store, _ = self.store.commit(world.store, step)
            yield (
                f"{text(step.event)} behind {step.expected_head} lands, late",
                (world._replace(store=store, late=late)),
            )
        yield from _landings(world)
        for place, owner in enumerate(world.owners):
            if owner is not None:
                yield f"{_who(owner)} dies", _put(world, place, None)
                yield from self._writer_steps(world, place, owner)
                yield from self._fanout_steps(world, place, owner)

    def _takeover(self, world: World) -> tuple[str, World]:
        store = self.store.raise_epoch(world.store)
        owner = Owner(len(world.owners) + 1, store.shard_epoch)
        words = f"{_who(owner)} takes the shard over, under epoch {owner.epoch}"
        return words, world._replace(store=store, owners=(*world.owners, owner))

    # --- the writer ---

    def _writer_steps(self, world: World, place: int, owner: Owner) -> Steps[World]:
        if owner.call is None:
            yield from self._sends(world, place, owner)
        elif owner.head is None:
            yield self._claim(world, place, owner)
        else:
            yield from self._commits(world, place, owner, owner.call, owner.head)

    def _sends(self, world: World, place: int, owner: Owner) -> Steps[World]:
        for message, client in enumerate(world.clients):
            sends_max = 1 if message == CHANGE else self.sends
            if not client.acked and not client.refused and client.sends < sends_max:
                clients = _with(world.clients, message, client._replace(sends=client.sends + 1))
                taken = owner._replace(call=Call(message))
                words = f"{text(message)} is sent to {_who(owner)}"
                yield words, _put(world._replace(clients=clients), place, taken)
            if client.sends == 0:
                # Messages are alike: the next one follows once this one has been sent.
                return

    def _claim(self, world: World, place: int, owner: Owner) -> tuple[str, World]:
        store, outcome = self.store.claim(world.store, owner.epoch)
        if not isinstance(outcome, Applied):
            return f"{_who(owner)} can't claim the head, steps down", _put(world, place, None)
        moved = owner.known is not None and store.head > owner.known
        found = range((owner.known or 0) + 1, store.head + 1) if moved else ()
        owner = _tell(owner._replace(head=store.head, known=store.head), found)
        return f"{_who(owner)} claims the head, at {store.head}", (
            _put(world._replace(store=store), place, owner)
        )

    def _commits(
        self, world: World, place: int, owner: Owner, call: Call, head: int
    ) -> Steps[World]:
        event = call.event
        if call.step is None and event == CHANGE and event in world.store.events:
            told = _acked(world, event, world.store.events.index(event) + 1)
            words = f"{_who(owner)} finds {text(event)} made"
            yield words, _put(told, place, owner._replace(call=None))
            return
        step = call.step or Step(owner.epoch, head, event, keyed=event != CHANGE)
        owner = owner._replace(call=call._replace(step=step))
        yield from self._issues(world, place, owner, step)

    def _issues(self, world: World, place: int, owner: Owner, step: Step) -> Steps[World]:
        words = f"{_who(owner)} commits {text(step.event)} behind {step.expected_head}"
        store, outcome = self.store.commit(world.store, step)
        applied = world._replace(store=store)
        yield words + ": " + _heard(outcome), self._answered(applied, place, owner, outcome)
        if world.faults >= self.faults:
            return
        applied, world = (each._replace(faults=world.faults + 1) for each in (applied, world))
        yield f"{words}: no reply", self._answered(applied, place, owner, Unknown())
        late = tuple(sorted({*world.late, step}))
        on_its_way = world._replace(late=late)
        yield (
            f"{words}: no reply, it may land late",
            (self._answered(on_its_way, place, owner, Unknown())),
        )
        refusal = NotApplied(Refusal.UNREACHABLE)
        yield f"{words}: unreachable", self._answered(world, place, owner, refusal)

    def _answered(self, world: World, place: int, owner: Owner, outcome: Outcome[int]) -> World:
        """`Shard.settle`, then what the conversation does with the outcome."""
        call = owner.call
        if call is None:
            raise AssertionError("an answer without a call")
        match writer.settled(outcome, call.open_tries):
            case None:
                tries = min(call.open_tries + isinstance(outcome, Unknown), 1)
                return _put(world, place, owner._replace(call=call._replace(open_tries=tries)))
            case Applied(value=seq):
                owner = _tell(owner._replace(call=None, head=seq, known=seq), (seq,))
                return _put(_acked(world, call.event, seq), place, owner)
            case NotApplied(refusal=Refusal.STALE_EPOCH):
                return _put(world, place, None)
            case NotApplied(refusal=Refusal.HEAD_MOVED):
                return _put(world, place, owner._replace(call=Call(call.event), head=None))
            case NotApplied(refusal=Refusal.DUPLICATE):
                seq = _prior(world.store, call.event)
                return _put(_acked(world, call.event, seq), place, owner._replace(call=None))
            case NotApplied():
                world = _refused(world, call.event)
                return _put(world, place, owner._replace(call=None))

    # --- the fanout ---

    def _fanout_steps(self, world: World, place: int, owner: Owner) -> Steps[World]:
        name = _who(owner)
        scanned = _scan(world.store, owner)
        if scanned != owner:
            yield f"{name} asks for pending outboxes", _put(world, place, scanned)
        if not owner.scanned or owner.box is None:
            return
        if owner.flight is not None:
            yield from self._deliveries(world, place, owner, owner.flight, owner.box)
        elif owner.box.standing is not Standing.SETTLED:
            yield self._settle(world, place, owner, owner.box)
        elif owner.box.waiting and owner.batches < self.batches:
            yield self._produce(world, place, owner, owner.box)
        if owner.box.durable > owner.box.advanced:
            yield self._advance(world, place, owner, owner.box)

    def _settle(self, world: World, place: int, owner: Owner, box: Box) -> tuple[str, World]:
        """One of the calls by which all of an outbox gets known."""
        name, outbox, store = _who(owner), thaw(box), world.store
        match box.standing:
            case Standing.INHERITED:
                store, outcome = self.store.claim(store, owner.epoch)
                if not isinstance(outcome, Applied):
                    return f"{name} can't claim its outbox, steps down", _put(world, place, None)
                outbox.verify(store.dispatched_through, store.head)
                words = f"{name} claims an inherited outbox"
            case Standing.UNVERIFIED:
                outbox.verify(store.dispatched_through, store.head)
                words = f"{name} looks up where its outbox begins"
            case _:
                outbox.load([event_of(seq) for seq in range(outbox.tail + 1, store.head + 1)])
                words = f"{name} reads its outbox"
        owner = _dropped_if_empty(owner._replace(box=freeze(outbox)))
        return words, _put(world._replace(store=store), place, owner)

    def _produce(self, world: World, place: int, owner: Owner, box: Box) -> tuple[str, World]:
        outbox = thaw(box)
        run = [event.conversation_seq for event in outbox.run(RUN_MAX)]
        records = tuple(self._record(world.store, owner, seq) for seq in run)
        number = owner.batches
        owner = owner._replace(
            box=freeze(outbox), flight=Flight(number, run[-1], len(run)), batches=number + 1
        )
        batch = Batch(owner.number, number, 0, records)
        words = f"{_who(owner)} produces {run} stamped {[one.epoch for one in records]}"
        return words, _put(world._replace(air=(*world.air, batch)), place, owner)

    def _record(self, store: Store, owner: Owner, seq: int) -> Record:
        """Stamped with the epoch of who produces it, whoever has committed it."""
        return Record(seq, store.events[seq - 1], owner.epoch, owner.number)

    def _deliveries(
        self, world: World, place: int, owner: Owner, flight: Flight, box: Box
    ) -> Steps[World]:
        name = _who(owner)
        batch = next(
            (b for b in world.air if (b.owner, b.number) == (owner.number, flight.number)), None
        )
        landed = batch.landed if batch else flight.size
        if landed == flight.size:
            yield (
                f"{name} hears that its batch is durable",
                (_put(world, place, _judged(owner, flight, box, [Applied(None)] * flight.size))),
            )
        if world.faults < self.faults:
            world = world._replace(faults=world.faults + 1)
            # Of a batch that landed whole at least one reply was lost, or it would not have failed.
            heard = min(landed, flight.size - 1)
            outcomes: list[Outcome[None]] = [Applied(None)] * heard
            outcomes += [Unknown()] * (flight.size - heard)
            failed = _judged(owner, flight, box, outcomes)
            yield f"{name} waits no longer for its batch", _put(world, place, failed)
            if batch is not None:
                lost = world._replace(air=tuple(b for b in world.air if b is not batch))
                yield (
                    f"{name}'s batch fails, what has not landed is lost",
                    _put(lost, place, failed),
                )

    def _advance(self, world: World, place: int, owner: Owner, box: Box) -> tuple[str, World]:
        name, through = _who(owner), box.durable
        store, outcome = self.store.advance(world.store, owner.epoch, through)
        if not isinstance(outcome, Applied):
            return f"{name} can't store its progress, steps down", _put(world, place, None)
        outbox = thaw(box)
        outbox.stored(through)
        owner = _dropped_if_empty(owner._replace(box=freeze(outbox)))
        return f"{name} stores its progress, {through}", (
            _put(world._replace(store=store), place, owner)
        )

    # --- what must hold ---

    def problem(self, world: World) -> str:
        return (
            world.store.usurped
            or answers_problem(world)
            or mailbox_problem(world.store, view_of(world.log))
            or healed_problem(world.store, world.log, world.air)
        )


def _who(owner: Owner) -> str:
    return NAMES[owner.number - 1]


def _heard(outcome: Outcome[int]) -> str:
    match outcome:
        case Applied(value=seq):
            return f"applied as {seq}"
        case NotApplied(refusal=refusal):
            return refusal.value
        case Unknown():
            return "no reply"


def _with(items: tuple[T, ...], place: int, item: T) -> tuple[T, ...]:
    return (*items[:place], item, *items[place + 1 :])


def _put(world: World, place: int, owner: Owner | None) -> World:
    return world._replace(owners=_with(world.owners, place, owner))


def _acked(world: World, message: int, seq: int) -> World:
    client = world.clients[message]
    if client.acked or client.refused:
        return world
    return world._replace(clients=_with(world.clients, message, client._replace(acked=seq)))


def _refused(world: World, message: int) -> World:
    """Told that nothing was written. Of one send among several that says nothing of the others."""
    client = world.clients[message]
    if client.sends > 1:
        return world
    return world._replace(clients=_with(world.clients, message, client._replace(refused=True)))


def _prior(store: Store, message: int) -> int:
    """The first result of a message that is committed already, as the writer answers it."""
    seq = store.events.index(message) + 1
    digest = content_digest(bytes([message]))
    answer = writer.answer_prior(digest, PriorResult(event_of(seq).event_id, seq, 0, digest))
    if isinstance(answer, QimError):
        raise AssertionError("the same content conflicts with itself")
    return _seq_of(answer)


def _seq_of(accepted: Accepted) -> int:
    return accepted.conversation_seq


def _landings(world: World) -> Iterator[tuple[str, World]]:
    """The log takes the next record of a batch: of each a prefix, in order."""
    for batch in world.air:
        for at in LANDS_NEXT(batch):
            record = batch.left[at]
            left = (*batch.left[:at], *batch.left[at + 1 :])
            after = batch._replace(landed=batch.landed + 1, left=left)
            rest = tuple(other for other in world.air if other is not batch)
            air = tuple(sorted((*rest, after))) if left else rest
            words = (
                f"the log takes {record.seq} of {NAMES[batch.owner - 1]}'s batch {batch.number + 1}"
            )
            yield words, world._replace(air=air, log=(*world.log, record))


def _prefix(batch: Batch) -> range:
    return range(1)


LANDS_NEXT = _prefix


def _tell(owner: Owner, seqs: range | tuple[int, ...]) -> Owner:
    """`Fanout.committed`: the writer tells its fanout of events, in order."""
    if not seqs:
        return owner
    if owner.box is None:
        outbox = Outbox.first_told(KEY, seqs[0], known_tail=owner.tail)
        owner = owner._replace(tail=None)
    else:
        outbox = thaw(owner.box)
    outbox.tell([event_of(seq) for seq in seqs])
    return owner._replace(box=freeze(outbox))


def _scan(store: Store, owner: Owner) -> Owner:
    """The store's list of pending outboxes, as the fanout's shard takes it."""
    owner = owner._replace(scanned=True)
    if store.head == store.dispatched_through:
        return owner
    if owner.box is None:
        if (owner.tail or 0) >= store.head:
            return owner
        outbox = Outbox.inherited(KEY, store.dispatched_through, store.head)
        return owner._replace(box=freeze(outbox), tail=None)
    outbox = thaw(owner.box)
    outbox.found(store.head)
    return owner._replace(box=freeze(outbox))


def _judged(owner: Owner, flight: Flight, box: Box, outcomes: list[Outcome[None]]) -> Owner:
    """What a batch's deliveries come to. What is not settled is sent again from `durable` on."""
    outbox = thaw(box)
    if fanout.judge(outcomes).settled:
        outbox.done(flight.through)
    return _dropped_if_empty(owner._replace(box=freeze(outbox), flight=None))


def _dropped_if_empty(owner: Owner) -> Owner:
    """An outbox that is empty is let go; where it ended is remembered."""
    box = owner.box
    if box is None or owner.flight is not None or box.standing is not Standing.SETTLED:
        return owner
    if box.waiting or box.head > box.advanced:
        return owner
    return owner._replace(box=None, tail=box.head)
