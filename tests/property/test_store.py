"""`ports.store.ConversationStore` and `EpochStore` against a plain model, on every engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from tests.contract.builders import ODD_IDS, START_MS, event, key, new
from tests.property.machines import REAL_SETTINGS, SETTINGS, EngineMachine, agree, runs_here

from qimd.core.ids import UserId
from qimd.core.outcome import Refusal
from qimd.core.records import ConversationKey, Event, EventKind, Interval
from qimd.ports.store import (
    AuditRange,
    CommitStep,
    ConversationState,
    IdempotencyKey,
    NewEvent,
    Pending,
    PriorResult,
    Progress,
    ShardKind,
)

USERS = tuple(UserId(name) for name in ("anna", "ben", *ODD_IDS[3:5]))
CONVERSATIONS = (key("standup"), key("b/a", tenant="a"), key("a", tenant="a/b"))
SHARD = 0

conversations = st.sampled_from(CONVERSATIONS)
users = st.sampled_from(USERS)
msg_ids = st.sampled_from(["m1", "m2", "m3", "é/"])
off_by = st.sampled_from([0, 0, 0, 0, -1, 1])


@dataclass
class Model:
    """One conversation, as the port describes it."""

    fencing_epoch: int
    created_at_ms: int
    events: list[tuple[NewEvent, int]] = field(default_factory=list)
    """Each with the epoch that it was committed under."""
    priors: dict[IdempotencyKey, PriorResult] = field(default_factory=dict)
    dispatched: int = 0
    audited: int = 0
    last_step: CommitStep | None = None

    def members_at(self, seq: int) -> dict[UserId, int]:
        """user → added_seq, right after the event at this seq."""
        members: dict[UserId, int] = {}
        for one, _ in self.events[:seq]:
            for user in one.event.added:
                members.setdefault(user, one.event.conversation_seq)
            for user in one.event.removed:
                members.pop(user, None)
        return members

    def intervals(self, user: UserId) -> list[Interval]:
        """The user's memberships."""
        found: list[Interval] = []
        for one, _ in self.events:
            seq = one.event.conversation_seq
            is_member = bool(found) and found[-1].removed_seq == 0
            if user in one.event.added and not is_member:
                found.append(Interval(seq))
            if user in one.event.removed and found and found[-1].removed_seq == 0:
                found[-1] = Interval(found[-1].added_seq, seq)
        return found

    def state(self, of: ConversationKey) -> ConversationState:
        """The port's view of it."""
        changes = [
            one.event.conversation_seq
            for one, _ in self.events
            if one.event.kind == EventKind.MEMBERSHIP
        ]
        return ConversationState(
            key=of,
            fencing_epoch=self.fencing_epoch,
            head_version=len(self.events),
            dispatched_through=self.dispatched,
            membership_version=changes[-1] if changes else 0,
            member_count=len(self.members_at(len(self.events))),
            last_created_at_ms=self.events[-1][0].event.created_at_ms if self.events else 0,
            created_at_ms=self.created_at_ms,
        )

    def between(self, after: int, through: int) -> list[Event]:
        """Events in (after, through]."""
        return [one.event for one, _ in self.events[after:through]]


