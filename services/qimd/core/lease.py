"""A term of ownership: the epoch, and whether its owner may still write.

The self-fence is judged at each write against the clock, not by a timer, and counts from *before*
the last successful renewal was sent. It narrows the window in which two owners exist; the stored
epoch and the mailbox's epoch filter close it.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Term:
    """One owner's term of one shard. `epoch` is the fencing epoch (or lease term), never reused.

    Mutable in two fields alone: the keeper moves `renewed_at_s` forward and sets `ended`.
    """

    shard: int
    epoch: int
    owner: str
    self_fence_deadline_s: float
    renewed_at_s: float
    """Monotonic time just before the last successful acquire or renewal was sent."""
    ended: bool = False
    """Released, lost or found stale: final."""

    def may_write(self, now_s: float) -> bool:
        """Whether a write may be issued now."""
        return not self.ended and now_s - self.renewed_at_s < self.self_fence_deadline_s

    def renewed(self, sent_at_s: float) -> None:
        """Take over a renewal that was sent at `sent_at_s` and succeeded."""
        self.renewed_at_s = max(self.renewed_at_s, sent_at_s)

    def end(self) -> None:
        """No write may follow."""
        self.ended = True
