"""One mailbox shard under one term: gates, reading on, lagging lanes, faults, an operator's rebase.

One task does all of a shard's writing, so the shard's own reading and its lanes' retries serialise
without a lock, and the order in which things happen is the order in which they are written here.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qimd.core.errors import ErrorCode, QimError, invalid, unavailable
from qimd.core.lease import Term
from qimd.core.parameters import (
    MAILBOX_BATCH_ENTRIES_MAX,
    MAILBOX_BATCH_RECORDS_MAX,
)
from qimd.core.seq import MailboxSeq, before_offset
from qimd.mailbox import gates, logic
from qimd.mailbox.housekeeping import Housekeeping
from qimd.mailbox.intake import take_in
from qimd.mailbox.keeping import Keeping
from qimd.mailbox.lagging import LaggingLanes
from qimd.mailbox.logic import Fault
from qimd.mailbox.materialise import Materialiser
from qimd.mailbox.ports import Halted, RoomPorts, TermOver
from qimd.mailbox.rebuild import Rebuild
from qimd.ports.log import LogFault, LogRecord, Reader
from qimd.ports.mailbox import ShardState, finished
from qimd.ports.services import RebasePlan
from qimd.telemetry.logs import logger

_log = logger("mailbox")

IDLE_WAIT_S = 1.0
"""How long a fetch waits for a first record, and so how late the end of a term is noticed."""


@dataclass(slots=True)
class _Rebase:
    dry_run: bool
    answer: asyncio.Future[RebasePlan]


class Shard:
    """See the module. Reads (`state`, `fault`, `caught_up`) may come from any task."""

    def __init__(self, ports: RoomPorts, shard: int, term: Term) -> None:
        self._ports = ports
        self.shard = shard
        self.term = term
        self.fault: Fault | None = None
        self.caught_up = False
        self.stopped = False
        self._attempts = 0
        """Failures since the shard was last served."""
        self._writer: Materialiser | None = None
        self._floor = MailboxSeq(0)
        self._end_at_start = MailboxSeq(0)
        self._rebases: deque[_Rebase] = deque()
        self._asked = asyncio.Event()
        self._moved = asyncio.Condition()

    # --- what others see ---

    @property
    def state(self) -> ShardState | None:
        """What is durable; None before the shard is open."""
        return None if self._writer is None else self._writer.state

    @property
    def floor(self) -> MailboxSeq:
        """W_floor as readers must take it: raised before anything below it is dropped."""
        state = self.state
        return self._floor if state is None else max(self._floor, state.floor)

    def stalled_ms(self, lane: int) -> int:
        """How long a lane has lagged."""
        stall = None if self._writer is None else self._writer.stalls.get(lane)
        if stall is None:
            return 0
        return round(stall.stalled_s(self._ports.runtime.monotonic_s()) * 1000)

    def ready(self) -> ShardState:
        """The state, for a reader. Raises QimError: UNAVAILABLE with the reason's class, NOT_OWNER.

        What a client may hold is judged by it. An owner that may not write any more, since it was
        stopped for a while, can't judge: its successor may have handed out more. Nor can one whose
        store was started anew: W may cover what the store has lost. A read of the store that is
        made at once reaches no later start of it.
        """
        if not self._may_write():
            raise QimError(ErrorCode.NOT_OWNER, f"mailbox shard {self.shard} is changing hands")
        if self.fault is not None:
            raise unavailable(f"mailbox shard {self.shard} has halted: {self.fault.reason}")
        if self._writer is None or not self.caught_up:
            raise unavailable(f"mailbox shard {self.shard} is catching up")
        self._writer.demand_loaded()
        return self._writer.state

    def demand_known(self, position: int, through: MailboxSeq) -> None:
        """Raise QimError(UNAVAILABLE) for a position that lies above a lane's W, `through`, and yet
        may have been handed out: before this start W may have been higher, if the store has lost
        its end since. Nothing above the log's end as it was at the start was ever W.
        """
        if through < position <= self._end_at_start:
            raise unavailable("the mailbox has not caught up with this position yet")

    async def passed(self, offset: int) -> None:
        """Return once every lane has finished what lies below a log offset, or the shard stops."""
        await self.until(
            lambda: (
                self.fault is not None
                or self.stopped
                or ((state := self.state) is not None and finished(state, offset))
            )
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once a condition on what others see here holds."""
        async with self._moved:
            await self._moved.wait_for(condition)

    async def rebase(self, dry_run: bool) -> RebasePlan:
        """Ask the shard's task for a rebase. Raises QimError if it is refused or fails."""
        answer: asyncio.Future[RebasePlan] = asyncio.get_running_loop().create_future()
        self._rebases.append(_Rebase(dry_run, answer))
        self._asked.set()
        return await answer

    # --- its task ---

    async def run(self) -> None:
        """Serve until the term may write no more."""
        self._attempts = 0
        try:
            while self._may_write():
                try:
                    await self._serve()
                except Halted as halted:
                    await self._halt(halted.fault)
                    self._attempts = 0
                except LogFault as fault:
                    await self._halt(Fault(fault.kind.value, fault.detail))
                    self._attempts = 0
                except QimError as error:
                    # An engine that does not answer now: look again from the durable state.
                    _log.warning("an engine is away", mailbox_shard=self.shard, error=str(error))
                    jitter = self._ports.runtime.random()
                    await self._ports.runtime.sleep(logic.retry_wait_s(self._attempts, jitter))
                    self._attempts += 1
        except TermOver:
            _log.info("the term is over", mailbox_shard=self.shard, term=self.term.epoch)
        finally:
            self._ports.metrics.shard_halted.labels("mailbox", str(self.shard)).set(0)
            for rebase in self._rebases:
                _fail(rebase.answer, QimError(ErrorCode.NOT_OWNER, "the shard changed hands"))
            self.stopped = True
            await self._tell()

    async def _serve(self) -> None:
        ports = self._ports
        restarts = ports.store.restarts
        state = await gates.open_shard(ports, self.shard, self.term)
        writer = self._adopt(state, restarts)
        if gates.being_rebuilt(state):
            self.fault = self.fault or Fault("rebuilding", "a rebase was cut short")
            await Rebuild(ports, self.term, writer).run(self.fault)
            return
        admitted = await gates.admit(ports, state)
        self.fault = None
        self._attempts = 0
        ports.metrics.shard_halted.labels("mailbox", str(self.shard)).set(0)
        self.caught_up = state.next_offset >= admitted.high
        self._end_at_start = before_offset(state.boundaries[-1].shard_epoch, admitted.high)
        reader = await ports.log.open_reader(self.shard, state.next_offset, admitted.identity.text)
        try:
            await self._read_on(reader, writer, admitted)
        finally:
            await reader.close()

    def _adopt(self, state: ShardState, restarts: int) -> Materialiser:
        """Take the stored state over; stalls of lanes that still lag keep their age."""
        before = self._writer
        self._writer = writer = Materialiser(self._ports, self.term, state, restarts)
        if before is not None:
            if logic.went_back(before.state, state):
                # What was handed out lies above this W: nobody is judged by it before the log has
                # given it again.
                self.caught_up = False
            for lane in writer.stalls:
                writer.stalls[lane] = before.stalls.get(lane, writer.stalls[lane])
        return writer

    async def _read_on(
        self, reader: Reader, writer: Materialiser, admitted: gates.Admitted
    ) -> None:
        """Until the term ends or the shard was rebased. Raises what stops it."""
        ports = self._ports
        lanes = LaggingLanes(ports, writer)
        keeping = Keeping(ports, self.term, writer)
        housekeeping = Housekeeping(ports, self.term, writer, admitted, self._raise_floor)
        while self._may_write() and not await self._answer_rebases(writer):
            writer.demand_loaded()
            await housekeeping.tick()
            await keeping.tick()
            await lanes.retry()
            records = await reader.fetch(MAILBOX_BATCH_RECORDS_MAX, lanes.wait_s(IDLE_WAIT_S))
            if records:
                await self._take(records, writer)
            if not self.caught_up and writer.state.next_offset >= admitted.high:
                self.caught_up = True
                _log.info("caught up", mailbox_shard=self.shard, mailbox_seq=writer.state.position)
            await self._tell()

    async def _take(self, records: Sequence[LogRecord], writer: Materialiser) -> None:
        """Finish a fetched batch. Raises Halted at a record that may not be passed."""
        boundary = writer.state.boundaries[-1]
        intake = take_in(records, self.shard, boundary, self._ports.runtime.wall_ms())
        if intake.quarantined:
            # Before any watermark passes them.
            await writer.quarantine(intake.quarantined)
        parts = list(logic.split(intake.arrived, MAILBOX_BATCH_ENTRIES_MAX))
        for part in parts[:-1]:
            last = part[-1].seq
            await writer.commit(part, last, logic.offset_behind(last))
        if intake.taken:
            end = records[intake.taken - 1].offset
            await writer.commit(parts[-1] if parts else (), logic.seq_at(boundary, end), end + 1)
        if intake.fault is not None:
            raise Halted(intake.fault)

    async def _tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    def _raise_floor(self, floor: MailboxSeq) -> None:
        self._floor = max(self._floor, floor)

    # --- faults and rebase ---

    async def _halt(self, fault: Fault) -> None:
        """Refuse, alarm, apply nothing, until the term ends or an operator rebases the shard."""
        self.fault = fault
        self.caught_up = False
        self._ports.metrics.shard_halted.labels("mailbox", str(self.shard)).set(1)
        _log.error(
            "a mailbox shard has halted",
            mailbox_shard=self.shard,
            reason=fault.reason,
            detail=fault.detail,
        )
        await self._tell()
        while self._may_write():
            self._asked.clear()
            try:
                if self._writer is None:
                    self._refuse_rebases(unavailable(f"the shard can't be opened: {fault.reason}"))
                elif await self._answer_rebases(self._writer):
                    return
                await self._ports.runtime.wait_for(self._asked.wait(), IDLE_WAIT_S)
            except TimeoutError:
                continue
            except Halted as again:
                self.fault = again.fault
                _log.error("a rebase failed", mailbox_shard=self.shard, detail=str(again))

    async def _answer_rebases(self, writer: Materialiser) -> bool:
        """Answer who asked; whether a rebase was begun, so that the gates must be passed again.

        A running shard is rebased only for a lane that lags: there is nothing else to mend.
        """
        while self._rebases:
            rebase = self._rebases.popleft()
            if self.fault is None and not writer.state.lagging:
                refusal = invalid("the shard runs, and no lane lags", "mailbox_shard_id")
                _fail(rebase.answer, refusal)
                continue
            rebuild = Rebuild(self._ports, self.term, writer)
            try:
                if rebase.dry_run:
                    plan = await rebuild.plan(self.fault)
                else:
                    self.fault = self.fault or Fault("a_lane_lags", "an operator's rebase")
                    plan = await rebuild.run(self.fault)
            except (QimError, Halted, LogFault, TermOver) as error:
                _fail(rebase.answer, unavailable(f"the rebase failed: {error}"))
                if isinstance(error, Halted | TermOver):
                    raise
            else:
                if not rebase.answer.done():
                    rebase.answer.set_result(plan)
            if not rebase.dry_run:
                # Also where it was cut short: from the gates it goes on by itself.
                return True
        return False

    def _refuse_rebases(self, error: QimError) -> None:
        while self._rebases:
            _fail(self._rebases.popleft().answer, error)

    def _may_write(self) -> bool:
        return self.term.may_write(self._ports.runtime.monotonic_s())


def _fail(answer: "asyncio.Future[RebasePlan]", error: QimError) -> None:
    if not answer.done():
        answer.set_exception(error)
