"""The fanout: from the outbox to the dispatch log, and only then the outbox's progress.

Two loops a shard, for as long as its term lasts. One dispatches: it gathers a batch over many
conversations, produces all of its records, awaits every delivery, and only then calls the events
dispatched. The other (`progress`) stores how far each outbox has come, as many at a time as there
are. What is lost between the two is dispatched again, and absorbed by its dispatch_id.

Inherited first: before anything is produced, the store is asked for the shard's pending outboxes.
Each one's head is claimed and its events are read before anything new of its conversation goes out,
and all go out under this term's epoch. Otherwise this owner's own records would make the mailbox
drop what its predecessor had committed.
"""

from collections.abc import Sequence
from typing import Final, assert_never

from qimd.core.errors import QimError, unavailable
from qimd.core.lease import Term
from qimd.core.outcome import Applied, NotApplied, Refusal, Unknown
from qimd.core.parameters import DISPATCH_CHUNK_RECIPIENTS, FANOUT_BATCH_RECORDS_MAX
from qimd.core.records import Event, LogIdentity
from qimd.core.routing import RoutingTable
from qimd.fanout.batch import Batch
from qimd.fanout.line import HaltedError, KnownLog, LogLine, LogUnfitError
from qimd.fanout.logic import Outbox, Standing, hold_s, judge
from qimd.fanout.progress import (
    TERM_CHECK_INTERVAL_S,
    backoff_s,
    step_down,
    store_progress,
)
from qimd.fanout.recipients import Recipients
from qimd.fanout.shard import Shard
from qimd.ports.log import Log
from qimd.ports.quarantine import Quarantined, QuarantineStore
from qimd.ports.runtime import Runtime
from qimd.ports.store import ConversationStore
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import DISPATCH, NO_SPANS, Spans, Traced

RESCAN_INTERVAL_S: Final = 30.0
"""An old owner's late write to a head that nobody had claimed is found and dispatched this soon."""

OUTBOX_PAGE_EVENTS: Final = 500
"""Events read at a time: with the largest bodies 32 MiB, which are let go at once."""

RUN_EVENTS_MIN: Final = 8
"""A conversation's share of a batch when many wait: enough to share the work of finding them."""

_log = logger("fanout")


