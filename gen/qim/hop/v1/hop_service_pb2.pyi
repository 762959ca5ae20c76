from qim.common.v1 import error_pb2 as _error_pb2
from qim.control.v1 import control_service_pb2 as _control_service_pb2
from qim.conversation.v1 import conversation_service_pb2 as _conversation_service_pb2
from qim.conversation.v1 import event_pb2 as _event_pb2
from qim.gateway.v1 import gateway_pb2 as _gateway_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HopRequest(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[HopCall]
    def __init__(self, calls: _Optional[_Iterable[_Union[HopCall, _Mapping]]] = ...) -> None: ...

class HopReply(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[HopAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[HopAnswer, _Mapping]]] = ...) -> None: ...

class HopCall(_message.Message):
    __slots__ = ("call_id", "deadline_ms", "tenant_id", "user_id", "device_id", "commit", "open_device", "pull_mailbox", "acknowledge", "read_mailbox", "report", "pull_session_list", "mark_read", "rebase_shard", "rebuild_projection", "presence", "touched", "cancel", "create_conversation", "add_members", "remove_members")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    OPEN_DEVICE_FIELD_NUMBER: _ClassVar[int]
    PULL_MAILBOX_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    READ_MAILBOX_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    PULL_SESSION_LIST_FIELD_NUMBER: _ClassVar[int]
    MARK_READ_FIELD_NUMBER: _ClassVar[int]
    REBASE_SHARD_FIELD_NUMBER: _ClassVar[int]
    REBUILD_PROJECTION_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    TOUCHED_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    CREATE_CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    ADD_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    deadline_ms: int
    tenant_id: str
    user_id: str
    device_id: str
    commit: Commit
    open_device: OpenDevice
    pull_mailbox: _gateway_pb2.PullMailbox
    acknowledge: Acknowledge
    read_mailbox: ReadMailbox
    report: _gateway_pb2.Report
    pull_session_list: _gateway_pb2.PullSessionList
    mark_read: _gateway_pb2.MarkRead
    rebase_shard: _control_service_pb2.RebaseShardRequest
    rebuild_projection: _control_service_pb2.RebuildProjectionRequest
    presence: Presence
    touched: Touched
    cancel: Cancel
    create_conversation: _conversation_service_pb2.CreateConversationRequest
    add_members: _conversation_service_pb2.AddMembersRequest
    remove_members: _conversation_service_pb2.RemoveMembersRequest
    def __init__(self, call_id: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., tenant_id: _Optional[str] = ..., user_id: _Optional[str] = ..., device_id: _Optional[str] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., open_device: _Optional[_Union[OpenDevice, _Mapping]] = ..., pull_mailbox: _Optional[_Union[_gateway_pb2.PullMailbox, _Mapping]] = ..., acknowledge: _Optional[_Union[Acknowledge, _Mapping]] = ..., read_mailbox: _Optional[_Union[ReadMailbox, _Mapping]] = ..., report: _Optional[_Union[_gateway_pb2.Report, _Mapping]] = ..., pull_session_list: _Optional[_Union[_gateway_pb2.PullSessionList, _Mapping]] = ..., mark_read: _Optional[_Union[_gateway_pb2.MarkRead, _Mapping]] = ..., rebase_shard: _Optional[_Union[_control_service_pb2.RebaseShardRequest, _Mapping]] = ..., rebuild_projection: _Optional[_Union[_control_service_pb2.RebuildProjectionRequest, _Mapping]] = ..., presence: _Optional[_Union[Presence, _Mapping]] = ..., touched: _Optional[_Union[Touched, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., create_conversation: _Optional[_Union[_conversation_service_pb2.CreateConversationRequest, _Mapping]] = ..., add_members: _Optional[_Union[_conversation_service_pb2.AddMembersRequest, _Mapping]] = ..., remove_members: _Optional[_Union[_conversation_service_pb2.RemoveMembersRequest, _Mapping]] = ...) -> None: ...

class HopAnswer(_message.Message):
    __slots__ = ("call_id", "error", "committed", "device_opened", "page", "cursor_rebased", "ack_ok", "report_ok", "session_list", "read_ok", "shard_rebased", "projection_rebuilt", "hint", "draining", "conversation_created", "members_added", "members_removed")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_OPENED_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_REBASED_FIELD_NUMBER: _ClassVar[int]
    ACK_OK_FIELD_NUMBER: _ClassVar[int]
    REPORT_OK_FIELD_NUMBER: _ClassVar[int]
    SESSION_LIST_FIELD_NUMBER: _ClassVar[int]
    READ_OK_FIELD_NUMBER: _ClassVar[int]
    SHARD_REBASED_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_REBUILT_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_CREATED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_ADDED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_REMOVED_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    error: _error_pb2.Error
    committed: Committed
    device_opened: DeviceOpened
    page: Page
    cursor_rebased: _gateway_pb2.CursorRebased
    ack_ok: _gateway_pb2.AckOk
    report_ok: _gateway_pb2.ReportOk
    session_list: _gateway_pb2.SessionList
    read_ok: _gateway_pb2.ReadOk
    shard_rebased: _control_service_pb2.RebaseShardResponse
    projection_rebuilt: _control_service_pb2.RebuildProjectionResponse
    hint: Hint
    draining: Draining
    conversation_created: _conversation_service_pb2.CreateConversationResponse
    members_added: _conversation_service_pb2.AddMembersResponse
    members_removed: _conversation_service_pb2.RemoveMembersResponse
    def __init__(self, call_id: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., device_opened: _Optional[_Union[DeviceOpened, _Mapping]] = ..., page: _Optional[_Union[Page, _Mapping]] = ..., cursor_rebased: _Optional[_Union[_gateway_pb2.CursorRebased, _Mapping]] = ..., ack_ok: _Optional[_Union[_gateway_pb2.AckOk, _Mapping]] = ..., report_ok: _Optional[_Union[_gateway_pb2.ReportOk, _Mapping]] = ..., session_list: _Optional[_Union[_gateway_pb2.SessionList, _Mapping]] = ..., read_ok: _Optional[_Union[_gateway_pb2.ReadOk, _Mapping]] = ..., shard_rebased: _Optional[_Union[_control_service_pb2.RebaseShardResponse, _Mapping]] = ..., projection_rebuilt: _Optional[_Union[_control_service_pb2.RebuildProjectionResponse, _Mapping]] = ..., hint: _Optional[_Union[Hint, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ..., conversation_created: _Optional[_Union[_conversation_service_pb2.CreateConversationResponse, _Mapping]] = ..., members_added: _Optional[_Union[_conversation_service_pb2.AddMembersResponse, _Mapping]] = ..., members_removed: _Optional[_Union[_conversation_service_pb2.RemoveMembersResponse, _Mapping]] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("conversation_id", "drafts", "trace_parent")
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    TRACE_PARENT_FIELD_NUMBER: _ClassVar[int]
    conversation_id: str
    drafts: _containers.RepeatedCompositeFieldContainer[Draft]
    trace_parent: str
    def __init__(self, conversation_id: _Optional[str] = ..., drafts: _Optional[_Iterable[_Union[Draft, _Mapping]]] = ..., trace_parent: _Optional[str] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("client_msg_id", "kind", "body", "target_seq")
    CLIENT_MSG_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    TARGET_SEQ_FIELD_NUMBER: _ClassVar[int]
    client_msg_id: str
    kind: _event_pb2.EventKind
    body: bytes
    target_seq: int
    def __init__(self, client_msg_id: _Optional[str] = ..., kind: _Optional[_Union[_event_pb2.EventKind, str]] = ..., body: _Optional[bytes] = ..., target_seq: _Optional[int] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CommitResult]
    def __init__(self, results: _Optional[_Iterable[_Union[CommitResult, _Mapping]]] = ...) -> None: ...

class CommitResult(_message.Message):
    __slots__ = ("accepted", "error")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    accepted: _gateway_pb2.Accepted
    error: _error_pb2.Error
    def __init__(self, accepted: _Optional[_Union[_gateway_pb2.Accepted, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

class OpenDevice(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeviceOpened(_message.Message):
    __slots__ = ("cursor_token", "last_applied_mailbox_seq", "watermark_floor_seq")
    CURSOR_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LAST_APPLIED_MAILBOX_SEQ_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FLOOR_SEQ_FIELD_NUMBER: _ClassVar[int]
    cursor_token: bytes
    last_applied_mailbox_seq: int
    watermark_floor_seq: int
    def __init__(self, cursor_token: _Optional[bytes] = ..., last_applied_mailbox_seq: _Optional[int] = ..., watermark_floor_seq: _Optional[int] = ...) -> None: ...

class Acknowledge(_message.Message):
    __slots__ = ("last_applied_mailbox_seq", "handed_seq")
    LAST_APPLIED_MAILBOX_SEQ_FIELD_NUMBER: _ClassVar[int]
    HANDED_SEQ_FIELD_NUMBER: _ClassVar[int]
    last_applied_mailbox_seq: int
    handed_seq: int
    def __init__(self, last_applied_mailbox_seq: _Optional[int] = ..., handed_seq: _Optional[int] = ...) -> None: ...

class ReadMailbox(_message.Message):
    __slots__ = ("after_seq", "limit")
    AFTER_SEQ_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after_seq: int
    limit: int
    def __init__(self, after_seq: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class Page(_message.Message):
    __slots__ = ("events", "covered_through_seq", "cursor_token", "more")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    COVERED_THROUGH_SEQ_FIELD_NUMBER: _ClassVar[int]
    CURSOR_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[PageEvent]
    covered_through_seq: int
    cursor_token: bytes
    more: bool
    def __init__(self, events: _Optional[_Iterable[_Union[PageEvent, _Mapping]]] = ..., covered_through_seq: _Optional[int] = ..., cursor_token: _Optional[bytes] = ..., more: _Optional[bool] = ...) -> None: ...

class PageEvent(_message.Message):
    __slots__ = ("mailbox_seq", "event")
    MAILBOX_SEQ_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    mailbox_seq: int
    event: bytes
    def __init__(self, mailbox_seq: _Optional[int] = ..., event: _Optional[bytes] = ...) -> None: ...

class Presence(_message.Message):
    __slots__ = ("online_user_ids", "offline_user_ids")
    ONLINE_USER_IDS_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_USER_IDS_FIELD_NUMBER: _ClassVar[int]
    online_user_ids: _containers.RepeatedScalarFieldContainer[str]
    offline_user_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, online_user_ids: _Optional[_Iterable[str]] = ..., offline_user_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Touched(_message.Message):
    __slots__ = ("conversation_id", "user_ids", "created_at_ms")
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    USER_IDS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    conversation_id: str
    user_ids: _containers.RepeatedScalarFieldContainer[str]
    created_at_ms: int
    def __init__(self, conversation_id: _Optional[str] = ..., user_ids: _Optional[_Iterable[str]] = ..., created_at_ms: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("call_id",)
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    def __init__(self, call_id: _Optional[int] = ...) -> None: ...

class Hint(_message.Message):
    __slots__ = ("tenant_id", "user_ids", "delivered", "traced")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_IDS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    TRACED_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    user_ids: _containers.RepeatedScalarFieldContainer[str]
    delivered: _containers.RepeatedScalarFieldContainer[bytes]
    traced: _containers.RepeatedCompositeFieldContainer[TracedEvent]
    def __init__(self, tenant_id: _Optional[str] = ..., user_ids: _Optional[_Iterable[str]] = ..., delivered: _Optional[_Iterable[bytes]] = ..., traced: _Optional[_Iterable[_Union[TracedEvent, _Mapping]]] = ...) -> None: ...

class TracedEvent(_message.Message):
    __slots__ = ("index", "trace_parent")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TRACE_PARENT_FIELD_NUMBER: _ClassVar[int]
    index: int
    trace_parent: str
    def __init__(self, index: _Optional[int] = ..., trace_parent: _Optional[str] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
