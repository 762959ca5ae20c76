"""One partition of the projection under one term: gates, catch-up, and then record by record.

What retrying can mend is retried for as long as the term may write: an engine without room or out
of reach, a log that does not answer. It shows in `projection_lag_seq`, the list stays readable, and
it goes on by itself. What retrying can't mend (another log, a hole, a record of a newer version, a
step that the engine refuses for its content) makes the projection dirty until a restart. A moved
checkpoint or a stale term means another owner: step down, not dirty.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar, assert_never

from qimd.contract.dispatch import decode_dispatch
from qimd.contract.violation import ContractViolation, ReaderTooOld
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import UserId
from qimd.core.lease import Term
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.parameters import (
    LOG_IDENTITY_CHECK_INTERVAL_S,
    PROJECTION_BATCH_RECORDS_MAX,
    PROJECTION_LAG_SAMPLE_INTERVAL_S,
    PROJECTION_RETRY_MAX_S,
    PROJECTION_RETRY_MIN_S,
    PROJECTION_STEP_ROWS_MAX,
)
from qimd.core.records import ConversationKey, Dispatch, LogIdentity
from qimd.ports.log import Log, LogFault, LogRecord, Reader, Watermarks
from qimd.ports.projection import PartitionCheckpoint, ProjectionStore, ProjectStep
from qimd.ports.quarantine import Quarantined, QuarantineStore
from qimd.ports.runtime import Runtime
from qimd.session.logic import (
    Dirty,
    EpochFilter,
    FoldedStep,
    fold,
    judge_checkpoint,
    judge_identity,
    judge_record,
    judge_retention,
    meta_of,
)
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics

_log = logger("session")
_TRANSIENT: Final = frozenset({Refusal.NO_SPACE, Refusal.UNREACHABLE})
T = TypeVar("T")
_FETCH_WAIT_S: Final = 0.5
"""How long an idle fetch waits: also how late an ended term is noticed."""


class ProjectionDirty(Exception):
    """The projection can't be proved complete. Its text is for operators."""


class SteppedDown(Exception):
    """Another owner has the partition, or the term has ended: nothing may be written any more."""


