"""What a process depends on, and how it asks whether that is there."""

from dataclasses import dataclass
from typing import Protocol


class Ping(Protocol):
    """A call of the engine that costs one round trip and changes nothing."""

    async def __call__(self) -> object:
        """Return if the engine answers. Raises QimError or LogFault if it does not."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """An engine, under the name that operators know it by.

    Without one that is `needed` the process serves nothing; without another it serves a part.
    """

    name: str
    ping: Ping
    needed: bool
