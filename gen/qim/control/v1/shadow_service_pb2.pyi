from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeShadowRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShadowShard(_message.Message):
    __slots__ = ("mailbox_shard_id", "position_seq", "shadow_position_seq", "waiting", "lost")
    MAILBOX_SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_SEQ_FIELD_NUMBER: _ClassVar[int]
    SHADOW_POSITION_SEQ_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    mailbox_shard_id: int
    position_seq: int
    shadow_position_seq: int
    waiting: int
    lost: str
    def __init__(self, mailbox_shard_id: _Optional[int] = ..., position_seq: _Optional[int] = ..., shadow_position_seq: _Optional[int] = ..., waiting: _Optional[int] = ..., lost: _Optional[str] = ...) -> None: ...

class ShadowSample(_message.Message):
    __slots__ = ("asked", "primary", "shadow", "at_ms")
    ASKED_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    asked: str
    primary: str
    shadow: str
    at_ms: int
    def __init__(self, asked: _Optional[str] = ..., primary: _Optional[str] = ..., shadow: _Optional[str] = ..., at_ms: _Optional[int] = ...) -> None: ...

class ShadowPair(_message.Message):
    __slots__ = ("primary", "shadow", "compared", "mismatches", "shards", "devices_waiting", "devices_missed", "samples", "obstacle")
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    MISMATCHES_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_WAITING_FIELD_NUMBER: _ClassVar[int]
    DEVICES_MISSED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    OBSTACLE_FIELD_NUMBER: _ClassVar[int]
    primary: str
    shadow: str
    compared: int
    mismatches: int
    shards: _containers.RepeatedCompositeFieldContainer[ShadowShard]
    devices_waiting: int
    devices_missed: int
    samples: _containers.RepeatedCompositeFieldContainer[ShadowSample]
    obstacle: str
    def __init__(self, primary: _Optional[str] = ..., shadow: _Optional[str] = ..., compared: _Optional[int] = ..., mismatches: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[ShadowShard, _Mapping]]] = ..., devices_waiting: _Optional[int] = ..., devices_missed: _Optional[int] = ..., samples: _Optional[_Iterable[_Union[ShadowSample, _Mapping]]] = ..., obstacle: _Optional[str] = ...) -> None: ...

class DescribeShadowResponse(_message.Message):
    __slots__ = ("pair",)
    PAIR_FIELD_NUMBER: _ClassVar[int]
    pair: ShadowPair
    def __init__(self, pair: _Optional[_Union[ShadowPair, _Mapping]] = ...) -> None: ...

class SwitchShadowRequest(_message.Message):
    __slots__ = ("primary", "dry_run")
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    primary: str
    dry_run: bool
    def __init__(self, primary: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class SwitchShadowResponse(_message.Message):
    __slots__ = ("pair", "dry_run")
    PAIR_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    pair: ShadowPair
    dry_run: bool
    def __init__(self, pair: _Optional[_Union[ShadowPair, _Mapping]] = ..., dry_run: _Optional[bool] = ...) -> None: ...
