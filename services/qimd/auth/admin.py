"""The admin token, which administration calls carry as `authorization: Bearer …`."""

from hashlib import sha256
from hmac import compare_digest

from qimd.core.errors import ErrorCode, QimError, invalid

_SCHEME = "bearer"
_TOKEN_BYTES_MIN = 16


class AdminToken:
    """Checks presented credentials in constant time. It keeps the token's digest alone.

    Raises QimError(INVALID_ARGUMENT) for a token too short to be a secret.
    """

    def __init__(self, token: str) -> None:
        if len(token.encode()) < _TOKEN_BYTES_MIN:
            raise invalid(f"the admin token has less than {_TOKEN_BYTES_MIN} bytes", "admin_token")
        self._digest = sha256(token.encode()).digest()

    def check(self, authorization: str | bytes | None) -> None:
        """Return if the metadata value is `Bearer <the token>`.

        Raises QimError(UNAUTHENTICATED), the same for a missing, malformed or wrong one.
        """
        if isinstance(authorization, bytes):
            authorization = authorization.decode("utf-8", "replace")
        scheme, _, presented = (authorization or "").partition(" ")
        # Digests of equal length on both sides: neither the length nor a common prefix shows, and
        # a text that is not ASCII is compared like any other.
        digest = sha256(presented.encode("utf-8", "surrogatepass")).digest()
        if not (compare_digest(digest, self._digest) and scheme.lower() == _SCHEME):
            raise QimError(ErrorCode.UNAUTHENTICATED, "the admin token is not accepted")
