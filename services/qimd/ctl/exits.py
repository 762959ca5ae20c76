"""What went wrong, as an exit code and a text that says what to do."""

from typing import Final

from qimd.core.errors import ErrorCode, QimError

OK: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
TRY_AGAIN: Final = 3
MISSING: Final = 4
INTERRUPTED: Final = 130

EPILOG: Final = """\b
Exit codes:
  0    done
  1    the server refused it; standard error says why
  2    the command line is wrong; nothing was sent
  3    the server can't be reached, or the outcome is unknown: try again
  4    something is missing here: credentials, a file, an extra
  130  interrupted
"""


class Missing(Exception):
    """Something that this machine should have, and where to get it."""

    def __init__(self, what: str, what_to_do: str) -> None:
        super().__init__(f"{what} {what_to_do}")
        self.what = what
        self.what_to_do = what_to_do


def exit_code(error: QimError) -> int:
    """The exit code of a refusal."""
    if error.code in (ErrorCode.UNAVAILABLE, ErrorCode.NOT_OWNER, ErrorCode.STALE_EPOCH):
        return TRY_AGAIN
    return REFUSED


def explained(error: QimError) -> str:
    """Code, message, field, advice: what is shown of a refusal."""
    lines = [f"error: {error.code.name}: {error.message}"]
    if error.field and error.field not in error.message:
        lines.append(f"  field:      {error.field}")
    if error.retry_after_ms:
        lines.append(f"  retry:      after {error.retry_after_ms} ms")
    lines.append(f"  what to do: {error.entry.what_to_do}")
    return "\n".join(lines)
