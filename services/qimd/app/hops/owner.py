"""The name under which a process owns shards: `<address>#<nonce>`.

The nonce makes it unique among all processes that ever ran, the address says where to call. A bare
name, without `#`, is that of a process that can't be called: the one of `dev`, which is alone.
"""

from typing import Final

from qimd.core.errors import invalid

_SEPARATOR: Final = "#"


def owner_name(address: str, nonce: str) -> str:
    """The owner's name. Raises QimError(INVALID_ARGUMENT) for an empty part, or a nonce with `#`.

    `address` is host:port as others dial it.
    """
    if not address:
        raise invalid("an owner that can be called has an address", "address")
    if not nonce or _SEPARATOR in nonce:
        raise invalid("an owner's nonce is not empty and holds no '#'", "nonce")
    return f"{address}{_SEPARATOR}{nonce}"


def address_of(owner: str) -> str:
    """Where the owner is called; empty for a bare name."""
    return owner.rpartition(_SEPARATOR)[0]
