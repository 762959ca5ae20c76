"""What keeps two owners of a writer shard from harming each other, rule by rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tests.models import owners
from tests.models.dispatches import Record
from tests.models.owner_world import Batch, Owner, World
from tests.models.owners import OwnersModel
from tests.models.promises import HeadStorePromise, Store, StorePromise
from tests.models.rules import Removal

from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.records import ConversationKey, Event
from qimd.fanout import logic as fanout
from qimd.fanout.logic import Outbox, Standing, Verdict
from qimd.mailbox import logic as mailbox
from qimd.writer import logic as writer


def _models(store: StorePromise, owners: int, *sizes: tuple[int, int, int]) -> list[OwnersModel]:
    """Two events, and the sizes (sends of each, batches an owner, faults), the smallest first."""
    return [
        OwnersModel(store, owners, 2, sends, batches, faults) for sends, batches, faults in sizes
    ]


SHARD_EPOCH: Final = _models(StorePromise(), 2, (1, 1, 0), (1, 1, 1), (2, 1, 1), (1, 2, 1))
HEAD_EPOCH: Final = _models(HeadStorePromise(), 2, (1, 1, 0), (1, 1, 1))
ONE_OWNER: Final = _models(StorePromise(), 1, (2, 1, 1), (2, 3, 2))
MODELS: Final = (SHARD_EPOCH[-1], HEAD_EPOCH[-1], ONE_OWNER[-1])


def _always(*_: object) -> bool:
    return True


def _refusal_is_certain(outcome: Outcome[Any], _: int) -> Applied[Any] | NotApplied | None:
    return None if isinstance(outcome, Unknown) else outcome


def _unknown_is_a_failure(outcome: Outcome[Any], _: int) -> Applied[Any] | NotApplied:
    return NotApplied(Refusal.UNREACHABLE) if isinstance(outcome, Unknown) else outcome


_answered = OwnersModel._answered


def _resolved_by_a_read(
    self: OwnersModel, world: World, place: int, owner: Owner, outcome: Outcome[int]
) -> World:
    if isinstance(outcome, Unknown) and owner.call is not None:
        found = owner.call.event in world.store.events
        outcome = Applied(world.store.head) if found else NotApplied(Refusal.UNREACHABLE)
    return _answered(self, world, place, owner, outcome)


def _taken_for_all(
    cls: type[Outbox], key: ConversationKey, seq: int, *, known_tail: int | None
) -> Outbox:
    return cls(key, seq - 1, seq - 1, seq - 1, Standing.SETTLED)


def _tell_over_holes(self: Outbox, events: Sequence[Event]) -> None:
    for event in events:
        self.head = max(self.head, event.conversation_seq)
        if event.conversation_seq > self.tail:
            self.waiting.append(event)


def _verified_unseen(self: Outbox, dispatched_through: int, head: int) -> None:
    self.head = max(self.head, head)
    self.standing = Standing.SETTLED if self.waiting else Standing.HOLE


def _one_speaks_for_all(outcomes: Sequence[Outcome[None]]) -> Verdict:
    return Verdict(any(isinstance(outcome, Applied) for outcome in outcomes))


_run = Outbox.run


def _done_when_sent(self: Outbox, limit: int) -> Sequence[Event]:
    run = _run(self, limit)
    if run:
        self.done(run[-1].conversation_seq)
    return run


def _stamped_as_before(_: OwnersModel, store: Store, owner: Owner, seq: int) -> Record:
    return Record(seq, store.events[seq - 1], max(1, owner.epoch - 1), owner.number)


def _any_order(batch: Batch) -> range:
    return range(len(batch.left))


def _same_epoch(_: StorePromise, store: Store) -> Store:
    return store._replace(shard_epoch=max(store.shard_epoch, 1))


def _claimed_in_words(_: StorePromise, store: Store, epoch: int) -> int:
    return store.head_epoch


REMOVALS: Final = (
    Removal(
        "a new owner's epoch is above every earlier one",
        StorePromise,
        "raise_epoch",
        _same_epoch,
        SHARD_EPOCH,
        "had a successor",
    ),
    Removal(
        "a commit is only the present owner's",
        StorePromise,
        "may_write",
        _always,
        SHARD_EPOCH,
        "epoch 1 wrote after epoch 2",
    ),
    Removal(
        "a commit is only for an epoch that is not below the head's",
        HeadStorePromise,
        "may_write",
        _always,
        HEAD_EPOCH,
        "epoch 1 wrote after epoch 2",
    ),
    Removal(
        "an inherited head is claimed before its outbox is read",
        StorePromise,
        "claimed_epoch",
        _claimed_in_words,
        HEAD_EPOCH,
        "epoch 1 wrote after epoch 2",
    ),
    Removal(
        "a commit is only behind the head that its writer read",
        StorePromise,
        "head_is_expected",
        _always,
        ONE_OWNER,
        "the head says",
    ),
    Removal(
        "an idempotency key takes effect once",
        StorePromise,
        "is_new",
        _always,
        SHARD_EPOCH,
        "is there twice",
    ),
    Removal(
        "outbox progress is only the present owner's",
        StorePromise,
        "may_advance",
        _always,
        SHARD_EPOCH,
        "a loss",
    ),
    Removal(
        "outbox progress is only for an epoch that is not below the head's",
        HeadStorePromise,
        "may_advance",
        _always,
        HEAD_EPOCH,
        "a loss",
    ),
    Removal(
        "a refusal after a lost reply proves nothing",
        writer,
        "settled",
        _refusal_is_certain,
        ONE_OWNER,
        "was refused as not written, and is there",
    ),
    Removal(
        "Unknown is no failure",
        writer,
        "settled",
        _unknown_is_a_failure,
        ONE_OWNER,
        "was refused as not written, and is there",
    ),
    Removal(
        "Unknown is not resolved by a read",
        OwnersModel,
        "_answered",
        _resolved_by_a_read,
        ONE_OWNER,
        "was refused as not written, and is there",
    ),
    Removal(
        "where a told outbox begins is looked up",
        Outbox,
        "first_told",
        classmethod(_taken_for_all),
        SHARD_EPOCH,
        "out of order",
    ),
    Removal(
        "an outbox is compared with the store's",
        Outbox,
        "verify",
        _verified_unseen,
        SHARD_EPOCH,
        "out of order",
    ),
    Removal(
        "a hole is never guessed over",
        Outbox,
        "tell",
        _tell_over_holes,
        SHARD_EPOCH,
        "out of order",
    ),
    Removal("every delivery is awaited", fanout, "judge", _one_speaks_for_all, ONE_OWNER, "a loss"),
    Removal(
        "progress comes after the deliveries", Outbox, "run", _done_when_sent, ONE_OWNER, "a loss"
    ),
    Removal(
        "records are stamped with the epoch of who produces them",
        OwnersModel,
        "_record",
        _stamped_as_before,
        SHARD_EPOCH,
        "had a successor",
    ),
    Removal(
        "a record of an epoch that was followed is dropped",
        mailbox,
        "is_stale",
        lambda *_: False,
        SHARD_EPOCH,
        "had a successor",
    ),
    Removal(
        "of a batch a prefix lands, in order",
        owners,
        "LANDS_NEXT",
        _any_order,
        ONE_OWNER,
        "out of order",
    ),
)
