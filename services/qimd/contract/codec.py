"""The only decode and encode of the contract's bytes: strict both ways.

Protobuf's own parsing is lenient where a lost value matters: a missing required field parses, a
field of another wire type counts as unknown, of a doubled field the last one wins, and two joined
messages are one. So `decode` is parse into a fresh message, initialised, nothing lost, checked:

* *Nothing lost.* Every message, frames included, must encode again to as many bytes as came in,
  its unknown fields kept. A doubled or joined field, a second arm of a oneof, a spelled-out default
  or a padded varint make that shorter. The order of fields is free, and what a newer peer adds is
  kept, byte for byte. (An unpacked repeated scalar would be refused; the contract has none.)
* An unknown field may not carry a number that is known: it is a value of the wrong type.
* *Canonical messages* (GroupDispatch, the cursor) must encode again to the very bytes that came in:
  fields in order, a newer writer's behind all known ones.

What can't be kept apart from a lenient message is refused; nothing is repaired.
"""

from functools import cache
from typing import Final, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from qim.cursor.v1.mailbox_cursor_pb2 import MailboxCursor, MailboxCursorToken
from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch
from qim.gateway.v1.gateway_pb2 import ClientFrame, ServerFrame
from qimd.contract.checks import problem_of
from qimd.contract.problems import Problem
from qimd.contract.violation import ContractViolation, ReaderTooOld, Reason
from qimd.core.parameters import READER_VERSION

M = TypeVar("M", bound=Message)

CANONICAL: Final = frozenset(
    message.DESCRIPTOR.full_name for message in (GroupDispatch, MailboxCursor, MailboxCursorToken)
)
"""Messages with exactly one spelling: deduplicated or signed by their bytes."""


def decode(message_type: type[M], data: bytes) -> M:
    """The message that the bytes are, in a fresh object.

    Raises ContractViolation if they are not one, and ReaderTooOld, before any other check, for a
    GroupDispatch whose min_reader_version is above READER_VERSION.
    """
    message = decode_structure(message_type, data)
    problem = problem_of(message, data)
    if problem is not None:
        raise violation(message, problem)
    return message


def encode(message: Message) -> bytes:
    """The message's bytes, deterministic. Raises ContractViolation if `decode` would refuse them.

    The output itself is read: what the message holds of a foreign one, such as fields nested 101
    deep, serialises without complaint and can't be parsed by anyone.
    """
    if demands_fields(message.DESCRIPTOR) and not message.IsInitialized():
        raise violation(message, _missing(message))
    if _too_new(message):
        raise violation(message, Problem(Reason.DOMAIN, "min_reader_version"))
    data = message.SerializeToString(deterministic=True)
    decode(type(message), data)
    return data


def decode_structure(message_type: type[M], data: bytes) -> M:
    """As `decode`, without the checks of `contract.checks`, for callers that make them."""
    return read(message_type, data)[0]


def read(message_type: type[M], data: bytes) -> tuple[M, bool]:
    """As `decode_structure`; the second value says whether there are unknown fields.

    Dropping unknown fields and comparing is one pass in C, and settles the common case that there
    are none; only a message that has some is parsed a second time, to keep them.
    """
    message = parse(message_type, data)
    if demands_fields(message.DESCRIPTOR) and not message.IsInitialized():
        raise violation(message, _missing(message))
    message.DiscardUnknownFields()
    if _keeps(message, data):
        return message, False
    message = _parse(message_type, data)
    if not _keeps(message, data):
        raise violation(message, Problem(Reason.NON_CANONICAL, ""))
    problem = _wrongly_typed(message)
    if problem is not None:
        raise violation(message, problem)
    return message, True


def parse(message_type: type[M], data: bytes) -> M:
    """Only parsed, not checked. Raises ContractViolation if that fails, and ReaderTooOld."""
    message = _parse(message_type, data)
    if _too_new(message):
        raise ReaderTooOld(_reader_version(message))
    return message


def violation(message: Message, problem: Problem) -> ContractViolation:
    """The error for a problem of a parsed message; a frame's keeps its request_id."""
    request_id = message.request_id if isinstance(message, (ClientFrame, ServerFrame)) else 0
    return ContractViolation(
        message.DESCRIPTOR.full_name, problem.reason, field=problem.field, request_id=request_id
    )


def _parse(message_type: type[M], data: bytes) -> M:
    try:
        return message_type.FromString(data)
    except DecodeError:
        # Without the cause: the runtime's text may quote what it could not read.
        raise ContractViolation(message_type.DESCRIPTOR.full_name, Reason.MALFORMED) from None


def _reader_version(message: Message) -> int:
    return message.min_reader_version if isinstance(message, GroupDispatch) else 0


def _too_new(message: Message) -> bool:
    return _reader_version(message) > READER_VERSION


def _missing(message: Message) -> Problem:
    absent = (
        field.name
        for field in message.DESCRIPTOR.fields
        if field.is_required and not message.HasField(field.name)
    )
    return Problem(Reason.MISSING, ",".join(absent))


@cache
def demands_fields(descriptor: Descriptor) -> bool:
    """Whether the message, or one inside it, has a required field.

    For those without, which is all but one, the runtime's own answer is a walk over every message
    inside. (The contract has no recursive messages; a test says so.)
    """
    return any(
        field.is_required or (field.message_type is not None and demands_fields(field.message_type))
        for field in descriptor.fields
    )


def _keeps(message: Message, data: bytes) -> bool:
    """Whether the message holds all of the bytes that it was read from."""
    if message.DESCRIPTOR.full_name in CANONICAL:
        return message.SerializeToString(deterministic=True) == data
    # The runtime's ByteSize serialises, too, and takes nearly twice as long for it.
    return len(message.SerializePartialToString()) == len(data)


def _wrongly_typed(message: Message) -> Problem | None:
    """The first unknown field, at any depth, whose number is known, or is 0."""
    known = message.DESCRIPTOR.fields_by_number
    unknown = UnknownFieldSet(message)
    for number in (unknown[index].field_number for index in range(len(unknown))):
        if number in known:
            return Problem(Reason.WRONG_TYPE, known[number].name)
        if number == 0:
            # No field has it; yet upb takes it in a message that has no fields at all (Ping).
            return Problem(Reason.MALFORMED, "")
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for nested in value if field.is_repeated else (value,):
            problem = _wrongly_typed(nested)
            if problem is not None:
                return problem.inside(field.name)
    return None
