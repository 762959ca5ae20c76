"""The error message of frames and results, from and to the one table in `core.errors`."""

from typing import Final, cast

from qim.common.v1.error_pb2 import Error
from qim.common.v1.error_pb2 import ErrorCode as ErrorCodeNumber
from qimd.core.errors import ErrorCode, QimError

_UINT32_MAX: Final = (1 << 32) - 1


def error_message(error: QimError) -> Error:
    """What a client sees of the error."""
    return Error(
        code=cast("ErrorCodeNumber", int(error.code)),
        message=error.message,
        field=error.field,
        retryable=error.retryable,
        retry_after_ms=min(error.retry_after_ms, _UINT32_MAX),
    )


def error_of(message: Error) -> QimError:
    """The error that a server reported.

    A code of a newer server becomes UNAVAILABLE if it says that it is retryable, else INTERNAL: the
    caller needs no more to act rightly.
    """
    try:
        code = ErrorCode(message.code)
    except ValueError:
        code = ErrorCode.UNAVAILABLE if message.retryable else ErrorCode.INTERNAL
    return QimError(
        code, message.message, field=message.field, retry_after_ms=message.retry_after_ms
    )
