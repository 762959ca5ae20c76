"""The session room: owned partitions of the projection, and the lists that are read from it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from qimd.contract.events import summarise
from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.core.ids import UserId, event_id
from qimd.core.lease import Term
from qimd.core.outcome import Applied, NotApplied, Refusal, Unknown
from qimd.core.parameters import (
    MARK_READ_TRIES_MAX,
    PROJECTION_RETRY_MIN_S,
    SESSION_LISTING_EXPIRY_S,
    SESSION_LISTINGS_MAX,
    UNREAD_DRIFT_SAMPLE_INTERVAL_S,
    UNREAD_DRIFT_SAMPLE_ROWS,
)
from qimd.core.records import ConversationKey, EventRef, EventSummary, SessionItem, UserKey
from qimd.core.routing import RoutingTable
from qimd.ports.log import Log
from qimd.ports.projection import ProjectionStore, SessionRow
from qimd.ports.quarantine import QuarantineStore
from qimd.ports.runtime import Runtime
from qimd.ports.services import RebuildPlan
from qimd.ports.store import ConversationStore
from qimd.session.listing import (
    LISTING_ID_BYTES,
    Listing,
    Listings,
    PageToken,
    page_limit,
    position_of,
)
from qimd.session.logic import clamp_mark
from qimd.session.partition import Partition
from qimd.session.ports import RoomPorts
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import NO_SPANS, Spans

_log = logger("session")
_DRIFT_SAMPLES: Final = 1024
"""Recounts that `unread_drift_ratio` is taken over: fine enough for its alert at 0.1 %."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition that is owned here. `dirty` says why it refuses; empty while it does not."""

    partition: int
    next_offset: int
    high_watermark: int
    ready: bool
    dirty: str


