"""One partition of the projection under one term: gates, catch-up, and then record by record.

What retrying can mend is retried for as long as the term may write: an engine without room or out
of reach, a log that does not answer. It shows in `projection_lag_seq`, the list stays readable, and
it goes on by itself. What retrying can't mend (another log, a hole, a record of a newer version, a
step that the engine refuses for its content) makes the projection dirty until a restart. A moved
checkpoint or a stale term means another owner: step down, not dirty.
"""

from collections.abc import Sequence
from typing import Final

from qimd.contract.dispatch import decode_dispatch
from qimd.contract.violation import ContractViolation, ReaderTooOld
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import UserId
from qimd.core.lease import Term
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.parameters import (
    LOG_IDENTITY_CHECK_INTERVAL_S,
    PROJECTION_BATCH_RECORDS_MAX,
    PROJECTION_LAG_SAMPLE_INTERVAL_S,
    PROJECTION_STEP_ROWS_MAX,
)
from qimd.core.records import ConversationKey, Dispatch, LogIdentity
from qimd.ports.log import LogFault, LogRecord, Reader, Watermarks
from qimd.ports.projection import PartitionCheckpoint, ProjectStep
from qimd.ports.quarantine import Quarantined
from qimd.session.logic import (
    Dirty,
    FoldedStep,
    fold,
    judge_checkpoint,
    judge_first_log,
    judge_identity,
    judge_record,
    meta_of,
)
from qimd.session.ports import RoomPorts
from qimd.session.steps import ProjectionDirty, StartedAnew, Steps, demand, inspected_log
from qimd.telemetry.logs import logger
from qimd.telemetry.tracing import SESSION, Traced

_log = logger("session")
_FETCH_WAIT_S: Final = 0.5
"""How long an idle fetch waits: also how late an ended term is noticed."""


