"""Lagging lanes: each reads the log again from its own watermark, in order, until it meets the
shard's position. It keeps no queue, so nothing overtakes and a restart has nothing to restore.
Where the log no longer covers it, it reads what was kept of it in time (`keeping`).
"""

from collections.abc import Sequence
from typing import Final

from qimd.core.errors import QimError
from qimd.core.parameters import MAILBOX_BATCH_RECORDS_MAX
from qimd.core.seq import MailboxSeq, offset_of
from qimd.mailbox import logic
from qimd.mailbox.intake import take_in
from qimd.mailbox.logic import Arrived, Stall
from qimd.mailbox.materialise import Materialiser
from qimd.mailbox.ports import RoomPorts
from qimd.ports.log import LogFault, LogFaultKind, LogRecord
from qimd.ports.mailbox import reach, resume_offset, watermark
from qimd.telemetry.logs import logger

_log = logger("mailbox")

LANE_BATCH_RECORDS_MAX: Final = 2 * MAILBOX_BATCH_RECORDS_MAX
"""Records that a lane re-reads at once, for its own blocks alone. More than the shard takes between
two such turns, so that a lane that works again meets the position even under full load."""

FETCH_WAIT_S: Final = 1.0
"""The records are there: this bounds an engine that is slow to hand them over."""


class LaggingLanes:
    """The retries of a shard's lagging lanes. Called by the shard's task, between its batches."""

    def __init__(self, ports: RoomPorts, writer: Materialiser) -> None:
        self._ports = ports
        self._writer = writer
        self._handed_over = False

    def wait_s(self, most_s: float) -> float:
        """How long the shard may wait for records before a lane's retry is due."""
        now_s = self._ports.runtime.monotonic_s()
        due = [stall.due_s - now_s for stall in self._writer.stalls.values()]
        return max(0.0, min([most_s, *due]))

    async def retry(self) -> None:
        """Give every lane whose retry is due one turn, and say how long the others stand."""
        for lane, stall in list(self._writer.stalls.items()):
            now_s = self._ports.runtime.monotonic_s()
            if stall.due_s <= now_s:
                before = watermark(self._writer.state, lane)
                done = await self._turn(lane)
                if lane in self._writer.stalls:
                    moved = watermark(self._writer.state, lane) > before
                    rest = Stall(now_s) if moved else stall
                    jitter = self._ports.runtime.random()
                    self._writer.stalls[lane] = rest if done else rest.failed(now_s, jitter)
            self._watch(lane)

    async def _turn(self, lane: int) -> bool:
        """Read and write one batch of a lane. False: the lane still stands at a block."""
        writer = self._writer
        try:
            batch, through = await self._read(lane)
        except (QimError, LogFault) as error:
            # OUT_OF_RANGE: neither the log nor what was kept covers the lane. The others go on; an
            # operator's rebase rebuilds the lane's events from the store.
            _log.error(
                "a lagging lane can't be read again",
                mailbox_shard=writer.state.shard,
                lane_id=lane,
                error=str(error),
            )
            return False
        if through <= watermark(writer.state, lane):
            return False
        records = await writer.steps_of(batch, lane)
        return await writer.apply_lane(lane, records, through)

    async def _read(self, lane: int) -> tuple[tuple[Arrived, ...], MailboxSeq]:
        """The next records behind W[lane], none above the position; and how far they reach."""
        state = self._writer.state
        boundary, after = state.boundaries[-1], watermark(state, lane)
        try:
            fetched = await self._read_log(resume_offset(boundary, after))
            records = [record for record in fetched if record.offset < state.next_offset]
            through = logic.seq_at(boundary, records[-1].offset) if records else after
        except LogFault as fault:
            if fault.kind is not LogFaultKind.OUT_OF_RANGE:
                raise
            records, through = await self._read_kept(after)
            if through == after:
                raise
        # The shard has passed these records: what could not be decoded is quarantined already, and
        # a fault would have halted it before, in a build that could read them.
        intake = take_in(records, state.shard, boundary, self._ports.runtime.wall_ms())
        if intake.fault is not None:
            through = max(
                after, MailboxSeq(logic.seq_at(boundary, records[intake.taken].offset) - 1)
            )
        return intake.arrived, through

    async def _read_log(self, start: int) -> Sequence[LogRecord]:
        state = self._writer.state
        log_identity = state.boundaries[-1].log_identity
        reader = await self._ports.log.open_reader(state.shard, start, log_identity)
        try:
            return await reader.fetch(LANE_BATCH_RECORDS_MAX, FETCH_WAIT_S)
        finally:
            await reader.close()

    async def _read_kept(self, after: MailboxSeq) -> tuple[list[LogRecord], MailboxSeq]:
        """What was kept behind `after`, up to the first gap; and how far it reaches."""
        kept = await self._ports.store.kept_records(
            self._writer.state.shard, after, LANE_BATCH_RECORDS_MAX
        )
        through = reach(kept, after)
        records = [
            LogRecord(offset_of(one.seq), one.timestamp_ms, one.value)
            for one in kept
            if one.seq <= through and one.value
        ]
        return records, through

    def _watch(self, lane: int) -> None:
        stall = self._writer.stalls.get(lane)
        if stall is None:
            return
        shard = self._writer.state.shard
        now_s = self._ports.runtime.monotonic_s()
        stalled_ms = round(stall.stalled_s(now_s) * 1000)
        gauge = self._ports.metrics.lane_watermark_stall_ms
        gauge.labels(str(shard), str(lane)).set(stalled_ms)
        if stall.alert_due(now_s):
            self._alert(shard, lane, stall, stalled_ms)
        if stall.failover_due(now_s) and not self._handed_over:
            # Once: if the lane stands again under another owner, it is the data, and a person's.
            self._handed_over = True
            _log.error("the shard is handed over for a lane", mailbox_shard=shard, lane_id=lane)
            self._ports.on_stall_failover(shard)

    def _alert(self, shard: int, lane: int, stall: Stall, stalled_ms: int) -> None:
        self._writer.stalls[lane] = stall.told()
        _log.error(
            "a lane stands",
            mailbox_shard=shard,
            lane_id=lane,
            mailbox_seq=watermark(self._writer.state, lane),
            stalled_ms=stalled_ms,
            attempts=stall.attempts,
        )
