"""A mailbox shard: its lanes, refused blocks and their slow retry, restarts, stale records.

Why it is hard. A block that the store refuses must hold its own lane alone, so the others pass it,
and what is read again later is read in another world: a newer epoch may have arrived, a duplicate
may have been met, the owner may have died with half of it done. Each block must get the verdict
that it would have got the first time, and W must never pass what is not finished.

The log is every log of a few records within the bounds, in any order: events in order and out of
it, twice, of an epoch that was followed. `truth` says in five lines what each lane must end with.
What runs is the room's own logic: `plan`, `plan_lane`, `set_aside`, `lagging_at`, `regression`,
`raised_lane_last`, over `ports.mailbox.is_stale` and `lowest_watermark`. The store is what
`ports.mailbox.ApplyStep` promises, once in one atomic step, and once in its weaker form: mark,
entries, progress and watermarks one after the other, and torn between any two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Final, NamedTuple

from tests.models.dispatches import AT_MS, BOUNDARY, KEY, dispatch_of
from tests.models.explore import Steps
from tests.models.lane_store import (
    EVENTS,
    WATCHED,
    Block,
    MailboxPromise,
    Shard,
    Step,
    Verdicts,
    moved,
    risen_by,
    seen_by_readers,
    shard_state_of,
)

from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.seq import MailboxSeq, offset_of
from qimd.mailbox import logic
from qimd.mailbox.logic import Arrived
from qimd.ports.mailbox import EpochMark, RecordStep, resume_offset, watermark

READ_MAX: Final = 2
"""Records of a batch, and of a lane's turn."""

Offset = int
Log = tuple[tuple[int, int], ...]
"""(event, epoch) of each record."""


class Task(NamedTuple):
    """What the shard's task is to write: some offsets, of all lanes that keep up or of one."""

    offsets: tuple[Offset, ...]
    lane: int | None = None


class Owner(NamedTuple):
    """What the shard's task knows, as of its last step, and what it is about to do."""

    known: Shard
    agenda: tuple[Task, ...] = ()
    open: Step | None = None
    """Issued, and its outcome is not known: it is issued again."""


class World(NamedTuple):
    """Everything."""

    log: Log | None = None
    shard: Shard = Shard()
    owner: Owner = Owner(Shard(served=()))
    late: tuple[Step, ...] = ()
    halted: str = ""
    refusals: int = 0
    losses: int = 0
    restarts: int = 0


def truth(log: Log) -> frozenset[tuple[int, MailboxSeq]]:
    """The entries of each lane: of each event the first record that no larger epoch precedes."""
    largest, found = 0, dict[tuple[int, int], MailboxSeq]()
    for offset, (event, epoch) in enumerate(log):
        if epoch >= largest:
            for lane in EVENTS[event]:
                found.setdefault((event, lane), logic.seq_at(BOUNDARY, offset))
        largest = max(largest, epoch)
    return frozenset((lane, seq) for (_, lane), seq in found.items())


