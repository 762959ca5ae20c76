from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_KIND_UNSPECIFIED: _ClassVar[EventKind]
    EVENT_KIND_MESSAGE: _ClassVar[EventKind]
    EVENT_KIND_REACTION: _ClassVar[EventKind]
    EVENT_KIND_MEMBERSHIP: _ClassVar[EventKind]
EVENT_KIND_UNSPECIFIED: EventKind
EVENT_KIND_MESSAGE: EventKind
EVENT_KIND_REACTION: EventKind
EVENT_KIND_MEMBERSHIP: EventKind

class ConversationEvent(_message.Message):
    __slots__ = ("conversation_id", "conversation_seq", "event_id", "kind", "sender_user_id", "sender_device_id", "created_at_ms", "client_msg_id", "membership_version", "message", "reaction", "membership_change")
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SENDER_USER_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_MSG_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_VERSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REACTION_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_CHANGE_FIELD_NUMBER: _ClassVar[int]
    conversation_id: str
    conversation_seq: int
    event_id: bytes
    kind: EventKind
    sender_user_id: str
    sender_device_id: str
    created_at_ms: int
    client_msg_id: str
    membership_version: int
    message: Message
    reaction: Reaction
    membership_change: MembershipChange
    def __init__(self, conversation_id: _Optional[str] = ..., conversation_seq: _Optional[int] = ..., event_id: _Optional[bytes] = ..., kind: _Optional[_Union[EventKind, str]] = ..., sender_user_id: _Optional[str] = ..., sender_device_id: _Optional[str] = ..., created_at_ms: _Optional[int] = ..., client_msg_id: _Optional[str] = ..., membership_version: _Optional[int] = ..., message: _Optional[_Union[Message, _Mapping]] = ..., reaction: _Optional[_Union[Reaction, _Mapping]] = ..., membership_change: _Optional[_Union[MembershipChange, _Mapping]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("body",)
    BODY_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    def __init__(self, body: _Optional[bytes] = ...) -> None: ...

class Reaction(_message.Message):
    __slots__ = ("target_seq", "reaction")
    TARGET_SEQ_FIELD_NUMBER: _ClassVar[int]
    REACTION_FIELD_NUMBER: _ClassVar[int]
    target_seq: int
    reaction: str
    def __init__(self, target_seq: _Optional[int] = ..., reaction: _Optional[str] = ...) -> None: ...

class MembershipChange(_message.Message):
    __slots__ = ("added_user_ids", "removed_user_ids")
    ADDED_USER_IDS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_USER_IDS_FIELD_NUMBER: _ClassVar[int]
    added_user_ids: _containers.RepeatedScalarFieldContainer[str]
    removed_user_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, added_user_ids: _Optional[_Iterable[str]] = ..., removed_user_ids: _Optional[_Iterable[str]] = ...) -> None: ...
