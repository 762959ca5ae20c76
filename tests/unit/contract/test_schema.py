"""What the schema itself must keep to, read from every descriptor and proto file."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from qim.common.v1 import error_pb2
from qimd.contract.checks import UNPROMPTED
from qimd.contract.codec import CANONICAL
from qimd.contract.hop_checks import UNANSWERED_CALLS, UNPROMPTED_ANSWERS
from qimd.contract.problems import CHECKS
from qimd.core.errors import ERRORS, ErrorCode

TOP = Path(__file__).resolve().parents[3]
PROTOS = sorted((TOP / "proto").rglob("*.proto"))
FLOATS = {FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE}


def files() -> list[FileDescriptor]:
    names = (path.relative_to(TOP / "proto").with_suffix("") for path in PROTOS)
    return [import_module(f"{'.'.join(name.parts)}_pb2").DESCRIPTOR for name in names]


def nested(message: Descriptor) -> Iterator[Descriptor]:
    yield message
    for inner in message.nested_types:
        yield from nested(inner)


def messages(file: FileDescriptor) -> list[Descriptor]:
    return [m for top in file.message_types_by_name.values() for m in nested(top)]


def enums(file: FileDescriptor) -> list:
    inner = [e for message in messages(file) for e in message.enum_types]
    return [*file.enum_types_by_name.values(), *inner]


def is_map(message: Descriptor) -> bool:
    return bool(message.GetOptions().map_entry)


def faults(file: FileDescriptor) -> list[str]:
    """Everything that the contract bans, with where it is."""
    found = [f"closed enum {enum.full_name}" for enum in enums(file) if enum.is_closed]
    for message in messages(file):
        if is_map(message):
            found.append(f"map {message.full_name}")
        for field in message.fields:
            if field.type in FLOATS:
                found.append(f"float {field.full_name}")
            if field.type == FieldDescriptor.TYPE_GROUP:
                found.append(f"group {field.full_name}")
            if field.is_required:
                found.append(f"required {field.full_name}")
            if field.is_repeated and field.message_type is None and field.is_packed:
                found.append(f"packed {field.full_name}")
    return found


def reachable(message: Descriptor, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of messages that lead back into themselves."""
    if message.full_name in path:
        yield (*path, message.full_name)
        return
    for field in message.fields:
        if field.message_type is not None:
            yield from reachable(field.message_type, (*path, message.full_name))


def reserved_ranges(text: str) -> list[str]:
    """Reserved numbers that are written as ranges, which make a gate go off when one grows."""
    return re.findall(r"^\s*reserved[^;]*\bto\b[^;]*;", text, re.MULTILINE)


def test_the_contract_has_no_maps_floats_closed_enums_and_one_required_field():
    """COD-02: the contract has no maps, and this test proves the ban."""
    found = [fault for file in files() for fault in faults(file)]
    assert found == ["required qim.dispatch.v1.GroupDispatch.fencing_epoch"]


def test_the_ban_sees_each_banned_thing():
    pool = DescriptorPool()
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="bad.proto", package="bad", syntax="proto2")
    message = file.message_type.add(name="M")
    message.field.add(name="f", number=1, type=field.TYPE_FLOAT, label=field.LABEL_OPTIONAL)
    message.field.add(name="r", number=2, type=field.TYPE_INT32, label=field.LABEL_REQUIRED)
    entry = message.nested_type.add(name="MapEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    message.field.add(
        name="map",
        number=3,
        type=field.TYPE_MESSAGE,
        label=field.LABEL_REPEATED,
        type_name=".bad.M.MapEntry",
    )
    numbers = message.field.add(
        name="n", number=4, type=field.TYPE_INT32, label=field.LABEL_REPEATED
    )
    numbers.options.packed = True
    enum = file.enum_type.add(name="E")
    enum.value.add(name="ZERO", number=0)
    pool.Add(file)
    assert sorted(faults(pool.FindFileByName("bad.proto"))) == [
        "closed enum bad.E",
        "float bad.M.f",
        "map bad.M.MapEntry",
        "packed bad.M.n",
        "required bad.M.r",
    ]


def test_no_message_holds_itself():
    """The walk of checks, and the depth of what is encoded, stand on it."""
    assert [path for file in files() for m in messages(file) for path in reachable(m)] == []


def test_a_dispatch_is_never_a_field_of_another_message():
    name = "qim.dispatch.v1.GroupDispatch"
    holders = [
        field.full_name
        for file in files()
        for message in messages(file)
        for field in message.fields
        if field.message_type is not None and field.message_type.full_name == name
    ]
    assert holders == []


def test_the_numbers_of_a_canonical_message_have_no_holes():
    """So that what an older reader does not know stands behind all that it knows."""
    found = {m.full_name: sorted(m.fields_by_number) for file in files() for m in messages(file)}
    for name in (*CANONICAL, "qim.dispatch.v1.LaneBlock"):
        assert found[name] == list(range(1, len(found[name]) + 1))


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: path.stem)
def test_reserved_numbers_are_written_singly(path):
    assert reserved_ranges(path.read_text(encoding="utf-8")) == []


def test_a_reserved_range_would_be_seen():
    assert reserved_ranges("message M {\n  reserved 1 to 4;\n  reserved 7, 8;\n}") != []
    assert reserved_ranges("  reserved 1, 2, 3;\n  // reserved for what is to come;\n") == []


@pytest.mark.parametrize("file", files(), ids=lambda file: file.name)
def test_every_number_of_64_bits_that_json_shows_stays_exact_or_is_text(file):
    """JSON shows 64-bit integers as text; nothing else of the contract has more than 53 bits."""
    wide = {FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64}
    assert not [f.full_name for m in messages(file) for f in m.fields if f.type in wide]


def test_every_check_is_of_a_message_that_exists():
    known = {message.full_name for file in files() for message in messages(file)}
    assert set(CHECKS) <= known


def test_unprompted_frames_are_arms_of_a_server_frame():
    from qim.gateway.v1.gateway_pb2 import ServerFrame

    arms = {field.name for field in ServerFrame.DESCRIPTOR.oneofs_by_name["frame"].fields}
    assert arms > UNPROMPTED


def test_what_a_hop_leaves_unanswered_or_sends_unprompted_are_arms_of_it():
    from qim.hop.v1.hop_service_pb2 import HopAnswer, HopCall

    calls = {field.name for field in HopCall.DESCRIPTOR.oneofs_by_name["call"].fields}
    answers = {field.name for field in HopAnswer.DESCRIPTOR.oneofs_by_name["answer"].fields}
    assert calls > UNANSWERED_CALLS
    assert answers > UNPROMPTED_ANSWERS


def test_the_table_of_errors_is_that_of_the_contract():
    names = {value.name: value.number for value in error_pb2.ErrorCode.DESCRIPTOR.values}
    assert names.pop("ERROR_CODE_UNSPECIFIED") == 0
    assert names == {f"ERROR_CODE_{code.name}": code.value for code in ErrorCode}
    assert set(ERRORS) == set(ErrorCode)


@pytest.mark.parametrize("file", files(), ids=lambda file: file.name)
def test_every_message_can_be_made_and_read_back(file):
    """No check walks into a message that it can't handle."""
    from qimd.contract.checks import problem_of

    for message in messages(file):
        problem_of(GetMessageClass(message)())
