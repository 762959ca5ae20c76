"""A device's place in its mailbox: PULL, ACK, expiry, a lane that lags, an operator's rebase.

Why it is hard. A position that is moved too far loses messages for good: nobody ever asks for them
again. A page is read while its entries may go, a stream breaks between a page and its ACK, the app
is installed anew and begins where the server says that it was, a lane's W stands while the shard's
position goes on, and after a rebase the numbers begin anew, above all that were given.

One honest client keeps what it was handed and is told what is lost. Beside it anybody presents
what was never handed out: positions, and the cursor of another device. What runs is the room's own
`mailbox.cursor` (claims, positions, ACKs, pages, what is lost) and `mailbox.logic.expired_floor`,
over `ports.mailbox.watermark`. Stores and streams are small functions by their docstrings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.models.explore import Steps

from qimd.contract.cursor import CursorClaims
from qimd.core.errors import QimError
from qimd.core.ids import DeviceId, TenantId, UserId
from qimd.core.parameters import BUCKET_DAYS_KEPT
from qimd.core.records import DeviceKey
from qimd.core.seq import SEQ_NONE, MailboxSeq, before_offset, epoch_of, mailbox_seq, offset_of
from qimd.mailbox import cursor, logic
from qimd.mailbox.cursor import Raise
from qimd.ports.mailbox import (
    DayBucket,
    DeviceState,
    EpochBoundary,
    ShardState,
    watermark,
)

LANE: Final = 3
SHARD: Final = 0
PHONE: Final = DeviceKey(TenantId("acme"), UserId("anna"), DeviceId("phone"))
LAPTOP: Final = DeviceKey(TenantId("acme"), UserId("anna"), DeviceId("laptop"))
START: Final = before_offset(1, 0)

Entries = tuple[MailboxSeq, ...]
"""Seqs of entries; which events they refer to plays no part."""


class Shard(NamedTuple):
    """A mailbox shard, and one user's entries. Each record comes on a day of its own."""

    epochs: int = 1
    position: MailboxSeq = START
    standing: MailboxSeq | None = None
    """W of the user's lane while it lags."""
    floor: MailboxSeq = SEQ_NONE
    shown_floor: MailboxSeq = SEQ_NONE
    """What readers see of the floor: raised before anything below it goes."""
    days: tuple[MailboxSeq, ...] = ()
    """The first record of each day."""
    entries: Entries = ()
    held: Entries = ()
    """Of records that the shard has passed and the lane has not."""


class Device(NamedTuple):
    """What the store keeps of the device; acked and handed as DeviceState says."""

    acked: MailboxSeq
    handed: MailboxSeq


class Reading(NamedTuple):
    """A PULL under way: checked and its W taken, then its entries read, then answered."""

    after: MailboxSeq
    through: MailboxSeq
    floor: MailboxSeq
    """As it was at the begin: what a wrong order would answer by."""
    found: Entries | None = None


class Client(NamedTuple):
    """The honest client."""

    applied: MailboxSeq | None = None
    """Its own position; None if it is new, or was installed anew."""
    token: int = 0
    """The shard_epoch of its cursor; 0 while it has no stream."""
    handed: MailboxSeq = SEQ_NONE
    """What the server's end of the stream remembers as handed over."""
    got: MailboxSeq = SEQ_NONE
    """What PULLs of this stream really handed over. To judge by."""
    pulled: bool = False
    """A PULL was answered on this stream."""
    have: frozenset[MailboxSeq] = frozenset()
    lost: frozenset[MailboxSeq] = frozenset()
    """Entries of which it was told that they are gone."""
    missed: frozenset[MailboxSeq] = frozenset()
    """What was gone before the device was made: nobody owes it that."""


class World(NamedTuple):
    """Everything. `made` are all entries that there ever were."""

    shard: Shard = Shard()
    client: Client = Client()
    device: Device | None = None
    reading: Reading | None = None
    made: frozenset[MailboxSeq] = frozenset()
    most: MailboxSeq = SEQ_NONE
    """The most that PULLs ever handed to the device, or that was told it as gone. To judge by."""
    wrong: str = ""
    records: int = 0
    rebases: int = 0
    expiries: int = 0
    breaks: int = 0


