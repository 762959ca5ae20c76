"""What keeps a device's place right, rule by rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tests.models import cursors
from tests.models.cursors import Client, CursorsModel, Device, DevicePromise, Reading, Shard
from tests.models.rules import Removal

from qimd.contract.cursor import CursorClaims
from qimd.core.seq import MailboxSeq, before_offset, mailbox_seq
from qimd.mailbox import cursor, logic
from qimd.mailbox.cursor import Raise
from qimd.ports.mailbox import DeviceState, ShardState


def _models(*sizes: tuple[int, int, int, int]) -> list[CursorsModel]:
    """The sizes: records, rebases, expiries, breaks; the smallest first."""
    return [CursorsModel(DevicePromise(), *size) for size in sizes]


SMALL: Final = _models((2, 0, 0, 0), (2, 0, 0, 1), (2, 1, 0, 0), (2, 0, 1, 0), (2, 0, 1, 1))
MODELS: Final = _models((3, 1, 0, 1), (2, 0, 1, 1), (1, 1, 1, 1))


def _whatever(last_applied: int, _: MailboxSeq) -> MailboxSeq:
    return MailboxSeq(last_applied)


def _as_presented(last_applied: int, _: int, watermark: MailboxSeq, __: MailboxSeq) -> Raise | None:
    position = cursor.check_position(last_applied, watermark)
    return Raise(position, position)


def _believed(last_applied: int, _: DeviceState) -> MailboxSeq:
    return MailboxSeq(last_applied)


def _nothing_lost(_: MailboxSeq, __: MailboxSeq) -> None:
    return None


def _covered_to_w(_: Sequence[MailboxSeq], through: MailboxSeq, *, whole: bool) -> MailboxSeq:
    return through


def _floor_at_first(_: Shard, reading: Reading) -> MailboxSeq:
    return reading.floor


def _w_of_the_shard(state: ShardState, _: int) -> MailboxSeq:
    return state.position


def _at_the_end(_: DevicePromise, shard: Shard, __: MailboxSeq) -> Device:
    return Device(shard.position, shard.position)


def _as_told(_: DevicePromise, __: Device, move: Raise) -> Device:
    return Device(move.position, move.handed)


def _anybodys(claims: CursorClaims, state: ShardState) -> bool:
    return cursor.check_claims(
        replace(claims, device=cursors.PHONE), cursors.PHONE, 0, 3, state.boundaries
    )


def _numbers_again(_: DevicePromise, shard: Shard) -> Shard:
    renumbered = tuple(mailbox_seq(shard.epochs, place) for place in range(len(shard.held)))
    return shard._replace(
        position=before_offset(shard.epochs, 0),
        standing=None,
        entries=tuple(sorted((*shard.entries, *renumbered))),
        held=(),
    )


def _push_moves(client: Client, newest: MailboxSeq) -> Client:
    return client._replace(handed=max(client.handed, newest))


def _floor_of_the_shard(state: ShardState) -> MailboxSeq:
    return state.position


REMOVALS: Final = (
    Removal("a PULL is within W", cursor, "check_position", _whatever, SMALL, "beyond W is served"),
    Removal(
        "an ACK is within what PULLs handed over",
        cursor,
        "ack_now",
        _as_presented,
        SMALL,
        "is accepted",
    ),
    Removal(
        "an ACK that changes nothing is within what is stored",
        cursor,
        "ack_stored",
        _believed,
        SMALL,
        "is accepted",
    ),
    Removal("what is gone is told", cursor, "lost", _nothing_lost, SMALL, "never saw"),
    Removal(
        "a page covers no more than it shows", cursor, "covered", _covered_to_w, SMALL, "never saw"
    ),
    Removal(
        "the floor is looked at behind the entries",
        cursors,
        "floor_of",
        _floor_at_first,
        SMALL,
        "never saw",
    ),
    Removal(
        "the floor rises before entries go",
        DevicePromise,
        "floor_rises_first",
        False,
        SMALL,
        "never saw",
    ),
    Removal(
        "a page ends at W of the lane, not at the shard's position",
        cursors,
        "watermark",
        _w_of_the_shard,
        SMALL,
        "never saw",
    ),
    Removal(
        "a new device begins at the floor",
        DevicePromise,
        "opened",
        _at_the_end,
        SMALL,
        "is stored, PULLs handed",
    ),
    Removal(
        "a stored position only rises",
        DevicePromise,
        "acked",
        _as_told,
        SMALL,
        "takes the stored position back",
    ),
    Removal(
        "a cursor is its device's alone",
        cursors,
        "presented_by",
        _anybodys,
        SMALL,
        "another device's cursor",
    ),
    Removal(
        "a rebase numbers above all that was given",
        DevicePromise,
        "rebased",
        _numbers_again,
        SMALL,
        "never saw",
    ),
    Removal(
        "PUSH_EVENTS moves no position",
        cursors,
        "handed_by_push",
        _push_moves,
        SMALL,
        "is accepted",
    ),
    Removal(
        "a lane that lags holds the floor",
        logic,
        "lowest_watermark",
        _floor_of_the_shard,
        SMALL,
        "the floor passes W",
    ),
)
