"""Lists of texts as one text (`lua/sized.lua`): a reply of one string costs its reader a slice an
element, one of many strings a turn of redis-py's parser each.
"""

from collections.abc import Iterator
from typing import Final

_LENGTH_BYTES: Final = 4


def unsized(data: bytes) -> list[bytes]:
    """The texts, each of which has its length (u32 big-endian) before it."""
    texts: list[bytes] = []
    start = 0
    while start < len(data):
        first = start + _LENGTH_BYTES
        start = first + int.from_bytes(data[start:first], "big")
        texts.append(data[first:start])
    return texts


def rows_of(data: bytes, width: int) -> Iterator[tuple[bytes, ...]]:
    """The same texts in rows of `width`."""
    texts = iter(unsized(data))
    return zip(*[texts] * width, strict=True)
