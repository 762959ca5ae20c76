"""What a mutating port call returns: Applied, NotApplied or Unknown.

Unknown (a timeout, a lost reply, a cancelled call) is a value that the caller must resolve by
issuing the same step again under the same request id. A read that finds nothing proves nothing:
the first try may still land.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")


class Refusal(Enum):
    """Why a step was certainly not applied."""

    STALE_EPOCH = "stale_epoch"
    """The shard's epoch or term is above the caller's: another owner took over. Step down."""
    HEAD_MOVED = "head_moved"
    """The expected head, position or checkpoint is not the stored one. Load again."""
    DUPLICATE = "duplicate"
    """An idempotency key of the step exists; `detail` of the step's result says which."""
    CONFLICT = "conflict"
    """It exists with other content."""
    NOT_FOUND = "not_found"
    NO_SPACE = "no_space"
    """The engine has no room (disk full, out of memory). Try again later."""
    REJECTED = "rejected"
    """The engine refuses this very content (too large, broken). Trying again will not help."""
    UNREACHABLE = "unreachable"
    """The call never left: certainly not applied. Try again later."""

    @property
    def words(self) -> str:
        """What stands in the way, as a caller is told: whoever meets a full disk must read so."""
        match self:
            case Refusal.NO_SPACE:
                return "the store's disk is full"
            case Refusal.UNREACHABLE:
                return "the store can't be reached"
            case _:
                return f"the store refuses it ({self.value})"


@dataclass(frozen=True, slots=True)
class Applied(Generic[T]):
    """The step is durable. `value` is what it returns."""

    value: T


@dataclass(frozen=True, slots=True)
class NotApplied:
    """The step had no effect, and never will."""

    refusal: Refusal
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The step may have had its effect, or may have it later."""

    detail: str = ""


Outcome = Applied[T] | NotApplied | Unknown
