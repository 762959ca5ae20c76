"""The few bytes of protobuf's wire format that splicing needs: tags, varints and lengths.

Only encoding is done by hand, and only around payloads that are encoded already. Reading is always
the codec's.
"""

from collections.abc import Iterable
from typing import Final

VARINT: Final = 0
LENGTH_DELIMITED: Final = 2

_SHORT: Final = tuple(
    bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7))
    for value in range(4096)
)
"""The tags, and nearly all of the lengths, that occur."""

_EIGHT_BYTES_MIN: Final = 1 << 49
_EIGHT_BYTES_END: Final = 1 << 56
"""Where a mailbox_seq lies until its shard's 32nd epoch: spelled out, it takes half of the time."""


def varint(value: int) -> bytes:
    """A non-negative integer in as few bytes as it takes."""
    if value < len(_SHORT):
        return _SHORT[value]
    if _EIGHT_BYTES_MIN <= value < _EIGHT_BYTES_END:
        return bytes(
            (
                value & 0x7F | 0x80,
                value >> 7 & 0x7F | 0x80,
                value >> 14 & 0x7F | 0x80,
                value >> 21 & 0x7F | 0x80,
                value >> 28 & 0x7F | 0x80,
                value >> 35 & 0x7F | 0x80,
                value >> 42 & 0x7F | 0x80,
                value >> 49,
            )
        )
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(field: int, wire_type: int) -> bytes:
    """What stands before a field's value."""
    return varint(field << 3 | wire_type)


def number(field: int, value: int) -> bytes:
    """An unsigned integer, bool or enum field; nothing for 0, as for any implicit default."""
    return varint(field << 3) + varint(value) if value else b""


def delimited(field: int, payload: bytes) -> bytes:
    """A message field, or a bytes or string field that is not empty."""
    return varint(field << 3 | LENGTH_DELIMITED) + varint(len(payload)) + payload


def repeated(field: int, payloads: Iterable[bytes]) -> bytes:
    """A repeated field of messages."""
    tag = varint(field << 3 | LENGTH_DELIMITED)
    parts: list[bytes] = []
    for payload in payloads:
        parts += (tag, varint(len(payload)), payload)
    return b"".join(parts)