class Projector:
    """Projects one partition while `term` may write. `run` ends by one of the two exceptions.

    `ready` says that everything up to the high watermark seen at start is projected and the log's
    identity was proved again after it.
    """

    def __init__(
        self,
        term: Term,
        *,
        partitions: int,
        recovery_window_ms: int,
        log: Log,
        projection: ProjectionStore,
        quarantine: QuarantineStore,
        runtime: Runtime,
        metrics: Metrics,
    ) -> None:
        self.term = term
        self.partition = term.shard
        self.ready = False
        self.next_offset = 0
        self.high = 0
        self.touched: tuple[ConversationKey, Sequence[UserId]] | None = None
        """Rows that a late step wrote: what the drift sampler recounts."""
        self._partitions = partitions
        self._recovery_window_ms = recovery_window_ms
        self._log = log
        self._projection = projection
        self._quarantine = quarantine
        self._runtime = runtime
        self._metrics = metrics
        self._epochs = EpochFilter()
        self._sampled_at_s = float("-inf")
        self._proved_at_s = float("-inf")
        self._oldest_ms = 0

    # --- start ---

    async def run(self) -> None:
        """Never returns: raises SteppedDown or ProjectionDirty."""
        try:
            identity, checkpoint, marks = await self._persist("the start gates", self._inspect)
            self.next_offset, self.high = checkpoint.next_offset, marks.high
            reader = await self._persist("the log", self._open_reader)
            try:
                await self._project_to(reader, identity, marks.high)
                await self._persist("readiness", lambda: self._prove(identity))
                self.ready = True
                _log.info("projection is ready", mailbox_shard=self.partition,
                          next_offset=self.next_offset)  # fmt: skip
                await self._project_to(reader, identity, None)
            finally:
                await reader.close()
        except LogFault as fault:
            raise ProjectionDirty(str(fault)) from None

    async def _inspect(self) -> tuple[LogIdentity, PartitionCheckpoint, Watermarks]:
        before = await self._log.identity()
        marks = await self._log.watermarks(self.partition)
        after = await self._log.identity()
        _demand(judge_identity(before, before, after, self._partitions))
        _demand(judge_retention(await self._log.settings(), self._recovery_window_ms))
        meta = meta_of(before)
        initial = judge_checkpoint(await self._projection.checkpoint(self.partition), meta, marks)
        if isinstance(initial, Dirty):
            raise ProjectionDirty(initial.reason)
        opened = await self._settle(
            "opening the partition",
            lambda: self._projection.open_partition(self.partition, self.term.epoch, initial),
        )
        # The owner before us may have moved it between our two reads: what counts is what the step
        # that made the term ours found.
        checkpoint = judge_checkpoint(opened, meta, marks)
        if isinstance(checkpoint, Dirty):
            raise ProjectionDirty(checkpoint.reason)
        return before, checkpoint, marks

    async def _prove(self, identity: LogIdentity) -> None:
        before = await self._log.identity()
        marks = await self._log.watermarks(self.partition)
        after = await self._log.identity()
        _demand(judge_identity(identity, before, after, self._partitions))
        stored = await self._projection.checkpoint(self.partition)
        judged = judge_checkpoint(stored, meta_of(identity), marks)
        if stored is None or isinstance(judged, Dirty):
            raise ProjectionDirty(judged.reason if isinstance(judged, Dirty) else "it is gone")

    async def _open_reader(self) -> Reader:
        return await self._log.open_reader(self.partition, self.next_offset)

    # --- records ---

    async def _project_to(self, reader: Reader, identity: LogIdentity, end: int | None) -> None:
        while end is None or self.next_offset < end:
            records = await self._persist(
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
            stale = self._epochs.stale(dispatch.ref.key, dispatch.fencing_epoch)
            decoded.append(None if stale else dispatch)
        if spoilt:
            # Durable first: past the checkpoint, the log may be the only other place it exists in.
            await self._settle("quarantine", lambda: self._quarantine.quarantine(spoilt))
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
        await self._settle("projecting", lambda: self._project_once(step))
        self.next_offset = next_offset
        self.high = max(self.high, next_offset)
        self._metrics.stage_entries_total.labels("session").inc(folded.rows)
        if folded.groups:
            group = folded.groups[-1]
            self.touched = (group.key, group.users)

    async def _project_once(self, step: ProjectStep) -> Outcome[None]:
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

    # --- what every step has in common ---

    async def _settle(self, what: str, call: Callable[[], Awaitable[Outcome[T]]]) -> T:
        """The step's value once it is applied; issued again while its outcome is unknown or the
        engine can't take it now.
        """
        tries = 0
        while True:
            self._demand_term()
            match await call():
                case Applied(value=value):
                    return value
                case NotApplied(refusal=Refusal.STALE_EPOCH | Refusal.HEAD_MOVED):
                    raise SteppedDown
                case NotApplied(refusal=refusal, detail=detail) if refusal not in _TRANSIENT:
                    raise ProjectionDirty(f"{what} was refused: {refusal.value} {detail}")
                case NotApplied(refusal=refusal):
                    waits_for = refusal.value
                case Unknown():
                    waits_for = "unknown outcome"
                case outcome:
                    assert_never(outcome)
            await self._back_off(what, waits_for, tries)
            tries += 1

    async def _persist(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """What the call gives, asked again while the engine does not answer."""
        tries = 0
        while True:
            self._demand_term()
            try:
                return await call()
            except QimError as error:
                if error.code is not ErrorCode.UNAVAILABLE:
                    raise ProjectionDirty(f"{what}: {error}") from None
            await self._back_off(what, "unavailable", tries)
            tries += 1

    async def _back_off(self, what: str, waits_for: str, tries: int) -> None:
        if tries == 0:
            _log.warning("projection waits", mailbox_shard=self.partition, step=what,
                         waits_for=waits_for)  # fmt: skip
        delay_s = min(PROJECTION_RETRY_MAX_S, PROJECTION_RETRY_MIN_S * 2 ** min(tries, 16))
        await self._runtime.sleep(delay_s * (0.5 + self._runtime.random() / 2))
        await self._watch(None)

    def _demand_term(self) -> None:
        if not self.term.may_write(self._runtime.monotonic_s()):
            raise SteppedDown

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
        _demand(judge_identity(identity, found, found, self._partitions))


def _demand(fault: Dirty | None) -> None:
    if fault is not None:
        raise ProjectionDirty(fault.reason)
