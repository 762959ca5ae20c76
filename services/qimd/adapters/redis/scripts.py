"""Lua scripts: readable files beside this one, in `lua/`.

What a script may count on, and must hold to:

- It runs alone: nobody sees a half of it. But nothing takes back what it wrote before an error, so
  it checks everything before its first write.
- Its first line is `#!lua` (a step), `#!lua flags=no-writes` (a read) or `#!lua flags=allow-oom` (a
  step that gives memory back, so it runs where there is none). Where there is no memory, no disk
  or a replica, Redis then refuses a step as a whole, before it begins; without that line it would
  stop a script at its first write that needs room, wherever that is.
- A step answers `{'applied', ...}` or `{<a refusal of core.outcome>, <why>}`.
- Numbers of Lua are doubles: exact up to 2^53, which epochs, conversation_seqs and times stay below
  and mailbox_seqs do not. Nor may strings of bytes be compared by `<`: Lua asks the server's locale
  (LC_COLLATE) for that order. Digits of one width are safe under any; a mailbox_seq compares as its
  two halves, `struct.unpack('>I4I4', seq)`.
- `unpack` and a call's arguments have room for some 8,000 values: longer lists go in parts.
"""

from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

_FIRST_LINES: Final = ("#!lua", "#!lua flags=no-writes", "#!lua flags=allow-oom")


@dataclass(frozen=True, slots=True)
class Script:
    """One script. `sha` is what EVALSHA calls it by."""

    name: str
    source: str = field(repr=False)
    sha: str = field(repr=False)


def load(name: str, *, using: tuple[str, ...] = ()) -> Script:
    """The script `lua/<name>.lua`, with the functions of the files `using` before its own text."""
    first, rest = _text(name).split("\n", 1)
    if first not in _FIRST_LINES:
        raise ValueError(f"{name}.lua does not begin with one of {_FIRST_LINES}")
    source = "\n".join((first, *map(_text, using), rest))
    # Not a secret's digest: Redis names scripts by it.
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


@cache
def _text(name: str) -> str:
    return (files("qimd.adapters.redis") / "lua" / f"{name}.lua").read_text()
