"""Copies what lagging lanes still need before the log's retention takes it (design section 7).

A lane that stands may stand for longer than the log keeps its records. Those of its records that
are in the last third of their life are kept in the mailbox's store, as they are in the log, and the
lane's retry reads them there once the log has lost them. They go when no lane needs them any more.

Only records with blocks of lagging lanes are kept. Each says up to where nothing in between was for
such a lane (`ports.mailbox.KeptRecord`), so that what is kept proves by itself whether it is whole:
a lane never passes a gap. Such a saying holds for ever: a lane that begins to lag later does so at
the shard's position, behind everything that was looked at.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from qimd.core.lease import Term
from qimd.core.outcome import Applied, NotApplied
from qimd.core.parameters import LANE_KEEP_INTERVAL_S, MAILBOX_BATCH_RECORDS_MAX
from qimd.core.seq import SEQ_NONE, MailboxSeq, offset_of
from qimd.mailbox import logic
from qimd.mailbox.intake import take_in
from qimd.mailbox.logic import Arrived
from qimd.mailbox.materialise import Materialiser
from qimd.mailbox.ports import Halted, RoomPorts
from qimd.ports.log import LogFault, LogFaultKind, LogRecord
from qimd.ports.mailbox import EpochBoundary, KeptRecord, lowest_watermark, reach, resume_offset
from qimd.telemetry.logs import logger

_log = logger("mailbox")

FETCH_WAIT_S: Final = 1.0


class Keeping:
    """Called by the shard's task, between its batches."""

    def __init__(self, ports: RoomPorts, term: Term, writer: Materialiser) -> None:
        self._ports = ports
        self._term = term
        self._writer = writer
        self._look_s = ports.runtime.monotonic_s()
        self._through: MailboxSeq | None = None
        """How far was looked and kept; None where an owner before may have left something."""
        self._holds = True
        self._dropped = SEQ_NONE

    async def tick(self) -> None:
        """Do what is due. Raises Halted, TermOver, LogFault, QimError(UNAVAILABLE)."""
        now_s = self._ports.runtime.monotonic_s()
        if not self._writer.state.lagging:
            await self._drop()
            self._holds, self._through = False, None
        elif now_s >= self._look_s:
            await self._drop()
            if await self._keep():
                self._look_s = now_s + LANE_KEEP_INTERVAL_S

    async def _drop(self) -> None:
        """Let go of what every lane has passed."""
        state, lowest = self._writer.state, lowest_watermark(self._writer.state)
        if not self._holds or lowest <= self._dropped:
            return
        dropped = await self._writer.settle(
            lambda: self._ports.store.drop_kept(state.shard, self._term.epoch, lowest)
        )
        if isinstance(dropped, NotApplied):
            raise Halted(logic.Fault("store_refused", f"drop_kept: {dropped.refusal.value}"))
        self._dropped = lowest

    async def _keep(self) -> bool:
        """Keep one portion of what is due; whether nothing more is due now."""
        state = self._writer.state
        boundary = state.boundaries[-1]
        reached = await self._reached()
        start = resume_offset(boundary, reached)
        end = min(await self._horizon(), state.next_offset)
        low = (await self._ports.log.watermarks(state.shard)).low
        if start < low:
            # Lost to the lanes that stand below; those above it can still be helped.
            start, reached = low, logic.seq_at(boundary, low - 1)
        if start >= end:
            return True
        records = await self._read(start, min(MAILBOX_BATCH_RECORDS_MAX, end - start))
        if not records or records[0].offset != start:
            return False
        intake = take_in(records, state.shard, boundary, self._ports.runtime.wall_ms())
        if not intake.taken:
            return True
        kept = needed(records[: intake.taken], intake.arrived, boundary, state.lagging, reached)
        if not await self._write(kept):
            return True
        self._through = kept[-1].seq
        return resume_offset(boundary, self._through) >= end

    async def _reached(self) -> MailboxSeq:
        """How far every lane that can still be helped has passed, or finds kept what it needs."""
        lowest = lowest_watermark(self._writer.state)
        if self._through is None:
            # An owner before may have kept what the log has lost since.
            through, before = lowest, None
            while through != before:
                before = through
                page = await self._ports.store.kept_records(
                    self._writer.state.shard, before, MAILBOX_BATCH_RECORDS_MAX
                )
                through = reach(page, before)
            self._through = through
        return max(self._through, lowest)

    async def _horizon(self) -> int:
        """The first offset that is not yet in the last third of its life."""
        retention_ms = (await self._ports.log.settings()).retention_ms
        if retention_ms is None or retention_ms < 0:
            return 0
        old_ms = self._ports.runtime.wall_ms() - retention_ms * 2 // 3
        return await self._ports.log.offset_at(self._writer.state.shard, old_ms)

    async def _read(self, start: int, count: int) -> Sequence[LogRecord]:
        try:
            state = self._writer.state
            log_identity = state.boundaries[-1].log_identity
            reader = await self._ports.log.open_reader(state.shard, start, log_identity)
            try:
                return await reader.fetch(count, FETCH_WAIT_S)
            finally:
                await reader.close()
        except LogFault as fault:
            if fault.kind is LogFaultKind.OUT_OF_RANGE:
                # Retention passed meanwhile: look again, from where the log begins by then.
                return ()
            raise

    async def _write(self, kept: Sequence[KeptRecord]) -> bool:
        """Whether they are durable. A copy that is refused costs no more than a rebase."""
        shard = self._writer.state.shard
        outcome = await self._writer.settle(
            lambda: self._ports.store.keep_records(shard, self._term.epoch, kept)
        )
        match outcome:
            case Applied():
                _log.warning(
                    "records of lagging lanes are kept beyond the log's retention",
                    mailbox_shard=shard,
                    lanes=sorted(self._writer.state.lagging),
                    n=sum(bool(record.value) for record in kept),
                    mailbox_seq=kept[-1].seq,
                )
                self._holds = True
                return True
            case NotApplied(refusal=refusal, detail=detail):
                _log.error(
                    "records of lagging lanes can't be kept",
                    mailbox_shard=shard,
                    reason=refusal.value,
                    detail=detail,
                )
                return False


def needed(
    records: Sequence[LogRecord],
    arrived: Sequence[Arrived],
    boundary: EpochBoundary,
    lagging: Mapping[int, MailboxSeq],
    reached: MailboxSeq,
) -> list[KeptRecord]:
    """What is kept of consecutive records behind `reached`: those with a block of a lane that lags
    behind them, and a mark at the last one, so that the next portion follows on it.
    """
    kept: list[KeptRecord] = []
    by_offset = {record.offset: record for record in records}
    for one in arrived:
        if any(lagging.get(block.lane, one.seq) < one.seq for block in one.dispatch.blocks):
            record = by_offset[offset_of(one.seq)]
            kept.append(KeptRecord(reached, one.seq, record.timestamp_ms, record.value))
            reached = one.seq
    end = logic.seq_at(boundary, records[-1].offset)
    if reached < end:
        kept.append(KeptRecord(reached, end, records[-1].timestamp_ms, b""))
    return kept
