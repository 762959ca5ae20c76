"""google.rpc.Status and the details that qim puts into it, read and written without its package.

The SDK runs on grpcio and protobuf alone, and must understand the server's errors. These few
messages are frozen, so they are declared here, in a pool of their own that meets no other one. A
test holds their bytes against those of googleapis-common-protos.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

_TYPE_URL: Final = "type.googleapis.com/google.rpc."

# Message → (number, field, type): a capital names a message here, a star says repeated. A map is,
# on the wire, a repeated message of key and value.
_SCHEMA: Final[Mapping[str, tuple[tuple[int, str, str], ...]]] = {
    "Status": ((1, "code", "int32"), (2, "message", "string"), (3, "details", "*Any")),
    "Any": ((1, "type_url", "string"), (2, "value", "bytes")),
    "Entry": ((1, "key", "string"), (2, "value", "string")),
    "ErrorInfo": ((1, "reason", "string"), (2, "domain", "string"), (3, "metadata", "*Entry")),
    "Duration": ((1, "seconds", "int64"), (2, "nanos", "int32")),
    "RetryInfo": ((1, "retry_delay", "Duration"),),
}
_SCALARS: Final = {
    "int32": Field.TYPE_INT32,
    "int64": Field.TYPE_INT64,
    "string": Field.TYPE_STRING,
    "bytes": Field.TYPE_BYTES,
}


def _classes() -> Mapping[str, Any]:
    file = FileDescriptorProto(name="details.proto", package="details", syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for number, field_name, type_name in fields:
            bare = type_name.removeprefix("*")
            added = message.field.add(name=field_name, number=number)
            added.label = Field.LABEL_REPEATED if bare != type_name else Field.LABEL_OPTIONAL
            added.type = _SCALARS.get(bare, Field.TYPE_MESSAGE)
            if added.type == Field.TYPE_MESSAGE:
                added.type_name = f".details.{bare}"
    pool = DescriptorPool()
    pool.Add(file)
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"details.{name}")) for name in _SCHEMA
    }


_CLASS: Final = _classes()


@dataclass(frozen=True, slots=True)
class RpcDetails:
    """A rich status. `code` is the number of the gRPC status; without RetryInfo the delay is 0."""

    code: int
    message: str
    reason: str = ""
    domain: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_delay_ms: int = 0

    def encode(self) -> bytes:
        """The bytes of the google.rpc.Status with an ErrorInfo and, for a delay, a RetryInfo."""
        entries = [_CLASS["Entry"](key=key, value=self.metadata[key]) for key in self.metadata]
        info = _CLASS["ErrorInfo"](reason=self.reason, domain=self.domain, metadata=entries)
        details = [_packed("ErrorInfo", info)]
        if self.retry_delay_ms:
            seconds, milliseconds = divmod(self.retry_delay_ms, 1000)
            delay = _CLASS["Duration"](seconds=seconds, nanos=milliseconds * 1_000_000)
            details.append(_packed("RetryInfo", _CLASS["RetryInfo"](retry_delay=delay)))
        status = _CLASS["Status"](code=self.code, message=self.message, details=details)
        return bytes(status.SerializeToString(deterministic=True))


def _packed(name: str, message: Any) -> Any:
    return _CLASS["Any"](type_url=_TYPE_URL + name, value=message.SerializeToString())


def parse_details(data: bytes) -> RpcDetails | None:
    """What a server said of an error; None if it is no status with an ErrorInfo."""
    try:
        status = _CLASS["Status"].FromString(data)
        parts = {part.type_url: part.value for part in status.details}
        info = _CLASS["ErrorInfo"].FromString(parts[_TYPE_URL + "ErrorInfo"])
        retry = _CLASS["RetryInfo"].FromString(parts.get(_TYPE_URL + "RetryInfo", b""))
    except (DecodeError, KeyError):
        return None
    delay = retry.retry_delay
    return RpcDetails(
        code=status.code,
        message=status.message,
        reason=info.reason,
        domain=info.domain,
        metadata={entry.key: entry.value for entry in info.metadata},
        retry_delay_ms=delay.seconds * 1000 + delay.nanos // 1_000_000,
    )
