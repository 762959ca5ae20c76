from qim.gateway.v1 import gateway_pb2 as _gateway_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListSessionsRequest(_message.Message):
    __slots__ = ("tenant_id", "user_id", "page_token", "limit")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    user_id: str
    page_token: bytes
    limit: int
    def __init__(self, tenant_id: _Optional[str] = ..., user_id: _Optional[str] = ..., page_token: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions", "next_page_token")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[_gateway_pb2.Session]
    next_page_token: bytes
    def __init__(self, sessions: _Optional[_Iterable[_Union[_gateway_pb2.Session, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class MarkReadRequest(_message.Message):
    __slots__ = ("tenant_id", "user_id", "conversation_id", "read_through_seq")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    READ_THROUGH_SEQ_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    user_id: str
    conversation_id: str
    read_through_seq: int
    def __init__(self, tenant_id: _Optional[str] = ..., user_id: _Optional[str] = ..., conversation_id: _Optional[str] = ..., read_through_seq: _Optional[int] = ...) -> None: ...

class MarkReadResponse(_message.Message):
    __slots__ = ("read_through_seq", "unread_count")
    READ_THROUGH_SEQ_FIELD_NUMBER: _ClassVar[int]
    UNREAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    read_through_seq: int
    unread_count: int
    def __init__(self, read_through_seq: _Optional[int] = ..., unread_count: _Optional[int] = ...) -> None: ...

class DescribePartitionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProjectionPartition(_message.Message):
    __slots__ = ("partition", "next_offset", "high_watermark", "ready", "dirty")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DIRTY_FIELD_NUMBER: _ClassVar[int]
    partition: int
    next_offset: int
    high_watermark: int
    ready: bool
    dirty: str
    def __init__(self, partition: _Optional[int] = ..., next_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., ready: _Optional[bool] = ..., dirty: _Optional[str] = ...) -> None: ...

class DescribePartitionsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ProjectionPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[ProjectionPartition, _Mapping]]] = ...) -> None: ...
