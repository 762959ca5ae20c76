from qim.common.v1 import error_pb2 as _error_pb2
from qim.conversation.v1 import event_pb2 as _event_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReportKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPORT_KIND_UNSPECIFIED: _ClassVar[ReportKind]
    REPORT_KIND_GAP: _ClassVar[ReportKind]
    REPORT_KIND_DOUBLE: _ClassVar[ReportKind]
    REPORT_KIND_DISORDER: _ClassVar[ReportKind]

class KickReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KICK_REASON_UNSPECIFIED: _ClassVar[KickReason]
    KICK_REASON_REPLACED: _ClassVar[KickReason]
    KICK_REASON_TOKEN_REVOKED: _ClassVar[KickReason]
REPORT_KIND_UNSPECIFIED: ReportKind
REPORT_KIND_GAP: ReportKind
REPORT_KIND_DOUBLE: ReportKind
REPORT_KIND_DISORDER: ReportKind
KICK_REASON_UNSPECIFIED: KickReason
KICK_REASON_REPLACED: KickReason
KICK_REASON_TOKEN_REVOKED: KickReason

class ClientFrame(_message.Message):
    __slots__ = ("request_id", "auth", "refresh", "send", "pull_mailbox", "ack_mailbox", "pull_session_list", "mark_read", "pull_history", "report", "ping")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    AUTH_FIELD_NUMBER: _ClassVar[int]
    REFRESH_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    PULL_MAILBOX_FIELD_NUMBER: _ClassVar[int]
    ACK_MAILBOX_FIELD_NUMBER: _ClassVar[int]
    PULL_SESSION_LIST_FIELD_NUMBER: _ClassVar[int]
    MARK_READ_FIELD_NUMBER: _ClassVar[int]
    PULL_HISTORY_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    auth: Auth
    refresh: Refresh
    send: Send
    pull_mailbox: PullMailbox
    ack_mailbox: AckMailbox
    pull_session_list: PullSessionList
    mark_read: MarkRead
    pull_history: PullHistory
    report: Report
    ping: Ping
    def __init__(self, request_id: _Optional[int] = ..., auth: _Optional[_Union[Auth, _Mapping]] = ..., refresh: _Optional[_Union[Refresh, _Mapping]] = ..., send: _Optional[_Union[Send, _Mapping]] = ..., pull_mailbox: _Optional[_Union[PullMailbox, _Mapping]] = ..., ack_mailbox: _Optional[_Union[AckMailbox, _Mapping]] = ..., pull_session_list: _Optional[_Union[PullSessionList, _Mapping]] = ..., mark_read: _Optional[_Union[MarkRead, _Mapping]] = ..., pull_history: _Optional[_Union[PullHistory, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("request_id", "auth_ok", "refreshed", "send_ack", "mailbox_page", "push_events", "ack_ok", "session_list", "read_ok", "history_page", "report_ok", "redirect", "cursor_rebased", "kicked", "going_away", "error", "pong")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    AUTH_OK_FIELD_NUMBER: _ClassVar[int]
    REFRESHED_FIELD_NUMBER: _ClassVar[int]
    SEND_ACK_FIELD_NUMBER: _ClassVar[int]
    MAILBOX_PAGE_FIELD_NUMBER: _ClassVar[int]
    PUSH_EVENTS_FIELD_NUMBER: _ClassVar[int]
    ACK_OK_FIELD_NUMBER: _ClassVar[int]
    SESSION_LIST_FIELD_NUMBER: _ClassVar[int]
    READ_OK_FIELD_NUMBER: _ClassVar[int]
    HISTORY_PAGE_FIELD_NUMBER: _ClassVar[int]
    REPORT_OK_FIELD_NUMBER: _ClassVar[int]
    REDIRECT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_REBASED_FIELD_NUMBER: _ClassVar[int]
    KICKED_FIELD_NUMBER: _ClassVar[int]
    GOING_AWAY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    auth_ok: AuthOk
    refreshed: Refreshed
    send_ack: SendAck
    mailbox_page: MailboxPage
    push_events: PushEvents
    ack_ok: AckOk
    session_list: SessionList
    read_ok: ReadOk
    history_page: HistoryPage
    report_ok: ReportOk
    redirect: Redirect
    cursor_rebased: CursorRebased
    kicked: Kicked
    going_away: GoingAway
    error: _error_pb2.Error
    pong: Pong
    def __init__(self, request_id: _Optional[int] = ..., auth_ok: _Optional[_Union[AuthOk, _Mapping]] = ..., refreshed: _Optional[_Union[Refreshed, _Mapping]] = ..., send_ack: _Optional[_Union[SendAck, _Mapping]] = ..., mailbox_page: _Optional[_Union[MailboxPage, _Mapping]] = ..., push_events: _Optional[_Union[PushEvents, _Mapping]] = ..., ack_ok: _Optional[_Union[AckOk, _Mapping]] = ..., session_list: _Optional[_Union[SessionList, _Mapping]] = ..., read_ok: _Optional[_Union[ReadOk, _Mapping]] = ..., history_page: _Optional[_Union[HistoryPage, _Mapping]] = ..., report_ok: _Optional[_Union[ReportOk, _Mapping]] = ..., redirect: _Optional[_Union[Redirect, _Mapping]] = ..., cursor_rebased: _Optional[_Union[CursorRebased, _Mapping]] = ..., kicked: _Optional[_Union[Kicked, _Mapping]] = ..., going_away: _Optional[_Union[GoingAway, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ...) -> None: ...

class Auth(_message.Message):
    __slots__ = ("protocol_version", "capabilities", "access_token", "route_token")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    ACCESS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ROUTE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    access_token: str
    route_token: str
    def __init__(self, protocol_version: _Optional[int] = ..., capabilities: _Optional[_Iterable[str]] = ..., access_token: _Optional[str] = ..., route_token: _Optional[str] = ...) -> None: ...

class AuthOk(_message.Message):
    __slots__ = ("protocol_version", "capabilities", "tenant_id", "user_id", "device_id", "token_expires_at_ms", "server_time_ms", "cursor_token", "last_applied_mailbox_seq", "watermark_floor_seq")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SERVER_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LAST_APPLIED_MAILBOX_SEQ_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FLOOR_SEQ_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    tenant_id: str
    user_id: str
    device_id: str
    token_expires_at_ms: int
    server_time_ms: int
    cursor_token: bytes
    last_applied_mailbox_seq: int
    watermark_floor_seq: int
    def __init__(self, protocol_version: _Optional[int] = ..., capabilities: _Optional[_Iterable[str]] = ..., tenant_id: _Optional[str] = ..., user_id: _Optional[str] = ..., device_id: _Optional[str] = ..., token_expires_at_ms: _Optional[int] = ..., server_time_ms: _Optional[int] = ..., cursor_token: _Optional[bytes] = ..., last_applied_mailbox_seq: _Optional[int] = ..., watermark_floor_seq: _Optional[int] = ...) -> None: ...

class Refresh(_message.Message):
    __slots__ = ("refresh_token",)
    REFRESH_TOKEN_FIELD_NUMBER: _ClassVar[int]
    refresh_token: str
    def __init__(self, refresh_token: _Optional[str] = ...) -> None: ...

class Refreshed(_message.Message):
    __slots__ = ("access_token", "refresh_token", "token_expires_at_ms")
    ACCESS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REFRESH_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    access_token: str
    refresh_token: str
    token_expires_at_ms: int
    def __init__(self, access_token: _Optional[str] = ..., refresh_token: _Optional[str] = ..., token_expires_at_ms: _Optional[int] = ...) -> None: ...

class Send(_message.Message):
    __slots__ = ("conversation_id", "events")
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    conversation_id: str
    events: _containers.RepeatedCompositeFieldContainer[OutgoingEvent]
    def __init__(self, conversation_id: _Optional[str] = ..., events: _Optional[_Iterable[_Union[OutgoingEvent, _Mapping]]] = ...) -> None: ...

class OutgoingEvent(_message.Message):
    __slots__ = ("client_msg_id", "message", "reaction")
    CLIENT_MSG_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REACTION_FIELD_NUMBER: _ClassVar[int]
    client_msg_id: str
    message: _event_pb2.Message
    reaction: _event_pb2.Reaction
    def __init__(self, client_msg_id: _Optional[str] = ..., message: _Optional[_Union[_event_pb2.Message, _Mapping]] = ..., reaction: _Optional[_Union[_event_pb2.Reaction, _Mapping]] = ...) -> None: ...

class SendAck(_message.Message):
    __slots__ = ("conversation_id", "results")
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    conversation_id: str
    results: _containers.RepeatedCompositeFieldContainer[SendResult]
    def __init__(self, conversation_id: _Optional[str] = ..., results: _Optional[_Iterable[_Union[SendResult, _Mapping]]] = ...) -> None: ...

class SendResult(_message.Message):
    __slots__ = ("client_msg_id", "accepted", "error")
    CLIENT_MSG_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    client_msg_id: str
    accepted: Accepted
    error: _error_pb2.Error
    def __init__(self, client_msg_id: _Optional[str] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("event_id", "conversation_seq", "created_at_ms", "duplicate")
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    event_id: bytes
    conversation_seq: int
    created_at_ms: int
    duplicate: bool
    def __init__(self, event_id: _Optional[bytes] = ..., conversation_seq: _Optional[int] = ..., created_at_ms: _Optional[int] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class PullMailbox(_message.Message):
    __slots__ = ("cursor_token", "last_applied_mailbox_seq", "limit")
    CURSOR_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LAST_APPLIED_MAILBOX_SEQ_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    cursor_token: bytes
    last_applied_mailbox_seq: int
    limit: int
    def __init__(self, cursor_token: _Optional[bytes] = ..., last_applied_mailbox_seq: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class DeliveredEvent(_message.Message):
    __slots__ = ("mailbox_seq", "event")
    MAILBOX_SEQ_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    mailbox_seq: int
    event: _event_pb2.ConversationEvent
    def __init__(self, mailbox_seq: _Optional[int] = ..., event: _Optional[_Union[_event_pb2.ConversationEvent, _Mapping]] = ...) -> None: ...

class MailboxPage(_message.Message):
    __slots__ = ("events", "covered_through_seq", "cursor_token", "more")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    COVERED_THROUGH_SEQ_FIELD_NUMBER: _ClassVar[int]
    CURSOR_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[DeliveredEvent]
    covered_through_seq: int
    cursor_token: bytes
    more: bool
    def __init__(self, events: _Optional[_Iterable[_Union[DeliveredEvent, _Mapping]]] = ..., covered_through_seq: _Optional[int] = ..., cursor_token: _Optional[bytes] = ..., more: _Optional[bool] = ...) -> None: ...

class PushEvents(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[DeliveredEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[DeliveredEvent, _Mapping]]] = ...) -> None: ...

class AckMailbox(_message.Message):
    __slots__ = ("last_applied_mailbox_seq",)
    LAST_APPLIED_MAILBOX_SEQ_FIELD_NUMBER: _ClassVar[int]
    last_applied_mailbox_seq: int
    def __init__(self, last_applied_mailbox_seq: _Optional[int] = ...) -> None: ...

class AckOk(_message.Message):
    __slots__ = ("last_applied_mailbox_seq",)
    LAST_APPLIED_MAILBOX_SEQ_FIELD_NUMBER: _ClassVar[int]
    last_applied_mailbox_seq: int
    def __init__(self, last_applied_mailbox_seq: _Optional[int] = ...) -> None: ...

class CursorRebased(_message.Message):
    __slots__ = ("lost_from_seq", "lost_through_seq", "cursor_token", "last_applied_mailbox_seq")
    LOST_FROM_SEQ_FIELD_NUMBER: _ClassVar[int]
    LOST_THROUGH_SEQ_FIELD_NUMBER: _ClassVar[int]
    CURSOR_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LAST_APPLIED_MAILBOX_SEQ_FIELD_NUMBER: _ClassVar[int]
    lost_from_seq: int
    lost_through_seq: int
    cursor_token: bytes
    last_applied_mailbox_seq: int
    def __init__(self, lost_from_seq: _Optional[int] = ..., lost_through_seq: _Optional[int] = ..., cursor_token: _Optional[bytes] = ..., last_applied_mailbox_seq: _Optional[int] = ...) -> None: ...

class PullSessionList(_message.Message):
    __slots__ = ("page_token", "limit")
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    page_token: bytes
    limit: int
    def __init__(self, page_token: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class SessionList(_message.Message):
    __slots__ = ("sessions", "next_page_token")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    next_page_token: bytes
    def __init__(self, sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("conversation_id", "last_event", "activity_at_ms", "unread_count", "read_through_seq")
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_AT_MS_FIELD_NUMBER: _ClassVar[int]
    UNREAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    READ_THROUGH_SEQ_FIELD_NUMBER: _ClassVar[int]
    conversation_id: str
    last_event: EventSummary
    activity_at_ms: int
    unread_count: int
    read_through_seq: int
    def __init__(self, conversation_id: _Optional[str] = ..., last_event: _Optional[_Union[EventSummary, _Mapping]] = ..., activity_at_ms: _Optional[int] = ..., unread_count: _Optional[int] = ..., read_through_seq: _Optional[int] = ...) -> None: ...

class EventSummary(_message.Message):
    __slots__ = ("conversation_seq", "event_id", "kind", "sender_user_id", "created_at_ms", "preview")
    CONVERSATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SENDER_USER_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    conversation_seq: int
    event_id: bytes
    kind: _event_pb2.EventKind
    sender_user_id: str
    created_at_ms: int
    preview: bytes
    def __init__(self, conversation_seq: _Optional[int] = ..., event_id: _Optional[bytes] = ..., kind: _Optional[_Union[_event_pb2.EventKind, str]] = ..., sender_user_id: _Optional[str] = ..., created_at_ms: _Optional[int] = ..., preview: _Optional[bytes] = ...) -> None: ...

class MarkRead(_message.Message):
    __slots__ = ("conversation_id", "read_through_seq")
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    READ_THROUGH_SEQ_FIELD_NUMBER: _ClassVar[int]
    conversation_id: str
    read_through_seq: int
    def __init__(self, conversation_id: _Optional[str] = ..., read_through_seq: _Optional[int] = ...) -> None: ...

class ReadOk(_message.Message):
    __slots__ = ("conversation_id", "read_through_seq", "unread_count")
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    READ_THROUGH_SEQ_FIELD_NUMBER: _ClassVar[int]
    UNREAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    conversation_id: str
    read_through_seq: int
    unread_count: int
    def __init__(self, conversation_id: _Optional[str] = ..., read_through_seq: _Optional[int] = ..., unread_count: _Optional[int] = ...) -> None: ...

class PullHistory(_message.Message):
    __slots__ = ("conversation_id", "before_seq", "limit")
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    BEFORE_SEQ_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    conversation_id: str
    before_seq: int
    limit: int
    def __init__(self, conversation_id: _Optional[str] = ..., before_seq: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class HistoryPage(_message.Message):
    __slots__ = ("conversation_id", "events", "more")
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    conversation_id: str
    events: _containers.RepeatedCompositeFieldContainer[_event_pb2.ConversationEvent]
    more: bool
    def __init__(self, conversation_id: _Optional[str] = ..., events: _Optional[_Iterable[_Union[_event_pb2.ConversationEvent, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("kind", "conversation_id", "from_conversation_seq", "through_conversation_seq", "covered_through_seq")
    KIND_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_CONVERSATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    THROUGH_CONVERSATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    COVERED_THROUGH_SEQ_FIELD_NUMBER: _ClassVar[int]
    kind: ReportKind
    conversation_id: str
    from_conversation_seq: int
    through_conversation_seq: int
    covered_through_seq: int
    def __init__(self, kind: _Optional[_Union[ReportKind, str]] = ..., conversation_id: _Optional[str] = ..., from_conversation_seq: _Optional[int] = ..., through_conversation_seq: _Optional[int] = ..., covered_through_seq: _Optional[int] = ...) -> None: ...

class ReportOk(_message.Message):
    __slots__ = ("confirmed",)
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    confirmed: bool
    def __init__(self, confirmed: _Optional[bool] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Pong(_message.Message):
    __slots__ = ("server_time_ms",)
    SERVER_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    server_time_ms: int
    def __init__(self, server_time_ms: _Optional[int] = ...) -> None: ...

class Redirect(_message.Message):
    __slots__ = ("address", "route_token")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    address: str
    route_token: str
    def __init__(self, address: _Optional[str] = ..., route_token: _Optional[str] = ...) -> None: ...

class Kicked(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: KickReason
    def __init__(self, reason: _Optional[_Union[KickReason, str]] = ...) -> None: ...

class GoingAway(_message.Message):
    __slots__ = ("grace_ms",)
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    grace_ms: int
    def __init__(self, grace_ms: _Optional[int] = ...) -> None: ...
