"""What the contract refuses, as typed errors: bytes that break it, and records that are too new."""

from enum import StrEnum

from qimd.core.errors import ErrorCode, QimError
from qimd.core.parameters import READER_VERSION


class Reason(StrEnum):
    """The kinds of violation: a closed set, so that metrics may use it as a label."""

    MALFORMED = "malformed"
    """The bytes do not parse: cut short, not UTF-8, nested deeper than 100, or random."""
    MISSING = "missing"
    """A field that must be there is not."""
    ZERO = "zero"
    """A number that must be at least 1 is 0."""
    DOMAIN = "domain"
    """A value that no writer of the contract produces: a wrong size, order, range or pairing."""
    WRONG_TYPE = "wrong_type"
    """A known field number comes with another wire type, so that its value would be lost."""
    NON_CANONICAL = "non_canonical"
    """Reading loses bytes: a doubled field, two arms of a oneof, joined messages, or another
    spelling of a message that has exactly one."""


class ContractViolation(QimError):
    """The bytes, or the message to be sent, are not a valid message of the contract.

    `message_name` is the full name of the message (`qim.gateway.v1.ClientFrame`), `field` the path
    of the offending field where there is one, `request_id` that of a frame that parsed, else 0. The
    text never holds a value: it could be a token or a body.
    """

    def __init__(
        self, message_name: str, reason: Reason, *, field: str = "", request_id: int = 0
    ) -> None:
        where = f"{message_name}.{field}" if field else message_name
        super().__init__(ErrorCode.CONTRACT_VIOLATION, f"{where}: {reason}", field=field)
        self.message_name = message_name
        self.reason = reason
        self.request_id = request_id


class ReaderTooOld(QimError):
    """A record demands a newer reader: its partition halts, nothing is quarantined (design 4)."""

    def __init__(self, min_reader_version: int) -> None:
        super().__init__(
            ErrorCode.UNIMPLEMENTED,
            f"the record demands reader version {min_reader_version}; this is {READER_VERSION}",
            field="min_reader_version",
        )
        self.min_reader_version = min_reader_version
