"""`ports.mailbox.MailboxStore` against a plain model, on every engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from tests.contract.builders import START_MS, block, device, dispatch_of, event, key, ref, user
from tests.property.machines import REAL_SETTINGS, SETTINGS, EngineMachine, agree, runs_here
from tests.property.mailbox_model import Devices, Shard, counts

from qimd.core.ids import content_digest
from qimd.core.outcome import Refusal
from qimd.core.seq import MailboxSeq, mailbox_seq, offset_of
from qimd.ports.mailbox import (
    ApplyStep,
    DayBucket,
    EpochBoundary,
    EpochMark,
    RecordStep,
)

SHARD = 0
CONVERSATIONS = (key("standup"), key("a", tenant="a/b"))
MEMBERS = {0: ("anna", "ben"), 7: ("carl",), 63: ("🦜", "x" * 128)}
"""The users of each lane that is used."""

USERS = tuple(
    user(name, of.tenant) for of in CONVERSATIONS for names in MEMBERS.values() for name in names
)
DEVICES = (device(), device(device_id="laptop"), device("a/b"))
FIRST = EpochBoundary(1, 0, "cluster/topic")

Logged = tuple[int, int, frozenset[int], bool]
"""(conversation, conversation_seq, lanes, whether its content is forged)."""

lanes = st.frozensets(st.sampled_from(sorted(MEMBERS)), max_size=3)
events = st.integers(1, 4)


class MailboxMachine(EngineMachine):
    """Owners come and go; records arrive in order, lanes lag and catch up, days expire."""

    @initialize()
    def begin(self) -> None:
        self.store = self.engine.backends.mailbox
        self.shard: Shard | None = None
        self.devices = Devices()
        self.requests = 0
        self.log: dict[MailboxSeq, Logged] = {}
        """What stands at each seq, for all of its lanes."""

    # --- owners ---

    @rule(up=st.sampled_from([0, 1, 1, -1]))
    def open_shard(self, up: int) -> None:
        before = self.shard
        term = max(1, (before.term if before else 1) + up)
        refusals = {Refusal.STALE_EPOCH} if before and before.term > term else set()
        state = agree(self.do(self.store.open_shard(SHARD, term, FIRST)), refusals)
        if state is not None:
            self.shard = before or Shard.new(SHARD, term, FIRST)
            self.shard.term = term
            assert state == self.shard.state()

    # --- the shard's steps ---

    def record(self, seq: MailboxSeq, logged: Logged, into: Iterable[int]) -> RecordStep:
        """A record of the log, or its blocks of some lanes."""
        of, number, _, forged = logged
        made = event(number, CONVERSATIONS[of])
        return RecordStep(
            seq=seq,
            ref=ref(made),
            dispatch_id=dispatch_of(made.event_id),
            content_digest=content_digest(made.event_id, b"forged" if forged else b""),
            fencing_epoch=number,
            chunk_index=0,
            chunk_count=1 + of,
            blocks=[block(lane, *MEMBERS[lane]) for lane in sorted(into)],
        )

    def step(
        self,
        records: Sequence[RecordStep],
        *,
        position: MailboxSeq,
        next_offset: int,
        lagging: dict[int, MailboxSeq],
        marks: Sequence[tuple[int, EpochMark]] = (),
        stale: bool = False,
        moved: bool = False,
    ) -> ApplyStep:
        """A step behind the shard's position."""
        assert self.shard is not None
        self.requests += 1
        expected = self.shard.position
        return ApplyStep(
            request_id=self.requests.to_bytes(16, "big"),
            shard=SHARD,
            term=self.shard.term - stale,
            expected_position=MailboxSeq(expected + 256) if moved else expected,
            records=records,
            marks=[(CONVERSATIONS[of], mark) for of, mark in marks],
            buckets=[DayBucket(self.day(next_offset), position)],
            next_offset=next_offset,
            position=position,
            lagging=lagging,
            at_ms=START_MS + self.requests,
        )

    def day(self, next_offset: int) -> int:
        """A day for each three records; offsets begin anew with an epoch, days never go back."""
        assert self.shard is not None
        return max([next_offset // 3, *(bucket.day for bucket in self.shard.buckets)])

    @precondition(lambda self: self.shard)
    @rule(
        arriving=st.lists(
            st.tuples(
                st.sampled_from([0, 1]), events, lanes, st.sampled_from([False] * 7 + [True])
            ),
            max_size=3,
        ),
        falling_behind=lanes,
        catching_up=lanes,
        stale=st.sampled_from([False] * 6 + [True]),
        moved=st.sampled_from([False] * 6 + [True]),
    )
    def records_arrive(
        self,
        arriving: list[Logged],
        falling_behind: frozenset[int],
        catching_up: frozenset[int],
        stale: bool,
        moved: bool,
    ) -> None:
        shard = self.shard
        assert shard is not None
        epoch, first = shard.boundaries[-1].shard_epoch, shard.next_offset
        log = {mailbox_seq(epoch, first + place): one for place, one in enumerate(arriving)}
        end = mailbox_seq(epoch, first + len(log))
        lagging = {lane: seq for lane, seq in shard.lagging.items() if lane not in catching_up}
        lagging |= {lane: shard.position for lane in falling_behind if lane not in shard.lagging}
        applied = self.applies(
            self.step(
                [self.record(seq, one, one[2] - set(lagging)) for seq, one in log.items()],
                position=end,
                next_offset=offset_of(end) + 1,
                lagging=lagging,
                marks=[(one[0], EpochMark(one[1], seq)) for seq, one in log.items()],
                stale=stale,
                moved=moved,
            )
        )
        if applied:
            self.log |= log

    @precondition(lambda self: self.shard and self.shard.lagging)
    @rule(pick=st.integers(0, 2), back=st.sampled_from([False] * 4 + [True]))
    def a_lane_catches_up(self, pick: int, back: bool) -> None:
        """The next record of a lane that lags; or a step back."""
        shard = self.shard
        assert shard is not None
        lane = sorted(shard.lagging)[pick % len(shard.lagging)]
        before = shard.lagging[lane]
        seq = MailboxSeq(before - 256 if back else min(before + 256, shard.position))
        logged = None if back else self.log.get(seq)
        has_block = logged is not None and lane in logged[2]
        lagging = {**shard.lagging, lane: seq}
        if seq >= shard.position:
            del lagging[lane]
        self.applies(
            self.step(
                [self.record(seq, logged, [lane])] if logged and has_block else [],
                position=shard.position,
                next_offset=shard.next_offset,
                lagging=lagging,
            )
        )

    def applies(self, step: ApplyStep) -> bool:
        """Issue a step; if it is applied, both sides must say the same of each record."""
        assert self.shard is not None
        refusals = self.shard.refusals(step)
        verdicts = agree(self.do(self.store.apply(step)), refusals)
        if verdicts is None:
            return False
        assert tuple(verdicts) == self.shard.apply(step)
        return True

    @precondition(lambda self: self.shard and self.shard.last)
    @rule()
    def the_last_step_is_issued_again(self) -> None:
        assert self.shard is not None
        assert self.shard.last is not None
        step, verdicts = self.shard.last
        again = agree(self.do(self.store.apply(step)), set())
        assert again is not None
        assert tuple(again) == verdicts

    @precondition(lambda self: self.shard)
    @rule(back=st.integers(0, 6), stale=st.sampled_from([False] * 4 + [True]))
    def fold_marks(self, back: int, stale: bool) -> None:
        shard = self.shard
        assert shard is not None
        below = MailboxSeq(max(0, shard.position - 256 * back))
        refusals = {Refusal.STALE_EPOCH} if stale else set()
        gone = agree(self.do(self.store.fold_marks(SHARD, shard.term - stale, below)), refusals)
        if gone is not None:
            assert gone == shard.fold(below)

    @precondition(lambda self: self.shard)
    @rule(
        back=st.integers(0, 6),
        limit=st.integers(1, 3),
        stale=st.sampled_from([False] * 4 + [True]),
    )
    def expire(self, back: int, limit: int, stale: bool) -> None:
        shard = self.shard
        assert shard is not None
        floor = MailboxSeq(max(0, shard.position - 256 * back))
        refusals = {Refusal.STALE_EPOCH} if stale else set()
        outcome = self.do(self.store.expire_buckets(SHARD, shard.term - stale, floor, limit))
        gone = agree(outcome, refusals)
        if gone is not None:
            assert gone == shard.expire(floor, limit)

    @precondition(lambda self: self.shard)
    @rule(
        back=st.integers(0, 6),
        limit=st.integers(1, 9),
        stale=st.sampled_from([False] * 4 + [True]),
    )
    def collect(self, back: int, limit: int, stale: bool) -> None:
        """In portions, to the end."""
        shard = self.shard
        assert shard is not None
        through = MailboxSeq(max(0, shard.position - 256 * back))
        refusals = {Refusal.STALE_EPOCH} if stale else set()
        forgotten, more = 0, True
        while more:
            call = self.store.collect_progress(SHARD, shard.term - stale, through, limit)
            found = agree(self.do(call), refusals)
            if found is None:
                return
            forgotten, more = forgotten + found.forgotten, found.more
        assert forgotten == shard.collect(through)

    @precondition(lambda self: self.shard and len(self.shard.boundaries) < 4)
    @rule(up=st.sampled_from([0, 1, 1, 2]), stale=st.sampled_from([False] * 4 + [True]))
    def begin_epoch(self, up: int, stale: bool) -> None:
        shard = self.shard
        assert shard is not None
        last = shard.boundaries[-1]
        boundary = EpochBoundary(last.shard_epoch + up, up, "rebuild") if up else last
        refusals = {Refusal.STALE_EPOCH} if stale else set()
        if up == 2:
            refusals |= {Refusal.CONFLICT}
        state = agree(
            self.do(self.store.begin_epoch(SHARD, shard.term - stale, boundary)), refusals
        )
        if state is not None:
            shard.begin_epoch(boundary)
            assert state == shard.state()

    # --- devices ---

    @rule(of=st.sampled_from(DEVICES), at=st.integers(0, 4))
    def open_device(self, of: object, at: int) -> None:
        floor = mailbox_seq(1, at)
        state = agree(self.do(self.store.open_device(of, floor)), set())
        assert state == self.devices.opened(of, floor)

    @rule(of=st.sampled_from(DEVICES), at=st.integers(0, 8), handed=st.integers(0, 8))
    def ack(self, of: object, at: int, handed: int) -> None:
        position, reached = mailbox_seq(1, at), mailbox_seq(1, handed)
        known = of in self.devices.stored
        refusals = set() if known else {Refusal.NOT_FOUND}
        state = agree(self.do(self.store.ack(of, position, reached)), refusals)
        if state is not None:
            assert state == self.devices.acked(of, position, reached)

    # --- reads ---

    @precondition(lambda self: self.shard)
    @rule(of=st.sampled_from(USERS), back=st.integers(0, 6), limit=st.integers(1, 4))
    def entries(self, of: object, back: int, limit: int) -> None:
        shard = self.shard
        assert shard is not None
        after = MailboxSeq(max(0, shard.position - 256 * back))
        mailbox = shard.mailbox(of)
        found = [one for one in mailbox if after < one.seq <= shard.position][:limit]
        assert list(self.do(self.store.entries(of, after, shard.position, limit))) == found
        for conversation in CONVERSATIONS:
            expected = {
                one.ref.conversation_seq: one.seq
                for one in mailbox
                if one.ref.key == conversation and 2 <= one.ref.conversation_seq <= 3
            }
            seqs = self.do(self.store.entry_seqs(of, conversation, 2, 3))
            assert dict(seqs) == expected

    @precondition(lambda self: self.shard)
    @rule(of=st.sampled_from([0, 1]), number=events, back=st.integers(0, 6))
    def records(self, of: int, number: int, back: int) -> None:
        shard = self.shard
        assert shard is not None
        event_id = event(number, CONVERSATIONS[of]).event_id
        records = shard.records_of(event_id)
        assert list(self.do(self.store.records_of(event_id))) == records
        expected = {event_id: counts(records)} if records else {}
        assert dict(self.do(self.store.dispatch_counts([event_id]))) == expected
        after = MailboxSeq(max(0, shard.position - 256 * back))
        above = [record for seq, record in sorted(shard.records.items()) if seq > after]
        assert list(self.do(self.store.records_after(SHARD, after, 2))) == above[:2]

    # --- what holds after every step ---

    @invariant()
    def the_shard_is_that_of_the_model(self) -> None:
        state = self.do(self.store.shard_state(SHARD))
        assert state == (None if self.shard is None else self.shard.state())

    @invariant()
    def marks_are_those_of_the_model(self) -> None:
        stored = self.do(self.store.epoch_marks(SHARD, CONVERSATIONS))
        marks = {} if self.shard is None else self.shard.marks
        assert {of: list(found) for of, found in stored.items() if found} == marks

    @invariant()
    def mailboxes_are_those_of_the_model(self) -> None:
        if self.shard is not None:
            for of in USERS:
                mailbox = self.do(self.store.entries(of, 0, self.shard.position, 100))
                assert list(mailbox) == self.shard.mailbox(of)


class MemoryMailbox(MailboxMachine):
    engine_name = "memory"


class SqliteMailbox(MailboxMachine):
    engine_name = "sqlite"


class RedisMailbox(MailboxMachine):
    engine_name = "redis"


class CassandraMailbox(MailboxMachine):
    engine_name = "cassandra"


TestMemoryMailbox = MemoryMailbox.TestCase
TestMemoryMailbox.settings = SETTINGS
TestSqliteMailbox = SqliteMailbox.TestCase
TestSqliteMailbox.settings = SETTINGS
TestRedisMailbox = runs_here("redis")(RedisMailbox.TestCase)
TestRedisMailbox.settings = REAL_SETTINGS
TestCassandraMailbox = runs_here("cassandra")(CassandraMailbox.TestCase)
TestCassandraMailbox.settings = REAL_SETTINGS
