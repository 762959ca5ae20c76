"""Broken builds up to the log: leases, epochs, the writer and its store, the fanout."""

import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.sim.mutant import Patch

from qimd.adapters.memory import conversations, log
from qimd.contract.dispatch import encode_dispatch
from qimd.core.lease import Term
from qimd.core.outcome import Applied, NotApplied, Refusal, Unknown
from qimd.core.parameters import LeaseParameters
from qimd.fanout import batch as fanout_batch
from qimd.fanout import logic as fanout_logic
from qimd.fanout import recipients, service
from qimd.fanout import shard as fanout_shard
from qimd.mailbox import intake, rebuild
from qimd.session import projector
from qimd.writer import shard as writer_shard

# --- leases and the log ----------------------------------------------------------------------


def self_fence_off(put: Patch) -> None:
    """An owner whose renewals fail goes on until it is told that it lost its lease."""
    made = Term.__init__

    def init(self: Term, **fields: Any) -> None:
        made(self, **{**fields, "self_fence_deadline_s": 1e6})

    put(Term, "__init__", init)


def absence_not_awaited(put: Patch) -> None:
    """A key is taken over as soon as it is seen absent."""
    put(LeaseParameters, "absence_wait_s", 0.0)


def log_identity_ignored(put: Patch) -> None:
    """What an old producer has put into a new log counts as the new one's."""
    foreign = intake.is_foreign
    judge = projector.judge_record

    def is_foreign(dispatch: Any, shard: int, log_identity: str) -> bool:
        return foreign(dispatch, shard, dispatch.log_identity)

    def judge_record(dispatch: Any, partition: int, log_identity: str) -> Any:
        return judge(dispatch, partition, dispatch.log_identity)

    put(intake, "is_foreign", is_foreign)
    put(rebuild, "is_foreign", is_foreign)
    put(projector, "judge_record", judge_record)


# --- the writer and its store ----------------------------------------------------------------


def checkpoint_1_off(put: Patch) -> None:
    """A commit is taken whatever epoch the shard and the head are at."""
    original = conversations._refusal

    def refusal(step: Any, stored: Any, *, shard_is_stale: bool) -> NotApplied | None:
        unfenced = copy.copy(stored)
        unfenced.state = replace(stored.state, fencing_epoch=0)
        return original(step, unfenced, shard_is_stale=False)

    put(conversations, "_refusal", refusal)


def head_version_not_compared(put: Patch) -> None:
    """A commit is taken whatever version the head is at."""
    original = conversations._refusal

    def refusal(step: Any, stored: Any, *, shard_is_stale: bool) -> NotApplied | None:
        refused = original(step, stored, shard_is_stale=shard_is_stale)
        moved = refused is not None and refused.refusal is Refusal.HEAD_MOVED
        return None if moved else refused

    put(conversations, "_refusal", refusal)


def unknown_taken_for_failure(put: Patch) -> None:
    """A lost reply counts as "nothing was written"."""

    async def settle(self: writer_shard.Shard, issue: Callable[[], Awaitable[Any]]) -> Any:
        if not self.may_write():
            raise writer_shard.not_owner()
        outcome = await issue()
        if isinstance(outcome, NotApplied) and outcome.refusal is Refusal.STALE_EPOCH:
            self._stale()
        if isinstance(outcome, Unknown):
            return NotApplied(Refusal.UNREACHABLE, outcome.detail)
        return outcome

    put(writer_shard.Shard, "settle", settle)


def unknown_resolved_by_a_read(put: Patch) -> None:
    """After a lost reply the head is read, and one that has not moved counts as a failure."""
    original = writer_shard.Shard.settle

    async def settle(self: writer_shard.Shard, issue: Callable[[], Awaitable[Any]]) -> Any:
        outcome = await issue() if self.may_write() else None
        if not isinstance(outcome, Unknown):
            return await original(self, issue)
        step = _step_of(issue)
        if step is None:
            return await original(self, issue)
        store, commit_step = step
        found = await store.conversation(commit_step.key)
        if found.head_version == commit_step.expected_head:
            return NotApplied(Refusal.UNREACHABLE, "the head has not moved")
        return await original(self, issue)

    put(writer_shard.Shard, "settle", settle)


