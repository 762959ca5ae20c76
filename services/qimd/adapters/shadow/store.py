"""The store that rooms see: the primary answers, the shadow follows, and they can change places.

The shadow never holds up a call, nor fails one. A step goes to it once the primary has applied it;
a sample of the reads is asked of it too, when it stands where the primary stood. Reads that span
shards (`records_of`, `dispatch_counts`) are not compared: there is no instant at which both engines
stand alike in all shards. Nor are those of shards that another process owns.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from qimd.adapters.shadow.devices import DeviceFollower
from qimd.adapters.shadow.differences import Findings, OnMismatch
from qimd.adapters.shadow.shard import (
    Begun,
    Comparison,
    Done,
    Followed,
    Opened,
    ShardFollower,
    Taken,
    Traffic,
)
from qimd.core.errors import invalid
from qimd.core.ids import EventId
from qimd.core.outcome import Applied, Outcome
from qimd.core.records import ConversationKey, DeviceKey, UserKey
from qimd.core.seq import MailboxSeq
from qimd.ports.mailbox import (
    ApplyStep,
    Collected,
    DeviceState,
    Entry,
    EpochBoundary,
    EpochMark,
    KeptRecord,
    MailboxStore,
    MaterialisedRecord,
    RecordVerdict,
    ShardState,
)
from qimd.ports.runtime import Runtime
from qimd.ports.shadow import ShadowReport

T = TypeVar("T")

SWITCH_WAIT_S: Final = 2.0
"""How long a cut-over holds the steps back for the shadow to draw level: a shadow that needs more
is behind. Far below the self-fence deadline of an owner that waits."""

LOOK_S: Final = 0.01
"""Between two looks at whether it has."""

Route = Callable[[UserKey], tuple[int, int]]
"""The mailbox shard and the lane of a user."""


@dataclass(frozen=True, slots=True)
class NamedStore:
    """An engine's store under the name that operators know the engine by."""

    name: str
    store: MailboxStore


