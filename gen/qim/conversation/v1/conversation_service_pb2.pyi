from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Conversation(_message.Message):
    __slots__ = ("tenant_id", "conversation_id", "head_version", "dispatched_through", "membership_version", "member_count", "fencing_epoch", "created_at_ms")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    HEAD_VERSION_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_COUNT_FIELD_NUMBER: _ClassVar[int]
    FENCING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    conversation_id: str
    head_version: int
    dispatched_through: int
    membership_version: int
    member_count: int
    fencing_epoch: int
    created_at_ms: int
    def __init__(self, tenant_id: _Optional[str] = ..., conversation_id: _Optional[str] = ..., head_version: _Optional[int] = ..., dispatched_through: _Optional[int] = ..., membership_version: _Optional[int] = ..., member_count: _Optional[int] = ..., fencing_epoch: _Optional[int] = ..., created_at_ms: _Optional[int] = ...) -> None: ...

class CreateConversationRequest(_message.Message):
    __slots__ = ("tenant_id", "conversation_id", "member_user_ids")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_USER_IDS_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    conversation_id: str
    member_user_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant_id: _Optional[str] = ..., conversation_id: _Optional[str] = ..., member_user_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateConversationResponse(_message.Message):
    __slots__ = ("conversation",)
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    conversation: Conversation
    def __init__(self, conversation: _Optional[_Union[Conversation, _Mapping]] = ...) -> None: ...

class AddMembersRequest(_message.Message):
    __slots__ = ("tenant_id", "conversation_id", "user_ids")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    USER_IDS_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    conversation_id: str
    user_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant_id: _Optional[str] = ..., conversation_id: _Optional[str] = ..., user_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class AddMembersResponse(_message.Message):
    __slots__ = ("conversation_seq", "conversation")
    CONVERSATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    conversation_seq: int
    conversation: Conversation
    def __init__(self, conversation_seq: _Optional[int] = ..., conversation: _Optional[_Union[Conversation, _Mapping]] = ...) -> None: ...

class RemoveMembersRequest(_message.Message):
    __slots__ = ("tenant_id", "conversation_id", "user_ids")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    USER_IDS_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    conversation_id: str
    user_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant_id: _Optional[str] = ..., conversation_id: _Optional[str] = ..., user_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RemoveMembersResponse(_message.Message):
    __slots__ = ("conversation_seq", "conversation")
    CONVERSATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    conversation_seq: int
    conversation: Conversation
    def __init__(self, conversation_seq: _Optional[int] = ..., conversation: _Optional[_Union[Conversation, _Mapping]] = ...) -> None: ...

class GetConversationRequest(_message.Message):
    __slots__ = ("tenant_id", "conversation_id")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    conversation_id: str
    def __init__(self, tenant_id: _Optional[str] = ..., conversation_id: _Optional[str] = ...) -> None: ...

class GetConversationResponse(_message.Message):
    __slots__ = ("conversation",)
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    conversation: Conversation
    def __init__(self, conversation: _Optional[_Union[Conversation, _Mapping]] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ("tenant_id", "conversation_id", "after_user_id", "limit")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_USER_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    conversation_id: str
    after_user_id: str
    limit: int
    def __init__(self, tenant_id: _Optional[str] = ..., conversation_id: _Optional[str] = ..., after_user_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("user_id", "added_seq")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDED_SEQ_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    added_seq: int
    def __init__(self, user_id: _Optional[str] = ..., added_seq: _Optional[int] = ...) -> None: ...

class ListMembersResponse(_message.Message):
    __slots__ = ("members", "more")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    more: bool
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...
