"""Who may call this process by a hop: other processes of the deployment, and nobody else.

Where there is TLS, peers prove themselves by a client certificate of the deployment's own; on
loopback without TLS, by a secret that its settings share.
"""

from collections.abc import Callable, Collection
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final

from grpc import aio

from qimd.core.errors import ErrorCode, QimError, invalid

Authenticate = Callable[["aio.ServicerContext[Any, Any]"], None]
"""Returns for a peer of the deployment. Raises QimError(UNAUTHENTICATED), which says no more."""

_KEY: Final = "x-qim-hop"
_SECRET_BYTES_MIN: Final = 16
_NAMES: Final = ("x509_subject_alternative_name", "x509_common_name")


def _refused() -> QimError:
    return QimError(ErrorCode.UNAUTHENTICATED, "the peer is no process of this deployment")


class SharedSecret:
    """Both sides of a secret in the metadata. It is compared in constant time.

    Raises QimError(INVALID_ARGUMENT) for one that is too short to be a secret.
    """

    def __init__(self, secret: str) -> None:
        if len(secret.encode()) < _SECRET_BYTES_MIN:
            raise invalid(f"the hop secret has less than {_SECRET_BYTES_MIN} bytes", "hop_secret")
        # Metadata is ASCII, and what is sent need not be the secret itself.
        self._digest = sha256(b"qim.hop\0" + secret.encode()).hexdigest()

    @property
    def credentials(self) -> tuple[tuple[str, str], ...]:
        """What a caller sends."""
        return ((_KEY, self._digest),)

    def authenticate(self, context: "aio.ServicerContext[Any, Any]") -> None:
        """See `Authenticate`."""
        presented = dict(context.invocation_metadata() or ()).get(_KEY, "")
        text = presented if isinstance(presented, str) else presented.decode("latin-1")
        # Of bytes: text that is not ASCII can't be compared so.
        if not compare_digest(text.encode("utf-8", "surrogatepass"), self._digest.encode()):
            raise _refused()


def by_certificate(names: Collection[str]) -> Authenticate:
    """Accepts a client certificate, verified by the server's TLS, that has one of these names."""
    accepted = frozenset(name.encode() for name in names)

    def authenticate(context: "aio.ServicerContext[Any, Any]") -> None:
        proved = context.auth_context()
        if not any(accepted.intersection(proved.get(key, ())) for key in _NAMES):
            raise _refused()

    return authenticate
