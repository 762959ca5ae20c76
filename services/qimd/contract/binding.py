"""What the gRPC bindings share: which calls are the contract's, and how one message is carried.

gRPC's own (de)serialisers must not fail: the asyncio client sends an empty message in place of one
that it can't encode, and gives None for a reply that it can't decode. So bytes go through gRPC, and
the codec does both ends.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import Message

from qimd.contract import codec
from qimd.contract.frames import EncodedFrame
from qimd.contract.violation import ContractViolation, ReaderTooOld
from qimd.core.errors import ErrorCode, QimError, unavailable

_LOG: Final = logging.getLogger(__name__)
_PACKAGE: Final = "qim."

Refused = ContractViolation | ReaderTooOld
"""What a refused message of a stream is replaced by."""


def contract_type(parse: Callable[[bytes], Any] | None) -> type[Message] | None:
    """The message type whose FromString this is; None for other protocols, such as health's."""
    owner = getattr(parse, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, Message):
        return owner if owner.DESCRIPTOR.full_name.startswith(_PACKAGE) else None
    return None


def decode_or_refuse(message_type: type[Message], data: bytes) -> Message | Refused:
    """The message, or the refusal as a value."""
    try:
        return codec.decode(message_type, data)
    except (ContractViolation, ReaderTooOld) as refused:
        return refused


def encode_response(response: Message | EncodedFrame) -> bytes:
    """What a handler answers, as bytes."""
    return response.data if isinstance(response, EncodedFrame) else codec.encode(response)


def inner_cancel() -> QimError:
    """A step inside the handler was cancelled while the call itself goes on (case GW-01)."""
    return unavailable("a step of the request was cancelled; its outcome is not known")


def log_defect(error: Exception) -> None:
    """Name what escaped a handler, without its text, which may hold a body or a token."""
    _LOG.error("a handler failed with %s", type(error).__name__)


def defect() -> QimError:
    """Anything else. Its text stays here: it may hold what no client may see."""
    return QimError(ErrorCode.INTERNAL, "a defect of the server")
