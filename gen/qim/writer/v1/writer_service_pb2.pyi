from qim.gateway.v1 import gateway_pb2 as _gateway_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CommitRequest(_message.Message):
    __slots__ = ("tenant_id", "conversation_id", "sender_user_id", "sender_device_id", "events")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_USER_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    conversation_id: str
    sender_user_id: str
    sender_device_id: str
    events: _containers.RepeatedCompositeFieldContainer[_gateway_pb2.OutgoingEvent]
    def __init__(self, tenant_id: _Optional[str] = ..., conversation_id: _Optional[str] = ..., sender_user_id: _Optional[str] = ..., sender_device_id: _Optional[str] = ..., events: _Optional[_Iterable[_Union[_gateway_pb2.OutgoingEvent, _Mapping]]] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[_gateway_pb2.SendResult]
    def __init__(self, results: _Optional[_Iterable[_Union[_gateway_pb2.SendResult, _Mapping]]] = ...) -> None: ...
