"""Every message of the contract, by full name, found through the generated modules."""

import importlib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

TOP = Path(__file__).resolve().parent.parent
PROTO = TOP / "proto"


@cache
def files() -> tuple[FileDescriptor, ...]:
    """The contract's files, by path."""
    paths = sorted(path.relative_to(PROTO) for path in PROTO.rglob("*.proto"))
    modules = (".".join(path.with_suffix("").parts) + "_pb2" for path in paths)
    return tuple(importlib.import_module(name).DESCRIPTOR for name in modules)


def _nested(descriptor: Descriptor) -> list[Descriptor]:
    found = [descriptor]
    for inner in descriptor.nested_types:
        found += _nested(inner)
    return found


def messages_of(of: Iterable[FileDescriptor]) -> dict[str, Descriptor]:
    """Message descriptors of some files by full name, sorted."""
    found = {
        descriptor.full_name: descriptor
        for file in of
        for top in file.message_types_by_name.values()
        for descriptor in _nested(top)
    }
    return dict(sorted(found.items()))


def enums_of(of: Sequence[FileDescriptor]) -> dict[str, EnumDescriptor]:
    """Enum descriptors of some files by full name, sorted."""
    found = {enum.full_name: enum for file in of for enum in file.enum_types_by_name.values()}
    for descriptor in messages_of(of).values():
        found.update({enum.full_name: enum for enum in descriptor.enum_types})
    return dict(sorted(found.items()))


@cache
def descriptors() -> dict[str, Descriptor]:
    """The contract's message descriptors by full name, sorted."""
    return messages_of(files())


def message_type(full_name: str) -> type[Message]:
    """The generated class. Raises KeyError for a message that the contract does not have."""
    return GetMessageClass(descriptors()[full_name])