class SessionService:
    """`ports.services.Sessions`, and `serve(term)` for each partition owned here.

    `recovery_window_ms` is QIM_DISPATCH_RECOVERY_WINDOW_MS: the log must keep at least as much.
    """

    def __init__(
        self,
        *,
        projection: ProjectionStore,
        conversations: ConversationStore,
        log: Log,
        quarantine: QuarantineStore,
        table: RoutingTable,
        runtime: Runtime,
        metrics: Metrics,
        recovery_window_ms: int,
        spans: Spans = NO_SPANS,
    ) -> None:
        self._projection = projection
        self._conversations = conversations
        self._table = table
        self._runtime = runtime
        self._metrics = metrics
        self._ports = RoomPorts(
            table=table,
            projection=projection,
            conversations=conversations,
            log=log,
            quarantine=quarantine,
            runtime=runtime,
            metrics=metrics,
            recovery_window_ms=recovery_window_ms,
            spans=spans,
        )
        self._owned: dict[int, Partition] = {}
        self._dirty: dict[int, str] = {}
        self._listings = Listings(SESSION_LISTINGS_MAX, SESSION_LISTING_EXPIRY_S)
        self._drifted: deque[bool] = deque(maxlen=_DRIFT_SAMPLES)

    # --- partitions ---

    async def serve(self, term: Term) -> None:
        """Project the partition `term.shard` until the term has ended.

        A dirty partition keeps its term and refuses: only a restart of the process makes it try
        again from its last good checkpoint, or a rebuild from the store.
        """
        partition = Partition(self._ports, term, self._dirty)
        self._owned[term.shard] = partition
        drift = self._runtime.spawn(self._watch_drift(partition), f"unread-drift:{term.shard}")
        try:
            await partition.run()
        finally:
            drift.cancel()
            # A newer term of the same partition may be served already.
            if self._owned.get(term.shard) is partition:
                del self._owned[term.shard]

    async def rebuild(self, partition: int, *, dry_run: bool) -> RebuildPlan:
        """See `ports.services.SessionOperations`, and `rebuild`."""
        owned = self._owned.get(partition)
        if owned is None:
            raise QimError(ErrorCode.NOT_OWNER, f"partition {partition} is not owned here")
        return await owned.rebuild(dry_run)

    def describe(self) -> Sequence[PartitionStatus]:
        """The partitions owned here."""
        return [
            PartitionStatus(
                partition=number,
                next_offset=partition.projector.next_offset,
                high_watermark=max(partition.projector.high, partition.projector.next_offset),
                ready=partition.projector.ready,
                dirty=partition.dirty,
            )
            for number, partition in sorted(self._owned.items())
        ]

    def _demand_open(self, user: UserKey) -> None:
        """Raise unless the projection is open, and the user's partition is owned here."""
        if self._dirty:
            raise QimError(
                ErrorCode.SESSION_PROJECTION_DIRTY,
                "the session projection can't be proved complete; it refuses until a restart, or "
                "a rebuild",
            )
        partition, _ = self._table.mailbox(user.tenant, user.user)
        if partition not in self._owned:
            raise QimError(ErrorCode.NOT_OWNER, "the user's partition is not owned here")
        if not all(owned.projector.ready for owned in self._owned.values()):
            raise unavailable("the session projection is catching up")

    # --- lists ---

    async def list(
        self, user: UserKey, page_token: bytes, limit: int
    ) -> tuple[Sequence[SessionItem], bytes]:
        """A page of the user's list, the most recently active first, and the next page's token.

        Each conversation is in exactly one page of a listing, wherever it moves meanwhile; the
        token is empty on the last. Raises QimError: INVALID_ARGUMENT (limit above 200, a token that
        is none or has expired), SESSION_PROJECTION_DIRTY, UNAVAILABLE, NOT_OWNER.
        """
        size = page_limit(limit)
        self._demand_open(user)
        now_s = self._runtime.monotonic_s()
        if page_token:
            token = PageToken.parse(page_token)
            listing = self._listings.find(user, token, now_s)
            listing.turn_to(token.page)
        else:
            token = PageToken(self._runtime.random_bytes(LISTING_ID_BYTES), 0)
            listing = Listing(user)
        rows, more = await self._page(listing, token.page, size)
        if not page_token and not more:
            # The whole list came in one read: there is nothing to come back for.
            return await self._items(rows), b""
        self._listings.keep(token.listing_id, listing, now_s)
        items = await self._items(rows)
        return items, PageToken(token.listing_id, listing.page).text if more else b""

    async def _page(
        self, listing: Listing, page: int, size: int
    ) -> tuple[Sequence[SessionRow], bool]:
        """The listing's next rows, and whether there may be more after them."""
        rows: list[SessionRow] = []
        below, bottom, whole = listing.below, listing.bottom, False
        if not bottom:
            read = await self._projection.rows(listing.user, below, size)
            rows = listing.new_of(read)
            bottom = len(read) < size
            whole = bottom and below is None
            below = position_of(read[-1]) if read else below
        more = not bottom
        if bottom and not whole:
            # What moved up past the way down, found in one read of the whole list.
            told = {row.key.conversation for row in rows}
            everything = await self._projection.rows(
                listing.user, None, len(listing.shown) + size + 1
            )
            missed = [row for row in listing.new_of(everything) if row.key.conversation not in told]
            room = size - len(rows)
            rows += missed[:room]
            more = len(missed) > room
        if listing.page != page:
            raise unavailable("this page of the list is being read by another request")
        listing.give(rows, below, bottom)
        return rows, more

    async def _items(self, rows: Sequence[SessionRow]) -> Sequence[SessionItem]:
        """The rows with the summaries of their last events, read in one round trip."""
        refs = {row.key: _last_event_of(row) for row in rows}
        encoded = await self._conversations.events(list(refs.values())) if refs else {}
        items: list[SessionItem] = []
        for row in rows:
            event = encoded.get(refs[row.key].event_id)
            summary: EventSummary | None = summarise(event) if event is not None else None
            items.append(
                SessionItem(row.key, summary, row.activity_ms, row.unread, row.read_through)
            )
        return items

    # --- read marks ---

    async def mark_read(self, user: UserKey, key: ConversationKey, through: int) -> tuple[int, int]:
        """(read mark, unread) after raising the mark to `through`, or to the user's last event.

        Unread is counted anew from the events, so that a mark also mends a count that drifted.
        Raises QimError: NOT_MEMBER, SESSION_PROJECTION_DIRTY, UNAVAILABLE, NOT_OWNER.
        """
        self._demand_open(user)
        for attempt in range(MARK_READ_TRIES_MAX):
            row = await self._projection.row(user, key)
            # Behind the row: memberships as of now are exact up to its applied_seq, while those of
            # before it could lack a removal that the row has seen.
            intervals = await self._conversations.intervals(key, user.user)
            if not intervals:
                raise QimError(
                    ErrorCode.NOT_MEMBER, "the user was never a member of the conversation"
                )
            if row is None:
                # A member whose first event is still on its way has nothing to mark.
                return 0, 0
            mark = clamp_mark(row.read_through, through, row.applied_seq)
            unread = await self._conversations.count_unread(
                key, user.user, intervals, mark, row.applied_seq
            )
            marked = await self._try_mark(user, row, mark, unread)
            if marked is not None:
                return marked.read_through, marked.unread
            # A newer event came between the count and the mark.
            await self._runtime.sleep(PROJECTION_RETRY_MIN_S * self._runtime.random() * attempt)
        raise unavailable("the conversation moves faster than its unread can be counted")

    async def _try_mark(
        self, user: UserKey, row: SessionRow, mark: int, unread: int
    ) -> SessionRow | None:
        """The marked row; None if the row has moved, and must be counted again."""
        for attempt in range(MARK_READ_TRIES_MAX):
            outcome = await self._projection.mark_read(user, row.key, mark, row.applied_seq, unread)
            match outcome:
                case Applied(value=value):
                    return value
                case NotApplied(refusal=Refusal.HEAD_MOVED | Refusal.NOT_FOUND):
                    return None
                case NotApplied(refusal=refusal):
                    raise unavailable(f"the read mark can't be stored now: {refusal.words}")
                case Unknown():
                    # The same step again: it sets what it may have set already.
                    await self._runtime.sleep(PROJECTION_RETRY_MIN_S * 2 ** min(attempt, 5))
                case _:
                    assert_never(outcome)
        raise unavailable("whether the read mark was stored is not known; mark again")

    # --- drift ---

    async def _watch_drift(self, partition: Partition) -> None:
        while True:
            await self._runtime.sleep(UNREAD_DRIFT_SAMPLE_INTERVAL_S)
            if partition.projector.ready:
                try:
                    await self.sample_drift(partition.number)
                except QimError as error:
                    _log.debug("unread drift was not sampled", code=error.code.name)

    async def sample_drift(self, partition: int) -> None:
        """Recount some rows of the partition's last step, and show `unread_drift_ratio`.

        Raises QimError(UNAVAILABLE) if the rows or events can't be read now.
        """
        owned = self._owned.get(partition)
        if owned is None or owned.projector.touched is None:
            return
        key, users = owned.projector.touched
        for _ in range(min(UNREAD_DRIFT_SAMPLE_ROWS, len(users))):
            user = users[int(self._runtime.random() * len(users))]
            await self._recount(key, user)
        if self._drifted:
            self._metrics.unread_drift_ratio.set(sum(self._drifted) / len(self._drifted))

    async def _recount(self, key: ConversationKey, user: UserId) -> None:
        # One row is one snapshot, and what happened up to its applied_seq never changes: whatever
        # comes while it is recounted makes no difference.
        row = await self._projection.row(UserKey(key.tenant, user), key)
        if row is None:
            return
        intervals = await self._conversations.intervals(key, user)
        counted = await self._conversations.count_unread(
            key, user, intervals, row.read_through, row.applied_seq
        )
        self._drifted.append(counted != row.unread)
        if counted != row.unread:
            _log.warning("unread has drifted", tenant_id=key.tenant,
                         conversation_id=key.conversation, stored=row.unread,
                         counted=counted)  # fmt: skip


def _last_event_of(row: SessionRow) -> EventRef:
    """The last event that the user received: its id is a function of its place, so that the row
    need not keep it. What else a reference holds is not asked for by reading the event.
    """
    key, seq = row.key, row.applied_seq
    identity = event_id(key.tenant, key.conversation, seq)
    return EventRef(key, seq, identity, kind=0, sender=None, created_at_ms=row.activity_ms)
