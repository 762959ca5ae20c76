"""A rebuild from the store: the way out of dirty where the log no longer covers, or is another one.

Rows are recounted from the store's conversations and memberships; read marks stay. Why nothing is
missing, and nothing is counted twice:

- The log's end is taken first. Whatever has a record below it was committed before, so the store's
  events, read after, hold it. Whatever comes later has its record at or above it, and is projected
  as usual, absorbed by `applied_seq` where a recounted row holds it already.
- A row is written under the read mark that it was counted from, and only where no more is stored:
  each one is true whenever it lands. So a rebuild may be cut short, be run again, or be overtaken
  by a late step of its own.
- The checkpoint moves last. Until then it is the one that the gates refuse.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from qimd.core.errors import unavailable
from qimd.core.ids import TenantId, UserId
from qimd.core.lease import Term
from qimd.core.outcome import Outcome
from qimd.core.records import ConversationKey, Event, LogIdentity, UserKey
from qimd.ports.log import LogFault, Watermarks
from qimd.ports.projection import CheckpointMeta, PartitionCheckpoint, RestoredRow, RestoreStep
from qimd.ports.services import RebuildPlan
from qimd.ports.store import ConversationState
from qimd.session.logic import judge_identity, meta_of
from qimd.session.ports import RoomPorts
from qimd.session.recount import Recount
from qimd.session.steps import ProjectionDirty, Steps, demand, inspected_log
from qimd.telemetry.logs import logger

T = TypeVar("T")

_log = logger("session")

CONVERSATIONS_MAX: Final = 500
EVENTS_MAX: Final = 256
"""Conversations, and events of one, that are read at once."""

ROWS_MAX: Final = 4_096
"""Rows of one step: recounting them holds the event loop, and writing them the store, for some
20 ms."""

_NO_CHECKPOINT: Final = PartitionCheckpoint(CheckpointMeta(0, "", 0, "", ""), 0)
"""What a partition that never had a checkpoint is opened with: no log's, so that the gates refuse
it until the rebuild is done."""

_Wanted = tuple[UserId, Recount]


class Rebuild:
    """A rebuild of one dirty partition, run by its task while it serves nobody.

    Raises SteppedDown, and QimError(UNAVAILABLE) if it can't be done now: it may be run again.
    """

    def __init__(self, ports: RoomPorts, term: Term) -> None:
        self._ports = ports
        self._partition = term.shard
        self._epoch = term.epoch
        self._steps = Steps(term, ports.runtime, _nothing)
        self._restarts = ports.projection.restarts

    async def plan(self, dirty: str) -> RebuildPlan:
        """What it would do now; changes nothing. `dirty` is the reason that it is to mend."""
        identity, marks = await self._inspect()
        conversations = events = 0
        async for state in self._conversations():
            conversations += 1
            events += state.head_version
        return RebuildPlan(
            partition=self._partition,
            dirty=dirty,
            log_identity=identity.text,
            next_offset=marks.high,
            conversations=conversations,
            events=events,
            rows=0,
        )

    async def run(self, dirty: str) -> RebuildPlan:
        """Do it; what it touched."""
        try:
            return await self._run(dirty)
        except ProjectionDirty as refused:
            raise unavailable(f"the rebuild failed: {refused}") from None

    async def _run(self, dirty: str) -> RebuildPlan:
        identity, marks = await self._inspect()
        self._restarts = self._ports.projection.restarts
        before = await self._open()
        conversations = events = rows = 0
        waiting: list[_Wanted] = []
        async for state in self._conversations():
            conversations += 1
            events += state.head_version
            recount = await self._recount(state)
            for user in recount.users:
                waiting.append((user, recount))
                if len(waiting) == ROWS_MAX:
                    rows += await self._restore(waiting)
                    waiting = []
        rows += await self._restore(waiting)
        await self._demand_same(identity)
        await self._move_checkpoint(before, PartitionCheckpoint(meta_of(identity), marks.high))
        _log.warning(
            "the session projection was rebuilt from the store",
            mailbox_shard=self._partition,
            conversations=conversations,
            rows=rows,
            next_offset=marks.high,
        )
        return RebuildPlan(
            partition=self._partition,
            dirty=dirty,
            log_identity=identity.text,
            next_offset=marks.high,
            conversations=conversations,
            events=events,
            rows=rows,
        )

    async def _settle(self, what: str, call: Callable[[], Awaitable[Outcome[T]]]) -> T:
        """A step that builds on those before it: what a restart of the store took back of them is
        not there any more. Raises QimError(UNAVAILABLE) then: the partition stays dirty, and the
        rebuild is asked for again.
        """

        async def issue() -> Outcome[T]:
            if self._ports.projection.restarts != self._restarts:
                raise unavailable("the store was started anew amid the rebuild: ask for it again")
            return await call()

        return await self._steps.settle(what, issue)

    # --- the log and the checkpoint ---

    async def _inspect(self) -> tuple[LogIdentity, Watermarks]:
        try:
            return await inspected_log(self._ports, self._partition)
        except (LogFault, ProjectionDirty) as fault:
            raise unavailable(f"the log can't be used: {fault}") from None

    async def _demand_same(self, identity: LogIdentity) -> None:
        """A log that was made anew meanwhile has another end than the one that was taken first."""
        try:
            found = await self._ports.log.identity()
            demand(judge_identity(identity, found, found, self._ports.table.mailbox_shards))
        except (LogFault, ProjectionDirty) as fault:
            raise unavailable(f"the log can't be used: {fault}") from None

    async def _open(self) -> PartitionCheckpoint:
        """Make the term the partition's; the checkpoint as it is before the rebuild."""
        return await self._settle(
            "opening the partition",
            lambda: self._ports.projection.open_partition(
                self._partition, self._epoch, _NO_CHECKPOINT
            ),
        )

    async def _move_checkpoint(
        self, before: PartitionCheckpoint, after: PartitionCheckpoint
    ) -> None:
        await self._settle(
            "moving the checkpoint",
            lambda: self._ports.projection.reset_checkpoint(
                self._partition, self._epoch, before, after
            ),
        )

    # --- what the store holds ---

    async def _conversations(self) -> AsyncIterator[ConversationState]:
        after: ConversationKey | None = None
        while page := await self._page(after):
            for state in page:
                yield state
            after = page[-1].key

    async def _page(self, after: ConversationKey | None) -> Sequence[ConversationState]:
        return await self._steps.persist(
            "reading conversations",
            lambda: self._ports.conversations.conversation_page(CONVERSATIONS_MAX, after),
        )

    async def _recount(self, state: ConversationState) -> Recount:
        """The conversation up to its head as it was read, behind the log's end: what comes above it
        comes by the log.
        """
        recount = Recount(state.key, lambda user: self._concerns(state.key.tenant, user))
        while recount.head < state.head_version:
            events = await self._events(state, recount.head)
            if not events:
                raise unavailable("the store does not give the events that it counts")
            for event in events:
                recount.take(event)
        return recount

    def _concerns(self, tenant: TenantId, user: UserId) -> bool:
        partition, _ = self._ports.table.mailbox(tenant, user)
        return partition == self._partition

    async def _events(self, state: ConversationState, after: int) -> Sequence[Event]:
        limit = min(EVENTS_MAX, state.head_version - after)
        return await self._steps.persist(
            "reading events", lambda: self._ports.conversations.outbox(state.key, after, limit)
        )

    # --- rows ---

    async def _restore(self, wanted: Sequence[_Wanted]) -> int:
        """Write the rows, each under the read mark that it was counted from; how many there were.

        A mark that moves in between is a late call from before: its row is counted again.
        """
        waiting = wanted
        while waiting:
            marks = await self._read_marks(waiting)
            rows = [
                RestoredRow(user, recount.row(user, mark))
                for (user, recount), mark in zip(waiting, marks, strict=True)
            ]
            left = await self._restore_once(rows)
            waiting = [waiting[index] for index in left]
        return len(wanted)

    async def _read_marks(self, wanted: Sequence[_Wanted]) -> Sequence[int]:
        places = [(UserKey(recount.key.tenant, user), recount.key) for user, recount in wanted]
        return await self._steps.persist(
            "reading the read marks", lambda: self._ports.projection.read_marks(places)
        )

    async def _restore_once(self, rows: Sequence[RestoredRow]) -> Sequence[int]:
        step = RestoreStep(self._partition, self._epoch, rows)
        return await self._settle("restoring rows", lambda: self._ports.projection.restore(step))


async def _nothing() -> None:
    """A partition that is rebuilt shows its lag as it was when it became dirty."""
