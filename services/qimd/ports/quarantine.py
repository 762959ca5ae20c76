"""What could not be decoded, or not be produced: kept durably, never dropped in silence."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from qimd.core.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One record. Its key is (log_identity, partition, offset); an outbox event that can't be
    produced has partition = its mailbox shard and offset = -1 - conversation_seq, and `source`
    names its conversation.
    """

    log_identity: str
    partition: int
    offset: int
    source: str
    reason: str
    at_ms: int
    value: bytes = field(repr=False)


class QuarantineStore(Protocol):
    """Quarantine of the deployment, honoured by mailbox and session alike."""

    async def quarantine(self, records: Sequence[Quarantined]) -> Outcome[None]:
        """Keep them; one that is there already stays as it is."""

    async def quarantined(self, limit: int) -> Sequence[Quarantined]:
        """The newest first."""
