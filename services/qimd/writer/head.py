"""The head of one conversation under one term: claimed once, then moved step by step.

What can go wrong, and what holds then:

- A reply is lost: `Shard.settle` asks again under the same request_id. Either the step was applied
  once, or it is applied now.
- Somebody else moved the head (an old owner's late write): the head is claimed and read again, and
  what was found is told to the fanout like our own.
- The term ends while an outcome is open: the conversation is not touched again under this term.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from qimd.core.clock import event_time_ms
from qimd.core.errors import QimError, unavailable
from qimd.core.outcome import Applied, NotApplied, Refusal
from qimd.core.parameters import OUTBOX_BACKLOG_MAX
from qimd.core.records import ConversationKey
from qimd.ports.runtime import Runtime
from qimd.ports.services import Fanout
from qimd.ports.store import CommitStep, ConversationState, ConversationStore, NewEvent
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import COMMIT, Spans, Traced
from qimd.writer.cache import MemberCache
from qimd.writer.logic import MembershipChange
from qimd.writer.shard import OutcomeUnknownError, Shard, refused
from qimd.writer.steps import Pins, place_change

STEP_ATTEMPTS_MAX: Final = 8
"""Each new attempt means that something else moved the head or owned a client_msg_id; a
conversation that keeps changing under its only owner is answered UNAVAILABLE, not retried for ever.
"""

REQUEST_ID_BYTES: Final = 16
_log = logger("writer")


@dataclass(frozen=True, slots=True)
class Tools:
    """What every conversation of the room works with."""

    store: ConversationStore
    fanout: Fanout
    runtime: Runtime
    metrics: Metrics
    members: MemberCache
    pins: Pins
    spans: Spans


@dataclass(frozen=True, slots=True)
class Changed:
    """A membership call's effect: the event's seq, 0 if there was nothing to change."""

    conversation_seq: int
    state: ConversationState


class Head:
    """Used by one task at a time: the conversation's queue sees to that."""

    def __init__(self, key: ConversationKey, shard: Shard, tools: Tools) -> None:
        self.key = key
        self.tools = tools
        self._shard = shard
        self._state: ConversationState | None = None

    def forget(self) -> None:
        """Claim and read it again before the next step."""
        self._state = None

    async def claimed(self) -> ConversationState:
        """The state, read under this term's epoch. Raises NOT_FOUND, NOT_OWNER, STALE_EPOCH,
        UNAVAILABLE.
        """
        if self.key in self._shard.unresolved:
            raise OutcomeUnknownError
        if self._state is not None:
            return self._state
        term = self._shard.term
        outcome = await self._shard.settle(
            lambda: self.tools.store.claim(term.shard, term.epoch, self.key)
        )
        return self._know(outcome)

    async def created(self) -> ConversationState:
        """The state, of a conversation that is made now if it is not there. Raises as `claimed`."""
        if self.key in self._shard.unresolved:
            raise OutcomeUnknownError
        term, now_ms = self._shard.term, self.tools.runtime.wall_ms()
        outcome = await self._shard.settle(
            lambda: self.tools.store.create_conversation(term.shard, term.epoch, self.key, now_ms)
        )
        return self._know(outcome)

    def _know(self, outcome: Applied[ConversationState] | NotApplied) -> ConversationState:
        match outcome:
            case Applied(value=state):
                self._state = state
                return state
            case NotApplied(refusal=refusal):
                raise refused(refusal)
            case _:
                assert_never(outcome)

    async def reclaimed(self, stale: ConversationState) -> ConversationState:
        """The state after somebody else moved the head. Raises as `claimed`.

        A late write of an old owner is an event like any other: the fanout is told of it.
        """
        self.forget()
        state = await self.claimed()
        _log.warning(
            "the head moved under its owner",
            tenant_id=self.key.tenant,
            conversation_id=self.key.conversation,
            expected_head=stale.head_version,
            head_version=state.head_version,
        )
        if state.head_version > stale.head_version:
            found = await self.tools.store.outbox(self.key, stale.head_version, OUTBOX_BACKLOG_MAX)
            if found:
                self.tools.fanout.committed(self._shard.term, found)
        return state

    def next_time_ms(self, state: ConversationState) -> int:
        """The time of the next event. Raises UNAVAILABLE while the clock is too far behind."""
        return event_time_ms(self.tools.runtime.wall_ms(), state.last_created_at_ms)

    def backlog_room(self) -> int:
        """How many more events the shard's backlog takes, steps under way counted."""
        backlog = self.tools.fanout.backlog(self._shard.term.shard)
        return OUTBOX_BACKLOG_MAX - backlog - self._shard.reserved

    async def commit(
        self, state: ConversationState, events: Sequence[NewEvent]
    ) -> Applied[ConversationState] | NotApplied:
        """Commit consecutive events right behind `state`; once applied, the fanout knows them.

        Raises NOT_OWNER, or OutcomeUnknownError if the term ended over it.
        """
        term = self._shard.term
        step = CommitStep(
            request_id=self.tools.runtime.random_bytes(REQUEST_ID_BYTES),
            writer_shard=term.shard,
            epoch=term.epoch,
            key=self.key,
            expected_head=state.head_version,
            events=events,
        )
        began_s = self.tools.runtime.monotonic_s()
        self._shard.reserved += len(events)
        try:
            outcome = await self._shard.settle(lambda: self.tools.store.commit(step))
        except OutcomeUnknownError:
            self._shard.unresolved.add(self.key)
            raise
        finally:
            self._shard.reserved -= len(events)
        match outcome:
            case Applied(value=after):
                self._state = after
                # No await lies between the two: the order of commits is the order of telling.
                self.tools.fanout.committed(term, [new.event for new in events])
                self.tools.metrics.stage_records_total.labels("commit").inc(len(events))
                self.tools.spans.stage(
                    COMMIT,
                    began_s,
                    (Traced(new.event.trace_parent, new.event) for new in events),
                    writer_shard=term.shard,
                    fencing_epoch=term.epoch,
                )
            case NotApplied():
                pass
            case _:
                assert_never(outcome)
        return outcome

    async def change(
        self, decide: Callable[[ConversationState], Awaitable[MembershipChange]]
    ) -> Changed:
        """Commit what `decide` finds to change; it is asked again if the head moved meanwhile.

        Raises QimError for what `claimed`, `decide` and the store refuse.
        """
        for _ in range(STEP_ATTEMPTS_MAX):
            state = await self.claimed()
            change = await decide(state)
            if not change:
                return Changed(0, state)
            if self.backlog_room() < 1:
                raise backlog_full()
            event = place_change(state, self.tools.pins, self.next_time_ms(state), change)
            match await self.commit(state, [event]):
                case Applied(value=after):
                    return Changed(event.event.conversation_seq, after)
                case NotApplied(refusal=Refusal.HEAD_MOVED):
                    await self.reclaimed(state)
                case NotApplied(refusal=refusal):
                    raise refused(refusal)
        raise refused(Refusal.HEAD_MOVED)


def backlog_full() -> QimError:
    """UNAVAILABLE before anything is written: the log takes nothing at the moment."""
    return unavailable("too many events wait for the dispatch log; nothing was written")
