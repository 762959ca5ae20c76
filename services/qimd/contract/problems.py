"""What a check says, the catalogue of the checks, and what several of them ask."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import lt
from typing import Final, TypeVar, cast

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from qimd.contract.violation import Reason
from qimd.core.ids import DIGEST_BYTES
from qimd.core.parameters import EXACT_INTEGER_MAX

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and the path of the field from the message that was checked."""

    reason: Reason
    field: str

    def inside(self, outer: str) -> "Problem":
        """The same problem, seen from the message that holds this one in `outer`."""
        return Problem(self.reason, f"{outer}.{self.field}" if self.field else outer)


Check = Callable[[M], Problem | None]
CHECKS: Final[dict[str, Check[Message]]] = {}
"""By the full name of the message."""


def check(message_type: type[M]) -> Callable[[Check[M]], Check[M]]:
    """Make the function the message's check."""

    def register(checks: Check[M]) -> Check[M]:
        CHECKS[message_type.DESCRIPTOR.full_name] = cast("Check[Message]", checks)
        return checks

    return register


def counted(value: int, field: str) -> Problem | None:
    """A number from 1 to 2^53 - 1."""
    if value == 0:
        return Problem(Reason.ZERO, field)
    return Problem(Reason.DOMAIN, field) if value > EXACT_INTEGER_MAX else None


def digest_problem(value: bytes, field: str) -> Problem | None:
    """A 16-byte identity."""
    if len(value) == DIGEST_BYTES:
        return None
    return Problem(Reason.DOMAIN if value else Reason.MISSING, field)


def kind_problem(kind: int) -> Problem | None:
    """An event's kind: also one that only a newer release makes."""
    if kind > 0:
        return None
    return Problem(Reason.DOMAIN if kind else Reason.MISSING, "kind")


def without_arm(message: Message, field: str) -> Problem | None:
    """An unset oneof is missing, unless an arm of a newer peer may be among the unknown fields."""
    return None if len(UnknownFieldSet(message)) else Problem(Reason.MISSING, field)


def increasing(values: Sequence[int]) -> bool:
    """Strictly."""
    return all(map(lt, values, values[1:]))
