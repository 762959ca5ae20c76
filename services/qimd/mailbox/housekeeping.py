"""What a running shard does now and then: its gauges, the identity check, expiry, folding.

The progress of dispatches is kept for ever, unless the deployment names a replay safety window: how
long after its last record a dispatch can't come again, by an audit of the deployment's own. Then it
goes once its entries have expired, every lane is past each place where it was seen, and the last of
them is older than the window. A log that keeps its records for longer could bring it again all the
same, by a replay from its beginning, and so nothing is collected under it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from qimd.core.lease import Term
from qimd.core.outcome import Applied
from qimd.core.parameters import LOG_IDENTITY_CHECK_INTERVAL_S
from qimd.core.records import LogIdentity
from qimd.core.seq import MailboxSeq
from qimd.mailbox import logic
from qimd.mailbox.gates import same_log
from qimd.mailbox.materialise import Materialiser
from qimd.mailbox.ports import RoomPorts
from qimd.ports.mailbox import lowest_watermark
from qimd.telemetry.logs import logger

_log = logger("mailbox")

GAUGE_INTERVAL_S: Final = 1.0
EXPIRE_INTERVAL_S: Final = 60.0
EXPIRE_RECORDS_MAX: Final = 512
"""Records dropped in one step, with up to 512 entries each: about what a batch writes."""

FOLD_INTERVAL_S: Final = 600.0


class Housekeeping:
    """Called by the shard's task, between its batches."""

    def __init__(
        self,
        ports: RoomPorts,
        term: Term,
        writer: Materialiser,
        identity: LogIdentity,
        raise_floor: Callable[[MailboxSeq], None],
    ) -> None:
        self._ports = ports
        self._term = term
        self._writer = writer
        self._identity = identity
        self._raise_floor = raise_floor
        now_s = ports.runtime.monotonic_s()
        self._gauges_s = now_s
        self._identity_s = now_s + LOG_IDENTITY_CHECK_INTERVAL_S
        self._expire_s = now_s
        self._fold_s = now_s + FOLD_INTERVAL_S
        # An owner before may have raised the floor and died before the records went.
        self._expired_all = False
        self._told_retention = False

    async def tick(self) -> None:
        """Do what is due. Raises Halted, TermOver, LogFault, QimError(UNAVAILABLE)."""
        now_s = self._ports.runtime.monotonic_s()
        if now_s >= self._identity_s:
            self._identity_s = now_s + LOG_IDENTITY_CHECK_INTERVAL_S
            # A topic that was re-created under a running reader is found within one interval.
            await same_log(self._ports.log, self._identity)
        if now_s >= self._gauges_s:
            self._gauges_s = now_s + GAUGE_INTERVAL_S
            await self._measure()
        if now_s >= self._expire_s and await self._expire() and await self._collect():
            self._expire_s = now_s + EXPIRE_INTERVAL_S
        if now_s >= self._fold_s:
            self._fold_s = now_s + FOLD_INTERVAL_S
            state = self._writer.state
            below = lowest_watermark(state)
            await self._writer.settle(
                lambda: self._ports.store.fold_marks(state.shard, self._term.epoch, below)
            )

    async def _measure(self) -> None:
        state = self._writer.state
        high = (await self._ports.log.watermarks(state.shard)).high
        gauge = self._ports.metrics.mailbox_lag_records.labels(str(state.shard))
        gauge.set(max(0, high - state.next_offset))

    async def _expire(self) -> bool:
        """Drop one portion of what is older than the buckets kept; whether nothing is left."""
        state = self._writer.state
        floor = logic.expired_floor(state, self._ports.runtime.wall_ms())
        if floor <= state.floor and self._expired_all:
            return True
        # Readers see the new floor before anything below it goes: a page that is read meanwhile
        # must not pass for whole.
        self._raise_floor(floor)
        outcome = await self._writer.settle(
            lambda: self._ports.store.expire_buckets(
                state.shard, self._term.epoch, floor, EXPIRE_RECORDS_MAX
            )
        )
        if not isinstance(outcome, Applied):
            return True
        self._writer.state = replace(self._writer.state, floor=floor)
        self._expired_all = outcome.value < EXPIRE_RECORDS_MAX
        return self._expired_all

    async def _collect(self) -> bool:
        """Drop a portion of the progress that no replay needs any more; whether nothing is left."""
        window_ms = self._ports.replay_safety_window_ms
        if window_ms is None or not await self._forgets_within(window_ms):
            return True
        state = self._writer.state
        through = logic.collectable(state, self._ports.runtime.wall_ms(), window_ms)
        outcome = await self._writer.settle(
            lambda: self._ports.store.collect_progress(
                state.shard, self._term.epoch, through, EXPIRE_RECORDS_MAX
            )
        )
        if not isinstance(outcome, Applied):
            return True
        self._ports.metrics.dispatch_progress_collected_total.inc(outcome.value)
        return outcome.value < EXPIRE_RECORDS_MAX

    async def _forgets_within(self, window_ms: int) -> bool:
        """Whether the log keeps no record for longer than the window."""
        retention_ms = (await self._ports.log.settings()).retention_ms
        if retention_ms is not None and 0 <= retention_ms <= window_ms:
            return True
        if not self._told_retention:
            self._told_retention = True
            _log.error(
                "no progress is collected: the log keeps its records for longer than the replay "
                "safety window",
                mailbox_shard=self._writer.state.shard,
                retention_ms=retention_ms,
                replay_safety_window_ms=window_ms,
            )
        return False
