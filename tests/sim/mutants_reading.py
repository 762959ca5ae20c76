"""Broken builds behind the log: mailboxes, connections, session lists."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.sim.mutant import Patch

from qimd.adapters.memory import mailbox, projection, torn
from qimd.connection import presence, requests
from qimd.connection.link import replaced
from qimd.core.outcome import Applied, Outcome, Unknown
from qimd.core.records import EventKind
from qimd.mailbox import cursor, hints, logic, materialise
from qimd.ports.mailbox import RecordVerdict

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
