"""Broken builds that the simulator must see: each takes one rule of the design away.

A simulator that has never failed proves nothing. So each rule that a world is to hold to is broken
here, one at a time, by a patch of one function, and the seeds are run until one of them fails. A
mutant that lives through the seeds of a CI run is a hole in the simulator, and fails the gate.

A patch lasts for one world: what it remembers (`first`, say) never reaches the next one.
"""

import copy
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from qimd.adapters.memory import conversations, log, mailbox, projection, torn
from qimd.connection import presence, requests
from qimd.connection.link import replaced
from qimd.contract.dispatch import encode_dispatch
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.records import EventKind
from qimd.fanout import batch as fanout_batch
from qimd.fanout import logic as fanout_logic
from qimd.fanout import recipients, service
from qimd.fanout import shard as fanout_shard
from qimd.mailbox import cursor, hints, logic, materialise
from qimd.ports.mailbox import RecordVerdict
from qimd.writer import shard as writer_shard

Patch = Callable[[object, str, object], None]
"""(owner, attribute, replacement)."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule that is taken away. `name` is the rule as the design's readers know it."""

    name: str
    break_it: Callable[[Patch], None]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The build without the rule."""
        patches: list[Any] = []

        def put(owner: object, attribute: str, replacement: object) -> None:
            one = patch.object(owner, attribute, replacement)
            one.start()
            patches.append(one)

        self.break_it(put)
        try:
            yield
        finally:
            for one in reversed(patches):
                one.stop()


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


# --- the mailbox -----------------------------------------------------------------------------


def checkpoint_2_off(put: Patch) -> None:
    """No record is stale."""
    put(logic, "is_stale", lambda marks, fencing_epoch, seq: False)


def checkpoint_2_in_memory(put: Patch) -> None:
    """Epochs seen are remembered by the process, and not stored."""
    put(mailbox.MailboxShard, "mark", lambda self, key, mark: None)


def mark_without_its_offset(put: Patch) -> None:
    """A record is stale if a larger epoch is known, wherever that first appeared."""
    put(
        logic,
        "is_stale",
        lambda marks, epoch, seq: any(mark.fencing_epoch > epoch for mark in marks),
    )


def dedupe_before_entries(put: Patch) -> None:
    """The mark that a block is done is written before its entries."""

    async def apply(self: torn.TornMailboxStore, step: Any) -> Any:
        disk = self._disk
        fenced = await self._wire.step("apply_fence", step.shard, lambda: torn.fence(disk, step))
        if not isinstance(fenced, Applied) or fenced.value is not None:
            return fenced
        verdicts: list[RecordVerdict] = []

        def progress() -> Outcome[None]:
            stored = disk.shards[step.shard]
            # A call that is delivered twice has its first verdicts.
            for record in step.records[len(verdicts) :]:
                asked = sum(1 << block.lane for block in record.blocks)
                known = stored.progress.get(record.dispatch_id)
                new = asked & ~(known.done if known else 0)
                verdicts.append(RecordVerdict(new, asked & ~new))
            return torn.write_progress(disk, step, tuple(verdicts))

        def entries() -> Outcome[None]:
            for record, verdict in zip(step.records, verdicts, strict=True):
                disk.enter(step, record, verdict.applied & ~torn._own_lanes(disk, record))
            return Applied(None)

        def marked() -> Outcome[Any]:
            torn.write_marks(disk, step)
            return torn.move(disk, step, tuple(verdicts))

        done = await self._wire.step("apply_progress", step.shard, progress)
        if not isinstance(done, Applied):
            return done
        entered = await self._wire.step("apply_entries", step.shard, entries, step)
        if not isinstance(entered, Applied):
            return Unknown("progress is written, entries may not be")
        return await self._wire.step("apply_watermark", step.shard, marked, step)

    put(torn.TornMailboxStore, "apply", apply)


def w_past_a_failing_block(put: Patch) -> None:
    """A refused block is passed like any other."""

    async def set_aside(self: Any, plan: Any, position: Any, next_offset: int) -> None:
        await self._apply((), plan.marks, plan.buckets, position=position,
                          next_offset=next_offset, lagging=self.state.lagging)  # fmt: skip

    put(materialise.Materialiser, "_set_aside", set_aside)


def lane_overtaken(put: Patch) -> None:
    """Blocks behind a refused one are written before it."""
    put(logic, "blocks_of_others", lambda blocks, lagging: blocks)


def duplicates_added_twice(put: Patch) -> None:
    """A dispatch that comes again is entered again."""
    atomic = mailbox.MailboxDisk._materialise
    several = torn.write_entries

    def forget(stored: Any, record: Any) -> None:
        if record.dispatch_id in stored.progress:
            stored.progress[record.dispatch_id].done = 0

    def materialise_again(self: Any, stored: Any, step: Any, record: Any) -> Any:
        forget(stored, record)
        return atomic(self, stored, step, record)

    def write_again(disk: Any, step: Any) -> Any:
        for record in step.records:
            forget(disk.shards[step.shard], record)
        return several(disk, step)

    put(mailbox.MailboxDisk, "_materialise", materialise_again)
    put(torn, "write_entries", write_again)


def commit_under_an_old_term(put: Patch) -> None:
    """A mailbox step is taken whatever term it is of."""
    original = mailbox.MailboxDisk.judge

    def judge(self: Any, step: Any) -> Any:
        stored = self.shards.get(step.shard)
        return original(self, step if stored is None else replace(step, term=stored.term))

    put(mailbox.MailboxDisk, "judge", judge)


def push_before_w(put: Patch) -> None:
    """Hints go out before the step that they speak of is durable."""
    original = materialise.Materialiser._apply

    async def apply(self: Any, records: Sequence[Any], *args: Any, **rest: Any) -> Any:
        every_lane = (1 << 64) - 1
        told = [hints.Materialised(record, every_lane) for record in records]
        await hints.hint(self._ports, told)
        return await original(self, records, *args, **rest)

    put(materialise.Materialiser, "_apply", apply)


def another_users_cursor(put: Patch) -> None:
    """A cursor is taken for whoever presents it."""
    put(cursor, "check_claims", lambda claims, device, shard, lane, boundaries: False)


def belief_outlives_a_restart(put: Patch) -> None:
    """Owners don't see that their store was started anew."""
    put(mailbox.MemoryMailboxStore, "restarts", 0)
    put(projection.MemoryProjectionStore, "restarts", 0)


