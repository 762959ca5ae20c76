from qim.gateway.v1 import gateway_pb2 as _gateway_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadMailboxRequest(_message.Message):
    __slots__ = ("tenant_id", "user_id", "after_seq", "limit")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQ_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    user_id: str
    after_seq: int
    limit: int
    def __init__(self, tenant_id: _Optional[str] = ..., user_id: _Optional[str] = ..., after_seq: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ReadMailboxResponse(_message.Message):
    __slots__ = ("events", "covered_through_seq", "more", "watermark_floor_seq")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    COVERED_THROUGH_SEQ_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FLOOR_SEQ_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[_gateway_pb2.DeliveredEvent]
    covered_through_seq: int
    more: bool
    watermark_floor_seq: int
    def __init__(self, events: _Optional[_Iterable[_Union[_gateway_pb2.DeliveredEvent, _Mapping]]] = ..., covered_through_seq: _Optional[int] = ..., more: _Optional[bool] = ..., watermark_floor_seq: _Optional[int] = ...) -> None: ...

class DescribeShardsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MailboxShard(_message.Message):
    __slots__ = ("mailbox_shard_id", "shard_epoch", "term", "position_seq", "next_offset", "low_watermark", "high_watermark", "watermark_floor_seq", "lagging_lanes", "fault")
    MAILBOX_SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    POSITION_SEQ_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FLOOR_SEQ_FIELD_NUMBER: _ClassVar[int]
    LAGGING_LANES_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    mailbox_shard_id: int
    shard_epoch: int
    term: int
    position_seq: int
    next_offset: int
    low_watermark: int
    high_watermark: int
    watermark_floor_seq: int
    lagging_lanes: _containers.RepeatedCompositeFieldContainer[LaggingLane]
    fault: str
    def __init__(self, mailbox_shard_id: _Optional[int] = ..., shard_epoch: _Optional[int] = ..., term: _Optional[int] = ..., position_seq: _Optional[int] = ..., next_offset: _Optional[int] = ..., low_watermark: _Optional[int] = ..., high_watermark: _Optional[int] = ..., watermark_floor_seq: _Optional[int] = ..., lagging_lanes: _Optional[_Iterable[_Union[LaggingLane, _Mapping]]] = ..., fault: _Optional[str] = ...) -> None: ...

class LaggingLane(_message.Message):
    __slots__ = ("lane", "watermark_seq", "stalled_ms")
    LANE_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_SEQ_FIELD_NUMBER: _ClassVar[int]
    STALLED_MS_FIELD_NUMBER: _ClassVar[int]
    lane: int
    watermark_seq: int
    stalled_ms: int
    def __init__(self, lane: _Optional[int] = ..., watermark_seq: _Optional[int] = ..., stalled_ms: _Optional[int] = ...) -> None: ...

class DescribeShardsResponse(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[MailboxShard]
    def __init__(self, shards: _Optional[_Iterable[_Union[MailboxShard, _Mapping]]] = ...) -> None: ...
