"""The names of keys, and of members of ordered indexes.

A key is `<namespace>:<kind>:<parts>`, the parts joined injectively with their lengths before them
(`core.ids.join_key`): ids may hold any separator. A namespace is one deployment, and holds no `:`,
so two of them never meet in one Redis.

An index that is read in the byte order of (tenant, conversation) holds the parts in another form,
since a length before them would spoil the order: see `ordered`.
"""

import re
from typing import Final

from qimd.adapters.redis.packing import unsized
from qimd.core.ids import join_key, sized
from qimd.core.records import ConversationKey, UserKey
from qimd.ports.store import key_of

_NAMESPACE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Keyspace:
    """The keys of one deployment."""

    def __init__(self, namespace: str) -> None:
        """Raises ValueError if the namespace is not 1–64 letters, digits, dots or dashes."""
        if _NAMESPACE.fullmatch(namespace) is None:
            raise ValueError(f"a namespace is 1 to 64 of A–Z a–z 0–9 . _ -, not {namespace!r}")
        self._namespace = namespace.encode()

    def key(self, kind: str, *parts: str) -> bytes:
        """The key of `kind` for these ids."""
        return self.prefix(kind) + join_key(*parts)

    def prefix(self, kind: str) -> bytes:
        """What a key of `kind` begins with: a script that joins ids itself puts it before them."""
        return b"%b:%b:" % (self._namespace, kind.encode())

    def of(self, kind: str, key: ConversationKey) -> bytes:
        """The key of `kind` for a conversation."""
        return self.prefix(kind) + joined(key)


def joined(key: ConversationKey) -> bytes:
    """What names a conversation in a key, and in an index that has no order."""
    return join_key(key.tenant, key.conversation)


def conversation_of(data: bytes) -> ConversationKey:
    """The conversation that `joined` named."""
    tenant, conversation = unsized(data)
    return key_of(tenant.decode(), conversation.decode())


def owner(user: UserKey) -> bytes:
    """What names a user at the end of a key, where nothing follows that a length would part it
    from: a script has the tenant's part once, and puts many users' ids behind it.
    """
    return sized(user.tenant) + user.user.encode()


def ordered(*parts: str) -> bytes:
    """A member of an index that is read in the byte order of its parts, compared one by one.

    NUL, which no id holds (`core.ids.check_id`), ends each part: it is below every byte of an id,
    so a part that another one begins with comes before it.
    """
    return b"".join(part.encode() + b"\0" for part in parts)


def conversation_at(member: bytes) -> ConversationKey:
    """The conversation whose place in an index `ordered` gave."""
    tenant, conversation, _ = member.decode().split("\0")
    return key_of(tenant, conversation)
