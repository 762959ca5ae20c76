from qim.conversation.v1 import event_pb2 as _event_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GroupDispatch(_message.Message):
    __slots__ = ("fencing_epoch", "tenant_id", "conversation_id", "conversation_seq", "event_id", "dispatch_id", "kind", "sender_user_id", "sender_device_id", "created_at_ms", "membership_version", "routing_version", "mailbox_shard", "chunk_index", "chunk_count", "log_identity", "min_reader_version", "trace_parent", "blocks")
    FENCING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SENDER_USER_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUTING_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAILBOX_SHARD_FIELD_NUMBER: _ClassVar[int]
    CHUNK_INDEX_FIELD_NUMBER: _ClassVar[int]
    CHUNK_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOG_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    MIN_READER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRACE_PARENT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    fencing_epoch: int
    tenant_id: str
    conversation_id: str
    conversation_seq: int
    event_id: bytes
    dispatch_id: bytes
    kind: _event_pb2.EventKind
    sender_user_id: str
    sender_device_id: str
    created_at_ms: int
    membership_version: int
    routing_version: int
    mailbox_shard: int
    chunk_index: int
    chunk_count: int
    log_identity: str
    min_reader_version: int
    trace_parent: str
    blocks: _containers.RepeatedCompositeFieldContainer[LaneBlock]
    def __init__(self, fencing_epoch: _Optional[int] = ..., tenant_id: _Optional[str] = ..., conversation_id: _Optional[str] = ..., conversation_seq: _Optional[int] = ..., event_id: _Optional[bytes] = ..., dispatch_id: _Optional[bytes] = ..., kind: _Optional[_Union[_event_pb2.EventKind, str]] = ..., sender_user_id: _Optional[str] = ..., sender_device_id: _Optional[str] = ..., created_at_ms: _Optional[int] = ..., membership_version: _Optional[int] = ..., routing_version: _Optional[int] = ..., mailbox_shard: _Optional[int] = ..., chunk_index: _Optional[int] = ..., chunk_count: _Optional[int] = ..., log_identity: _Optional[str] = ..., min_reader_version: _Optional[int] = ..., trace_parent: _Optional[str] = ..., blocks: _Optional[_Iterable[_Union[LaneBlock, _Mapping]]] = ...) -> None: ...

class LaneBlock(_message.Message):
    __slots__ = ("lane", "user_ids")
    LANE_FIELD_NUMBER: _ClassVar[int]
    USER_IDS_FIELD_NUMBER: _ClassVar[int]
    lane: int
    user_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lane: _Optional[int] = ..., user_ids: _Optional[_Iterable[str]] = ...) -> None: ...