def _step_of(issue: Any) -> tuple[Any, Any] | None:
    """(store, CommitStep) of an `issue` that commits."""
    held = dict(zip(issue.__code__.co_freevars, issue.__closure__ or (), strict=True))
    if "step" not in held:
        return None
    return held["self"].cell_contents.tools.store, held["step"].cell_contents


# --- the fanout ------------------------------------------------------------------------------


def progress_before_acks(put: Patch) -> None:
    """The outbox's progress does not wait for the deliveries."""
    original = service.FanoutService._deliver

    async def deliver(self: service.FanoutService, *args: Any) -> bool:
        async def later() -> None:
            await original(self, *args)

        self._runtime.spawn(later(), "deliver")
        return True

    put(service.FanoutService, "_deliver", deliver)


def progress_not_fenced(put: Patch) -> None:
    """Outbox progress is taken from whoever reports it."""
    original = conversations.MemoryConversationStore._advance

    async def advance(self: Any, epoch: int, progress: Any, *, shard_is_stale: bool) -> Any:
        return await original(self, 1 << 52, progress, shard_is_stale=False)

    put(conversations.MemoryConversationStore, "_advance", advance)


def inherited_outbox_not_drained_first(put: Patch) -> None:
    """A new owner sends what is new, and looks for what it inherited later."""
    found = fanout_shard.Shard.found
    first_told = fanout_logic.Outbox.first_told

    def look_later(self: fanout_shard.Shard, pending: Any) -> None:
        if self.scanned_s is not None:
            found(self, pending)

    def told(key: Any, seq: int, *, known_tail: int | None) -> fanout_logic.Outbox:
        return first_told(key, seq, known_tail=seq - 1 if known_tail is None else known_tail)

    put(fanout_shard.Shard, "found", look_later)
    put(fanout_logic.Outbox, "first_told", staticmethod(told))


def epoch_of_the_old_owner(put: Patch) -> None:
    """A dispatch is stamped with the first epoch of its conversation, whoever sends it."""
    first: dict[object, int] = {}

    def encode(event: Any, *, fencing_epoch: int, **rest: Any) -> bytes:
        stamp = first.setdefault(event.key, fencing_epoch)
        return encode_dispatch(event, fencing_epoch=stamp, **rest)

    put(fanout_batch, "encode_dispatch", encode)


def epoch_lost_in_the_codec(put: Patch) -> None:
    """The field is optional, and not written: every record reads as one of the first epoch."""

    def encode(event: Any, *, fencing_epoch: int, **rest: Any) -> bytes:
        return encode_dispatch(event, fencing_epoch=1, **rest)

    put(fanout_batch, "encode_dispatch", encode)


def failed_part_sent_again(put: Patch) -> None:
    """A producer goes on behind a record that failed, and the failed ones alone are sent again."""

    async def produce(self: log.MemoryProducer, records: Sequence[Any]) -> Any:
        return [await self._append(record) for record in records]

    async def deliver(self: service.FanoutService, shard: Any, line: Any, batch: Any) -> bool:
        left = [record.produce for record in batch.records]
        while left and shard.may_write():
            outcomes = await line.produce(left)
            left = [
                record
                for record, outcome in zip(left, outcomes, strict=True)
                if not isinstance(outcome, Applied)
            ]
            await self._runtime.sleep(0.02 if left else 0.0)
        return not left

    put(log.MemoryProducer, "produce", produce)
    put(service.FanoutService, "_deliver", deliver)


def chunk_size_of_today(put: Patch) -> None:
    """A replay cuts recipients by the node's own setting, not by the event's."""
    made = service.FanoutService.__init__
    chunks = recipients.Recipients.chunks

    def init(self: Any, *args: Any, chunk_recipients: int, **rest: Any) -> None:
        made(self, *args, chunk_recipients=chunk_recipients, **rest)
        self._recipients.today = chunk_recipients

    async def cut(self: Any, event: Any) -> Any:
        return await chunks(self, replace(event, chunk_recipients=self.today))

    put(service.FanoutService, "__init__", init)
    put(recipients.Recipients, "chunks", cut)


def member_removed_late(put: Patch) -> None:
    """Who is removed still counts as a member for what comes next."""
    original = recipients.Recipients._changed

    async def changed(self: Any, event: Any) -> Any:
        members = (await original(self, event)).union(event.removed)
        seq = event.conversation_seq
        self._rosters.put(event.key, recipients._Roster(seq, seq, members))
        return members

    put(recipients.Recipients, "_changed", changed)
