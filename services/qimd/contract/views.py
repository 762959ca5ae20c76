"""The contract's bytes under schemas derived from it, where reading under its own takes many steps.

A parser passes over a field that its schema lacks, and joins what stands several times of a message
that its schema has once. So under one view a record is read without its recipients, and under the
other each field of all events of a page comes as one list, in one call.

A view is for reading alone. What it makes of bytes that the codec refuses means nothing.
"""

from collections.abc import Sequence
from typing import Final, Protocol, cast

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from qim.conversation.v1.event_pb2 import ConversationEvent
from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch
from qim.gateway.v1.gateway_pb2 import (
    DeliveredEvent,
    HistoryPage,
    MailboxPage,
    PushEvents,
    ServerFrame,
)

_PACKAGE: Final = "qim.view"


class EventColumns(Protocol):
    """The fields of some events, a list each. A list has a value of each event that has the field:
    only if all have it does a value's place say whose it is.
    """

    conversation_id: Sequence[str]
    conversation_seq: Sequence[int]
    event_id: Sequence[bytes]
    kind: Sequence[int]
    sender_user_id: Sequence[str]
    client_msg_id: Sequence[str]
    message: Sequence[bytes]
    reaction: Sequence[bytes]
    membership_change: Sequence[bytes]


class DeliveredColumns(Protocol):
    """The same of delivered events."""

    mailbox_seq: Sequence[int]
    event: EventColumns


class _Page(Protocol):
    events: DeliveredColumns


class _History(Protocol):
    events: EventColumns


class FrameColumns(Protocol):
    """A ServerFrame as far as it is a list of events."""

    mailbox_page: _Page
    push_events: _Page
    history_page: _History


def record_header(data: bytes) -> GroupDispatch:
    """What a record has besides its recipients. Raises DecodeError.

    No GroupDispatch: it has all of its fields but `blocks`, and none is required.
    """
    return cast("GroupDispatch", _RECORD_HEADER.FromString(data))


def frame_columns(data: bytes) -> FrameColumns:
    """The events of a ServerFrame that the codec has read, field by field."""
    return cast("FrameColumns", _FRAME_COLUMNS.FromString(data))


def _without(message_type: type[Message], left_out: str) -> type[Message]:
    """The message as a reader knows it to whom one field is new."""
    file = FileDescriptorProto(name="without.proto", package=_PACKAGE, syntax="proto3")
    view = file.message_type.add(name=message_type.DESCRIPTOR.name)
    for field in message_type.DESCRIPTOR.fields:
        if field.name != left_out:
            view.field.add(
                name=field.name,
                number=field.number,
                label=FieldDescriptorProto.LABEL_OPTIONAL,
                type=_on_the_wire(field.type),
            )
    return _message_class(file)


def _columns(*message_types: type[Message]) -> type[Message]:
    """The first message, in which each of the others stands at most once, and all else in lists."""
    descriptors = [message_type.DESCRIPTOR for message_type in message_types]
    file = FileDescriptorProto(name="columns.proto", package=_PACKAGE, syntax="proto3")
    for descriptor in descriptors:
        view = file.message_type.add(name=descriptor.name)
        for field in descriptor.fields:
            column = view.field.add(name=field.name, number=field.number)
            if field.message_type in descriptors:
                column.label = FieldDescriptorProto.LABEL_OPTIONAL
                column.type = FieldDescriptorProto.TYPE_MESSAGE
                column.type_name = f".{_PACKAGE}.{field.message_type.name}"
            else:
                column.label = FieldDescriptorProto.LABEL_REPEATED
                column.type = _on_the_wire(field.type)
    return _message_class(file)


def _on_the_wire(kind: int) -> FieldDescriptorProto.Type.ValueType:
    """What a value is to a schema that does not have its type."""
    if kind == FieldDescriptorProto.TYPE_ENUM:
        return FieldDescriptorProto.TYPE_INT32
    if kind == FieldDescriptorProto.TYPE_MESSAGE:
        return FieldDescriptorProto.TYPE_BYTES
    return cast("FieldDescriptorProto.Type.ValueType", kind)


def _message_class(file: FileDescriptorProto) -> type[Message]:
    """The class of the file's first message."""
    # A pool of its own: a view is not of the contract, and is not to be found among its messages.
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{file.message_type[0].name}"))


_RECORD_HEADER: Final = _without(GroupDispatch, "blocks")
_FRAME_COLUMNS: Final = _columns(
    ServerFrame, MailboxPage, PushEvents, HistoryPage, DeliveredEvent, ConversationEvent
)
