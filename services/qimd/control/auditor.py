"""The auditor: every dispatched event has all its dispatches, and every record has its event.

An event is judged only when it must be complete: `dispatched_through` is read first, then the log's
ends, and then the auditor waits until every lane of every shard has finished what lay below those
ends. The durable `audited_through` never passes an orphan, so that a rebase finds what to rebuild.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from qimd.control.logic import incomplete, is_expired, is_quarantined
from qimd.core.ids import EventId, event_id
from qimd.core.outcome import Applied
from qimd.core.records import ConversationKey, LogIdentity
from qimd.core.routing import RoutingTable
from qimd.core.seq import MailboxSeq
from qimd.ports.log import Log, LogFault
from qimd.ports.mailbox import MailboxStore, MaterialisedRecord, finished
from qimd.ports.quarantine import QuarantineStore
from qimd.ports.runtime import Runtime
from qimd.ports.store import AuditRange, ConversationStore
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics

_log = logger("auditor")

RANGES_MAX: Final = 500
EVENTS_MAX: Final = 1_000
"""Events of one conversation that are read at once."""

PASS_EVENTS_MAX: Final = 10_000
PASS_RECORDS_MAX: Final = 2_048
RECORDS_MAX: Final = 128
"""Records whose events are read at once, bodies included: 8 MiB of the largest."""

QUARANTINED_MAX: Final = 1_000
CONVERSATIONS_MAX: Final = 10_000
"""Conversations with orphans that are remembered, so that each orphan counts once a process."""


@dataclass(frozen=True, slots=True)
class _Round:
    """Ranges that wait until the shards have passed the log's ends behind them."""

    identity: LogIdentity
    highs: tuple[int, ...]
    ranges: tuple[AuditRange, ...]


@dataclass(frozen=True, slots=True)
class AuditPass:
    """What one pass did: it is waiting, or has checked so much and found so many orphans."""

    waiting: bool
    events: int
    records: int
    orphans: int


