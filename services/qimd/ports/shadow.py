"""The shadow of a mailbox store, to an operator: how far it follows, what differs, the cut-over.

A shadow is a second engine that takes every step the primary applied, so that the two can be
compared before they change places (design section 7).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from qimd.core.seq import MailboxSeq


@dataclass(frozen=True, slots=True)
class ShadowShard:
    """How one shard of this process is followed.

    `waiting` counts steps and comparisons that the shadow has not taken yet. `lost` says why it no
    longer follows; empty while it does.
    """

    shard: int
    position: MailboxSeq
    shadow_position: MailboxSeq
    waiting: int
    lost: str


@dataclass(frozen=True, slots=True)
class ShadowSample:
    """A difference: what was asked, and what each engine answered. Ids and numbers, no bodies."""

    asked: str
    primary: str
    shadow: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """The pair as it stands in this process.

    `obstacle` says why a cut-over is refused; empty if it is not. `mismatches` counts all
    differences since the start, `samples` are the first ones: what follows a difference is often
    its consequence.
    """

    primary: str
    shadow: str
    compared: int
    mismatches: int
    shards: Sequence[ShadowShard]
    devices_waiting: int
    devices_missed: int
    samples: Sequence[ShadowSample]
    obstacle: str


class ShadowOperations(Protocol):
    """A pair of mailbox stores, to an operator."""

    def describe(self) -> ShadowReport:
        """How the pair stands."""

    async def switch(self, primary: str, *, dry_run: bool) -> ShadowReport:
        """Make the engine of that name the primary, and the other one its shadow; the pair after
        it, or with `dry_run` as it is. Nothing happens if it is the primary already.

        Raises QimError(INVALID_ARGUMENT) for a name that is neither engine's, and while there is an
        obstacle.
        """
