"""What a log record may show of a value.

Redaction sits at the one place where records leave the process, so that a careless call site can't
leak: a field whose name speaks of a credential, a cursor or a body loses its value, bytes never
appear raw, an object that nobody vouched for shows its type alone, and an exception shows its
message only if it is one of ours (`core.errors` promises that those hold no request data).
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from types import TracebackType
from typing import Final

REDACTED: Final = "[redacted]"

SENSITIVE_WORDS: Final = frozenset(
    {
        "authorization", "bearer", "bodies", "body", "cookie", "credential", "credentials",
        "cursor", "cursors", "jwt", "key", "keys", "password", "preview", "secret", "secrets",
        "signature", "signatures", "token", "tokens",
    }
)  # fmt: skip
"""A field is sensitive if one of its name's words is here: `access_token`, `cursor_token`."""

_HARMLESS_LAST_WORDS: Final = frozenset({"id", "ids", "count", "path"})
"""`key_id` and `token_id` are public names of what they identify; operators search for them."""

_WORD: Final = re.compile(r"[A-Za-z][a-z]*|[0-9]+")
_CREDENTIAL_TEXT: Final = re.compile(
    r"eyJ[\w-]+\.[\w-]+\.[\w-]*"  # A JWT.
    r"|(?i:bearer)\s+\S+"
)
TEXT_CHARACTERS_MAX: Final = 2_000
"""A record stays a line that a log store takes; what is longer is cut, visibly."""
ITEMS_MAX: Final = 20
DEPTH_MAX: Final = 4
FRAMES_MAX: Final = 20
_HEX_BYTES_MAX: Final = 32

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
"""What JSON holds."""


def is_sensitive(name: str) -> bool:
    """Whether a field of this name loses its value."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _HARMLESS_LAST_WORDS:
        return False
    return any(word in SENSITIVE_WORDS for word in words)


def redact(name: str, value: object, depth: int = 0) -> Plain:
    """The value of a field as a log record may show it."""
    if value is None or isinstance(value, bool | float):
        return value
    if is_sensitive(name):
        return REDACTED
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes_shown(name, bytes(value))
    if isinstance(value, BaseException):
        return exception_text(value)
    return _container_shown(name, value, depth)


def _container_shown(name: str, value: object, depth: int) -> Plain:
    if depth >= DEPTH_MAX:
        return f"<{type(value).__name__}>"
    if isinstance(value, Mapping):
        items = list(value.items())[:ITEMS_MAX]
        return {str(key): redact(str(key), item, depth + 1) for key, item in items}
    if isinstance(value, Sequence | Set):
        shown = [redact(name, item, depth + 1) for item in list(value)[:ITEMS_MAX]]
        return [*shown, f"… {len(value)} in all"] if len(value) > ITEMS_MAX else shown
    if dataclasses.is_dataclass(value):
        # repr=False is how a record's author marks what must not be shown.
        return {
            field.name: redact(field.name, getattr(value, field.name), depth + 1)
            for field in dataclasses.fields(value)
            if field.repr
        }
    return f"<{type(value).__name__}>"


def redact_text(text: str) -> str:
    """A text without anything that looks like a credential, cut to `TEXT_CHARACTERS_MAX`."""
    if "eyJ" in text or "earer" in text or "EARER" in text:
        text = _CREDENTIAL_TEXT.sub(REDACTED, text)
    if len(text) > TEXT_CHARACTERS_MAX:
        return f"{text[:TEXT_CHARACTERS_MAX]}… {len(text)} characters in all"
    return text


def _bytes_shown(name: str, value: bytes) -> str:
    """Ids and digests as hex, since that is how the CLI takes them; of others the size alone."""
    last = name.rpartition("_")[2]
    if last in {"id", "ids", "digest", "nonce"} and len(value) <= _HEX_BYTES_MAX:
        return value.hex()
    return f"<{len(value)} bytes>"


def exception_text(error: BaseException) -> str:
    """An exception's type, with its message only where that can't hold request data.

    A library's message may quote what it failed on (a ValueError shows the value), so only our own
    and the operating system's are shown.
    """
    name = type(error).__name__
    if isinstance(error, OSError):
        return f"{name}: [Errno {error.errno}] {error.strerror}" if error.errno else name
    if type(error).__module__.partition(".")[0] == "qimd":
        return redact_text(f"{name}: {error}")
    return name


def exception_shown(error: BaseException) -> dict[str, Plain]:
    """An exception with its causes and frames; of a frame only where it is, never its values."""
    shown: dict[str, Plain] = {
        "type": f"{type(error).__module__}.{type(error).__qualname__}",
        "text": exception_text(error),
        "frames": list[Plain](_frames(error.__traceback__)),
    }
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        shown["cause"] = exception_text(cause)
    if isinstance(error, BaseExceptionGroup):
        shown["exceptions"] = [exception_shown(each) for each in error.exceptions[:ITEMS_MAX]]
    return shown


def _frames(traceback: TracebackType | None) -> list[str]:
    frames: list[str] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{_short(code.co_filename)}:{traceback.tb_lineno} {code.co_qualname}")
        traceback = traceback.tb_next
    return frames[-FRAMES_MAX:]


def _short(path: str) -> str:
    """A source file from its import root on: a log shows no machine's folders."""
    for root in ("/services/", "/site-packages/", "/gen/", "/lib/"):
        _, found, rest = path.rpartition(root)
        if found:
            return rest
    return path.rpartition("/")[2]
