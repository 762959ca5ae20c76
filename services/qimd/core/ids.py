"""Ids: opaque UTF-8 text of 1 to 128 bytes, no control characters, and what is derived from them.

Checked once, where they enter the system (`check_id`). Joined injectively (length-prefixed), since
an id may hold any separator.
"""

import unicodedata
from hashlib import blake2b
from typing import Final, NewType

from qimd.core.errors import QimError, invalid
from qimd.core.parameters import ID_BYTES_MAX

TenantId = NewType("TenantId", str)
UserId = NewType("UserId", str)
DeviceId = NewType("DeviceId", str)
ConversationId = NewType("ConversationId", str)
EventId = NewType("EventId", bytes)
"""16 bytes, see `event_id`."""
DispatchId = NewType("DispatchId", bytes)
"""16 bytes, see `dispatch_id`."""

DIGEST_BYTES: Final = 16
_EVENT_PERSON: Final = b"qim.event"
_DISPATCH_PERSON: Final = b"qim.dispatch"
_CONTENT_PERSON: Final = b"qim.content"


def id_problem(value: str) -> str:
    """What is wrong with an id; empty if nothing is."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "holds a lone surrogate"
    if size == 0:
        return "is empty"
    if size > ID_BYTES_MAX:
        return f"has {size} bytes; at most {ID_BYTES_MAX} are allowed"
    # ASCII text without controls is by far the common case, and isprintable() is one C call.
    if not (value.isascii() and value.isprintable()):
        for character in value:
            if unicodedata.category(character) == "Cc":
                return f"holds the control character U+{ord(character):04X}"
    return ""


def check_id(value: str, field: str) -> str:
    """The id itself. Raises QimError(INVALID_ARGUMENT) naming `field` if it is not one."""
    problem = id_problem(value)
    if problem:
        raise _bad(field, problem)
    return value


def _bad(field: str, problem: str) -> QimError:
    return invalid(f"{field} {problem}", field)


def sized(text: str) -> bytes:
    """The text's UTF-8 bytes with their length before them as u32 big-endian: joins injectively."""
    data = text.encode()
    return len(data).to_bytes(4, "big") + data


def join_key(*parts: str) -> bytes:
    """An injective join of texts: equal keys mean equal parts."""
    return b"".join(sized(part) for part in parts)


def event_id(tenant: TenantId, conversation: ConversationId, conversation_seq: int) -> EventId:
    """The event's id, a pure function of its place: a replay gives the same (design section 1)."""
    data = sized(tenant) + sized(conversation) + conversation_seq.to_bytes(8, "big")
    return EventId(blake2b(data, digest_size=DIGEST_BYTES, person=_EVENT_PERSON).digest())


def dispatch_id(event: EventId, mailbox_shard: int, chunk_index: int) -> DispatchId:
    """The dispatch's id, independent of the epoch: two owners' records of one event dedupe."""
    data = event + mailbox_shard.to_bytes(4, "big") + chunk_index.to_bytes(4, "big")
    return DispatchId(blake2b(data, digest_size=DIGEST_BYTES, person=_DISPATCH_PERSON).digest())


def content_digest(*parts: bytes) -> bytes:
    """16 bytes that identify a content, its parts joined injectively."""
    digest = blake2b(digest_size=DIGEST_BYTES, person=_CONTENT_PERSON)
    for part in parts:
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    return digest.digest()
