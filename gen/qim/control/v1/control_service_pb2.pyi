from qim.conversation.v1 import event_pb2 as _event_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TraceStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRACE_STAGE_UNSPECIFIED: _ClassVar[TraceStage]
    TRACE_STAGE_COMMIT: _ClassVar[TraceStage]
    TRACE_STAGE_DISPATCH: _ClassVar[TraceStage]
    TRACE_STAGE_MAILBOX: _ClassVar[TraceStage]
    TRACE_STAGE_SESSION: _ClassVar[TraceStage]

class TraceVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRACE_VERDICT_UNSPECIFIED: _ClassVar[TraceVerdict]
    TRACE_VERDICT_DONE: _ClassVar[TraceVerdict]
    TRACE_VERDICT_PENDING: _ClassVar[TraceVerdict]
    TRACE_VERDICT_DUPLICATE: _ClassVar[TraceVerdict]
    TRACE_VERDICT_STALE_EPOCH: _ClassVar[TraceVerdict]
    TRACE_VERDICT_QUARANTINED: _ClassVar[TraceVerdict]
TRACE_STAGE_UNSPECIFIED: TraceStage
TRACE_STAGE_COMMIT: TraceStage
TRACE_STAGE_DISPATCH: TraceStage
TRACE_STAGE_MAILBOX: TraceStage
TRACE_STAGE_SESSION: TraceStage
TRACE_VERDICT_UNSPECIFIED: TraceVerdict
TRACE_VERDICT_DONE: TraceVerdict
TRACE_VERDICT_PENDING: TraceVerdict
TRACE_VERDICT_DUPLICATE: TraceVerdict
TRACE_VERDICT_STALE_EPOCH: TraceVerdict
TRACE_VERDICT_QUARANTINED: TraceVerdict

class TraceEventRequest(_message.Message):
    __slots__ = ("event_id",)
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    event_id: bytes
    def __init__(self, event_id: _Optional[bytes] = ...) -> None: ...

class TraceStep(_message.Message):
    __slots__ = ("stage", "verdict", "at_ms", "shard", "offset", "fencing_epoch", "dispatch_id", "chunk_index", "recipients", "mailbox_seq")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FENCING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_INDEX_FIELD_NUMBER: _ClassVar[int]
    RECIPIENTS_FIELD_NUMBER: _ClassVar[int]
    MAILBOX_SEQ_FIELD_NUMBER: _ClassVar[int]
    stage: TraceStage
    verdict: TraceVerdict
    at_ms: int
    shard: int
    offset: int
    fencing_epoch: int
    dispatch_id: bytes
    chunk_index: int
    recipients: int
    mailbox_seq: int
    def __init__(self, stage: _Optional[_Union[TraceStage, str]] = ..., verdict: _Optional[_Union[TraceVerdict, str]] = ..., at_ms: _Optional[int] = ..., shard: _Optional[int] = ..., offset: _Optional[int] = ..., fencing_epoch: _Optional[int] = ..., dispatch_id: _Optional[bytes] = ..., chunk_index: _Optional[int] = ..., recipients: _Optional[int] = ..., mailbox_seq: _Optional[int] = ...) -> None: ...

class TraceEventResponse(_message.Message):
    __slots__ = ("tenant_id", "conversation_id", "conversation_seq", "kind", "steps")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    conversation_id: str
    conversation_seq: int
    kind: _event_pb2.EventKind
    steps: _containers.RepeatedCompositeFieldContainer[TraceStep]
    def __init__(self, tenant_id: _Optional[str] = ..., conversation_id: _Optional[str] = ..., conversation_seq: _Optional[int] = ..., kind: _Optional[_Union[_event_pb2.EventKind, str]] = ..., steps: _Optional[_Iterable[_Union[TraceStep, _Mapping]]] = ...) -> None: ...

class ListQuarantineRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class QuarantinedRecord(_message.Message):
    __slots__ = ("log_identity", "partition", "offset", "reason", "at_ms", "size_bytes", "source", "never_produced")
    LOG_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NEVER_PRODUCED_FIELD_NUMBER: _ClassVar[int]
    log_identity: str
    partition: int
    offset: int
    reason: str
    at_ms: int
    size_bytes: int
    source: str
    never_produced: bool
    def __init__(self, log_identity: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., reason: _Optional[str] = ..., at_ms: _Optional[int] = ..., size_bytes: _Optional[int] = ..., source: _Optional[str] = ..., never_produced: _Optional[bool] = ...) -> None: ...

class ListQuarantineResponse(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[QuarantinedRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[QuarantinedRecord, _Mapping]]] = ...) -> None: ...

class RebaseShardRequest(_message.Message):
    __slots__ = ("mailbox_shard_id", "dry_run")
    MAILBOX_SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    mailbox_shard_id: int
    dry_run: bool
    def __init__(self, mailbox_shard_id: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RebaseShardResponse(_message.Message):
    __slots__ = ("mailbox_shard_id", "fault", "rebuild_epoch", "log_epoch", "log_identity", "first_offset", "conversations", "events", "dry_run")
    MAILBOX_SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    REBUILD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONVERSATIONS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    mailbox_shard_id: int
    fault: str
    rebuild_epoch: int
    log_epoch: int
    log_identity: str
    first_offset: int
    conversations: int
    events: int
    dry_run: bool
    def __init__(self, mailbox_shard_id: _Optional[int] = ..., fault: _Optional[str] = ..., rebuild_epoch: _Optional[int] = ..., log_epoch: _Optional[int] = ..., log_identity: _Optional[str] = ..., first_offset: _Optional[int] = ..., conversations: _Optional[int] = ..., events: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RebuildProjectionRequest(_message.Message):
    __slots__ = ("partition", "dry_run")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    partition: int
    dry_run: bool
    def __init__(self, partition: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RebuildProjectionResponse(_message.Message):
    __slots__ = ("partition", "dirty", "log_identity", "next_offset", "conversations", "events", "rows", "dry_run")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    DIRTY_FIELD_NUMBER: _ClassVar[int]
    LOG_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONVERSATIONS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    partition: int
    dirty: str
    log_identity: str
    next_offset: int
    conversations: int
    events: int
    rows: int
    dry_run: bool
    def __init__(self, partition: _Optional[int] = ..., dirty: _Optional[str] = ..., log_identity: _Optional[str] = ..., next_offset: _Optional[int] = ..., conversations: _Optional[int] = ..., events: _Optional[int] = ..., rows: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...
