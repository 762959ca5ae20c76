"""The one table of errors: code, gRPC status, retryable, what happened, what to do.

Numbers equal those of `qim.common.v1.ErrorCode` (checked by a test). Everything that fails towards
a caller is a `QimError`; an outcome that is unknown is a value (`core.outcome`), not an error.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class ErrorCode(IntEnum):
    """The code that a client sees."""

    UNAUTHENTICATED = 1
    TOKEN_EXPIRED = 2
    TOKEN_REVOKED = 3
    PERMISSION_DENIED = 4
    NOT_MEMBER = 5
    INVALID_ARGUMENT = 6
    CONTRACT_VIOLATION = 7
    CURSOR_INVALID = 8
    RATE_LIMITED = 9
    FANOUT_QUOTA_EXCEEDED = 10
    SLOW_CONSUMER = 11
    STALE_EPOCH = 12
    NOT_OWNER = 13
    SESSION_PROJECTION_DIRTY = 14
    IDEMPOTENCY_CONFLICT = 15
    UNIMPLEMENTED = 16
    UNAVAILABLE = 17
    NOT_FOUND = 18
    ALREADY_EXISTS = 19
    INTERNAL = 20


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """One row of the table. `grpc_status` is the name of a gRPC status code."""

    grpc_status: str
    retryable: bool
    what_happened: str
    what_to_do: str


ERRORS: Final[dict[ErrorCode, ErrorEntry]] = {
    ErrorCode.UNAUTHENTICATED: ErrorEntry(
        "UNAUTHENTICATED",
        False,
        "The call carries no credential that this server accepts.",
        "Send AUTH with an access token signed by a key of the tenant, or the admin token as "
        "`authorization: Bearer …` metadata on an administration call.",
    ),
    ErrorCode.TOKEN_EXPIRED: ErrorEntry(
        "UNAUTHENTICATED",
        False,
        "The access token's `exp` has passed.",
        "Obtain a new access token and connect again.",
    ),
    ErrorCode.TOKEN_REVOKED: ErrorEntry(
        "UNAUTHENTICATED",
        False,
        "The token was revoked: a remote logout, a ban, or a lost device.",
        "Let the user log in again; a new token works, this one never will.",
    ),
    ErrorCode.PERMISSION_DENIED: ErrorEntry(
        "PERMISSION_DENIED",
        False,
        "The credential is valid, but not for this.",
        "Use a credential of the right tenant and role.",
    ),
    ErrorCode.NOT_MEMBER: ErrorEntry(
        "PERMISSION_DENIED",
        False,
        "The user is not a member of the conversation, or there is no such conversation.",
        "Have the user added to the conversation first.",
    ),
    ErrorCode.INVALID_ARGUMENT: ErrorEntry(
        "INVALID_ARGUMENT",
        False,
        "A field's value is outside its limits; `field` names it.",
        "Correct the field. Nothing was written.",
    ),
    ErrorCode.CONTRACT_VIOLATION: ErrorEntry(
        "INVALID_ARGUMENT",
        False,
        "The bytes are not a valid message of the contract.",
        "Encode with the published schema; docs/contract.md says what is checked.",
    ),
    ErrorCode.CURSOR_INVALID: ErrorEntry(
        "INVALID_ARGUMENT",
        False,
        "The cursor token or position is not one that this server gave to this device.",
        "Use the cursor_token and position of AUTH_OK or of the last page; do not make one up.",
    ),
    ErrorCode.RATE_LIMITED: ErrorEntry(
        "RESOURCE_EXHAUSTED",
        True,
        "A rate limit was reached. Nothing was written.",
        "Try again after retry_after_ms.",
    ),
    ErrorCode.FANOUT_QUOTA_EXCEEDED: ErrorEntry(
        "RESOURCE_EXHAUSTED",
        True,
        "The tenant's fanout quota is used up. Nothing was written.",
        "Try again later, or ask for a larger quota.",
    ),
    ErrorCode.SLOW_CONSUMER: ErrorEntry(
        "RESOURCE_EXHAUSTED",
        True,
        "The client did not read fast enough, and the stream was closed.",
        "Connect again and pull the mailbox: nothing is lost.",
    ),
    ErrorCode.STALE_EPOCH: ErrorEntry(
        "ABORTED",
        True,
        "Another owner has taken the shard over since.",
        "Try again: the request reaches the new owner.",
    ),
    ErrorCode.NOT_OWNER: ErrorEntry(
        "UNAVAILABLE",
        True,
        "This node does not own the shard.",
        "Try again: the shard is being taken over, or is owned elsewhere.",
    ),
    ErrorCode.SESSION_PROJECTION_DIRTY: ErrorEntry(
        "FAILED_PRECONDITION",
        False,
        "The session projection can't be proved complete, and refuses to show a part.",
        "An operator restarts the server; where that does not help, `qimctl rebuild-projection`.",
    ),
    ErrorCode.IDEMPOTENCY_CONFLICT: ErrorEntry(
        "ALREADY_EXISTS",
        False,
        "The same client_msg_id was sent before with other content.",
        "Use a new client_msg_id for a new message.",
    ),
    ErrorCode.UNIMPLEMENTED: ErrorEntry(
        "UNIMPLEMENTED",
        False,
        "This server does not know this kind of frame or call.",
        "Compare protocol_version and capabilities of AUTH_OK before you use it.",
    ),
    ErrorCode.UNAVAILABLE: ErrorEntry(
        "UNAVAILABLE",
        True,
        "It can't be done now, or its outcome is not known.",
        "Send it again with the same ids: it takes effect once. If nobody answers, see that the "
        "server runs, and that the address is its own.",
    ),
    ErrorCode.NOT_FOUND: ErrorEntry(
        "NOT_FOUND",
        False,
        "There is no such tenant, conversation or event.",
        "Check the id, or create it first.",
    ),
    ErrorCode.ALREADY_EXISTS: ErrorEntry(
        "ALREADY_EXISTS",
        False,
        "It exists with other content.",
        "Use another id, or the call that changes it.",
    ),
    ErrorCode.INTERNAL: ErrorEntry(
        "INTERNAL",
        False,
        "A defect of the server.",
        "Report it, with what the server's log says of it.",
    ),
}


class QimError(Exception):
    """A failure with its code.

    `message` and `field` reach clients: they never hold a token, key, signature, body, or another
    tenant's data. `retry_after_ms` is 0 where there is no advice.
    """

    def __init__(
        self, code: ErrorCode, message: str, *, field: str = "", retry_after_ms: int = 0
    ) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.field = field
        self.retry_after_ms = (
            max(1, retry_after_ms) if code is ErrorCode.RATE_LIMITED else retry_after_ms
        )

    @property
    def entry(self) -> ErrorEntry:
        """The code's row of the table."""
        return ERRORS[self.code]

    @property
    def retryable(self) -> bool:
        """The same request may succeed later."""
        return self.entry.retryable

    def inside(self, path: str) -> "QimError":
        """The same error, its field (if any) seen from the message that holds it at `path`.

        Each part names fields from where it stands; only who read the whole request knows the rest.
        """
        field = f"{path}.{self.field}" if self.field else ""
        return QimError(self.code, self.message, field=field, retry_after_ms=self.retry_after_ms)


def invalid(message: str, field: str) -> QimError:
    """INVALID_ARGUMENT that names its field."""
    return QimError(ErrorCode.INVALID_ARGUMENT, message, field=field)


def unavailable(message: str) -> QimError:
    """UNAVAILABLE: not now, or unknown; to be sent again under the same ids."""
    return QimError(ErrorCode.UNAVAILABLE, message)