# --- connection and session ------------------------------------------------------------------


def presence_after_the_first_pull(put: Patch) -> None:
    """A stream is made known once its first page was served."""
    register = presence.Presence.register
    pull = requests.Requests._pull
    unknown: dict[Any, presence.Presence] = {}

    def register_later(self: presence.Presence, link: Any) -> None:
        unknown[link] = self

    async def pull_first(self: Any, link: Any, *args: Any) -> Any:
        page = await pull(self, link, *args)
        known = unknown.pop(link, None)
        if known is not None and (older := register(known, link)) is not None:
            older.finish(replaced())
        return page

    put(presence.Presence, "register", register_later)
    put(requests.Requests, "_pull", pull_first)


def unread_counted_again(put: Patch) -> None:
    """A replayed event counts once more."""

    def project_row(row: Any, user: Any, events: Sequence[Any]) -> Any:
        for event in events:
            unread, mark = row.unread, row.read_through
            if event.sender == user:
                mark = max(mark, event.conversation_seq) if unread == 0 else mark
            elif event.kind == EventKind.MESSAGE and event.conversation_seq > mark:
                unread += 1
            row = replace(
                row,
                activity_ms=max(row.activity_ms, event.created_at_ms),
                applied_seq=max(row.applied_seq, event.conversation_seq),
                unread=unread,
                read_through=mark,
            )
        return row

    put(projection, "project_row", project_row)


MUTANTS: Final = (
    Mutant("checkpoint 1 off", checkpoint_1_off),
    Mutant("checkpoint 2 off", checkpoint_2_off),
    Mutant("checkpoint 2 in memory only", checkpoint_2_in_memory),
    Mutant("epoch mark without its offset", mark_without_its_offset),
    Mutant("progress before acks", progress_before_acks),
    Mutant("outbox progress not fenced", progress_not_fenced),
    Mutant("head version not compared", head_version_not_compared),
    Mutant("inherited outbox not drained first", inherited_outbox_not_drained_first),
    Mutant("epoch stamped from the old owner", epoch_of_the_old_owner),
    Mutant("epoch lost in the codec", epoch_lost_in_the_codec),
    Mutant("only the failed part of a run sent again", failed_part_sent_again),
    Mutant("dedupe mark before entries", dedupe_before_entries),
    Mutant("W past a failing block", w_past_a_failing_block),
    Mutant("a lane overtaken in slow retry", lane_overtaken),
    Mutant("recipients of a duplicate added twice", duplicates_added_twice),
    Mutant("chunk size changed between commit and replay", chunk_size_of_today),
    Mutant("a mailbox commit under an old term", commit_under_an_old_term),
    Mutant("Unknown taken for failure", unknown_taken_for_failure),
    Mutant("Unknown resolved by a read", unknown_resolved_by_a_read),
    Mutant("what was believed before a restart believed behind it", belief_outlives_a_restart),
    Mutant("push before W", push_before_w),
    Mutant("presence after the first PULL", presence_after_the_first_pull),
    Mutant("unread counted again on replay", unread_counted_again),
    Mutant("member removed one event late", member_removed_late),
    Mutant("cursor of another user accepted", another_users_cursor),
)
