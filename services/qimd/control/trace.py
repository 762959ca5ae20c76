"""Follows one event through every stage: commit, dispatch, mailbox, session.

Every verdict is recomputed from what is durable, by the rules of the stage itself; nothing is kept
for the trace's sake.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from qimd.control.logic import Copy, Verdict, is_quarantined, mailbox_verdict
from qimd.control.scan import find_copies
from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.core.ids import DispatchId, EventId
from qimd.core.records import Event
from qimd.core.routing import RoutingTable
from qimd.core.seq import offset_of
from qimd.ports.log import Log, LogFault
from qimd.ports.mailbox import MailboxStore, MaterialisedRecord
from qimd.ports.projection import PartitionCheckpoint, ProjectionStore
from qimd.ports.quarantine import QuarantineStore
from qimd.ports.store import ConversationStore

QUARANTINED_MAX = 1_000
"""The newest quarantined records that a trace or an audit looks through."""


class Stage(Enum):
    """`qim.control.v1.TraceStage`."""

    COMMIT = 1
    DISPATCH = 2
    MAILBOX = 3
    SESSION = 4


@dataclass(frozen=True, slots=True)
class Step:
    """What one stage did with the event, or with one record of it."""

    stage: Stage
    verdict: Verdict
    at_ms: int = 0
    shard: int = 0
    offset: int = 0
    fencing_epoch: int = 0
    dispatch_id: DispatchId | None = None
    chunk_index: int = 0
    recipients: int = 0
    mailbox_seq: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """An event and its steps, stage by stage, in the order of the log."""

    event: Event
    steps: tuple[Step, ...]


class Tracer:
    """Traces events over the ports alone."""

    def __init__(
        self,
        *,
        table: RoutingTable,
        conversations: ConversationStore,
        mailbox: MailboxStore,
        projection: ProjectionStore,
        log: Log,
        quarantine: QuarantineStore,
    ) -> None:
        self._table = table
        self._conversations = conversations
        self._mailbox = mailbox
        self._projection = projection
        self._log = log
        self._quarantine = quarantine

    async def trace(self, event_id: EventId) -> Trace:
        """Raises QimError(NOT_FOUND) without such an event, UNAVAILABLE if a store is away."""
        found = await self._conversations.find_event(event_id)
        if found is None:
            raise QimError(ErrorCode.NOT_FOUND, "there is no such event")
        event, epoch = found
        key = event.key
        commit = Step(
            Stage.COMMIT,
            Verdict.DONE,
            at_ms=event.created_at_ms,
            shard=self._table.writer_shard(key.tenant, key.conversation),
            fencing_epoch=epoch,
        )
        try:
            downstream = await self._downstream(event)
        except LogFault as fault:
            raise unavailable(f"the log can't be read: {fault}") from fault
        steps = (commit, *downstream)
        return Trace(event, tuple(sorted(steps, key=lambda step: step.stage.value)))

    async def _downstream(self, event: Event) -> list[Step]:
        identity = (await self._log.identity()).text
        materialised = await self._mailbox.records_of(event.event_id)
        steps: list[Step] = []
        for partition in range(self._table.mailbox_shards):
            here = [record for record in materialised if record.shard == partition]
            steps += await self._partition(partition, event, here, identity)
        if not steps:
            quarantined = await self._quarantine.quarantined(QUARANTINED_MAX)
            set_aside = is_quarantined(event.event_id, quarantined)
            verdict = Verdict.QUARANTINED if set_aside else Verdict.PENDING
            steps.append(Step(Stage.DISPATCH, verdict))
        return steps

    async def _partition(
        self,
        partition: int,
        event: Event,
        materialised: Sequence[MaterialisedRecord],
        identity: str,
    ) -> list[Step]:
        found = await find_copies(self._log, partition, event)
        state = await self._mailbox.shard_state(partition)
        marks = (await self._mailbox.epoch_marks(partition, [event.key])).get(event.key, ())
        checkpoint = await self._projection.checkpoint(partition)
        steps = [
            Step(
                Stage.DISPATCH,
                Verdict.QUARANTINED,
                at_ms=record.timestamp_ms,
                shard=partition,
                offset=record.offset,
            )
            for record in found.undecodable
        ]
        seen: set[int] = set()
        for copy in found.copies:
            placed = mailbox_verdict(copy, state, marks, materialised, identity)
            seen.add(placed.seq)
            steps += [
                _step(Stage.DISPATCH, Verdict.DONE, partition, copy, copy.timestamp_ms),
                _step(Stage.MAILBOX, placed.verdict, partition, copy, placed.at_ms, placed.seq),
            ]
            if placed.verdict is not Verdict.STALE_EPOCH:
                projected = _projected(checkpoint, copy.offset, identity)
                steps.append(_step(Stage.SESSION, projected, partition, copy))
        # What the log has let go of since, or what a rebase numbered.
        steps += [_kept(record) for record in materialised if record.seq not in seen]
        return steps


def _step(
    stage: Stage, verdict: Verdict, shard: int, copy: Copy, at_ms: int = 0, seq: int = 0
) -> Step:
    dispatch = copy.dispatch
    return Step(
        stage,
        verdict,
        at_ms=at_ms,
        shard=shard,
        offset=copy.offset,
        fencing_epoch=dispatch.fencing_epoch,
        dispatch_id=dispatch.dispatch_id,
        chunk_index=dispatch.chunk_index,
        recipients=dispatch.recipients,
        mailbox_seq=seq,
    )


def _kept(record: MaterialisedRecord) -> Step:
    return Step(
        Stage.MAILBOX,
        Verdict.DONE,
        at_ms=record.at_ms,
        shard=record.shard,
        offset=offset_of(record.seq),
        fencing_epoch=record.fencing_epoch,
        dispatch_id=record.dispatch_id,
        chunk_index=record.chunk_index,
        mailbox_seq=record.seq,
    )


def _projected(checkpoint: PartitionCheckpoint | None, offset: int, identity: str) -> Verdict:
    if checkpoint is None:
        return Verdict.PENDING
    meta = checkpoint.meta
    same_log = f"{meta.cluster_id}/{meta.topic_id}" == identity
    return Verdict.DONE if same_log and offset < checkpoint.next_offset else Verdict.PENDING
