"""The roles that a process may run."""

from typing import Final

WRITER: Final = "writer"
"""Numbers and commits, with the fanout of what it committed."""

MAILBOX: Final = "mailbox"
SESSION: Final = "session"
CONNECTION: Final = "connection"
ALL: Final = frozenset({WRITER, MAILBOX, SESSION, CONNECTION})