class StoreMachine(EngineMachine):
    """Owners come and go; the present one and earlier ones commit, dispatch and read."""

    @initialize()
    def begin(self) -> None:
        self.store = self.engine.backends.conversations
        self.model: dict[ConversationKey, Model] = {}
        self.epochs: list[int] = [0]
        """Every epoch that the shard had; the last is its present one."""
        self.nonces: list[bytes] = []
        self.steps = 0
        # Most of what can go wrong needs an owner and a conversation.
        self.another_owner(0)
        self.create(CONVERSATIONS[0], 0)

    @property
    def epoch(self) -> int:
        return self.epochs[-1]

    def drawn_epoch(self, back: int) -> int:
        """The present owner's epoch, or that of the one `back` owners before."""
        return self.epochs[max(0, len(self.epochs) - 1 - back)]

    # --- owners ---

    @rule(ahead_s=st.sampled_from([0, 0, 1_000]))
    def another_owner(self, ahead_s: int) -> None:
        nonce = len(self.nonces).to_bytes(16, "big")
        now_s = self.epoch + ahead_s
        epoch = agree(
            self.do(self.engine.backends.epochs.raise_epoch(ShardKind.WRITER, SHARD, nonce, now_s)),
            set(),
        )
        assert epoch == max(self.epoch + 1, now_s)
        self.epochs.append(epoch)
        self.nonces.append(nonce)

    @precondition(lambda self: self.nonces)
    @rule(back=st.integers(0, 2))
    def an_owner_asks_for_its_epoch_again(self, back: int) -> None:
        back = min(back, len(self.nonces) - 1)
        nonce = self.nonces[len(self.nonces) - 1 - back]
        epoch = agree(
            self.do(self.engine.backends.epochs.raise_epoch(ShardKind.WRITER, SHARD, nonce, 0)),
            {Refusal.STALE_EPOCH} if back else set(),
        )
        assert epoch in (None, self.epoch)

    # --- steps of the writer ---

    def fence(self, of: ConversationKey, epoch: int) -> set[Refusal]:
        """Why a step on a head is refused by its epoch."""
        model = self.model.get(of)
        stale = epoch != self.epoch or (model is not None and model.fencing_epoch > epoch)
        return {Refusal.STALE_EPOCH} if stale else set()

    @rule(of=conversations, back=st.sampled_from([0, 0, 0, 1]))
    def create(self, of: ConversationKey, back: int) -> None:
        epoch, at_ms = self.drawn_epoch(back), START_MS + self.steps
        refusals = self.fence(of, epoch)
        state = agree(self.do(self.store.create_conversation(SHARD, epoch, of, at_ms)), refusals)
        if state is not None:
            model = self.model.setdefault(of, Model(epoch, at_ms))
            model.fencing_epoch = epoch
            assert state == model.state(of)

    @rule(of=conversations, back=st.sampled_from([0, 0, 0, 1]))
    def claim(self, of: ConversationKey, back: int) -> None:
        epoch = self.drawn_epoch(back)
        refusals = self.fence(of, epoch)
        if of not in self.model:
            refusals |= {Refusal.NOT_FOUND}
        state = agree(self.do(self.store.claim(SHARD, epoch, of)), refusals)
        if state is not None:
            self.model[of].fencing_epoch = epoch
            assert state == self.model[of].state(of)

    @precondition(lambda self: self.model)
    @rule(
        of=conversations,
        back=st.sampled_from([0, 0, 0, 0, 1]),
        off=off_by,
        sends=st.lists(st.tuples(users, msg_ids, st.booleans()), min_size=0, max_size=3),
        change=st.none() | st.tuples(st.sets(users), st.sets(users)),
    )
    def commit(
        self,
        of: ConversationKey,
        back: int,
        off: int,
        sends: list[tuple[UserId, str, bool]],
        change: tuple[set[UserId], set[UserId]] | None,
    ) -> None:
        epoch = self.drawn_epoch(back)
        model = self.model.get(of)
        head = len(model.events) if model else 0
        expected = max(0, head + off)
        events = self._drawn_events(of, expected, sends, change)
        if not events:
            return
        self.steps += 1
        step = CommitStep(self.steps.to_bytes(16, "big"), SHARD, epoch, of, expected, events)
        keys = [one.idempotency for one in events if one.idempotency is not None]
        refusals = self.fence(of, epoch)
        if model is None:
            refusals |= {Refusal.NOT_FOUND}
        if expected != head:
            refusals |= {Refusal.HEAD_MOVED}
        if len(set(keys)) < len(keys) or (model and set(keys) & set(model.priors)):
            refusals |= {Refusal.DUPLICATE}
        state = agree(self.do(self.store.commit(step)), refusals)
        if state is not None and model is not None:
            self._committed(of, model, step)
            assert state == model.state(of)

    def _drawn_events(
        self,
        of: ConversationKey,
        expected: int,
        sends: list[tuple[UserId, str, bool]],
        change: tuple[set[UserId], set[UserId]] | None,
    ) -> list[NewEvent]:
        events: list[NewEvent] = []
        for sender, msg_id, is_message in sends:
            kind = EventKind.MESSAGE if is_message else EventKind.REACTION
            seq = expected + len(events) + 1
            made = event(seq, of, kind=kind, sender=sender, text=f"{self.steps} {msg_id}")
            events.append(new(made, msg_id))
        if change is not None:
            added, removed = change
            made = event(
                expected + len(events) + 1,
                of,
                kind=EventKind.MEMBERSHIP,
                sender=None,
                added=added - removed,
                removed=removed,
            )
            events.append(new(made))
        return events

    def _committed(self, of: ConversationKey, model: Model, step: CommitStep) -> None:
        model.fencing_epoch = step.epoch
        model.last_step = step
        for one in step.events:
            model.events.append((one, step.epoch))
            if one.idempotency is not None:
                made = one.event
                model.priors[one.idempotency] = PriorResult(
                    made.event_id, made.conversation_seq, made.created_at_ms, one.content_digest
                )

    @rule(of=conversations)
    def the_last_step_is_issued_again(self, of: ConversationKey) -> None:
        """Also under an epoch that was followed: it was applied, and that is what is asked."""
        model = self.model.get(of)
        if model is not None and model.last_step is not None:
            state = agree(self.do(self.store.commit(model.last_step)), set())
            assert state == model.state(of)

    @rule(age=st.integers(0, 8), limit=st.integers(1, 4))
    def old_idempotency_keys_go(self, age: int, limit: int) -> None:
        before_ms = START_MS + age
        old = [
            (model, idempotency)
            for model in self.model.values()
            for idempotency, prior in model.priors.items()
            if prior.created_at_ms < before_ms
        ]
        gone = self.do(self.store.expire_idempotency(before_ms, limit))
        assert gone == min(limit, len(old))
        # Which ones went first is the engine's affair: all of them must be gone in the end.
        while gone:
            gone = self.do(self.store.expire_idempotency(before_ms, limit))
        for model, idempotency in old:
            del model.priors[idempotency]

    # --- steps of the fanout and the auditor ---

    @rule(
        back=st.sampled_from([0, 0, 0, 1]),
        asked=st.lists(st.tuples(conversations, st.integers(0, 6)), max_size=3),
    )
    def advance(self, back: int, asked: list[tuple[ConversationKey, int]]) -> None:
        epoch = self.drawn_epoch(back)
        progress = [Progress(of, through) for of, through in dict(asked).items()]
        outcomes = self.do(self.store.advance(SHARD, epoch, progress))
        assert len(outcomes) == len(progress)
        for one, outcome in zip(progress, outcomes, strict=True):
            model = self.model.get(one.key)
            refusals = self.fence(one.key, epoch)
            if model is None:
                refusals |= {Refusal.NOT_FOUND}
            elif one.through > len(model.events):
                refusals |= {Refusal.HEAD_MOVED}
            agree(outcome, refusals)
            if not refusals and model is not None:
                model.dispatched = max(model.dispatched, one.through)

    @rule(of=conversations, through=st.integers(0, 6))
    def audit(self, of: ConversationKey, through: int) -> None:
        model = self.model.get(of)
        if model is not None and through <= model.dispatched:
            agree(self.do(self.store.set_audited(of, through)), set())
            model.audited = max(model.audited, through)

    # --- reads ---

    @rule(of=conversations, seq=st.integers(0, 8), user=users, limit=st.integers(1, 3))
    def members(self, of: ConversationKey, seq: int, user: UserId, limit: int) -> None:
        model = self.model.get(of) or Model(0, 0)
        then = self.do(self.store.members_at(of, seq))
        assert list(then) == sorted(model.members_at(seq), key=str.encode)
        now = model.members_at(len(model.events))
        assert dict(self.do(self.store.current_members(of, USERS))) == now
        above = sorted((one for one in now.items() if one[0].encode() > user.encode()), key=_bytes)
        assert list(self.do(self.store.member_page(of, user, limit))) == above[:limit]

    @rule(of=conversations, user=users, before=st.integers(0, 8), limit=st.integers(1, 4))
    def what_a_user_sees(self, of: ConversationKey, user: UserId, before: int, limit: int) -> None:
        model = self.model.get(of) or Model(0, 0)
        intervals = model.intervals(user)
        assert list(self.do(self.store.intervals(of, user))) == intervals
        seen = [
            one
            for one in model.between(0, len(model.events))
            if (before == 0 or one.conversation_seq < before)
            and any(interval.sees(one.conversation_seq) for interval in intervals)
        ]
        assert list(self.do(self.store.history(of, intervals, before, limit))) == seen[-limit:]
        unread = [
            one
            for one in model.between(before, len(model.events))
            if one.kind == EventKind.MESSAGE
            and one.sender != user
            and any(interval.sees(one.conversation_seq) for interval in intervals)
        ]
        counted = self.store.count_unread(of, user, intervals, before, len(model.events))
        assert self.do(counted) == len(unread)

    @rule(of=conversations, after=st.integers(0, 6), limit=st.integers(1, 4))
    def events(self, of: ConversationKey, after: int, limit: int) -> None:
        model = self.model.get(of) or Model(0, 0)
        found = model.between(after, after + limit)
        assert list(self.do(self.store.outbox(of, after, limit))) == found
        ids = self.do(self.store.event_ids(of, after, after + limit))
        assert list(ids) == [(one.conversation_seq, one.event_id) for one in found]
        for one, epoch in model.events[after : after + limit]:
            assert self.do(self.store.find_event(one.event.event_id)) == (one.event, epoch)

    @rule(of=conversations, asked=st.lists(st.tuples(users, msg_ids), max_size=4))
    def prior_results(self, of: ConversationKey, asked: list[tuple[UserId, str]]) -> None:
        model = self.model.get(of) or Model(0, 0)
        keys = [IdempotencyKey(user, msg_id) for user, msg_id in asked]
        expected = {one: model.priors[one] for one in keys if one in model.priors}
        assert dict(self.do(self.store.prior_results(of, keys))) == expected

    # --- what holds after every step ---

    @invariant()
    def states_are_those_of_the_model(self) -> None:
        for of in CONVERSATIONS:
            model = self.model.get(of)
            expected = None if model is None else model.state(of)
            assert self.do(self.store.conversation(of)) == expected

    @invariant()
    def outboxes_are_those_of_the_model(self) -> None:
        pending = self.do(self.store.pending(SHARD))
        assert sorted(pending, key=_place) == [
            Pending(of, model.dispatched, len(model.events))
            for of, model in self._models()
            if model.dispatched < len(model.events)
        ]
        assert list(self.do(self.store.audit_ranges(10))) == [
            AuditRange(of, model.audited, model.dispatched)
            for of, model in self._models()
            if model.audited < model.dispatched
        ]

    def _models(self) -> Sequence[tuple[ConversationKey, Model]]:
        return sorted(self.model.items(), key=lambda item: _of(item[0]))


def _of(of: ConversationKey) -> tuple[bytes, bytes]:
    return of.tenant.encode(), of.conversation.encode()


def _place(pending: Pending) -> tuple[bytes, bytes]:
    return _of(pending.key)


def _bytes(member: tuple[UserId, int]) -> bytes:
    return member[0].encode()


class MemoryStore(StoreMachine):
    engine_name = "memory"


class SqliteStore(StoreMachine):
    engine_name = "sqlite"


class RedisStore(StoreMachine):
    engine_name = "redis"


class CassandraStore(StoreMachine):
    engine_name = "cassandra"


TestMemoryStore = MemoryStore.TestCase
TestMemoryStore.settings = SETTINGS
TestSqliteStore = SqliteStore.TestCase
TestSqliteStore.settings = SETTINGS
TestRedisStore = runs_here("redis")(RedisStore.TestCase)
TestRedisStore.settings = REAL_SETTINGS
TestCassandraStore = runs_here("cassandra")(CassandraStore.TestCase)
TestCassandraStore.settings = REAL_SETTINGS