class ShadowMailboxStore:
    """`ports.mailbox.MailboxStore` and `ports.shadow.ShadowOperations`.

    `compared_share` of the reads is compared, 0 to 1.
    """

    def __init__(
        self,
        primary: NamedStore,
        shadow: NamedStore,
        *,
        runtime: Runtime,
        route: Route,
        compared_share: float,
        on_mismatch: OnMismatch,
    ) -> None:
        self._primary = primary
        self._shadow = shadow
        self._original = primary.name
        self._runtime = runtime
        self._route = route
        self._compared_share = compared_share
        self._findings = Findings(runtime, on_mismatch)
        self._shards: dict[int, ShardFollower] = {}
        self._devices = DeviceFollower(shadow.store, runtime, self._findings)
        self._steps = Traffic()
        self._open = asyncio.Event()
        self._open.set()

    @property
    def restarts(self) -> int:
        """Of both: a cut-over is none, and one of the shadow's costs a look at the primary."""
        return self._primary.store.restarts + self._shadow.store.restarts

    # the shard's steps

    async def open_shard(self, shard: int, term: int, first: EpochBoundary) -> Outcome[ShardState]:
        return await self._step(
            shard,
            lambda store: store.open_shard(shard, term, first),
            lambda state: Opened(term, first, state),
        )

    async def apply(self, step: ApplyStep) -> Outcome[Sequence[RecordVerdict]]:
        return await self._step(
            step.shard, lambda store: store.apply(step), lambda verdicts: Taken(step, verdicts)
        )

    async def fold_marks(self, shard: int, term: int, below: MailboxSeq) -> Outcome[int]:
        return await self._plain_step(
            shard, "fold_marks", lambda store: store.fold_marks(shard, term, below)
        )

    async def expire_buckets(
        self, shard: int, term: int, floor: MailboxSeq, limit: int
    ) -> Outcome[int]:
        with self._follower(shard).trims.passing():
            return await self._plain_step(
                shard,
                "expire_buckets",
                lambda store: store.expire_buckets(shard, term, floor, limit),
            )

    async def collect_progress(
        self, shard: int, term: int, through: MailboxSeq, limit: int
    ) -> Outcome[Collected]:
        return await self._plain_step(
            shard,
            "collect_progress",
            lambda store: store.collect_progress(shard, term, through, limit),
        )

    async def begin_epoch(
        self, shard: int, term: int, boundary: EpochBoundary
    ) -> Outcome[ShardState]:
        return await self._step(
            shard,
            lambda store: store.begin_epoch(shard, term, boundary),
            lambda state: Begun(term, boundary, state),
        )

    # records of lagging lanes

    async def keep_records(
        self, shard: int, term: int, records: Sequence[KeptRecord]
    ) -> Outcome[None]:
        return await self._plain_step(
            shard, "keep_records", lambda store: store.keep_records(shard, term, records)
        )

    async def kept_records(self, shard: int, after: MailboxSeq, limit: int) -> Sequence[KeptRecord]:
        return await self._read(
            shard,
            f"kept_records({shard}, {after}, {limit})",
            lambda store: store.kept_records(shard, after, limit),
        )

    async def drop_kept(self, shard: int, term: int, through: MailboxSeq) -> Outcome[int]:
        return await self._plain_step(
            shard, "drop_kept", lambda store: store.drop_kept(shard, term, through)
        )

    # the shard's reads

    async def shard_state(self, shard: int) -> ShardState | None:
        return await self._read(
            shard, f"shard_state({shard})", lambda store: store.shard_state(shard)
        )

    async def epoch_marks(
        self, shard: int, keys: Sequence[ConversationKey]
    ) -> Mapping[ConversationKey, Sequence[EpochMark]]:
        return await self._read(
            shard,
            f"epoch_marks({shard}, {len(keys)} conversations)",
            lambda store: store.epoch_marks(shard, keys),
        )

    async def records_of(self, event_id: EventId) -> Sequence[MaterialisedRecord]:
        return await self._primary.store.records_of(event_id)

    async def records_after(
        self, shard: int, after: MailboxSeq, limit: int
    ) -> Sequence[MaterialisedRecord]:
        return await self._read(
            shard,
            f"records_after({shard}, {after}, {limit})",
            lambda store: store.records_after(shard, after, limit),
        )

    async def dispatch_counts(
        self, event_ids: Sequence[EventId]
    ) -> Mapping[EventId, tuple[int, int]]:
        return await self._primary.store.dispatch_counts(event_ids)

    # a user's reads

    async def entries(
        self, user: UserKey, after: MailboxSeq, through: MailboxSeq, limit: int
    ) -> Sequence[Entry]:
        shard, lane = self._route(user)
        follower = self._shards.get(shard)
        # What a lane has finished changes by expiry alone: a busy shard's pages are compared too.
        finished = follower is not None and through <= follower.watermark(lane)
        return await self._read(
            shard,
            f"entries({user}, {after}, {through}, {limit})",
            lambda store: store.entries(user, after, through, limit),
            finished=finished,
        )

    async def entry_seqs(
        self, user: UserKey, key: ConversationKey, from_seq: int, through_seq: int
    ) -> Mapping[int, MailboxSeq]:
        shard, _ = self._route(user)
        return await self._read(
            shard,
            f"entry_seqs({user}, {key}, {from_seq}, {through_seq})",
            lambda store: store.entry_seqs(user, key, from_seq, through_seq),
        )

    # devices

    async def open_device(self, device: DeviceKey, floor: MailboxSeq) -> Outcome[DeviceState]:
        return await self._device_step(device, lambda store: store.open_device(device, floor))

    async def ack(
        self, device: DeviceKey, position: MailboxSeq, handed: MailboxSeq
    ) -> Outcome[DeviceState]:
        return await self._device_step(device, lambda store: store.ack(device, position, handed))

    # the pair, to an operator

    def describe(self) -> ShadowReport:
        """See `ports.shadow.ShadowOperations`."""
        return ShadowReport(
            primary=self._primary.name,
            shadow=self._shadow.name,
            compared=self._findings.compared,
            mismatches=self._findings.mismatches,
            shards=[follower.describe() for follower in self._followed()],
            devices_waiting=self._devices.waiting,
            devices_missed=self._devices.missed,
            samples=tuple(self._findings.samples),
            obstacle=self._obstacle() or self._distance(),
        )

    async def switch(self, primary: str, *, dry_run: bool) -> ShadowReport:
        """See `ports.shadow.ShadowOperations`."""
        if primary not in (self._primary.name, self._shadow.name):
            raise invalid(f"{self._primary.name} and {self._shadow.name} are there", "primary")
        if primary == self._primary.name or dry_run:
            return self.describe()
        if not self._open.is_set():
            raise invalid("another cut-over is under way", "primary")
        self._open.clear()
        try:
            await self._draw_level()
            self._change_places()
        finally:
            self._open.set()
        return self.describe()

    async def _draw_level(self) -> None:
        """Return once nothing is under way and both stand alike. Raises INVALID_ARGUMENT."""
        give_up_s = self._runtime.monotonic_s() + SWITCH_WAIT_S
        while not (obstacle := self._obstacle()):
            if not self._steps.under_way and not self._distance():
                return
            if self._runtime.monotonic_s() >= give_up_s:
                obstacle = self._distance() or "a step of the primary does not end"
                break
            await self._runtime.sleep(LOOK_S)
        raise invalid(obstacle, "primary")

    def _change_places(self) -> None:
        self._primary, self._shadow = self._shadow, self._primary
        self._devices = DeviceFollower(self._shadow.store, self._runtime, self._findings)
        for follower in self._shards.values():
            follower.change_places()

    def _followed(self) -> list[ShardFollower]:
        return [one for _, one in sorted(self._shards.items()) if one.standing is not None]

    def _obstacle(self) -> str:
        """What no waiting mends."""
        # Back to the engine that served at first is the way out when the other one differs.
        if self._findings.mismatches and self._shadow.name != self._original:
            return f"{self._findings.mismatches} answers differ"
        for follower in self._followed():
            if follower.lost:
                return f"shard {follower.shard} of the shadow is lost: {follower.lost}"
        if self._devices.missed:
            return f"the shadow missed {self._devices.missed} steps of devices"
        return ""

    def _distance(self) -> str:
        """How far the shadow is behind."""
        behind = [str(follower.shard) for follower in self._followed() if not follower.level]
        if behind:
            return f"the shadow is behind in shards {', '.join(behind)}"
        if self._devices.waiting:
            return f"the shadow is behind by {self._devices.waiting} devices"
        return ""

    # --- how a call goes ---

    def _follower(self, shard: int) -> ShardFollower:
        follower = self._shards.get(shard)
        if follower is None:
            primary, shadow = self._primary.store, self._shadow.store
            follower = ShardFollower(shard, primary, shadow, self._runtime, self._findings)
            self._shards[shard] = follower
        return follower

    async def _step(
        self,
        shard: int,
        call: Callable[[MailboxStore], Awaitable[Outcome[T]]],
        followed: Callable[[T], Followed],
    ) -> Outcome[T]:
        follower = self._follower(shard)
        async with self._admitted() as primary:
            with follower.steps.passing():
                outcome = await call(primary)
            if isinstance(outcome, Applied):
                follower.follow(followed(outcome.value))
        return outcome

    async def _plain_step(
        self, shard: int, asked: str, call: Callable[[MailboxStore], Awaitable[Outcome[T]]]
    ) -> Outcome[T]:
        return await self._step(shard, call, lambda _: Done(f"{asked}({shard})", call))

    async def _device_step(
        self, device: DeviceKey, call: Callable[[MailboxStore], Awaitable[Outcome[DeviceState]]]
    ) -> Outcome[DeviceState]:
        async with self._admitted() as primary:
            outcome = await call(primary)
            if isinstance(outcome, Applied):
                self._devices.follow(device, outcome.value)
        return outcome

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[MailboxStore]:
        """The primary, for one step; held back while a cut-over is under way."""
        while not self._open.is_set():
            await self._open.wait()
        with self._steps.passing():
            yield self._primary.store

    async def _read(
        self,
        shard: int,
        asked: str,
        call: Callable[[MailboxStore], Awaitable[T]],
        *,
        finished: bool = False,
    ) -> T:
        """The primary's answer. It is compared only if no step that could show in it (`finished`:
        but for expiry none can) was under way.
        """
        follower = self._shards.get(shard)
        if follower is None or self._runtime.random() >= self._compared_share:
            return await call(self._primary.store)
        traffic = follower.trims if finished else follower.steps
        mark = traffic.mark()
        answer = await call(self._primary.store)
        if follower.standing is not None and traffic.still(mark):
            follower.follow(Comparison(asked, call, answer, follower.standing))
        return answer
