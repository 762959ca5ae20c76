from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class MailboxCursor(_message.Message):
    __slots__ = ("mailbox_shard_id", "lane_id", "shard_epoch", "tenant_id", "user_id", "device_id", "issued_at_ms", "key_id")
    MAILBOX_SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    LANE_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    ISSUED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    mailbox_shard_id: int
    lane_id: int
    shard_epoch: int
    tenant_id: str
    user_id: str
    device_id: str
    issued_at_ms: int
    key_id: str
    def __init__(self, mailbox_shard_id: _Optional[int] = ..., lane_id: _Optional[int] = ..., shard_epoch: _Optional[int] = ..., tenant_id: _Optional[str] = ..., user_id: _Optional[str] = ..., device_id: _Optional[str] = ..., issued_at_ms: _Optional[int] = ..., key_id: _Optional[str] = ...) -> None: ...

class MailboxCursorToken(_message.Message):
    __slots__ = ("cursor", "signature")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    cursor: bytes
    signature: bytes
    def __init__(self, cursor: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
