"""schema.lock: every field of every message as text, a line each, so that a review sees changes.

`buf breaking` does not see all that breaks this contract (an added required field, packed turned
expanded, a canonical message's new field numbered below another): the lock does, since any change
of it is a change of a reviewed file, and `violations` names those that no release may make.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

from compat.messages import TOP, enums_of, files, messages_of
from qimd.contract import codec

LOCK = TOP / "compat" / "schema.lock"

CANONICAL = codec.CANONICAL | {"qim.dispatch.v1.LaneBlock"}
"""Messages whose bytes must survive decode and encode: a new field is numbered above all others."""

REQUIRED = ("qim.dispatch.v1.GroupDispatch.fencing_epoch",)
"""The only fields that may be LEGACY_REQUIRED."""

_TYPES = {
    value: name.removeprefix("TYPE_").lower()
    for name, value in vars(FieldDescriptor).items()
    if name.startswith("TYPE_") and isinstance(value, int)
}


@dataclass(frozen=True)
class Row:
    """One line of the lock: `kind owner number name rest`."""

    kind: str
    owner: str
    number: int
    name: str
    rest: str

    @property
    def line(self) -> str:
        """The row as the lock shows it."""
        return f"{self.kind} {self.owner} {self.number} {self.name} {self.rest}".rstrip()


def _field_row(field: FieldDescriptor) -> Row:
    kind = _TYPES[field.type]
    if field.message_type is not None:
        kind = field.message_type.full_name
    elif field.enum_type is not None:
        kind = field.enum_type.full_name
    if field.is_repeated:
        presence = "packed" if field.is_packed else "repeated"
    elif field.is_required:
        presence = "required"
    else:
        presence = "explicit" if field.has_presence else "implicit"
    oneof = f" oneof={field.containing_oneof.name}" if field.containing_oneof else ""
    owner = field.containing_type.full_name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return Row("map", owner, field.number, field.name, kind)
    return Row("field", owner, field.number, field.name, f"{presence} {kind}{oneof}")


def _reserved_rows(descriptor: Descriptor) -> list[Row]:
    proto = _proto_of(descriptor)
    rows = [
        Row("reserved", descriptor.full_name, number, "-", "")
        for span in proto.reserved_range
        for number in range(span.start, span.end)
    ]
    return rows + [
        Row("reserved", descriptor.full_name, 0, name, "") for name in proto.reserved_name
    ]


def _proto_of(descriptor: Descriptor) -> DescriptorProto:
    proto = DescriptorProto()
    descriptor.CopyToProto(proto)
    return proto


def rows_of(of: Sequence[FileDescriptor]) -> list[Row]:
    """The lock's rows for a schema."""
    rows: list[Row] = []
    for descriptor in messages_of(of).values():
        rows += (
            _field_row(field) for field in sorted(descriptor.fields, key=lambda field: field.number)
        )
        rows += _reserved_rows(descriptor)
    for enum in enums_of(of).values():
        openness = "closed" if enum.is_closed else "open"
        rows += (
            Row("value", enum.full_name, value.number, value.name, openness)
            for value in enum.values
        )
    for file in of:
        for service in file.services_by_name.values():
            for index, method in enumerate(service.methods, 1):
                streams = (
                    "stream " if method.client_streaming else ""
                ) + method.input_type.full_name
                answer = (
                    "stream " if method.server_streaming else ""
                ) + method.output_type.full_name
                rows.append(
                    Row("method", service.full_name, index, method.name, f"({streams}) ({answer})")
                )
    return rows


def current() -> list[Row]:
    """The lock's rows for the generated code as it is."""
    return rows_of(files())


def text(rows: list[Row]) -> str:
    """The lock's file content."""
    head = "# The whole contract, a line a field. Changed by: python -m compat lock --update\n"
    return head + "".join(row.line + "\n" for row in rows)


def parse(content: str) -> list[Row]:
    """The rows of a lock file. Raises ValueError for a line that is not one."""
    rows = []
    for line in content.splitlines():
        if not line or line.startswith("#"):
            continue
        parts = line.split(" ", 4)
        if len(parts) < 4:
            raise ValueError(f"schema.lock: not a row: {line!r}")
        rest = parts[4] if len(parts) == 5 else ""
        rows.append(Row(parts[0], parts[1], int(parts[2]), parts[3], rest))
    return rows


def violations(locked: list[Row], now: list[Row]) -> list[str]:
    """What `now` does to a released schema that no release may do. Empty if nothing."""
    found: list[str] = []
    before = {(row.kind, row.owner, row.number, row.name): row for row in locked}
    after = {(row.kind, row.owner, row.number, row.name): row for row in now}
    reserved = {(row.owner, row.number) for row in now if row.kind == "reserved"}
    for key, row in before.items():
        new = after.get(key)
        if new is None and row.kind == "reserved":
            found.append(f"{row.owner}: {row.number or row.name} is no longer reserved")
        elif new is None:
            kept = (
                " (its number is reserved, which does not help readers)"
                if ((row.owner, row.number) in reserved)
                else ""
            )
            found.append(f"{row.owner}.{row.name} = {row.number} is gone or renumbered{kept}")
        elif new.rest != row.rest:
            found.append(f"{row.owner}.{row.name}: was '{row.rest}', is '{new.rest}'")
    highest: dict[str, int] = {}
    for row in locked:
        if row.kind == "field":
            highest[row.owner] = max(highest.get(row.owner, 0), row.number)
    for key, row in after.items():
        if row.kind != "field" or key in before:
            continue
        if row.owner in CANONICAL and row.number < highest.get(row.owner, 0):
            found.append(
                f"{row.owner}.{row.name} = {row.number}: a new field of a canonical message must "
                f"be numbered above {highest[row.owner]}"
            )
    return found + ban_violations(now)


def ban_violations(now: list[Row]) -> list[str]:
    """What the contract never has: another required field, a map, a float, a closed enum."""
    found = []
    for row in now:
        where = f"{row.owner}.{row.name}"
        words = row.rest.split()
        if row.kind == "field" and words[0] == "required" and where not in REQUIRED:
            found.append(f"{where}: required fields are banned but for {', '.join(REQUIRED)}")
        if row.kind == "field" and words[1] in ("float", "double"):
            found.append(f"{where}: floating point is banned")
        if row.kind == "map":
            found.append(f"{where}: maps are banned")
        if row.kind == "value" and words[0] == "closed":
            found.append(f"{where}: closed enums are banned")
    if not any(
        f"{row.owner}.{row.name}" in REQUIRED and row.rest.startswith("required") for row in now
    ):
        found.append(f"{REQUIRED[0]} must be LEGACY_REQUIRED")
    return found


def check(path: Path = LOCK) -> list[str]:
    """What differs between a lock file and the generated code, violations first."""
    locked, now = parse(path.read_text(encoding="utf-8")), current()
    broken = violations(locked, now)
    if not broken and text(now) != path.read_text(encoding="utf-8"):
        broken.append(
            "schema.lock is not up to date: python -m compat lock --update, and review it"
        )
    return broken
