"""How one setting is declared and read: its text, its flag and variable, what refuses it."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeVar

from qimd.core.errors import ErrorCode, QimError

T = TypeVar("T")


class SettingRefused(QimError):
    """A setting that a start is refused for; `field` is its flag."""

    def __init__(self, flag: str, reason: str) -> None:
        super().__init__(ErrorCode.INVALID_ARGUMENT, f"{flag}: {reason}", field=flag)


def flag_of(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of a field."""
    return f"QIM_{name.upper()}"


def setting(default: T, read: Callable[[str], Any], text: str, *, least: float | None = None) -> T:
    """A field: how its text is read, what it means, and the smallest number that makes sense.

    A default of None is "not set"; whether it must be is the class's `check`'s affair.
    """
    metadata = {"read": read, "help": text, "least": least}
    declared: T = dataclasses.field(default=default, metadata=metadata)
    return declared


def whole(text: str) -> int:
    """Read a whole number. Raises ValueError, as all readers do."""
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def seconds(text: str) -> float:
    """Read a number of seconds."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number of seconds") from None
    # Every comparison with a NaN is false, and so would be every check below.
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def share(text: str) -> float:
    """Read a part of the whole, from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number from 0 to 1") from None
    if not 0 <= value <= 1:
        raise ValueError("must be from 0 to 1")
    return value


def boolean(text: str) -> bool:
    """Read true or false."""
    values = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in values:
        raise ValueError("must be true or false")
    return values[text.lower()]


def choice(*allowed: str) -> Callable[[str], str]:
    """A reader that takes one of some words."""

    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text

    return read
