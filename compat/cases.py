"""Makes the fixtures of a release from the schema: every message, every kind of case.

Messages are filled by reflection; `_CHECKED` gives the values that domain checks demand. What comes
out is deterministic, so that a second run of `update` changes nothing.
"""

from collections.abc import Callable, Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from compat.fixtures import Fixture, pretty
from compat.lock import CANONICAL
from compat.messages import descriptors, message_type
from qimd.contract.checks import UNPROMPTED
from qimd.contract.codec import decode, encode
from qimd.contract.hop_checks import UNANSWERED_CALLS, UNPROMPTED_ANSWERS
from qimd.contract.json import to_json
from qimd.contract.violation import ContractViolation, ReaderTooOld
from qimd.core.ids import ConversationId, TenantId, dispatch_id, event_id
from qimd.core.parameters import EXACT_INTEGER_MAX, ID_BYTES_MAX

DISPATCH = "qim.dispatch.v1.GroupDispatch"
FRAMES = ("qim.gateway.v1.ClientFrame", "qim.gateway.v1.ServerFrame")

TEXTS = ("a/b:c", "🦜👩‍👩‍👧", "שלום", "e\u0301", "x" * ID_BYTES_MAX, "𐍈" * (ID_BYTES_MAX // 4))
"""Ids that must survive: separators, emoji, right-to-left, a combining mark, 128 bytes twice."""

_DEPTH_MAX = 4
_MADE_UP_FIELD = 1000
_DEEP = 101


# --- wire bytes made by hand --------------------------------------------------------------------


def varint(value: int) -> bytes:
    """A base-128 varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int, wire_type: int) -> bytes:
    """A field's tag."""
    return varint(number << 3 | wire_type)


def sized(number: int, data: bytes) -> bytes:
    """A length-delimited field."""
    return tag(number, 2) + varint(len(data)) + data


UNKNOWN = tag(_MADE_UP_FIELD, 0) + varint(7) + sized(_MADE_UP_FIELD + 1, b"newer \x00\xff")
"""Fields of a release to come."""

WIRE_TYPES = {
    FieldDescriptor.CPPTYPE_STRING: 2,
    FieldDescriptor.CPPTYPE_MESSAGE: 2,
    FieldDescriptor.CPPTYPE_UINT64: 0,
    FieldDescriptor.CPPTYPE_UINT32: 0,
    FieldDescriptor.CPPTYPE_INT64: 0,
    FieldDescriptor.CPPTYPE_INT32: 0,
    FieldDescriptor.CPPTYPE_BOOL: 0,
    FieldDescriptor.CPPTYPE_ENUM: 0,
}


# --- filled messages ----------------------------------------------------------------------------


def _text(name: str, index: int) -> str:
    return f"{name.removesuffix('_id').removesuffix('_ids')}-{index}"


def _scalar(field: FieldDescriptor, index: int) -> object:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            size = 16 if field.name in ("event_id", "dispatch_id") else 32
            return bytes((index * 7 + position) % 256 for position in range(size))
        return _text(field.name, index)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return field.enum_type.values[1].number
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return True
    return index + 1


def fill(message: Message, arms: dict[str, str], depth: int = 0) -> Message:
    """Set every field; of a oneof the arm in `arms` by the oneof's full name, else the first."""
    descriptor: Descriptor = message.DESCRIPTOR
    for field in descriptor.fields:
        oneof = field.containing_oneof
        if oneof is not None:
            chosen = arms.get(oneof.full_name, oneof.fields[0].name)
            if field.name != chosen:
                continue
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            if depth >= _DEPTH_MAX:
                continue
            if field.is_repeated:
                for _ in range(2):
                    fill(getattr(message, field.name).add(), arms, depth + 1)
            else:
                getattr(message, field.name).SetInParent()
                fill(getattr(message, field.name), arms, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(_scalar(field, index) for index in range(2))
        else:
            setattr(message, field.name, _scalar(field, field.number))
    special = _CHECKED.get(descriptor.full_name)
    if special is not None:
        special(message)
    return message


def _dispatch(message: Message) -> None:
    """A GroupDispatch whose derived fields are right."""
    record = message
    event = event_id(
        TenantId(record.tenant_id),  # type: ignore[attr-defined]
        ConversationId(record.conversation_id),  # type: ignore[attr-defined]
        record.conversation_seq,  # type: ignore[attr-defined]
    )
    record.event_id = event  # type: ignore[attr-defined]
    record.chunk_index, record.chunk_count = 1, 3  # type: ignore[attr-defined]
    record.min_reader_version = 1  # type: ignore[attr-defined]
    record.dispatch_id = dispatch_id(event, record.mailbox_shard, record.chunk_index)  # type: ignore[attr-defined]
    record.trace_parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # type: ignore[attr-defined]
    record.log_identity = "cluster/7d0a3e9e-3f0e-4b52-9b0c-3a5b8f1c2d4e"  # type: ignore[attr-defined]
    del record.blocks[:]  # type: ignore[attr-defined]
    recipients(record, 2)


def recipients(record: Message, count: int) -> Message:
    """Give a GroupDispatch this many recipients, over the lanes in order."""
    del record.blocks[:]  # type: ignore[attr-defined]
    lanes = min(count, 64)
    for lane in range(lanes):
        users = sorted(f"user-{number:06d}" for number in range(lane, count, lanes))
        record.blocks.add(lane=lane, user_ids=users)  # type: ignore[attr-defined]
    return record


def _request_id(message: Message) -> None:
    """1, or 0 in a frame that the server sends by itself."""
    message.request_id = 0 if message.WhichOneof("frame") in UNPROMPTED else 1  # type: ignore[attr-defined]


def _call_id(message: Message) -> None:
    """1, or 0 in a call that has no answer."""
    message.call_id = 0 if message.WhichOneof("call") in UNANSWERED_CALLS else 1  # type: ignore[attr-defined]


def _answered_id(message: Message) -> None:
    """1, or 0 in what answers no call."""
    message.call_id = 0 if message.WhichOneof("answer") in UNPROMPTED_ANSWERS else 1  # type: ignore[attr-defined]


def _kind_of_content(message: Message) -> None:
    """An event's kind is that of its content."""
    arm = message.WhichOneof("content")
    message.kind = 1 + ("message", "reaction", "membership_change").index(str(arm))  # type: ignore[attr-defined]


def _rising(field: str) -> Callable[[Message], None]:
    """Events of a page rise by this number."""

    def apply(message: Message) -> None:
        for index, event in enumerate(message.events):  # type: ignore[attr-defined]
            setattr(event, field, 1 + index)

    return apply


def _traced_places(message: Message) -> None:
    """What is traced of a hint is in it."""
    for index, traced in enumerate(message.traced):  # type: ignore[attr-defined]
        traced.index = index


_CHECKED: dict[str, Callable[[Message], None]] = {
    DISPATCH: _dispatch,
    "qim.conversation.v1.ConversationEvent": _kind_of_content,
    "qim.gateway.v1.ClientFrame": _request_id,
    "qim.gateway.v1.ServerFrame": _request_id,
    "qim.gateway.v1.MailboxPage": _rising("mailbox_seq"),
    "qim.gateway.v1.HistoryPage": _rising("conversation_seq"),
    "qim.hop.v1.HopCall": _call_id,
    "qim.hop.v1.HopAnswer": _answered_id,
    "qim.hop.v1.Hint": _traced_places,
    "qim.hop.v1.Page": _rising("mailbox_seq"),
}


def full(name: str, arms: dict[str, str] | None = None) -> Message:
    """The message with every field set."""
    return fill(message_type(name)(), arms or {})


def minimal(name: str) -> Message:
    """The least that strict encode accepts: fields that it does not demand are left out."""
    message = full(name)
    for field in reversed(message.DESCRIPTOR.fields):
        smaller = message_type(name)()
        smaller.CopyFrom(message)
        smaller.ClearField(field.name)
        try:
            encode(smaller)
        except ContractViolation:
            continue
        message = smaller
    return message


# --- the kinds of cases -------------------------------------------------------------------------


def _limits(name: str) -> Iterator[tuple[str, Message]]:
    for what, number in (("exact", EXACT_INTEGER_MAX), ("widest", None)):
        message = full(name)
        changed = False
        for field in message.DESCRIPTOR.fields:
            if field.is_repeated or field.containing_oneof is not None:
                continue
            if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
                setattr(message, field.name, number if number is not None else (1 << 64) - 1)
            elif field.cpp_type == FieldDescriptor.CPPTYPE_UINT32 and number is None:
                setattr(message, field.name, (1 << 32) - 1)
            else:
                continue
            changed = True
        if changed:
            yield f"integers_{what}", message
    for index, text in enumerate(TEXTS):
        message = full(name)
        changed = False
        for field in message.DESCRIPTOR.fields:
            if field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated:
                setattr(message, field.name, text)
                changed = True
        if changed:
            yield f"text_{index}", message


def _arms(name: str) -> Iterator[tuple[str, Message]]:
    for oneof in descriptors()[name].oneofs:
        for field in oneof.fields:
            yield f"{oneof.name}_{field.name}", full(name, {oneof.full_name: field.name})


def _unknown_enum(name: str) -> Iterator[tuple[str, Message]]:
    for field in descriptors()[name].fields:
        if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM and not field.is_repeated:
            message = full(name)
            setattr(message, field.name, 9)
            yield f"unknown_enum_{field.name}", message


def messages(name: str) -> Iterator[tuple[str, Message]]:
    """(case, message) of every accepted case that has no unknown fields."""
    yield "minimal", minimal(name)
    yield "full", full(name)
    yield from _limits(name)
    yield from _arms(name)
    yield from _unknown_enum(name)
    if name == DISPATCH:
        for count in (1, 200, 512):
            yield f"recipients_{count}", recipients(full(name), count)


def _with_unknown(name: str) -> Iterator[tuple[str, bytes]]:
    data = encode(full(name))
    yield "unknown_fields", data + UNKNOWN
    for field in descriptors()[name].fields:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE and not field.is_repeated:
            message = full(name)
            if not message.HasField(field.name):
                continue
            inner = getattr(message, field.name).SerializeToString(deterministic=True)
            nested = message_type(name)()
            nested.CopyFrom(message)
            getattr(nested, field.name).MergeFromString(inner + UNKNOWN)
            yield f"unknown_nested_{field.name}", nested.SerializeToString(deterministic=True)
            break


def split_fields(data: bytes) -> list[tuple[bytes, bytes]]:
    """(whole field, its value's bytes) of a message's top-level fields.

    Raises ValueError for a wire type that the contract does not use.
    """
    fields, position = [], 0

    def read() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while position < len(data):
        start = position
        kind = read() & 7
        if kind == 0:
            begin = position
            read()
        elif kind == 2:
            size = read()
            begin = position
            position += size
        else:
            raise ValueError(f"wire type {kind} is not used by the contract")
        fields.append((data[start:position], data[begin:position]))
    return fields


def _fields_of(data: bytes) -> list[bytes]:
    """The top-level fields of a message, each with its tag."""
    return [whole for whole, _ in split_fields(data)]


def _deep(number: int) -> bytes:
    """A field of nested groups, deeper than a parser goes."""
    inside = b""
    for _ in range(_DEEP):
        inside = tag(number, 3) + inside + tag(number, 4)
    return inside


def _broken(name: str) -> Iterator[tuple[str, str, bytes]]:
    """(case, level, bytes) to refuse, for any message."""
    data = encode(full(name))
    if data:
        yield "truncated", "wire", data[:-1]
    # upb passes over whatever a message without fields holds, that field number included.
    tag_zero_by = "wire" if descriptors()[name].fields else "strict"
    yield "tag_zero", tag_zero_by, data + b"\x00\x00"
    yield "varint_endless", "wire", tag(_MADE_UP_FIELD, 0) + b"\xff" * 11
    yield "length_beyond_end", "wire", data + tag(_MADE_UP_FIELD, 2) + varint(1 << 20)
    yield "group_never_ends", "wire", data + tag(_MADE_UP_FIELD, 3)
    # How deep is too deep is a runtime's own limit: 100 in upb, 10,000 in Go.
    yield "deep", "strict", data + _deep(_MADE_UP_FIELD)
    for field in descriptors()[name].fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            yield "bad_utf8", "wire", data + sized(field.number, b"\xff\xfe")
            break
    for field in descriptors()[name].fields:
        plain = not field.is_repeated and field.containing_oneof is None
        if plain and field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            own = [part for part in _fields_of(data) if part.startswith(_tag_of(field))]
            yield "doubled", "strict", data + own[0]
            break
    # Two messages of repeated fields alone are one longer message.
    if any(not field.is_repeated for field in descriptors()[name].fields):
        yield "concatenated", "strict", data + data


def _tag_of(field: FieldDescriptor) -> bytes:
    return tag(field.number, WIRE_TYPES[field.cpp_type])


def _broken_dispatch() -> Iterator[tuple[str, str, bytes]]:
    data = encode(full(DISPATCH))
    parts = _fields_of(data)
    rest = b"".join(parts[1:])
    # Go refuses a missing required field by itself; other runtimes parse it silently.
    yield "epoch_missing", "strict", rest
    yield "epoch_zero", "strict", tag(1, 0) + varint(0) + rest
    yield "epoch_as_text", "strict", sized(1, b"7") + rest
    yield "epoch_above_2_53", "strict", tag(1, 0) + varint(EXACT_INTEGER_MAX + 1) + rest
    yield "epoch_long_varint", "strict", tag(1, 0) + b"\x81\x80\x00" + rest
    yield "epoch_last", "strict", rest + parts[0]
    yield "unknown_first", "strict", UNKNOWN + data
    yield "explicit_zero", "strict", data + tag(14, 0) + varint(0)
    yield "recipients_0", "strict", b"".join(p for p in parts if not p.startswith(tag(19, 2)))
    yield "reader_too_old", "strict", _patched(min_reader_version=2)
    yield "no_reader_version", "strict", _patched(min_reader_version=0)
    yield "short_event_id", "strict", _patched(event_id=b"short")
    yield "seq_zero", "strict", _patched(conversation_seq=0)
    yield "lanes_swapped", "strict", b"".join([*parts[:-2], parts[-1], parts[-2]])
    yield "empty", "strict", b""


def _patched(**fields: object) -> bytes:
    message = full(DISPATCH)
    for name, value in fields.items():
        setattr(message, name, value)
    return message.SerializeToString(deterministic=True)


def _broken_frame(name: str) -> Iterator[tuple[str, str, bytes]]:
    yield "empty", "strict", b""
    data = encode(full(name))
    parts = _fields_of(data)
    yield "nothing_in_it", "strict", parts[0]
    if name.endswith("ClientFrame"):
        yield "request_id_missing", "strict", b"".join(parts[1:])
        yield "request_id_zero", "strict", tag(1, 0) + varint(0) + b"".join(parts[1:])
        yield "request_id_as_text", "strict", sized(1, b"7") + b"".join(parts[1:])


def _after_roundtrip(name: str) -> Iterator[tuple[str, bytes]]:
    """Accepted, though not what an encoder writes."""
    if name in CANONICAL:
        return
    data = encode(full(name))
    parts = _fields_of(data)
    kinds = {part[:1] for part in parts}
    if len(parts) > 1 and len(kinds) == len(parts):
        yield "fields_reversed", b"".join(reversed(parts))
    yield "unknown_first", UNKNOWN + data


def _accepted(name: str) -> Iterator[Fixture]:
    kind = message_type(name)
    for case, message in messages(name):
        try:
            data = encode(message)
        except ContractViolation as violation:
            # A limit that lies outside this message's domain is a case to refuse.
            if not case.startswith(("integers", "text")):
                raise
            raw = message.SerializeToString(deterministic=True)
            yield Fixture(name, case, raw, None, level="strict", reason=violation.reason)
            continue
        yield Fixture(name, case, data, data, json=pretty(to_json(message)))
    for case, data in _with_unknown(name):
        decoded = decode(kind, data)
        if encode(decoded) != data:
            raise AssertionError(f"{name} {case}: unknown fields are not kept in place")
        yield Fixture(name, case, data, data, json=pretty(to_json(decoded)))
    for case, data in _after_roundtrip(name):
        after = encode(decode(kind, data))
        if after != data:
            yield Fixture(name, case, data, after)


def _refused(name: str) -> Iterator[Fixture]:
    broken = list(_broken(name))
    if name == DISPATCH:
        broken += _broken_dispatch()
    if name in FRAMES:
        broken += _broken_frame(name)
    for case, level, data in broken:
        try:
            decode(message_type(name), data)
        except ContractViolation as violation:
            yield Fixture(name, case, data, None, level=level, reason=violation.reason)
        except ReaderTooOld:
            yield Fixture(name, case, data, None, level=level, reason="reader_too_old")
        else:
            raise AssertionError(f"{name} {case}: accepted")


def fixtures(name: str) -> Iterator[Fixture]:
    """All fixtures of one message.

    Raises AssertionError if the codec does not do what a case says.
    """
    yield from _accepted(name)
    yield from _refused(name)


def all_fixtures() -> list[Fixture]:
    """The fixtures of the release under way."""
    return [fixture for name in descriptors() for fixture in fixtures(name)]
