"""What could not be decoded, or not be produced: kept durably, never dropped in silence."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from qimd.core.ids import DispatchId
from qimd.core.outcome import Outcome


def unproduced_offset(dispatch: DispatchId) -> int:
    """The offset, below 0, that stands for a dispatch that never got one in the log.

    A function of the dispatch_id, so that a replay finds its own record there and two conversations
    at the same conversation_seq, or two chunks of one event, never take each other's place. In
    [-2^62, -1]: it fits a signed 64-bit integer.
    """
    return -1 - (int.from_bytes(dispatch[:8], "big") >> 2)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One record. Its key is (log_identity, partition, offset); an outbox record that can't be
    produced has partition = its mailbox shard, offset = `unproduced_offset`, and `source` names
    its conversation and conversation_seq.
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
