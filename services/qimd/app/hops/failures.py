"""When a call is to be tried again at another process."""

from typing import Final

from qimd.core.errors import ErrorCode, QimError

_MOVED: Final = frozenset({ErrorCode.NOT_OWNER, ErrorCode.STALE_EPOCH})
"""What an owner answers that is none, or none any more."""


class Elsewhere(QimError):
    """UNAVAILABLE where the call was sent, or where it could not even be sent: the stream was lost,
    the process drains, or nobody owns the shard. A call that was sent may have taken effect.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message)


def is_elsewhere(error: QimError) -> bool:
    """Whether the shard's owner, as it is looked up anew, may answer otherwise."""
    return isinstance(error, Elsewhere) or error.code in _MOVED
