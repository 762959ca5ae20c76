"""This project's own implementation: the strict codec over upb."""

from compat.drivers.line import Refused, serve
from compat.messages import message_type
from qimd.contract.codec import decode, encode
from qimd.contract.json import to_json
from qimd.contract.violation import ContractViolation, ReaderTooOld


def answer(operation: str, message: str, data: bytes) -> bytes:
    """See `compat.drivers.line.serve`."""
    kind = message_type(message)
    try:
        decoded = decode(kind, data)
        if operation == "reencode":
            return encode(decoded)
        if operation == "decode":
            return to_json(decoded).encode()
    except ContractViolation as violation:
        raise Refused(violation.reason, violation.message) from violation
    except ReaderTooOld as error:
        raise Refused("reader_too_old", error.message) from error
    raise KeyError(operation)


if __name__ == "__main__":
    serve("upb", "strict", answer)