@dataclass(frozen=True)
class LanesModel:
    """See the module."""

    store: MailboxPromise
    records: int
    epochs: int
    refusals: int
    losses: int
    """Replies that are lost, of steps that are applied, torn, or land late."""
    restarts: int
    _judged: dict[tuple[Log, Shard], str] = field(default_factory=dict, repr=False, compare=False)
    _applied: dict[tuple[Shard, Step, int], tuple[Shard, Outcome[Verdicts]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def name(self) -> str:
        stages = len(self.store.stages)
        return f"lanes of a mailbox shard, a store that writes a step in {stages}"

    @property
    def bounds(self) -> Mapping[str, int]:
        return {
            "lanes": len(WATCHED),
            "records": self.records,
            "epochs": self.epochs,
            "refused blocks": self.refusals,
            "lost replies": self.losses,
            "restarts": self.restarts,
        }

    def initial(self) -> World:
        # What was judged under other rules must not answer for these.
        self._judged.clear()
        self._applied.clear()
        shard_state_of.cache_clear()
        return World()

    # --- what may happen ---

    def steps(self, world: World) -> Steps[World]:
        if world.log is None:
            yield from self._logs()
        elif not world.halted:
            for words, after in self._events(world, world.log):
                yield words, _without_history(after)

    def _events(self, world: World, log: Log) -> Steps[World]:
        for step in world.late:
            late = tuple(other for other in world.late if other is not step)
            shard, _ = self.store.apply(world.shard, step)
            yield (
                f"the store applies a step of term {step.term}, late",
                (world._replace(shard=seen_by_readers(shard), late=late)),
            )
        at_rest = world.owner == Owner(self.store.opened(world.shard)) and not world.late
        if world.restarts < self.restarts and not at_rest:
            yield self._restart(world)
        if world.owner.open is not None:
            yield from self._issues(world, world.owner.open, "again")
        elif world.owner.agenda:
            task = world.owner.agenda[0]
            step = self._step(log, world.owner.known, task)
            if isinstance(step, str):
                yield "the shard looks at its next records", world._replace(halted=step)
            else:
                yield from self._issues(world, step, _named(task))
        else:
            yield from self._reads(world, log)

    def _logs(self) -> Steps[World]:
        records = list(product(EVENTS, range(1, self.epochs + 1)))
        for log in product(records, repeat=self.records):
            if all(epoch > 1 for _, epoch in log):
                # The same as a log of smaller epochs.
                continue
            words = ", ".join(f"event {event} of epoch {epoch}" for event, epoch in log)
            yield f"the log holds {words}", World(log)

    def _restart(self, world: World) -> tuple[str, World]:
        shard = world.shard._replace(term=world.shard.term + 1)
        owner = Owner(self.store.opened(shard))
        words = f"the owner dies, another begins term {shard.term}"
        return words, world._replace(shard=shard, owner=owner, restarts=world.restarts + 1)

    def _reads(self, world: World, log: Log) -> Steps[World]:
        """The task's free choices: records to read, a lane to retry, marks to fold."""
        known = world.owner.known
        for count in range(1, min(READ_MAX, len(log) - known.next_offset) + 1):
            offsets = tuple(range(known.next_offset, known.next_offset + count))
            owner = world.owner._replace(agenda=(Task(offsets),))
            yield f"the shard reads the offsets {list(offsets)}", world._replace(owner=owner)
        for lane, seq in known.lagging:
            first = resume_offset(BOUNDARY, seq)
            for count in range(1, min(READ_MAX, known.next_offset - first) + 1):
                task = Task(tuple(range(first, first + count)), lane)
                owner = world.owner._replace(agenda=(task,))
                words = f"lane {lane} reads the offsets {list(task.offsets)} again"
                yield words, world._replace(owner=owner)
        folded = self.store.folded(world.shard)
        if folded != world.shard:
            yield "marks are folded", world._replace(shard=folded)

    # --- a step ---

    def _apply(
        self, shard: Shard, step: Step, stages: int | None = None
    ) -> tuple[Shard, Outcome[Verdicts]]:
        """What the store makes of a step, and what readers see then; worked out once."""
        case = (shard, step, stages or 0)
        if case not in self._applied:
            after, outcome = self.store.apply(shard, step, stages)
            self._applied[case] = seen_by_readers(after), outcome
        return self._applied[case]

    def _step(self, log: Log, known: Shard, task: Task) -> Step | str:
        """What the materialiser writes for a task, or why it halts."""
        state = shard_state_of(known)
        batch = [_arrived(log, offset) for offset in task.offsets]
        last = batch[-1].seq
        if task.lane is None:
            plan = logic.plan(state, {KEY: known.marks}, batch)
            records, marks = plan.records, tuple(mark for _, mark in plan.marks)
            step = _step_to(known, records, marks, logic.offset_behind(last), last, state.lagging)
        else:
            records = logic.plan_lane({KEY: known.marks}, batch, task.lane)
            lagging = logic.lagging_at(state, task.lane, last)
            step = _step_to(known, records, (), known.next_offset, known.position, lagging)
        lane = logic.regression(state.lane_last, records)
        return step if lane is None else f"lane {lane} would go back"

    def _issues(self, world: World, step: Step, words: str) -> Steps[World]:
        shard, outcome = self._apply(world.shard, step)
        yield f"{words}: {_heard(outcome)}", self._answered(world, step, shard, outcome)
        if step.blocks and world.refusals < self.refusals:
            # Also of a step that has landed already, by a try that nothing was heard of.
            refused = NotApplied(Refusal.REJECTED)
            counted = world._replace(refusals=world.refusals + 1)
            yield f"{words}: rejected", self._answered(counted, step, world.shard, refused)
        if world.losses < self.losses:
            lost = world._replace(losses=world.losses + 1, owner=world.owner._replace(open=step))
            yield f"{words}: no reply, it may land late", lost._replace(late=(*world.late, step))
            for stages in range(1, len(self.store.stages) + 1):
                torn, _ = self._apply(world.shard, step, stages)
                written = " and ".join(
                    part for stage in self.store.stages[:stages] for part in stage
                )
                yield (
                    f"{words}: no reply, {written} are written",
                    (lost._replace(shard=torn)),
                )

    def _answered(
        self, world: World, step: Step, shard: Shard, outcome: Outcome[Verdicts]
    ) -> World:
        """What the shard's task does with an outcome that is known."""
        owner = world.owner
        match outcome:
            case Applied(value=verdicts):
                known = _known(owner.known, step, verdicts)
                owner = Owner(known, owner.agenda[1:])
                return world._replace(shard=shard, owner=owner)
            case NotApplied(refusal=Refusal.REJECTED):
                return world._replace(owner=self._narrowed(world, step))
            case NotApplied(refusal=Refusal.HEAD_MOVED):
                # A try of its own has landed meanwhile: what is stored counts.
                return world._replace(owner=Owner(self.store.opened(world.shard)))
            case NotApplied(refusal=refusal):
                return world._replace(halted=f"the store refuses the owner's step: {refusal.value}")

    def _narrowed(self, world: World, step: Step) -> Owner:
        """A refused step, narrowed down: record by record, then lane by lane."""
        owner, log = world.owner, world.log or ()
        task, rest = owner.agenda[0], owner.agenda[1:]
        if len(task.offsets) > 1:
            alone = tuple(Task((offset,), task.lane) for offset in task.offsets)
            return Owner(owner.known, (*alone, *rest))
        if task.lane is not None:
            # The lane stands here: nothing behind this record is tried now.
            return Owner(owner.known, tuple(other for other in rest if other.lane != task.lane))
        state = shard_state_of(owner.known)
        plan = logic.plan(state, {KEY: owner.known.marks}, [_arrived(log, task.offsets[0])])
        [record] = plan.records
        passed = _step_to(
            owner.known,
            (),
            step.marks,
            step.next_offset,
            step.position,
            logic.set_aside(state, record),
        )
        lanes = tuple(Task(task.offsets, block.lane) for block in record.blocks)
        return Owner(owner.known, (task, *lanes, *rest), passed)

    # --- what must hold ---

    def problem(self, world: World) -> str:
        if world.log is None:
            return ""
        if world.halted:
            return f"the shard halts: {world.halted}"
        # Many states share what is durable, and that alone decides.
        durable = world.shard._replace(term=1, last_step=None, last_verdicts=())
        known = self._judged.get((world.log, durable))
        if known is None:
            known = _shard_problem(world.log, durable) or self._healed(world.log, durable)
            self._judged[world.log, durable] = known
        return known

    def _healed(self, log: Log, shard: Shard) -> str:
        """Whatever happened: one more owner, undisturbed, finishes every lane."""
        known = self.store.opened(shard)
        tasks = [
            Task(offsets, lane)
            for lane, seq in known.lagging
            if (offsets := tuple(range(resume_offset(BOUNDARY, seq), known.next_offset)))
        ]
        if known.next_offset < len(log):
            tasks.append(Task(tuple(range(known.next_offset, len(log)))))
        for task in tasks:
            step = self._step(log, known, task)
            if isinstance(step, str):
                return f"a restart in peace halts: {step}"
            shard, outcome = self._apply(shard, step)
            if not isinstance(outcome, Applied):
                return f"a restart in peace is refused: {_heard(outcome)}"
            known = _known(known, step, outcome.value)
        problem = _shard_problem(log, shard)
        if not problem and (shard.lagging or shard.entries != truth_of(log)):
            problem = "something is not finished"
        return f"after a restart in peace {problem}" if problem else ""


@cache
def truth_of(log: Log) -> frozenset[tuple[int, MailboxSeq]]:
    """`truth`, once a log."""
    return truth(log)


def _shard_problem(log: Log, shard: Shard) -> str:
    """What readers can see is what they must see."""
    if shard.usurped:
        return shard.usurped
    right = truth_of(log)
    state = shard_state_of(shard)
    for lane, served in zip(WATCHED, shard.served, strict=True):
        if watermark(state, lane) < served:
            return f"W of lane {lane} went back"
    for lane, seq in sorted(shard.entries - right):
        return f"lane {lane} has an entry at offset {offset_of(seq)} that is stale, or a double"
    for lane, seq in sorted(right - shard.entries):
        if seq <= watermark(state, lane):
            return f"lane {lane} lacks the entry at offset {offset_of(seq)}, and W has passed it"
    return ""


# --- parts -------------------------------------------------------------------------------------


def _arrived(log: Log, offset: Offset) -> Arrived:
    event, epoch = log[offset]
    seq = logic.seq_at(BOUNDARY, offset)
    return Arrived(seq, dispatch_of(event, epoch, EVENTS[event]), AT_MS)


def _without_history(world: World) -> World:
    """The shard's last request is of use only while somebody may repeat it."""
    if world.shard.last_step in (world.owner.open, *world.late):
        return world
    return world._replace(shard=world.shard._replace(last_step=None, last_verdicts=()))


def _step_to(
    known: Shard,
    records: tuple[RecordStep, ...],
    marks: tuple[EpochMark, ...],
    next_offset: int,
    position: MailboxSeq,
    lagging: Mapping[int, MailboxSeq],
) -> Step:
    blocks = tuple(
        Block(
            record.seq,
            record.ref.conversation_seq,
            tuple(block.lane for block in record.blocks),
        )
        for record in records
    )
    return Step(
        known.term,
        known.position,
        blocks,
        marks,
        next_offset,
        position,
        tuple(sorted(lagging.items())),
    )


def _known(known: Shard, step: Step, verdicts: Verdicts) -> Shard:
    """What the owner takes for durable once a step is applied (`Materialiser._advance`)."""
    known = risen_by(moved(known, step), step.blocks, verdicts)
    return known._replace(marks=(*known.marks, *step.marks))


def _named(task: Task) -> str:
    whose = "the shard" if task.lane is None else f"lane {task.lane}"
    return f"{whose} writes the offsets {list(task.offsets)}"


def _heard(outcome: Outcome[Verdicts]) -> str:
    return outcome.refusal.value if isinstance(outcome, NotApplied) else "applied"
