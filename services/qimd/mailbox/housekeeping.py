"""What a running shard does now and then: its gauges, the identity check, expiry, folding.

The progress of dispatches is kept for ever, unless the deployment names a replay safety window: how
long after its last record a dispatch can't come again, by an audit of the deployment's own. Then it
goes once its entries have expired, every lane is past each place where it was seen, the last of
these is older than the window, and the log holds none of them any more: a replay from its beginning
would bring it again, whatever the audit says. While a lane lags, or what the log held at the start
is not read yet, a place is still to be seen, and nothing goes.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from qimd.core.lease import Term
from qimd.core.outcome import Applied
from qimd.core.parameters import LOG_IDENTITY_CHECK_INTERVAL_S
from qimd.core.seq import MailboxSeq, before_offset
from qimd.mailbox import logic
from qimd.mailbox.gates import Admitted, same_log
from qimd.mailbox.materialise import Materialiser
from qimd.mailbox.ports import RoomPorts
from qimd.ports.mailbox import lowest_watermark

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
        admitted: Admitted,
        raise_floor: Callable[[MailboxSeq], None],
    ) -> None:
        self._ports = ports
        self._term = term
        self._writer = writer
        self._identity = admitted.identity
        self._high_at_start = admitted.high
        self._raise_floor = raise_floor
        now_s = ports.runtime.monotonic_s()
        self._gauges_s = now_s
        self._identity_s = now_s + LOG_IDENTITY_CHECK_INTERVAL_S
        self._expire_s = now_s
        self._fold_s = now_s + FOLD_INTERVAL_S
        # An owner before may have raised the floor and died before the records went.
        self._expired_all = False

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
        """Forget a portion of the dispatches that no replay brings again; whether none is left."""
        window_ms, state = self._ports.replay_safety_window_ms, self._writer.state
        if window_ms is None or state.lagging or state.next_offset < self._high_at_start:
            return True
        marks = await self._ports.log.watermarks(state.shard)
        now_ms = self._ports.runtime.wall_ms()
        if state.next_offset < marks.high:
            # What it has read tells how late it is.
            now_ms = min(now_ms, logic.reached_ms(state))
        epoch = state.boundaries[-1].shard_epoch
        through = min(logic.collectable(state, now_ms, window_ms), before_offset(epoch, marks.low))
        outcome = await self._writer.settle(
            lambda: self._ports.store.collect_progress(
                state.shard, self._term.epoch, through, EXPIRE_RECORDS_MAX
            )
        )
        if not isinstance(outcome, Applied):
            return True
        self._ports.metrics.dispatch_progress_collected_total.inc(outcome.value.forgotten)
        return not outcome.value.more
