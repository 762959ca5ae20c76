"""Writes a shard's records: entries, progress, marks and watermarks, one atomic step a batch.

A step that the store refuses for its content is narrowed down: record by record, then lane by lane.
The lane that fails keeps its watermark before the record and lags from there (`lagging`); all
others go on. `state` is what is durable, never more.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from qimd.core.errors import unavailable
from qimd.core.lease import Term
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.records import ConversationKey
from qimd.core.seq import MailboxSeq
from qimd.mailbox import logic
from qimd.mailbox.hints import Materialised, hint
from qimd.mailbox.logic import Arrived, Fault, Stall
from qimd.mailbox.marks import MarkCache
from qimd.mailbox.ports import REQUEST_ID_BYTES, Halted, RoomPorts, settle
from qimd.ports.mailbox import (
    ApplyStep,
    DayBucket,
    EpochMark,
    RecordStep,
    RecordVerdict,
    ShardState,
)
from qimd.ports.quarantine import Quarantined
from qimd.telemetry.logs import logger
from qimd.telemetry.tracing import MAILBOX, PUSH, Traced, recorded

T = TypeVar("T")

_log = logger("mailbox")


class Materialiser:
    """A shard's writing side under one term. Its calls never overlap: one task makes them all.

    `restarts` is the store's from before `state` was read: what a later start of the store may have
    lost is built upon no more.
    """

    def __init__(self, ports: RoomPorts, term: Term, state: ShardState, restarts: int) -> None:
        self._ports = ports
        self._term = term
        self._restarts = restarts
        self._marks = MarkCache(ports.store, state.shard)
        self._label = str(state.shard)
        self.state = state
        now_s = ports.runtime.monotonic_s()
        self.stalls: dict[int, Stall] = {lane: Stall(now_s) for lane in sorted(state.lagging)}

    def demand_loaded(self) -> None:
        """Raise QimError(UNAVAILABLE) if the store was started anew since `state` was read."""
        if self._ports.store.restarts != self._restarts:
            raise unavailable("the store was started anew: the mailbox is loaded again")

    async def settle(self, issue: Callable[[], Awaitable[Outcome[T]]]) -> Applied[T] | NotApplied:
        """A step that builds on `state`. Raises TermOver, QimError(UNAVAILABLE)."""

        async def issue_on_what_was_loaded() -> Outcome[T]:
            self.demand_loaded()
            return await issue()

        return await settle(self._ports.runtime, self._term, issue_on_what_was_loaded)

    # --- the shard's own batches ---

    async def commit(
        self, batch: Sequence[Arrived], position: MailboxSeq, next_offset: int
    ) -> None:
        """Finish everything up to `position`: `batch` is what could be decoded of it.

        Raises Halted, TermOver, QimError(UNAVAILABLE) of a read.
        """
        started_s = self._ports.runtime.monotonic_s()
        marks = await self._marks.of(arrived.dispatch.ref.key for arrived in batch)
        plan = logic.plan(self.state, marks, batch)
        verdicts = await self._apply(
            plan.records,
            plan.marks,
            plan.buckets,
            position=position,
            next_offset=next_offset,
            lagging=self.state.lagging,
        )
        if verdicts is None:
            await self._narrow(batch, plan, position, next_offset)
            return
        metrics = self._ports.metrics
        if plan.stale:
            metrics.stale_epoch_dispatch_dropped_total.labels(self._label).inc(plan.stale)
            _log.warning("stale dispatches dropped", mailbox_shard=self.state.shard, n=plan.stale)
        metrics.stage_records_total.labels("mailbox").inc(len(batch))
        applied_s = self._ports.runtime.monotonic_s()
        metrics.stage_latency_seconds.labels("mailbox").observe(applied_s - started_s)
        self._trace(MAILBOX, started_s, batch, plan.records)
        pushed = await self._told(plan.records, verdicts, _recorded(batch))
        self._trace(PUSH, applied_s, batch, pushed)

    def _trace(
        self, stage: str, began_s: float, batch: Sequence[Arrived], done: Sequence[RecordStep]
    ) -> None:
        self._ports.spans.stage(
            stage,
            began_s,
            _traced(batch, done),
            mailbox_shard=self.state.shard,
            term=self._term.epoch,
        )

    async def _narrow(
        self, batch: Sequence[Arrived], plan: logic.Plan, position: MailboxSeq, next_offset: int
    ) -> None:
        if len(batch) > 1:
            for arrived in batch:
                await self.commit([arrived], arrived.seq, logic.offset_behind(arrived.seq))
            if position > self.state.position:
                await self.commit([], position, next_offset)
        elif plan.records:
            await self._set_aside(plan, position, next_offset)
        else:
            # Nothing in the step but watermarks and marks: this is no block's fault.
            raise Halted(Fault("store_refused", f"the store rejects seq {position} without blocks"))

    async def _set_aside(self, plan: logic.Plan, position: MailboxSeq, next_offset: int) -> None:
        """Pass a record of which some block is refused: all its lanes lag, then each one tries."""
        [record] = plan.records
        verdicts = await self._apply(
            (),
            plan.marks,
            plan.buckets,
            position=position,
            next_offset=next_offset,
            lagging=logic.set_aside(self.state, record),
        )
        if verdicts is None:
            raise Halted(Fault("store_refused", f"the store rejects seq {position} without blocks"))
        self._ports.metrics.stage_records_total.labels("mailbox").inc()
        now_s = self._ports.runtime.monotonic_s()
        for block in record.blocks:
            part = replace(record, blocks=(block,))
            if not await self.apply_lane(block.lane, (part,), position):
                stall = Stall(now_s).failed(now_s, self._ports.runtime.random())
                self.stalls[block.lane] = stall
                _log.error(
                    "a block is refused; its lane stands",
                    mailbox_shard=self.state.shard,
                    lane_id=block.lane,
                    mailbox_seq=record.seq,
                    event_id=record.ref.event_id,
                    dispatch_id=record.dispatch_id,
                )

    # --- a lagging lane ---

    async def steps_of(self, batch: Sequence[Arrived], lane: int) -> tuple[RecordStep, ...]:
        """What a lagging lane writes of records that the shard has passed."""
        marks = await self._marks.of(arrived.dispatch.ref.key for arrived in batch)
        return logic.plan_lane(marks, batch, lane)

    async def apply_lane(
        self, lane: int, records: Sequence[RecordStep], through: MailboxSeq
    ) -> bool:
        """Bring a lagging lane's watermark to `through`, over its `records`, in order.

        False if the store refuses one: W then stands right before it, whatever follows.
        """
        verdicts = await self._apply(
            records,
            (),
            (),
            position=self.state.position,
            next_offset=self.state.next_offset,
            lagging=logic.lagging_at(self.state, lane, through),
        )
        if verdicts is not None:
            # The lane is late by minutes: its hints continue no trace.
            await self._told(records, verdicts, {})
            return True
        if len(records) > 1:
            for record in records:
                if not await self.apply_lane(lane, (record,), record.seq):
                    return False
            return await self.apply_lane(lane, (), through)
        return False

    # --- the step ---

    async def _apply(
        self,
        records: Sequence[RecordStep],
        marks: Sequence[tuple[ConversationKey, EpochMark]],
        buckets: Sequence[DayBucket],
        *,
        position: MailboxSeq,
        next_offset: int,
        lagging: Mapping[int, MailboxSeq],
    ) -> Sequence[RecordVerdict] | None:
        """One step, until its outcome is known; None if the store refuses the content."""
        lane = logic.regression(self.state.lane_last, records)
        if lane is not None:
            self._ports.metrics.mailbox_seq_regression_count.inc()
            raise Halted(
                Fault("mailbox_seq_regression", f"lane {lane} holds entries above its watermark")
            )
        step = ApplyStep(
            request_id=self._ports.runtime.random_bytes(REQUEST_ID_BYTES),
            shard=self.state.shard,
            term=self._term.epoch,
            expected_position=self.state.position,
            records=records,
            marks=marks,
            buckets=buckets,
            next_offset=next_offset,
            position=position,
            lagging=lagging,
            at_ms=self._ports.runtime.wall_ms(),
        )
        outcome = await self.settle(lambda: self._ports.store.apply(step))
        match outcome:
            case Applied(value=verdicts):
                self._advance(step, verdicts)
                return verdicts
            case NotApplied(refusal=Refusal.REJECTED):
                return None
            case NotApplied(refusal=Refusal.HEAD_MOVED, detail=detail):
                # Under our own term nobody else moves it: a try of ours has landed that was then
                # refused, or the store was taken back. Either way what is stored counts, and the
                # log from there on.
                raise unavailable(f"the shard must be loaded again: {detail}")
            case NotApplied(refusal=refusal, detail=detail):
                raise Halted(Fault("store_refused", f"apply: {refusal.value} {detail}"))

    def _advance(self, step: ApplyStep, verdicts: Sequence[RecordVerdict]) -> None:
        self._marks.add(step.marks)
        self.state = replace(
            self.state,
            next_offset=step.next_offset,
            position=step.position,
            lagging=dict(step.lagging),
            lane_last=logic.raised_lane_last(
                self.state.lane_last, step.records, [verdict.applied for verdict in verdicts]
            ),
            buckets=(*self.state.buckets, *step.buckets),
        )
        for lane in [lane for lane in self.stalls if lane not in self.state.lagging]:
            del self.stalls[lane]
            gauge = self._ports.metrics.lane_watermark_stall_ms
            gauge.labels(self._label, str(lane)).set(0)
            _log.info("a lane caught up", mailbox_shard=self.state.shard, lane_id=lane)

    async def _told(
        self,
        records: Sequence[RecordStep],
        verdicts: Sequence[RecordVerdict],
        trace_parents: Mapping[MailboxSeq, str],
    ) -> Sequence[RecordStep]:
        """Count and hint what a durable step did; the records that somebody was told of.

        `trace_parents` is of those records whose traces are recorded.
        """
        metrics = self._ports.metrics
        materialised: list[Materialised] = []
        entries = duplicates = 0
        # Most records of a batch are for the same lanes of the same blocks: counted once for all.
        counted: dict[tuple[int, int], int] = {}
        for record, verdict in zip(records, verdicts, strict=True):
            duplicates += verdict.duplicate.bit_count()
            if verdict.digest_differs:
                await self._keep_sample(record)
            if verdict.applied:
                trace_parent = trace_parents.get(record.seq, "")
                materialised.append(Materialised(record, verdict.applied, trace_parent))
                audience = (id(record.blocks), verdict.applied)
                if audience not in counted:
                    counted[audience] = logic.recipients(record.blocks, verdict.applied)
                fresh = counted[audience]
                metrics.entry_rates.add(record.ref.key.tenant, self.state.shard, fresh)
                entries += fresh
        metrics.stage_entries_total.labels("mailbox").inc(entries)
        if duplicates:
            metrics.duplicates_total.labels(self._label).inc(duplicates)
        return await hint(self._ports, materialised)

    async def _keep_sample(self, record: RecordStep) -> None:
        """The same dispatch_id with other content: an invariant is broken, and a person must see
        the two. The first content is in the mailboxes; the reference to the second is kept.
        """
        self._ports.metrics.event_id_nondeterminism_total.inc()
        _log.error(
            "a dispatch_id came with other content",
            mailbox_shard=self.state.shard,
            mailbox_seq=record.seq,
            event_id=record.ref.event_id,
            dispatch_id=record.dispatch_id,
        )
        await self.quarantine(
            [
                Quarantined(
                    log_identity=self.state.boundaries[-1].log_identity,
                    partition=self.state.shard,
                    offset=logic.offset_behind(record.seq) - 1,
                    source="mailbox",
                    reason="content_differs",
                    at_ms=self._ports.runtime.wall_ms(),
                    value=record.dispatch_id + record.content_digest,
                )
            ]
        )

    async def quarantine(self, records: Sequence[Quarantined]) -> None:
        """Keep records durably. Raises TermOver; Halted if the store refuses them."""
        outcome = await settle(
            self._ports.runtime, self._term, lambda: self._ports.quarantine.quarantine(records)
        )
        if isinstance(outcome, NotApplied):
            raise Halted(Fault("quarantine_refused", outcome.refusal.value))
        self._ports.metrics.quarantined_total.labels("mailbox").inc(len(records))


def _recorded(batch: Sequence[Arrived]) -> Mapping[MailboxSeq, str]:
    """The traceparents of a batch that are recorded: mostly none."""
    return {
        arrived.seq: trace_parent
        for arrived in batch
        if (trace_parent := recorded(arrived.dispatch.trace_parent))
    }


def _traced(batch: Sequence[Arrived], done: Sequence[RecordStep]) -> Iterator[Traced]:
    """Those of the batch that the steps are of: a step keeps no trace context."""
    seqs = {record.seq for record in done}
    for arrived in batch:
        if arrived.seq in seqs:
            dispatch = arrived.dispatch
            yield Traced(dispatch.trace_parent, dispatch.ref, arrived.seq)