class DevicePromise:
    """`ports.mailbox`: what a device's steps and a shard's expiry promise."""

    floor_rises_first = True
    """expire_buckets: what is half gone is never pulled."""

    def opened(self, shard: Shard, floor: MailboxSeq) -> Device:
        """A new device begins at the floor."""
        return Device(floor, floor)

    def acked(self, device: Device, move: Raise) -> Device:
        """Both only rise."""
        return Device(max(device.acked, move.position), max(device.handed, move.handed))

    def rebased(self, shard: Shard) -> Shard:
        """begin_epoch, twice: the manifest's epoch, then the log's."""
        manifest = shard.epochs + 1
        renumbered = tuple(mailbox_seq(manifest, place) for place in range(len(shard.held)))
        return shard._replace(
            epochs=manifest + 1,
            position=before_offset(manifest + 1, 0),
            standing=None,
            entries=(*shard.entries, *renumbered),
            held=(),
        )


def presented_by(claims: CursorClaims, state: ShardState) -> bool:
    """Whether the token has to be replaced. Raises CURSOR_INVALID."""
    return cursor.check_claims(claims, PHONE, SHARD, LANE, state.boundaries)


def floor_of(shard: Shard, reading: Reading) -> MailboxSeq:
    """A PULL looks at the floor last, behind the entries."""
    return shard.shown_floor


def handed_by_push(client: Client, _: MailboxSeq) -> Client:
    """PUSH_EVENTS is a hint: it moves nothing."""
    return client


