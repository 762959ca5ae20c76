"""The mailbox room: shards that write, pages that are read, positions of devices (design 7)."""

from collections.abc import Awaitable, Callable, Sequence

from qimd.contract.cursor import CursorClaims, CursorKeys, sign_cursor, verify_cursor
from qimd.core.errors import ErrorCode, QimError, invalid
from qimd.core.lease import Term
from qimd.core.outcome import Outcome
from qimd.core.records import DeliveredEvent, DeviceKey, UserKey
from qimd.core.routing import RoutingTable
from qimd.core.seq import MailboxSeq
from qimd.mailbox import cursor
from qimd.mailbox.ports import RoomPorts, settle_device
from qimd.mailbox.report import Verifier
from qimd.mailbox.shard import Shard
from qimd.ports.log import Log
from qimd.ports.mailbox import DeviceState, MailboxStore, ShardState, watermark
from qimd.ports.quarantine import QuarantineStore
from qimd.ports.runtime import Runtime
from qimd.ports.services import (
    GapReport,
    OpenedDevice,
    Page,
    PushHints,
    Rebased,
    RebasePlan,
    SessionSupplement,
)
from qimd.ports.store import ConversationStore
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import NO_SPANS, Spans

_log = logger("mailbox")


class MailboxService:
    """Implements `ports.services.Mailbox`; `serve(term)` owns a shard while its term lasts.

    `recovery_window_ms` is what the log's retention must cover at least; the progress of dispatches
    is dropped once it is older than `replay_safety_window_ms`, without one never.
    `on_stall_failover(shard)` is called once when a lane has stood for `lane_stall_failover`: hand
    the shard's lease over.
    """

    def __init__(
        self,
        *,
        table: RoutingTable,
        store: MailboxStore,
        conversations: ConversationStore,
        log: Log,
        quarantine: QuarantineStore,
        hints: PushHints,
        cursor_keys: CursorKeys,
        runtime: Runtime,
        metrics: Metrics,
        recovery_window_ms: int,
        replay_safety_window_ms: int | None = None,
        supplement: SessionSupplement | None = None,
        on_stall_failover: Callable[[int], None] = lambda _shard: None,
        spans: Spans = NO_SPANS,
    ) -> None:
        self._ports = RoomPorts(
            table=table,
            store=store,
            conversations=conversations,
            log=log,
            quarantine=quarantine,
            hints=hints,
            supplement=supplement,
            runtime=runtime,
            metrics=metrics,
            recovery_window_ms=recovery_window_ms,
            replay_safety_window_ms=replay_safety_window_ms,
            on_stall_failover=on_stall_failover,
            spans=spans,
        )
        self._keys = cursor_keys
        self._shards: dict[int, Shard] = {}
        self._verifier = Verifier(self._ports)

    async def serve(self, term: Term) -> None:
        """Own a shard: read its partition until the term may write no more."""
        shard = Shard(self._ports, term.shard, term)
        self._shards[term.shard] = shard
        try:
            await shard.run()
        finally:
            if self._shards.get(term.shard) is shard:
                del self._shards[term.shard]

    def shards(self) -> Sequence[Shard]:
        """The shards that are owned here, by number."""
        return [self._shards[number] for number in sorted(self._shards)]

    async def rebase(self, shard: int, *, dry_run: bool) -> RebasePlan:
        """See `ports.services.MailboxOperations`, and `rebuild`."""
        return await self._owned(shard).rebase(dry_run)

    # --- ports.services.Mailbox ---

    async def open_device(self, device: DeviceKey) -> OpenedDevice:
        """See the port."""
        shard, lane = self._place(device.owner)
        state = shard.ready()
        floor = shard.floor
        stored = await self._device(lambda: self._ports.store.open_device(device, floor))
        return OpenedDevice(self._token(device, state, lane), stored.acked, floor)

    async def pull(
        self, device: DeviceKey, cursor_token: bytes, last_applied: int, limit: int
    ) -> Page | Rebased:
        """See the port. A token of an older shard_epoch is replaced by the page's."""
        shard, lane = self._place(device.owner)
        state = shard.ready()
        claims = verify_cursor(cursor_token, self._keys)
        outdated = cursor.check_claims(claims, device, shard.shard, lane, state.boundaries)
        count = cursor.page_limit(limit)
        through = watermark(state, lane)
        shard.demand_known(last_applied, through)
        after = cursor.check_position(last_applied, through)
        token = self._token(device, state, lane) if outdated else b""
        page = await self._page(device.owner, after, through, count, token)
        # The floor is read behind the entries: it rises before anything below it is dropped, so a
        # page that was read while entries went can't pass for whole.
        floor = shard.floor
        if gone := cursor.lost(after, floor):
            return Rebased(*gone, self._token(device, state, lane), floor)
        return page

    async def ack(self, device: DeviceKey, last_applied: int, handed: MailboxSeq) -> MailboxSeq:
        """See the port."""
        shard, lane = self._place(device.owner)
        through = watermark(shard.ready(), lane)
        shard.demand_known(last_applied, through)
        floor = shard.floor
        move = cursor.ack_now(last_applied, handed, through, floor)
        if move is None:
            stored = await self._device(lambda: self._ports.store.open_device(device, floor))
            return cursor.ack_stored(last_applied, stored)
        raised = await self._device(
            lambda: self._ports.store.ack(device, move.position, move.handed)
        )
        return raised.acked

    async def read(self, user: UserKey, after: int, limit: int) -> Page:
        """See the port."""
        shard, lane = self._place(user)
        state = shard.ready()
        count = cursor.page_limit(limit)
        through = watermark(state, lane)
        shard.demand_known(after, through)
        if not 0 <= after <= through:
            raise invalid(f"after_seq is outside [0, {through}]", "after_seq")
        return await self._page(user, MailboxSeq(after), through, count, b"")

    async def report(self, user: UserKey, report: GapReport) -> bool:
        """See the port."""
        shard, lane = self._place(user)
        shard.ready()
        return await self._verifier.confirmed(shard, lane, user, report)

    # --- parts ---

    def floor(self, user: UserKey) -> MailboxSeq:
        """W_floor of the user's lane. Raises NOT_OWNER."""
        return self._place(user)[0].floor

    def _owned(self, shard: int) -> Shard:
        owned = self._shards.get(shard)
        if owned is None:
            raise QimError(ErrorCode.NOT_OWNER, f"mailbox shard {shard} is not owned here")
        return owned

    def _place(self, user: UserKey) -> tuple[Shard, int]:
        number, lane = self._ports.table.mailbox(user.tenant, user.user)
        return self._owned(number), lane

    def _token(self, device: DeviceKey, state: ShardState, lane: int) -> bytes:
        claims = CursorClaims(
            mailbox_shard=state.shard,
            lane=lane,
            shard_epoch=state.boundaries[-1].shard_epoch,
            device=device,
            issued_at_ms=self._ports.runtime.wall_ms(),
            key_id=self._keys.current,
        )
        return sign_cursor(claims, self._keys)

    async def _device(self, issue: Callable[[], Awaitable[Outcome[DeviceState]]]) -> DeviceState:
        """A device's step, and the detector of a position that something else than a PULL moved."""
        state = await settle_device(self._ports.runtime, issue)
        if cursor.moved_by_push(state):
            self._ports.metrics.cursor_advanced_by_push_total.inc()
            _log.error(
                "a device's position is beyond what was handed to it",
                mailbox_seq=state.acked,
                handed_seq=state.handed,
            )
        return state

    async def _page(
        self, user: UserKey, after: MailboxSeq, through: MailboxSeq, count: int, token: bytes
    ) -> Page:
        """Entries in (after, through] with their bodies, within a page's limits."""
        entries = await self._ports.store.entries(user, after, through, count + 1)
        bodies = await self._ports.conversations.events([entry.ref for entry in entries[:count]])
        found = [(entry, bodies.get(entry.ref.event_id, b"")) for entry in entries[:count]]
        shown = found[: cursor.fitting([len(body) for _, body in found])]
        whole = len(shown) == len(entries)
        if bodiless := [entry for entry, body in shown if not body]:
            # No event, so nothing of it can be lost: the auditor counts the dispatch as an orphan.
            _log.error("entries have no event", tenant_id=user.tenant, n=len(bodiless))
        self._ports.metrics.stage_records_total.labels("page").inc(len(shown))
        return Page(
            events=[DeliveredEvent(entry.seq, body) for entry, body in shown if body],
            covered_through=cursor.covered([entry.seq for entry, _ in shown], through, whole=whole),
            more=not whole,
            cursor_token=token,
        )