class FanoutService:
    """Implements `ports.services.Fanout`. `chunk_recipients` is what the writer pins now."""

    def __init__(
        self,
        table: RoutingTable,
        conversations: ConversationStore,
        log: Log,
        quarantine: QuarantineStore,
        runtime: Runtime,
        metrics: Metrics,
        *,
        chunk_recipients: int = DISPATCH_CHUNK_RECIPIENTS,
        spans: Spans = NO_SPANS,
    ) -> None:
        self._table = table
        self._conversations = conversations
        self._known_log = KnownLog(log, conversations, table.mailbox_shards, chunk_recipients)
        self._quarantine_store = quarantine
        self._runtime = runtime
        self._metrics = metrics
        self._spans = spans
        self._recipients = Recipients(table, conversations)
        self._shards: dict[int, Shard] = {}

    # --- what the writer calls -------------------------------------------------------------------

    def committed(self, term: Term, events: Sequence[Event]) -> None:
        """See `ports.services.Fanout`."""
        shard = self._shard(term)
        if shard is not None:
            shard.told(events)

    def backlog(self, shard: int) -> int:
        """See `ports.services.Fanout`."""
        served = self._shards.get(shard)
        return served.backlog if served is not None else 0

    def _shard(self, term: Term) -> Shard | None:
        """The term's state, made at its first use. None for a term that is over: what was committed
        under it is in the store, and its successor reads it there.
        """
        known = self._shards.get(term.shard)
        if known is not None and known.term is term:
            return known
        if term.ended or (known is not None and known.term.epoch > term.epoch):
            return None
        shard = self._shards[term.shard] = Shard(term, self._runtime, self._metrics)
        return shard

    # --- ownership -------------------------------------------------------------------------------

    async def check_log(self) -> LogIdentity:
        """What must hold before the service calls itself ready.

        Raises LogUnfitError (INVALID_ARGUMENT naming the setting) for a log that can't hold a
        largest record or has another partition count than the routing table; UNAVAILABLE without an
        answer.
        """
        return await self._known_log.check_start()

    async def serve(self, term: Term) -> None:
        """Dispatch a shard's outboxes until its term has ended and its last call has settled."""
        shard = self._shard(term)
        if shard is None:
            return
        _log.info("dispatching a writer shard", writer_shard=term.shard, fencing_epoch=term.epoch)
        line = LogLine(self._known_log, self._runtime)
        progress = self._runtime.spawn(
            store_progress(shard, self._conversations, self._runtime),
            f"fanout-progress-{term.shard}",
        )
        try:
            await self._dispatch(shard, line)
            # Whoever releases the lease next must know that no write of this term is under way.
            await shard.progress_ended.wait()
        finally:
            progress.cancel()
            if self._shards.get(term.shard) is shard:
                del self._shards[term.shard]
            await line.close()
        _log.info("left a writer shard", writer_shard=term.shard, fencing_epoch=term.epoch)

    async def _dispatch(self, shard: Shard, line: LogLine) -> None:
        halted = self._metrics.shard_halted.labels("writer", str(shard.term.shard))
        halted.set(0)
        tries = 0
        while not shard.term.ended:
            if shard.progress_ended.is_set():
                # Progress that can't be stored is a defect; the next owner begins from the store.
                shard.term.end()
                return
            moved = False
            try:
                moved = await self._pass(shard, line)
            except (HaltedError, LogUnfitError) as error:
                self._halt(shard, error)
                halted.set(1)
                await line.close()
                await self._sit_out(shard)
                halted.set(0)
                return
            except QimError as error:
                self._complain(shard, error)
            tries = 0 if moved else tries + 1
            if tries:
                await self._runtime.sleep(backoff_s(tries, self._runtime.random()))

    def _halt(self, shard: Shard, error: QimError) -> None:
        shard.halted = error.message
        _log.error(
            "dispatching stopped until a restart",
            writer_shard=shard.term.shard,
            reason=error.message,
            backlog=shard.backlog,
        )

    async def _sit_out(self, shard: Shard) -> None:
        """Keep the term, so that the backlog's limit refuses SENDs here, and produce nothing."""
        while not shard.term.ended and not shard.progress_ended.is_set():
            await self._runtime.sleep(TERM_CHECK_INTERVAL_S)

    def _complain(self, shard: Shard, error: QimError) -> None:
        _log.warning(
            "dispatching waits",
            writer_shard=shard.term.shard,
            reason=error.message,
            backlog=shard.backlog,
        )

    # --- one pass --------------------------------------------------------------------------------

    async def _pass(self, shard: Shard, line: LogLine) -> bool:
        """Dispatch one batch, or wait for something to dispatch; whether it went well."""
        if not shard.may_write():
            return False
        if shard.scanned_s is None:
            await self.check_log()
        await self._scan(shard)
        identity = await line.ready()
        if not shard.waiting:
            await self._wait(shard)
            return True
        await self._hold(shard)
        batch, stuck = await self._gather(shard, identity)
        began_s = self._runtime.monotonic_s()
        delivered = False
        try:
            delivered = await self._deliver(shard, line, batch)
        finally:
            if not delivered:
                # The whole run again, from the first event that is not durable.
                shard.again(batch.outboxes, first=True)
            shard.again(stuck)
            shard.last_batch_s = self._runtime.monotonic_s()
        if not delivered:
            return False
        for outbox, through in batch.runs:
            shard.dispatched(outbox, through)
        self._observe(batch, self._runtime.monotonic_s() - began_s)
        self._spans.stage(
            DISPATCH,
            began_s,
            (Traced(event.trace_parent, event) for event in batch.events()),
            writer_shard=shard.term.shard,
            fencing_epoch=batch.fencing_epoch,
        )
        return bool(batch.runs)

    def _observe(self, batch: Batch, seconds: float) -> None:
        if batch.records:
            self._metrics.stage_records_total.labels("dispatch").inc(len(batch.records))
            self._metrics.stage_entries_total.labels("dispatch").inc(batch.recipients)
            self._metrics.stage_latency_seconds.labels("dispatch").observe(seconds)

    async def _wait(self, shard: Shard) -> None:
        shard.wake.clear()
        try:
            await self._runtime.wait_for(shard.wake.wait(), TERM_CHECK_INTERVAL_S)
        except TimeoutError:
            return

    async def _hold(self, shard: Shard) -> None:
        """Hold back what waits as `hold_s` says, unless it fills a batch by itself."""
        if shard.backlog < FANOUT_BATCH_RECORDS_MAX:
            now_s = self._runtime.monotonic_s()
            await self._runtime.sleep(hold_s(now_s, shard.last_batch_s))

    async def _scan(self, shard: Shard) -> None:
        """Ask the store what is pending: at first, and now and then. Raises UNAVAILABLE."""
        now_s = self._runtime.monotonic_s()
        if shard.scanned_s is not None and now_s - shard.scanned_s < RESCAN_INTERVAL_S:
            return
        shard.found(await self._conversations.pending(shard.term.shard))
        shard.scanned_s = now_s

    async def _gather(self, shard: Shard, identity: LogIdentity) -> tuple[Batch, list[Outbox]]:
        """A batch of those whose turn it is, and the outboxes that can't be read now.

        Raises HaltedError for an event that was committed under another routing table.
        """
        batch = Batch(identity, shard.term.epoch)
        stuck: list[Outbox] = []
        share = max(RUN_EVENTS_MIN, FANOUT_BATCH_RECORDS_MAX // shard.waiting)
        for _ in range(shard.waiting):
            if len(batch.records) >= FANOUT_BATCH_RECORDS_MAX:
                break
            outbox = shard.next()
            try:
                await self._settle(shard, outbox)
                await self._add_run(batch, outbox, share)
            except HaltedError:
                shard.again([*batch.outboxes, outbox, *stuck], first=True)
                raise
            except QimError as error:
                stuck.append(outbox)
                self._complain(shard, error)
        return batch, stuck

    async def _add_run(self, batch: Batch, outbox: Outbox, share: int) -> None:
        """Add the outbox's next events, as many as there is room for; at least one."""
        through = outbox.durable
        for event in outbox.run(share):
            if event.routing_version != self._table.version:
                raise HaltedError(
                    f"an event was committed under routing version {event.routing_version}, "
                    f"this node has {self._table.version}"
                )
            try:
                chunks = await self._recipients.chunks(event)
            except QimError:
                if through == outbox.durable:
                    raise
                # What is there already goes out; the next turn begins with this event.
                break
            full = len(batch.records) + len(chunks) > FANOUT_BATCH_RECORDS_MAX
            if full and batch.records:
                break
            batch.add(event, chunks)
            through = event.conversation_seq
        batch.runs.append((outbox, through))

    async def _settle(self, shard: Shard, outbox: Outbox) -> None:
        """Know all of the outbox. Raises UNAVAILABLE if it can't be known now."""
        if outbox.standing is Standing.INHERITED:
            await self._claim(shard, outbox)
        elif outbox.standing is Standing.UNVERIFIED:
            state = await self._conversations.conversation(outbox.key)
            if state is None:
                raise unavailable("a conversation with events is not in the store")
            shard.verified(outbox, state.dispatched_through, state.head_version)
        while _has_hole(outbox):
            events = await self._conversations.outbox(outbox.key, outbox.tail, OUTBOX_PAGE_EVENTS)
            if not shard.loaded(outbox, events):
                raise unavailable("the store does not hold every event below a head")

    async def _claim(self, shard: Shard, outbox: Outbox) -> None:
        """Raise the head's epoch, so that no old owner's late write lands any more."""
        if not shard.may_write():
            raise unavailable("the term may not write")
        outcome = await self._conversations.claim(shard.term.shard, shard.term.epoch, outbox.key)
        match outcome:
            case Applied(value=state):
                shard.verified(outbox, state.dispatched_through, state.head_version)
            case NotApplied(refusal=Refusal.STALE_EPOCH):
                step_down(shard)
                raise unavailable("another owner took the shard over")
            case NotApplied() | Unknown():
                # A claim that is repeated changes nothing.
                raise unavailable("an inherited head is not claimed yet")
            case _:
                assert_never(outcome)

    # --- deliveries ------------------------------------------------------------------------------

    async def _deliver(self, shard: Shard, line: LogLine, batch: Batch) -> bool:
        """Whether every record is durable: in the log, or in quarantine if the log can't take it.

        A failure spends the producer: what it still holds could land behind what is sent again.
        """
        if not shard.may_write():
            return False
        records = [record.produce for record in batch.records]
        verdict = judge(await line.produce(records) if records else ())
        if not verdict.settled:
            _log.warning(
                "a batch of dispatches failed; all of it is sent again",
                writer_shard=shard.term.shard,
                records=len(batch.records),
                reason=verdict.detail,
            )
            await line.close()
            return False
        set_aside = batch.quarantined(verdict.rejected, self._runtime.wall_ms())
        return not set_aside or await self._set_aside(shard, set_aside)

    async def _set_aside(self, shard: Shard, records: Sequence[Quarantined]) -> bool:
        """Quarantine durably what can't be produced: a P1, and no reason to hold the others."""
        tries = 0
        while shard.may_write():
            outcome = await self._quarantine_store.quarantine(records)
            match outcome:
                case Applied():
                    break
                case NotApplied() | Unknown():
                    tries += 1
                    await self._runtime.sleep(backoff_s(tries, self._runtime.random()))
                case _:
                    assert_never(outcome)
        else:
            return False
        self._metrics.quarantined_total.labels("dispatch").inc(len(records))
        for record in records:
            _log.error(
                "P1: a dispatch can't be produced; it is in quarantine",
                mailbox_shard=record.partition,
                source=record.source,
                reason=record.reason,
            )
        return True


def _has_hole(outbox: Outbox) -> bool:
    return outbox.standing is Standing.HOLE
