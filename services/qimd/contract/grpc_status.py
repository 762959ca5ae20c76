"""QimErrors as gRPC statuses and back: the rich status of google.rpc, with an ErrorInfo.

ErrorInfo's reason is the code's name, its domain `qim`, its metadata `field` and `retry_after_ms`
where there are any; a delay is a RetryInfo as well, for clients that know no more than gRPC.
"""

from collections.abc import Iterable
from typing import Final, cast

import grpc

from qimd.contract.rpc_details import RpcDetails, parse_details
from qimd.core.errors import ErrorCode, QimError

DOMAIN: Final = "qim"
DETAILS_KEY: Final = "grpc-status-details-bin"
MESSAGE_CHARS_MAX: Final = 512
"""gRPC refuses trailers above 8 KiB, and the client would see no status at all."""


class RpcStatus(grpc.Status):
    """What `context.abort_with_status` takes."""

    def __init__(
        self, code: grpc.StatusCode, details: str, trailing_metadata: tuple[tuple[str, bytes], ...]
    ) -> None:
        self.code = code
        self.details = details
        self.trailing_metadata = trailing_metadata


def to_rpc_status(error: QimError) -> RpcStatus:
    """The status of an error. Its text is cut at MESSAGE_CHARS_MAX."""
    code = grpc.StatusCode[error.entry.grpc_status]
    message = error.message[:MESSAGE_CHARS_MAX]
    metadata: dict[str, str] = {}
    if error.field:
        metadata["field"] = error.field[:MESSAGE_CHARS_MAX]
    if error.retry_after_ms:
        metadata["retry_after_ms"] = str(error.retry_after_ms)
    details = RpcDetails(
        code=code.value[0],
        message=message,
        reason=error.code.name,
        domain=DOMAIN,
        metadata=metadata,
        retry_delay_ms=error.retry_after_ms,
    )
    return RpcStatus(code, message, ((DETAILS_KEY, details.encode()),))


_WITHOUT_DETAILS: Final = {
    grpc.StatusCode.CANCELLED: ErrorCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: ErrorCode.UNAVAILABLE,
    grpc.StatusCode.UNAVAILABLE: ErrorCode.UNAVAILABLE,
    grpc.StatusCode.ABORTED: ErrorCode.UNAVAILABLE,
    grpc.StatusCode.UNAUTHENTICATED: ErrorCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: ErrorCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT: ErrorCode.INVALID_ARGUMENT,
    grpc.StatusCode.OUT_OF_RANGE: ErrorCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ErrorCode.RATE_LIMITED,
    grpc.StatusCode.NOT_FOUND: ErrorCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: ErrorCode.ALREADY_EXISTS,
    grpc.StatusCode.UNIMPLEMENTED: ErrorCode.UNIMPLEMENTED,
}
"""What a status means that qim did not set: gRPC's own, or a proxy's. Others are INTERNAL."""


def from_rpc_error(error: grpc.RpcError) -> QimError:
    """The error behind a failed call, of the asyncio or the synchronous stack.

    A reason of a newer server becomes the code that its gRPC status stands for.
    """
    text = error.details() or error.code().name
    # Both stacks give pairs; the stubs name a type for them that can't be unpacked.
    trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    details = None
    for key, value in trailers:
        if key == DETAILS_KEY and isinstance(value, bytes):
            details = parse_details(value)
    code = _WITHOUT_DETAILS.get(error.code(), ErrorCode.INTERNAL)
    if details is None or details.domain != DOMAIN:
        return QimError(code, text)
    return QimError(
        ErrorCode.__members__.get(details.reason, code),
        details.message,
        field=details.metadata.get("field", ""),
        retry_after_ms=details.retry_delay_ms,
    )