class Projector:
    """Projects one partition while `term` may write. `run` ends by one of three exceptions.

    `ready` says that everything up to the high watermark seen at start is projected and the log's
    identity was proved again after it.
    """

    def __init__(self, ports: RoomPorts, term: Term) -> None:
        self.term = term
        self.partition = term.shard
        self._caught_up = False
        self._restarts = 0
        self.next_offset = 0
        self.high = 0
        self.touched: tuple[ConversationKey, Sequence[UserId]] | None = None
        """Rows that a late step wrote: what the drift sampler recounts."""
        self._ports = ports
        self._log = ports.log
        self._projection = ports.projection
        self._runtime = ports.runtime
        self._metrics = ports.metrics
        self._steps = Steps(term, ports.runtime, lambda: self._watch(None))
        self._sampled_at_s = float("-inf")
        self._proved_at_s = float("-inf")
        self._oldest_ms = 0

    @property
    def ready(self) -> bool:
        """Whether lists may be read."""
        return self._caught_up and self._projection.restarts == self._restarts

    def stop(self) -> None:
        """Be ready no more."""
        self._caught_up = False

    # --- start ---

    async def run(self) -> None:
        """Never returns: raises SteppedDown, ProjectionDirty, StartedAnew."""
        try:
            identity, checkpoint, marks = await self._steps.persist(
                "the start gates", self._inspect
            )
            self.next_offset, self.high = checkpoint.next_offset, marks.high
            reader = await self._steps.persist("the log", lambda: self._open_reader(identity))
            try:
                await self._project_to(reader, identity, marks.high)
                await self._steps.persist("readiness", lambda: self._prove(identity))
                self._caught_up = True
                _log.info("projection is ready", mailbox_shard=self.partition,
                          next_offset=self.next_offset)  # fmt: skip
                await self._project_to(reader, identity, None)
            finally:
                await reader.close()
        except LogFault as fault:
            raise ProjectionDirty(str(fault)) from None

    async def _inspect(self) -> tuple[LogIdentity, PartitionCheckpoint, Watermarks]:
        self._restarts = self._projection.restarts
        stored = await self._projection.checkpoint(self.partition)
        identity, marks = await inspected_log(self._ports, self.partition)
        if stored is None:
            demand(judge_first_log(identity, await self._ports.conversations.first_log()))
        meta = meta_of(identity)
        initial = judge_checkpoint(stored, meta, marks)
        if isinstance(initial, Dirty):
            raise ProjectionDirty(initial.reason)
        opened = await self._steps.settle(
            "opening the partition",
            lambda: self._projection.open_partition(self.partition, self.term.epoch, initial),
        )
        # The owner before us may have moved it until that step, and past the end that we saw: what
        # counts is what the step that made the term ours found, and the log as it is behind it.
        marks = await self._bounds(identity)
        checkpoint = judge_checkpoint(opened, meta, marks)
        if isinstance(checkpoint, Dirty):
            raise ProjectionDirty(checkpoint.reason)
        return identity, checkpoint, marks

    async def _prove(self, identity: LogIdentity) -> None:
        # Read before the log's end, not behind it: a process that is stopped between the two must
        # not hold its successor's progress against an end that was seen before there was any.
        stored = await self._projection.checkpoint(self.partition)
        self._demand_loaded()
        judged = judge_checkpoint(stored, meta_of(identity), await self._bounds(identity))
        if stored is None or isinstance(judged, Dirty):
            raise ProjectionDirty(judged.reason if isinstance(judged, Dirty) else "it is gone")

    async def _bounds(self, identity: LogIdentity) -> Watermarks:
        """The watermarks, of the log of this identity."""
        found, marks = await inspected_log(self._ports, self.partition)
        demand(judge_identity(identity, found, found, self._ports.table.mailbox_shards))
        return marks

    async def _open_reader(self, identity: LogIdentity) -> Reader:
        return await self._log.open_reader(self.partition, self.next_offset, identity.text)

    # --- records ---

    async def _project_to(self, reader: Reader, identity: LogIdentity, end: int | None) -> None:
        while end is None or self.next_offset < end:
            self._demand_loaded()
            records = await self._steps.persist(
                "the log", lambda: reader.fetch(PROJECTION_BATCH_RECORDS_MAX, _FETCH_WAIT_S)
            )
            if records:
                self._oldest_ms = records[0].timestamp_ms
                await self._project(records, identity)
            if len(records) < PROJECTION_BATCH_RECORDS_MAX:
                self._oldest_ms = 0
            await self._watch(identity)

    async def _project(self, records: Sequence[LogRecord], identity: LogIdentity) -> None:
        started_s = self._runtime.monotonic_s()
        decoded, fault = await self._decode(records, identity)
        first = 0
        for step in fold(decoded, PROJECTION_STEP_ROWS_MAX):
            await self._apply(step, records[first + step.records - 1].offset + 1)
            first += step.records
        if fault is not None:
            raise fault
        self._metrics.stage_records_total.labels("session").inc(len(records))
        self._metrics.stage_latency_seconds.labels("session").observe(
            self._runtime.monotonic_s() - started_s
        )
        self._ports.spans.stage(
            SESSION,
            started_s,
            (Traced(done.trace_parent, done.ref) for done in decoded if done is not None),
            mailbox_shard=self.partition,
            term=self.term.epoch,
        )

    async def _decode(
        self, records: Sequence[LogRecord], identity: LogIdentity
    ) -> tuple[Sequence[Dispatch | None], ProjectionDirty | None]:
        """The records up to the first that halts the partition, if one does."""
        decoded: list[Dispatch | None] = []
        spoilt: list[Quarantined] = []
        fault = None
        for offset, record in enumerate(records, self.next_offset):
            if record.offset != offset:
                fault = ProjectionDirty(f"offset {offset} is missing; {record.offset} came instead")
                break
            try:
                dispatch = decode_dispatch(record.value)
            except ContractViolation as violation:
                spoilt.append(self._spoilt(record, identity, violation))
                decoded.append(None)
                continue
            except ReaderTooOld as error:
                fault = ProjectionDirty(f"offset {record.offset}: {error.message}")
                break
            wrong = judge_record(dispatch, self.partition, identity.text)
            if wrong is not None:
                fault = ProjectionDirty(f"offset {record.offset}: {wrong.reason}")
                break
            decoded.append(dispatch)
        if spoilt:
            # Durable first: past the checkpoint, the log may be the only other place it exists in.
            await self._steps.settle(
                "quarantine", lambda: self._ports.quarantine.quarantine(spoilt)
            )
            self._metrics.quarantined_total.labels("session").inc(len(spoilt))
            _log.error("records were quarantined", mailbox_shard=self.partition,
                       first_offset=spoilt[0].offset, count=len(spoilt))  # fmt: skip
        return decoded, fault

    def _spoilt(
        self, record: LogRecord, identity: LogIdentity, violation: ContractViolation
    ) -> Quarantined:
        return Quarantined(
            log_identity=identity.text,
            partition=self.partition,
            offset=record.offset,
            source="session",
            reason=violation.reason,
            at_ms=self._runtime.wall_ms(),
            value=record.value,
        )

    async def _apply(self, folded: FoldedStep, next_offset: int) -> None:
        step = ProjectStep(
            partition=self.partition,
            term=self.term.epoch,
            expected_next=self.next_offset,
            next_offset=next_offset,
            groups=folded.groups,
        )
        await self._steps.settle("projecting", lambda: self._project_once(step))
        self.next_offset = next_offset
        self.high = max(self.high, next_offset)
        self._metrics.stage_entries_total.labels("session").inc(folded.rows)
        if folded.groups:
            group = folded.groups[-1]
            self.touched = (group.key, group.users)

    async def _project_once(self, step: ProjectStep) -> Outcome[None]:
        self._demand_loaded()
        outcome = await self._projection.project(step)
        match outcome:
            case NotApplied(refusal=Refusal.HEAD_MOVED):
                # A try whose reply was lost may be what moved it. Only a holder of this term can
                # move it at all, and a newer term is refused as such.
                stored = await self._projection.checkpoint(self.partition)
                if stored is not None and stored.next_offset == step.next_offset:
                    return Applied(None)
                return outcome
            case _:
                return outcome

    def _demand_loaded(self) -> None:
        """Raise StartedAnew if the store may lack what was read or written before."""
        if self._projection.restarts != self._restarts:
            raise StartedAnew

    # --- what it shows ---

    async def _watch(self, identity: LogIdentity | None) -> None:
        """Show the lag, and see now and then that the log is still the same."""
        now_s = self._runtime.monotonic_s()
        if now_s - self._sampled_at_s >= PROJECTION_LAG_SAMPLE_INTERVAL_S:
            self._sampled_at_s = now_s
            try:
                await self._look(identity, now_s)
            except QimError as error:
                # The loop's own calls wait for the engine; a gauge only waits for its next turn.
                if error.code is not ErrorCode.UNAVAILABLE:
                    raise ProjectionDirty(f"the log: {error}") from None
        partition = str(self.partition)
        lag = max(0, self.high - self.next_offset)
        age_s = max(0, self._runtime.wall_ms() - self._oldest_ms) / 1000 if self._oldest_ms else 0
        self._metrics.projection_lag_seq.labels(partition).set(lag)
        self._metrics.projection_lag_seconds.labels(partition).set(age_s if lag else 0)

    async def _look(self, identity: LogIdentity | None, now_s: float) -> None:
        marks = await self._log.watermarks(self.partition)
        if marks.high < self.next_offset:
            raise ProjectionDirty(f"the log ends at {marks.high}, before {self.next_offset}")
        self.high = marks.high
        if identity is None or now_s - self._proved_at_s < LOG_IDENTITY_CHECK_INTERVAL_S:
            return
        self._proved_at_s = now_s
        found = await self._log.identity()
        demand(judge_identity(identity, found, found, self._ports.table.mailbox_shards))
