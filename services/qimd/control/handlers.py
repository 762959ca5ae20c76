"""ControlService of the contract: request → response. The admin token is checked before."""

from typing import Final, cast

from qim.control.v1 import control_service_pb2
from qim.control.v1.control_service_pb2 import (
    ListQuarantineRequest,
    ListQuarantineResponse,
    QuarantinedRecord,
    RebaseShardRequest,
    RebaseShardResponse,
    RebuildProjectionRequest,
    RebuildProjectionResponse,
    TraceEventRequest,
    TraceEventResponse,
    TraceStep,
)
from qim.conversation.v1 import event_pb2
from qimd.control.trace import Step, Tracer
from qimd.core.errors import invalid
from qimd.core.ids import DIGEST_BYTES, EventId
from qimd.core.routing import RoutingTable
from qimd.ports.quarantine import Quarantined, QuarantineStore
from qimd.ports.services import MailboxOperations, SessionOperations
from qimd.telemetry.logs import logger

_log = logger("control")

QUARANTINE_DEFAULT: Final = 100
QUARANTINE_MAX: Final = 1_000


class ControlHandlers:
    """One method for each RPC. Raises QimError."""

    def __init__(
        self,
        *,
        table: RoutingTable,
        tracer: Tracer,
        quarantine: QuarantineStore,
        mailbox: MailboxOperations,
        sessions: SessionOperations,
    ) -> None:
        self._table = table
        self._tracer = tracer
        self._quarantine = quarantine
        self._mailbox = mailbox
        self._sessions = sessions

    async def TraceEvent(self, request: TraceEventRequest) -> TraceEventResponse:
        """One event through every stage."""
        if len(request.event_id) != DIGEST_BYTES:
            raise invalid(f"an event_id has {DIGEST_BYTES} bytes", "event_id")
        trace = await self._tracer.trace(EventId(request.event_id))
        return TraceEventResponse(
            tenant_id=trace.event.key.tenant,
            conversation_id=trace.event.key.conversation,
            conversation_seq=trace.event.conversation_seq,
            kind=cast("event_pb2.EventKind", trace.event.kind),
            steps=[_step(step) for step in trace.steps],
        )

    async def ListQuarantine(self, request: ListQuarantineRequest) -> ListQuarantineResponse:
        """What is kept in quarantine, the newest first; without the bytes."""
        if request.limit > QUARANTINE_MAX:
            raise invalid(f"limit is 1 to {QUARANTINE_MAX}, or 0", "limit")
        records = await self._quarantine.quarantined(request.limit or QUARANTINE_DEFAULT)
        return ListQuarantineResponse(records=[_quarantined(record) for record in records])

    async def RebaseShard(self, request: RebaseShardRequest) -> RebaseShardResponse:
        """A halted mailbox shard's way out."""
        if request.mailbox_shard_id >= self._table.mailbox_shards:
            raise invalid(f"there are {self._table.mailbox_shards} shards", "mailbox_shard_id")
        plan = await self._mailbox.rebase(request.mailbox_shard_id, dry_run=request.dry_run)
        if not request.dry_run:
            _log.warning(
                "a mailbox shard was rebased",
                mailbox_shard=plan.shard,
                shard_epoch=plan.log_epoch,
                fault=plan.fault,
                events=plan.events,
            )
        return RebaseShardResponse(
            mailbox_shard_id=plan.shard,
            fault=plan.fault,
            rebuild_epoch=plan.rebuild_epoch,
            log_epoch=plan.log_epoch,
            log_identity=plan.log_identity,
            first_offset=plan.first_offset,
            conversations=plan.conversations,
            events=plan.events,
            dry_run=request.dry_run,
        )

    async def RebuildProjection(
        self, request: RebuildProjectionRequest
    ) -> RebuildProjectionResponse:
        """A dirty projection partition's way out."""
        if request.partition >= self._table.mailbox_shards:
            raise invalid(f"there are {self._table.mailbox_shards} partitions", "partition")
        plan = await self._sessions.rebuild(request.partition, dry_run=request.dry_run)
        return RebuildProjectionResponse(
            partition=plan.partition,
            dirty=plan.dirty,
            log_identity=plan.log_identity,
            next_offset=plan.next_offset,
            conversations=plan.conversations,
            events=plan.events,
            rows=plan.rows,
            dry_run=request.dry_run,
        )


def _step(step: Step) -> TraceStep:
    return TraceStep(
        stage=cast("control_service_pb2.TraceStage", step.stage.value),
        verdict=cast("control_service_pb2.TraceVerdict", step.verdict.value),
        at_ms=step.at_ms,
        shard=step.shard,
        offset=step.offset,
        fencing_epoch=step.fencing_epoch,
        dispatch_id=step.dispatch_id or b"",
        chunk_index=step.chunk_index,
        recipients=step.recipients,
        mailbox_seq=step.mailbox_seq,
    )


def _quarantined(record: Quarantined) -> QuarantinedRecord:
    return QuarantinedRecord(
        log_identity=record.log_identity,
        partition=record.partition,
        offset=max(0, record.offset),
        reason=record.reason,
        at_ms=record.at_ms,
        size_bytes=len(record.value),
        source=record.source,
        never_produced=record.offset < 0,
    )
