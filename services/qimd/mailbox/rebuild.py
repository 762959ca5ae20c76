"""An operator's rebase: the way out when a shard's log is another one, or no longer covers it.

Numbers that were given are never taken back, and none is given twice. So the shard begins a new
epoch whose seqs number a *rebuild manifest*: the store's events that the shard's members may lack,
in the order of their conversations. Then it begins the epoch of the log as it is now.

- What may be lacking is what the auditor has not yet seen materialised: the dispatched events above
  each conversation's `audited_through`. What members have already is absorbed by its dispatch_id.
- A number of the manifest is bound to its record durably before anything is written under it: on an
  engine whose step is several effects, a rebuild that is cut short has entries above W already. It
  goes on with what is bound, then behind it. Records are bound as `ports.mailbox.KeptRecord`, and
  let go of by the shard's next owner (`keeping`).
- Events that are not dispatched yet come by the log, behind the manifest, under the next epoch.
- Each conversation's mark is raised to its head's epoch: a record of an older owner that is still
  in the log is either in the manifest (it was dispatched), or its owner's successor produces it.
- Records that were produced into this log under another's identity (their producer had not noticed
  yet that the topic was re-created) can't be read on in place: the log's epoch begins behind the
  last of them. The manifest goes on in their conversations as far as they do, in order: their
  producer may have left out what it had produced into the log before.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from qimd.contract.dispatch import decode_dispatch, encode_blocks, encode_dispatch
from qimd.contract.violation import ContractViolation, ReaderTooOld
from qimd.core.dispatch import plan_chunks
from qimd.core.errors import unavailable
from qimd.core.ids import UserId
from qimd.core.lease import Term
from qimd.core.outcome import Applied, NotApplied
from qimd.core.parameters import (
    MAILBOX_BATCH_ENTRIES_MAX,
    MAILBOX_BATCH_RECORDS_MAX,
    SHARD_EPOCH_MAX,
)
from qimd.core.records import ConversationKey, Dispatch, Event, EventKind, LogIdentity
from qimd.mailbox import logic
from qimd.mailbox.gates import being_rebuilt, checked_log, same_log
from qimd.mailbox.intake import is_foreign, undecodable
from qimd.mailbox.logic import Arrived, Fault
from qimd.mailbox.materialise import Materialiser
from qimd.mailbox.ports import Halted, RoomPorts
from qimd.ports.log import LogRecord, Watermarks
from qimd.ports.mailbox import REBUILD_IDENTITY, EpochBoundary, KeptRecord
from qimd.ports.services import RebasePlan
from qimd.ports.store import AuditRange, ConversationState
from qimd.telemetry.logs import logger

_log = logger("mailbox")

RANGES_MAX: Final = 500
EVENTS_MAX: Final = 256
"""Conversations, and events of one, that are read at once."""

FETCH_WAIT_S: Final = 1.0


class Rebuild:
    """A rebase of one shard, run by the shard's task while it serves nobody."""

    def __init__(self, ports: RoomPorts, term: Term, writer: Materialiser) -> None:
        self._ports = ports
        self._term = term
        self._writer = writer
        self._members: tuple[ConversationKey, int, Sequence[UserId]] | None = None
        self._batch: list[bytes] = []

    async def plan(self, fault: Fault | None) -> RebasePlan:
        """What it would do now; changes nothing. Raises Halted, QimError(UNAVAILABLE)."""
        identity = await self._log_identity()
        low = (await self._ports.log.watermarks(self._shard)).low
        conversations = events = 0
        async for found in self._ranges():
            conversations += 1
            events += found.dispatched_through - found.audited_through
        epoch = self._rebuild_epoch()
        return RebasePlan(
            shard=self._shard,
            fault=fault.reason if fault else "a_lane_lags",
            rebuild_epoch=epoch,
            log_epoch=epoch + 1,
            log_identity=identity.text,
            first_offset=low,
            conversations=conversations,
            events=events,
        )

    async def run(self, fault: Fault | None) -> RebasePlan:
        """Do it, or go on with one that was cut short; what it touched.

        Raises Halted, TermOver, LogFault, QimError(UNAVAILABLE). Whatever it raises, it may be run
        again.
        """
        identity = await self._log_identity()
        plan = await self.plan(fault)
        if not being_rebuilt(self._writer.state):
            await self._begin(EpochBoundary(plan.rebuild_epoch, 0, REBUILD_IDENTITY))
        # What a lagging lane lacks is numbered anew, above its W: nothing holds it any more.
        self._writer.state = replace(self._writer.state, lagging={})
        self._writer.stalls.clear()
        _log.warning(
            "a mailbox shard is rebuilt from the store",
            mailbox_shard=self._shard,
            shard_epoch=plan.rebuild_epoch,
            conversations=plan.conversations,
            events=plan.events,
        )
        await self._resume()
        await self._rebuild_dispatched(identity)
        # Read only now: what retention took meanwhile is older than what the manifest covers.
        first, ahead = await self._left_behind(identity)
        await self._rebuild_ahead(ahead, identity)
        await same_log(self._ports.log, identity)
        await self._begin(EpochBoundary(plan.log_epoch, first, identity.text))
        return replace(plan, first_offset=first)

    # --- parts ---

    @property
    def _shard(self) -> int:
        return self._writer.state.shard

    def _rebuild_epoch(self) -> int:
        last = self._writer.state.boundaries[-1].shard_epoch
        epoch = last if being_rebuilt(self._writer.state) else last + 1
        if epoch + 1 > SHARD_EPOCH_MAX:
            raise unavailable(f"the shard has used up its {SHARD_EPOCH_MAX} epochs")
        return epoch

    async def _log_identity(self) -> LogIdentity:
        try:
            return await checked_log(self._ports)
        except Halted as halted:
            # No new fault of the shard: it stays halted as it is, until the log is as it must be.
            raise unavailable(f"the log can't be used: {halted}") from halted

    async def _begin(self, boundary: EpochBoundary) -> None:
        begun = await self._writer.settle(
            lambda: self._ports.store.begin_epoch(self._shard, self._term.epoch, boundary)
        )
        match begun:
            case Applied(value=state):
                self._writer.state = state
            case NotApplied(refusal=refusal, detail=detail):
                raise Halted(Fault("store_refused", f"begin_epoch: {refusal.value} {detail}"))

    async def _ranges(self) -> AsyncIterator[AuditRange]:
        after: ConversationKey | None = None
        while page := await self._ports.conversations.audit_ranges(RANGES_MAX, after):
            for found in page:
                yield found
            after = page[-1].key

    async def _resume(self) -> None:
        """Materialise what an owner before has bound, and not finished."""
        while bound := await self._ports.store.kept_records(
            self._shard, self._writer.state.position, MAILBOX_BATCH_RECORDS_MAX
        ):
            await self._materialise(bound)

    async def _rebuild_dispatched(self, identity: LogIdentity) -> None:
        """Everything that was dispatched and not audited."""
        async for found in self._ranges():
            state = await self._ports.conversations.conversation(found.key)
            if state is not None:
                # The end comes from one read with the head's epoch: see the module on marks.
                through = state.dispatched_through
                await self._rebuild(state, found.audited_through, through, identity)
        await self._flush()

    async def _rebuild_ahead(
        self, ahead: Mapping[ConversationKey, int], identity: LogIdentity
    ) -> None:
        """What is not audited of some conversations, through a conversation_seq each."""
        if not ahead:
            return
        audited = {
            found.key: found.audited_through async for found in self._ranges() if found.key in ahead
        }
        for key, through in ahead.items():
            state = await self._ports.conversations.conversation(key)
            if state is not None:
                after = audited.get(key, state.dispatched_through)
                await self._rebuild(state, after, min(through, state.head_version), identity)
        await self._flush()

    async def _rebuild(
        self, state: ConversationState, after: int, through: int, identity: LogIdentity
    ) -> None:
        """The events of a conversation in (after, through]."""
        while after < through:
            limit = min(EVENTS_MAX, through - after)
            events = await self._ports.conversations.outbox(state.key, after, limit)
            if not events:
                raise unavailable("the store does not give the events that it counts")
            for event in events:
                self._batch += await self._dispatches(event, state.fencing_epoch, identity)
                if len(self._batch) >= MAILBOX_BATCH_RECORDS_MAX:
                    await self._flush()
            after = events[-1].conversation_seq

    async def _dispatches(
        self, event: Event, fencing_epoch: int, identity: LogIdentity
    ) -> list[bytes]:
        """The event's dispatches to this shard, as the fanout encodes them."""
        table = self._ports.table
        recipients = await self._recipients(event)
        chunks = plan_chunks(table, event.key.tenant, recipients, event.chunk_recipients)
        return [
            encode_dispatch(
                event,
                fencing_epoch=fencing_epoch,
                mailbox_shard=chunk.mailbox_shard,
                chunk_index=chunk.index,
                chunk_count=len(chunks),
                log_identity=identity.text,
                blocks=encode_blocks(chunk.blocks),
            )
            for chunk in chunks
            if chunk.mailbox_shard == self._shard
        ]

    async def _recipients(self, event: Event) -> Sequence[UserId]:
        """members(n), and those whom a membership change removed: they are told of it."""
        version = (event.key, event.membership_version)
        if self._members is None or self._members[:2] != version:
            members = await self._ports.conversations.members_at(
                event.key, event.membership_version
            )
            self._members = (*version, members)
        members = self._members[2]
        if event.kind != EventKind.MEMBERSHIP:
            return members
        return [*members, *event.removed]

    async def _flush(self) -> None:
        """Bind manifest places to the batch's dispatches, and materialise them."""
        if not self._batch:
            return
        state = self._writer.state
        boundary, now_ms = state.boundaries[-1], self._ports.runtime.wall_ms()
        bound: list[KeptRecord] = []
        after = state.position
        for place, value in enumerate(self._batch, state.next_offset):
            seq = logic.seq_at(boundary, place)
            bound.append(KeptRecord(after, seq, now_ms, value))
            after = seq
        kept = await self._writer.settle(
            lambda: self._ports.store.keep_records(self._shard, self._term.epoch, bound)
        )
        if isinstance(kept, NotApplied):
            detail = f"keep_records: {kept.refusal.value} {kept.detail}"
            raise Halted(Fault("rebuild_rejected", detail))
        self._batch.clear()
        await self._materialise(bound)

    async def _materialise(self, bound: Sequence[KeptRecord]) -> None:
        arrived = [
            Arrived(record.seq, decode_dispatch(record.value), record.timestamp_ms)
            for record in bound
        ]
        for part in logic.split(arrived, MAILBOX_BATCH_ENTRIES_MAX):
            last = part[-1].seq
            await self._writer.commit(part, last, logic.offset_behind(last))
        if lanes := [*self._writer.state.lagging]:
            raise Halted(Fault("rebuild_rejected", f"the store refuses lanes {lanes}"))

    async def _left_behind(
        self, identity: LogIdentity
    ) -> tuple[int, Mapping[ConversationKey, int]]:
        """Where the log can be read on from, and how far conversations had come before it."""
        watermarks = await self._ports.log.watermarks(self._shard)
        first = watermarks.low
        async for record in self._scan(watermarks, identity):
            dispatch = self._decoded(record)
            if isinstance(dispatch, Dispatch) and is_foreign(dispatch, self._shard, identity.text):
                first = record.offset + 1
        ahead: dict[ConversationKey, int] = {}
        async for record in self._scan(Watermarks(watermarks.low, first), identity):
            dispatch = self._decoded(record)
            match dispatch:
                case Dispatch(ref=ref):
                    ahead[ref.key] = max(ahead.get(ref.key, 0), ref.conversation_seq)
                case ContractViolation():
                    now_ms = self._ports.runtime.wall_ms()
                    await self._writer.quarantine(
                        [undecodable(record, dispatch, self._shard, identity.text, now_ms)]
                    )
                case None:
                    pass
        return first, ahead

    async def _scan(self, span: Watermarks, identity: LogIdentity) -> AsyncIterator[LogRecord]:
        if span.low >= span.high:
            return
        reader = await self._ports.log.open_reader(self._shard, span.low, identity.text)
        try:
            offset = span.low
            while offset < span.high:
                for record in await reader.fetch(MAILBOX_BATCH_RECORDS_MAX, FETCH_WAIT_S):
                    offset = record.offset + 1
                    if record.offset < span.high:
                        yield record
        finally:
            await reader.close()

    def _decoded(self, record: LogRecord) -> Dispatch | ContractViolation | None:
        """None for a record that demands a newer reader: reading on will halt there."""
        try:
            return decode_dispatch(record.value)
        except ReaderTooOld:
            return None
        except ContractViolation as violation:
            return violation
