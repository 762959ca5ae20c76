"""What the store promises of one conversation (`ports.store`), as a model can explore it.

The rules of checkpoint 1 live in each engine's adapter, where no model can run them; the suite in
tests/contract holds every adapter to the docstrings of the port, and this module is their text as
plain functions. Each condition is a method of its own, so that a test can take it away.
"""

from __future__ import annotations

from typing import NamedTuple

from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal


class Step(NamedTuple):
    """A CommitStep of one event. Issued again it is the same value, as its request_id says."""

    epoch: int
    expected_head: int
    event: int
    keyed: bool
    """It has an idempotency key, as every message has and no membership change."""


class Store(NamedTuple):
    """A writer shard's epoch, and one conversation of the shard."""

    shard_epoch: int = 0
    head_epoch: int = 0
    head: int = 0
    events: tuple[int, ...] = ()
    """What stands at each conversation_seq, from 1."""
    dispatched_through: int = 0
    last_step: Step | None = None
    owned_by: int = 0
    """The newest epoch that claimed the head or wrote to it. No engine keeps it: to judge by."""
    usurped: str = ""
    """What an owner wrote that had been followed by then (R-1 says: nothing, ever)."""


class StorePromise:
    """The port as it is written: the shard's epoch is compared in every step."""

    name = "compares the shard's epoch"

    # --- conditions ---

    def may_write(self, store: Store, epoch: int) -> bool:
        """A commit or a claim is only the shard's present owner's."""
        return store.shard_epoch == epoch and store.head_epoch <= epoch

    def may_advance(self, store: Store, epoch: int) -> bool:
        """Outbox progress is only the shard's present owner's."""
        return store.shard_epoch == epoch

    def head_is_expected(self, store: Store, step: Step) -> bool:
        """The head is the one that the writer read."""
        return store.head == step.expected_head

    def is_new(self, store: Store, step: Step) -> bool:
        """No event has the step's idempotency key."""
        return not step.keyed or step.event not in store.events

    def claimed_epoch(self, store: Store, epoch: int) -> int:
        """What a claim makes of the head's epoch."""
        return max(store.head_epoch, epoch)

    def followed_by(self, store: Store) -> int:
        """The epoch below which no write may be applied any more. To judge by, no condition."""
        return store.shard_epoch

    # --- steps ---

    def raise_epoch(self, store: Store) -> Store:
        """A new owner: its epoch is above all that were given."""
        return store._replace(shard_epoch=store.shard_epoch + 1)

    def claim(self, store: Store, epoch: int) -> tuple[Store, Outcome[None]]:
        """Raise the head's epoch."""
        if not self.may_write(store, epoch):
            return store, NotApplied(Refusal.STALE_EPOCH)
        after = store._replace(
            head_epoch=self.claimed_epoch(store, epoch), owned_by=max(store.owned_by, epoch)
        )
        return after, Applied(None)

    def commit(self, store: Store, step: Step) -> tuple[Store, Outcome[int]]:
        """Write one event at the head; gives its seq."""
        if store.last_step == step:
            return store, Applied(store.head)
        if not self.may_write(store, step.epoch):
            return store, NotApplied(Refusal.STALE_EPOCH)
        if not self.is_new(store, step):
            return store, NotApplied(Refusal.DUPLICATE)
        if not self.head_is_expected(store, step):
            return store, NotApplied(Refusal.HEAD_MOVED)
        at, newest = step.expected_head, self.followed_by(store)
        usurped = f"epoch {step.epoch} wrote after epoch {newest}" if step.epoch < newest else ""
        events = (*store.events[:at], step.event, *store.events[at + 1 :])
        after = store._replace(
            head_epoch=step.epoch,
            head=at + 1,
            events=events,
            last_step=step,
            owned_by=max(store.owned_by, step.epoch),
            usurped=store.usurped or usurped,
        )
        return after, Applied(after.head)

    def advance(self, store: Store, epoch: int, through: int) -> tuple[Store, Outcome[None]]:
        """Raise dispatched_through."""
        if not self.may_advance(store, epoch):
            return store, NotApplied(Refusal.STALE_EPOCH)
        if through > store.head:
            return store, NotApplied(Refusal.HEAD_MOVED)
        return store._replace(dispatched_through=max(store.dispatched_through, through)), Applied(
            None
        )


class HeadStorePromise(StorePromise):
    """An engine that can't compare the shard's epoch in a conversation's step (Scylla): every fence
    is the head's own epoch, hence claim first, then read (design section 5).
    """

    name = "compares the head's epoch"

    def may_write(self, store: Store, epoch: int) -> bool:
        return store.head_epoch <= epoch

    def may_advance(self, store: Store, epoch: int) -> bool:
        return store.head_epoch <= epoch

    def followed_by(self, store: Store) -> int:
        return store.owned_by