class Auditor:
    """Compares events with dispatches, both ways, a bounded portion a pass."""

    def __init__(
        self,
        *,
        table: RoutingTable,
        conversations: ConversationStore,
        mailbox: MailboxStore,
        log: Log,
        quarantine: QuarantineStore,
        runtime: Runtime,
        metrics: Metrics,
    ) -> None:
        self._table = table
        self._conversations = conversations
        self._mailbox = mailbox
        self._log = log
        self._quarantine = quarantine
        self._runtime = runtime
        self._metrics = metrics
        self._round: _Round | None = None
        self._after: ConversationKey | None = None
        self._looked: OrderedDict[ConversationKey, int] = OrderedDict()
        self._records_after: dict[int, MailboxSeq] = {}

    async def run(self) -> None:
        """One pass, for a chore that runs every few seconds. Raises QimError(UNAVAILABLE)."""
        await self.audit()

    async def audit(self) -> AuditPass:
        """One pass. Raises QimError(UNAVAILABLE); the next pass goes on where it stopped."""
        restarts = self._mailbox.restarts
        records, orphans = await self._audit_records()
        if self._round is None:
            self._round = await self._begin()
        round_ = self._round
        if round_ is None or not await self._settled(round_):
            return AuditPass(True, 0, records, orphans)
        events, missing, whole = await self._audit_events(round_, restarts)
        if whole:
            self._round = None
        return AuditPass(False, events, records, orphans + missing)

    # --- events → dispatches ---

    async def _begin(self) -> _Round | None:
        ranges = await self._conversations.audit_ranges(RANGES_MAX, self._after)
        self._after = ranges[-1].key if len(ranges) == RANGES_MAX else None
        try:
            identity = await self._log.identity()
            highs = [
                (await self._log.watermarks(shard)).high
                for shard in range(self._table.mailbox_shards)
            ]
            # The ends were those of this log only if it still is the same one.
            same = await self._log.identity() == identity
        except LogFault as fault:
            _log.warning("the audit waits for the log", detail=str(fault))
            return None
        if not same:
            return None
        return _Round(identity, tuple(highs), tuple(ranges))

    async def _settled(self, round_: _Round) -> bool:
        """Whether every lane of every shard has finished what lay below the round's ends."""
        for shard, high in enumerate(round_.highs):
            state = await self._mailbox.shard_state(shard)
            if state is None:
                return False
            if state.boundaries[-1].log_identity != round_.identity.text:
                # Rebased meanwhile, or to be: the offsets of this round mean nothing any more.
                self._round = None
                self._looked.clear()
                return False
            if not finished(state, high):
                return False
        return True

    async def _audit_events(self, round_: _Round, restarts: int) -> tuple[int, int, bool]:
        """(events looked at, orphans found, whether the round is done). `restarts` is the store's
        from before the shards were seen to be settled: what a later start has lost comes again from
        the log, and is no orphan.
        """
        quarantined = await self._quarantine.quarantined(QUARANTINED_MAX)
        events = orphans = 0
        for found in round_.ranges:
            after = max(found.audited_through, self._looked.get(found.key, 0))
            standing = found.key in self._looked
            while after < found.dispatched_through:
                if events >= PASS_EVENTS_MAX:
                    return events, orphans, False
                through = min(after + EVENTS_MAX, found.dispatched_through)
                page = await self._conversations.event_ids(found.key, after, through)
                counts = await self._mailbox.dispatch_counts([event for _, event in page])
                lacking = [
                    (number, event)
                    for number, event in incomplete(page, counts)
                    if not is_quarantined(event, quarantined)
                    and await self._must_be_dispatched(found.key, number, event)
                ]
                if self._mailbox.restarts != restarts:
                    return events, orphans, False
                events += len(page)
                orphans += len(lacking)
                for number, event in lacking:
                    self._count("an event lacks dispatches", found.key, number, event)
                if not standing:
                    await self._audited(found.key, lacking[0][0] - 1 if lacking else through)
                standing = standing or bool(lacking)
                if standing:
                    self._remember(found.key, through)
                after = through
        return events, orphans, True

    async def _must_be_dispatched(self, key: ConversationKey, number: int, event: EventId) -> bool:
        found = await self._conversations.find_event(event)
        if found is None or is_expired(found[0].created_at_ms, self._runtime.wall_ms()):
            return False
        # An event for nobody has no dispatch: the removal of the last member has one, to them.
        members = await self._conversations.members_at(key, number)
        return bool(members or found[0].removed)

    async def _audited(self, key: ConversationKey, through: int) -> None:
        outcome = await self._conversations.set_audited(key, through)
        if not isinstance(outcome, Applied):
            # It only rises: the next round looks at the same events again.
            _log.info("audited_through was not stored", outcome=type(outcome).__name__)

    def _remember(self, key: ConversationKey, through: int) -> None:
        self._looked[key] = through
        self._looked.move_to_end(key)
        while len(self._looked) > CONVERSATIONS_MAX:
            self._looked.popitem(last=False)

    # --- dispatches → events ---

    async def _audit_records(self) -> tuple[int, int]:
        """(records looked at, orphans found): what is materialised has its event in the store."""
        records = orphans = 0
        for shard in range(self._table.mailbox_shards):
            state = await self._mailbox.shard_state(shard)
            if state is None:
                continue
            after = self._records_after.get(shard, state.floor)
            for _ in range(PASS_RECORDS_MAX // RECORDS_MAX):
                page = await self._mailbox.records_after(shard, after, RECORDS_MAX)
                orphans += await self._without_event(page)
                records += len(page)
                if page:
                    after = self._records_after[shard] = page[-1].seq
                if len(page) < RECORDS_MAX:
                    break
        return records, orphans

    async def _without_event(self, page: Sequence[MaterialisedRecord]) -> int:
        if not page:
            return 0
        stored = await self._conversations.events([record.ref for record in page])
        orphans = 0
        for record in page:
            ref = record.ref
            own = event_id(ref.key.tenant, ref.key.conversation, ref.conversation_seq)
            if ref.event_id not in stored or own != ref.event_id:
                orphans += 1
                self._count("a dispatch has no event", ref.key, ref.conversation_seq, ref.event_id)
        return orphans

    def _count(self, what: str, key: ConversationKey, number: int, event: EventId) -> None:
        self._metrics.orphan_dispatch_total.inc()
        _log.error(
            what,
            tenant_id=key.tenant,
            conversation_id=key.conversation,
            conversation_seq=number,
            event_id=event,
        )