@dataclass(frozen=True)
class CursorsModel:
    """See the module."""

    store: DevicePromise
    records: int
    rebases: int
    expiries: int
    breaks: int
    """Streams that break, or apps that are installed anew."""
    page_events: int = 1

    @property
    def name(self) -> str:
        return "cursor, ACK and rebase of a device"

    @property
    def bounds(self) -> Mapping[str, int]:
        return {
            "records": self.records,
            "rebases": self.rebases,
            "expiries": self.expiries,
            "breaks": self.breaks,
            "events a page": self.page_events,
        }

    def initial(self) -> World:
        return World()

    # --- what may happen ---

    def steps(self, world: World) -> Steps[World]:
        yield from self._shard_steps(world)
        if world.client.token == 0:
            yield self._connects(world)
            return
        yield from self._breaks(world)
        if world.reading is None:
            yield from self._requests(world)
        elif world.reading.found is None:
            yield self._reads(world, world.reading)
        else:
            yield self._answers(world, world.reading, world.reading.found)
        yield from self._lies(world)

    # --- the shard ---

    def _shard_steps(self, world: World) -> Steps[World]:
        shard = world.shard
        if world.records < self.records:
            yield from self._arrivals(world)
        if shard.standing is not None:
            entries = tuple(sorted((*shard.entries, *shard.held)))
            caught_up = shard._replace(standing=None, entries=entries, held=())
            yield "the lane catches up", _made(world._replace(shard=caught_up))
        if world.rebases < self.rebases:
            rebased = self.store.rebased(shard)
            yield (
                "an operator rebases the shard",
                _made(world._replace(shard=rebased, rebases=world.rebases + 1)),
            )
        yield from self._expiry(world)

    def _arrivals(self, world: World) -> Steps[World]:
        shard = world.shard
        if epoch_of(shard.position) == shard.epochs:
            seq = mailbox_seq(shard.epochs, offset_of(shard.position) + 1)
        else:
            seq = mailbox_seq(shard.epochs, 0)
        world = world._replace(records=world.records + 1)
        moved = shard._replace(position=seq, days=(*shard.days, seq))
        yield "a record for others passes", world._replace(shard=moved)
        if shard.standing is None:
            entered = moved._replace(entries=(*shard.entries, seq))
            yield f"an entry at {_at(seq)}", _made(world._replace(shard=entered))
        standing = shard.position if shard.standing is None else shard.standing
        held = moved._replace(standing=standing, held=(*shard.held, seq))
        yield f"the block at {_at(seq)} is refused, its lane stands", world._replace(shard=held)

    def _expiry(self, world: World) -> Steps[World]:
        """The floor rises by whole days, then what lies below it goes: two writes."""
        shard, first = world.shard, self.store.floor_rises_first
        if first and shard.floor < shard.shown_floor:
            yield "entries below the floor go", world._replace(shard=_dropped(shard))
        elif not first and shard.shown_floor < shard.floor:
            shown = shard._replace(shown_floor=shard.floor)
            yield "the floor rises for readers", world._replace(shard=shown)
        elif world.expiries < self.expiries:
            for day in range(1, len(shard.days) + 1):
                now_ms = (day + BUCKET_DAYS_KEPT) * logic.DAY_MS
                floor = logic.expired_floor(_state(shard), now_ms)
                if floor <= shard.floor:
                    continue
                raised = shard._replace(shown_floor=floor)
                if not first:
                    raised = _dropped(raised)._replace(shown_floor=shard.floor)
                words = f"day {day} expires: the floor is to be {_at(floor)}"
                yield words, world._replace(shard=raised, expiries=world.expiries + 1)

    # --- the stream ---

    def _connects(self, world: World) -> tuple[str, World]:
        shard, client = world.shard, world.client
        device = world.device or self.store.opened(shard, shard.shown_floor)
        if world.device is None:
            gone = frozenset(seq for seq in world.made if seq <= shard.shown_floor)
            client = client._replace(missed=gone)
        applied = device.acked if client.applied is None else client.applied
        client = client._replace(
            applied=applied, token=shard.epochs, handed=device.acked, got=device.acked, pulled=False
        )
        words = f"the device connects, at {_at(applied)}"
        return words, world._replace(
            client=client, device=device, most=max(world.most, shard.shown_floor)
        )

    def _breaks(self, world: World) -> Steps[World]:
        if world.breaks >= self.breaks:
            return
        client = world.client._replace(token=0, handed=SEQ_NONE, got=SEQ_NONE, pulled=False)
        broken = world._replace(client=client, reading=None, breaks=world.breaks + 1)
        yield "the stream breaks", broken
        # What was applied and not acknowledged is with the app's data, and goes with it.
        kept = frozenset(seq for seq in client.have if _is_acked(world, seq))
        anew = client._replace(applied=None, have=kept)
        yield "the app is installed anew", broken._replace(client=anew)

    def _requests(self, world: World) -> Steps[World]:
        client, shard = world.client, world.shard
        if client.applied is None:
            return
        through = watermark(_state(shard), LANE)
        pulled = self._pull(world, client.applied, through)
        words = f"PULL from {_at(client.applied)}"
        if pulled.wrong or world.expiries < self.expiries or shard.floor != shard.shown_floor:
            yield words, pulled
        else:
            # Nothing can go meanwhile, so nothing else can happen in between that matters.
            yield self._whole_pull(words, pulled)
        if client.pulled:
            yield from self._ack(world, client.applied)
            yield from self._ack(world, SEQ_NONE)
        if world.made:
            newest = max(world.made)
            pushed = handed_by_push(client, newest)
            if pushed != client:
                yield f"PUSH_EVENTS up to {_at(newest)}", world._replace(client=pushed)

    def _pull(self, world: World, presented: MailboxSeq, through: MailboxSeq) -> World:
        try:
            presented_by(_claims(PHONE, world.client.token), _state(world.shard))
            after = cursor.check_position(presented, through)
        except QimError as error:
            return world._replace(wrong=f"an honest PULL is refused: {error.message}")
        return world._replace(reading=Reading(after, through, world.shard.shown_floor))

    def _whole_pull(self, words: str, world: World) -> tuple[str, World]:
        if world.reading is not None:
            _, world = self._reads(world, world.reading)
        if world.reading is not None and world.reading.found is not None:
            answer, world = self._answers(world, world.reading, world.reading.found)
            words = f"{words}: {answer}"
        return words, world

    def _reads(self, world: World, reading: Reading) -> tuple[str, World]:
        found = tuple(seq for seq in world.shard.entries if reading.after < seq <= reading.through)[
            : self.page_events + 1
        ]
        return "its entries are read", world._replace(reading=reading._replace(found=found))

    def _answers(self, world: World, reading: Reading, found: Entries) -> tuple[str, World]:
        client, shard = world.client, world.shard
        gone = cursor.lost(reading.after, floor_of(shard, reading))
        world = world._replace(reading=None)
        if gone is not None:
            first, last = gone
            told = frozenset(seq for seq in world.made if first <= seq <= last)
            client = client._replace(
                applied=last,
                token=shard.epochs,
                handed=max(client.handed, last),
                got=max(client.got, last),
                pulled=True,
                lost=client.lost | told,
            )
            world = world._replace(client=client, most=max(world.most, last))
            return f"CURSOR_REBASED: gone up to {_at(last)}", world
        shown = found[: self.page_events]
        covered = cursor.covered(shown, reading.through, whole=len(shown) == len(found))
        if covered < reading.after:
            world = world._replace(wrong="a page takes the position back")
        client = client._replace(
            applied=covered,
            token=shard.epochs,
            handed=max(client.handed, covered),
            got=max(client.got, covered),
            pulled=True,
            have=client.have | set(shown),
        )
        world = world._replace(client=client, most=max(world.most, covered))
        return f"a page of {len(shown)}, covered through {_at(covered)}", world

    def _ack(self, world: World, presented: MailboxSeq) -> Steps[World]:
        answer = self._acked(world, presented)
        if isinstance(answer, QimError):
            wrong = f"an honest ACK is refused: {answer.message}"
            yield f"ACK {_at(presented)}", world._replace(wrong=wrong)
        else:
            back = world.device is not None and answer.acked < world.device.acked
            wrong = "an ACK takes the stored position back" if back else ""
            yield f"ACK {_at(presented)}", world._replace(device=answer, wrong=wrong)

    def _acked(self, world: World, presented: MailboxSeq) -> Device | QimError:
        """What an ACK makes of the stored device, as `MailboxService.ack` has it."""
        shard, device = world.shard, world.device
        if device is None:
            raise AssertionError("a stream without a device")
        through = watermark(_state(shard), LANE)
        try:
            move = cursor.ack_now(presented, world.client.handed, through, shard.shown_floor)
            if move is None:
                cursor.ack_stored(presented, DeviceState(device.acked, device.handed))
                return device
        except QimError as error:
            return error
        return self.store.acked(device, move)

    # --- what was never handed out ---

    def _lies(self, world: World) -> Steps[World]:
        """ACKs of positions beyond what was handed over, and another device's cursor."""
        state, client = _state(world.shard), world.client
        bound = max(client.got, world.shard.shown_floor)
        for seq in sorted({*world.made, *world.shard.held, state.position}):
            if seq <= bound or world.device is None or seq <= world.device.acked:
                continue
            if not isinstance(answer := self._acked(world, seq), QimError):
                wrong = f"an ACK of {_at(seq)} is accepted, handed was {_at(bound)}"
                yield f"somebody ACKs {_at(seq)}", world._replace(device=answer, wrong=wrong)
        beyond = MailboxSeq(watermark(state, LANE) + 1)
        if _accepts(lambda: cursor.check_position(beyond, watermark(state, LANE))):
            wrong = "a PULL from beyond W is served"
            yield "somebody PULLs from beyond W", world._replace(wrong=wrong)
        if _accepts(lambda: presented_by(_claims(LAPTOP, world.shard.epochs), state)):
            wrong = "another device's cursor is accepted"
            yield "somebody PULLs with another device's cursor", world._replace(wrong=wrong)

    # --- what must hold ---

    def problem(self, world: World) -> str:
        if world.wrong:
            return world.wrong
        return _position_problem(world) or _client_problem(world)


