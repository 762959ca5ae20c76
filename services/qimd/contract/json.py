"""JSON views of messages, for fixtures, operators and peers' debugging output; never the wire.

What is read here is not checked beyond its schema. It reaches the wire only through `codec.encode`,
which checks it.
"""

from typing import TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from qimd.contract.violation import ContractViolation, Reason

M = TypeVar("M", bound=Message)


def to_json(message: Message) -> str:
    """ProtoJSON: lowerCamelCase names, 64-bit integers as text, in the order of field numbers."""
    return json_format.MessageToJson(message)


def from_json(message_type: type[M], text: str) -> M:
    """The message that the text describes; what a newer peer added is passed over.

    Of an enum name that is not known only that field is lost: it reads as UNSPECIFIED. Raises
    ContractViolation for what is no JSON of this message.
    """
    message = message_type()
    if not text.lstrip().startswith("{"):
        # The runtime takes an empty list for an empty message.
        raise ContractViolation(message_type.DESCRIPTOR.full_name, Reason.MALFORMED)
    try:
        json_format.Parse(text, message, ignore_unknown_fields=True)
    except (json_format.ParseError, RecursionError):
        # Without the cause: the runtime's text quotes what it could not read.
        raise ContractViolation(message_type.DESCRIPTOR.full_name, Reason.MALFORMED) from None
    return message
