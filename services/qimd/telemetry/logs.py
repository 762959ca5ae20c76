"""Structured logs: one JSON object a line on stderr, or a readable form on a terminal.

    log = logger("writer")
    log.warning("lease renewal failed", shard=3, refusal=Refusal.UNREACHABLE)

`event` is a fixed sentence; what varies is a field. The seed's identifiers are field names:
tenant_id, conversation_id, event_id, dispatch_id, mailbox_shard, lane_id, mailbox_seq, shard_epoch,
membership_version, device_id, trace_id. `exc_info=error` adds an exception.

Libraries' records (grpc, asyncio) leave by the same handler, so that `redaction` sees them too.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final, Protocol, TextIO

import structlog

from qimd.telemetry.redaction import exception_shown, redact, redact_text

LEVELS: Final = ("debug", "info", "warning", "error")
_STRUCTURE: Final = ("time", "level", "logger", "event")
"""What every record has, first and in this order: a person reads the lines too."""
_PASSED: Final = frozenset({"_record", "_from_structlog"})
"""structlog's own, taken out again before rendering."""

_Record = MutableMapping[str, Any]
"""structlog's own type of a record on its way through the processors."""


class Logger(Protocol):
    """What a room logs with."""

    def debug(self, event: str, **fields: object) -> None:
        """For a developer who looks at one thing."""

    def info(self, event: str, **fields: object) -> None:
        """What an operator wants to find later."""

    def warning(self, event: str, **fields: object) -> None:
        """It goes on, but not as it should."""

    def error(self, event: str, **fields: object) -> None:
        """Somebody must act."""


def logger(name: str) -> Logger:
    """The logger of a room or part; cheap, and usable before `configure`."""
    bound: Logger = structlog.stdlib.get_logger(f"qimd.{name}")
    return bound


def configure(
    *, level: str = "info", console: bool | None = None, stream: TextIO | None = None
) -> None:
    """Set up the process's logs, once, at its start.

    `console` chooses the readable form; None means only if the stream is a terminal.
    """
    target = stream or sys.stderr
    readable = target.isatty() if console is None else console
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=readable and target.isatty())
        if readable
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    handler = _Handler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_STAMPS, redact_record],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries speak of their own affairs below a warning.
    root.setLevel(logging.WARNING)
    logging.getLogger("qimd").setLevel(level.upper())


class _Handler(logging.StreamHandler[TextIO]):
    """A stream handler whose own failure says no more than that: the default prints the record."""

    def handleError(self, record: logging.LogRecord) -> None:
        self.stream.write(f"a log record of {record.name} could not be written\n")


def redact_record(_logger: object, _method: str, record: _Record) -> _Record:
    """The last step before a record leaves our hands: nothing passes but through `redaction`."""
    shown: _Record = {name: redact_text(str(record.pop(name, ""))) for name in _STRUCTURE}
    error = _exception_of(record.pop("exc_info", None))
    record.pop("stack_info", None)
    for name, value in record.items():
        shown[name] = value if name in _PASSED else redact(name, value)
    if error is not None:
        shown["raised"] = exception_shown(error)
    return shown


def _exception_of(exc_info: object) -> BaseException | None:
    """The exception of what logging and structlog accept as `exc_info`."""
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple) and len(exc_info) == 3:
        error = exc_info[1]
        return error if isinstance(error, BaseException) else None
    return sys.exception() if exc_info else None


_STAMPS: Final[list[structlog.typing.Processor]] = [
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
]

structlog.configure(
    processors=[
        structlog.stdlib.filter_by_level,
        *_STAMPS,
        redact_record,
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
    logger_factory=structlog.stdlib.LoggerFactory(),
    cache_logger_on_first_use=True,
)
# Until `configure`, records go nowhere, instead of to logging's unformatted last resort.
logging.getLogger("qimd").addHandler(logging.NullHandler())