def _position_problem(world: World) -> str:
    shard, device = world.shard, world.device
    if max(shard.floor, shard.shown_floor) > watermark(_state(shard), LANE):
        return "the floor passes W of the lane"
    if device is None:
        return ""
    if cursor.moved_by_push(DeviceState(device.acked, device.handed)):
        return "the stored position is beyond what was handed over"
    if device.acked > world.most:
        return f"{_at(device.acked)} is stored, PULLs handed {_at(world.most)}"
    return ""


def _client_problem(world: World) -> str:
    """Whatever lies at or below an honest client's position it has, or was told that it is gone."""
    client = world.client
    if client.applied is None:
        return ""
    known = client.have | client.lost | client.missed
    for seq in sorted(world.made - known):
        if seq <= client.applied:
            return f"the client is at {_at(client.applied)}, and never saw {_at(seq)}"
    return ""


# --- parts -------------------------------------------------------------------------------------


def _state(shard: Shard) -> ShardState:
    return ShardState(
        shard=SHARD,
        term=1,
        next_offset=0,
        position=shard.position,
        lagging={} if shard.standing is None else {LANE: shard.standing},
        floor=shard.floor,
        lane_last=(),
        boundaries=tuple(EpochBoundary(epoch + 1, 0, "log") for epoch in range(shard.epochs)),
        buckets=tuple(DayBucket(day, seq) for day, seq in enumerate(shard.days)),
    )


def _claims(device: DeviceKey, epoch: int) -> CursorClaims:
    return CursorClaims(SHARD, LANE, epoch, device, 0, "key")


def _made(world: World) -> World:
    return world._replace(made=world.made | set(world.shard.entries))


def _dropped(shard: Shard) -> Shard:
    floor = shard.shown_floor
    kept = tuple(seq for seq in shard.entries if seq > floor)
    return shard._replace(floor=floor, entries=kept)


def _is_acked(world: World, seq: MailboxSeq) -> bool:
    return world.device is not None and seq <= world.device.acked


def _accepts(check: object) -> bool:
    try:
        check()
    except QimError:
        return False
    return True


def _at(seq: MailboxSeq) -> str:
    """A seq in words: shard_epoch and offset, or that it lies before an epoch's first."""
    if seq == SEQ_NONE:
        return "nothing"
    if seq & 0xFF:
        return f"the begin of {epoch_of(seq + 1)}"
    return f"{epoch_of(seq)}/{offset_of(seq)}"
