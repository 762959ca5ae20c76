"""What a shard decides about positions: may this PULL or ACK be, and what does it get.

A position that is accepted too early loses messages for good: the device never asks for them again.
So each check errs on the side of CURSOR_INVALID, and nothing here moves a position by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from qimd.contract.cursor import CursorClaims
from qimd.core.errors import ErrorCode, QimError, invalid
from qimd.core.parameters import PAGE_BYTES_MAX, PAGE_ENTRY_OVERHEAD_BYTES, PAGE_EVENTS_MAX
from qimd.core.records import DeviceKey
from qimd.core.seq import MailboxSeq
from qimd.ports.mailbox import DeviceState, EpochBoundary


def cursor_invalid(message: str) -> QimError:
    """CURSOR_INVALID."""
    return QimError(ErrorCode.CURSOR_INVALID, message)


def check_claims(
    claims: CursorClaims,
    device: DeviceKey,
    shard: int,
    lane: int,
    boundaries: Sequence[EpochBoundary],
) -> bool:
    """Whether the token must be replaced: it is of an older shard_epoch, and served all the same.

    Raises QimError(CURSOR_INVALID) for a token of another device, shard or lane, or of an epoch
    that this shard never had.
    """
    if claims.device != device:
        raise cursor_invalid("the cursor belongs to another device")
    if (claims.mailbox_shard, claims.lane) != (shard, lane):
        raise cursor_invalid("the cursor belongs to another mailbox shard or lane")
    if all(claims.shard_epoch != boundary.shard_epoch for boundary in boundaries):
        raise cursor_invalid("the cursor's shard_epoch is none of this shard's")
    return claims.shard_epoch != boundaries[-1].shard_epoch


def check_position(last_applied: int, watermark: MailboxSeq) -> MailboxSeq:
    """The position. Raises QimError(CURSOR_INVALID) unless it lies in [0, W]."""
    if not 0 <= last_applied <= watermark:
        raise cursor_invalid("last_applied_mailbox_seq is beyond what was delivered")
    return MailboxSeq(last_applied)


def lost(after: MailboxSeq, floor: MailboxSeq) -> tuple[MailboxSeq, MailboxSeq] | None:
    """The first and the last seq behind a position that are gone; None if everything is there."""
    return (MailboxSeq(after + 1), floor) if after < floor else None


def covered(shown: Sequence[MailboxSeq], through: MailboxSeq, *, whole: bool) -> MailboxSeq:
    """How far a page reaches: to the watermark that it was read under, or to its last entry if
    more of them follow. Nothing that the device was not handed lies at or below.
    """
    return through if whole else shown[-1]


def page_limit(limit: int) -> int:
    """Events of a page. Raises QimError(INVALID_ARGUMENT) unless 0 (the most) or 1 to 500."""
    if not 0 <= limit <= PAGE_EVENTS_MAX:
        raise invalid(f"limit is {limit}; it must be 1 to {PAGE_EVENTS_MAX}, or 0", "limit")
    return limit or PAGE_EVENTS_MAX


def fitting(sizes: Sequence[int]) -> int:
    """How many events, of these encoded sizes, a page takes: at least one, so it always moves."""
    room = PAGE_BYTES_MAX
    for count, size in enumerate(sizes):
        room -= size + PAGE_ENTRY_OVERHEAD_BYTES
        if room < 0 < count:
            return count
    return len(sizes)


@dataclass(frozen=True, slots=True)
class Raise:
    """An ACK that may move the device's position."""

    position: MailboxSeq
    handed: MailboxSeq


def ack_now(
    last_applied: int, handed: int, watermark: MailboxSeq, floor: MailboxSeq
) -> Raise | None:
    """What an ACK does, as far as this stream's PULLs decide; None if the stored state must.

    Raises QimError(CURSOR_INVALID) outside [0, W].
    """
    position = check_position(last_applied, watermark)
    # A stream that was told CURSOR_REBASED continues at the floor: nothing below can be handed.
    presented = MailboxSeq(max(min(handed, watermark), floor))
    return Raise(position, presented) if position <= presented else None


def ack_stored(last_applied: int, stored: DeviceState) -> MailboxSeq:
    """The stored position, for an ACK that lies beyond what the stream was handed.

    Raises QimError(CURSOR_INVALID) unless it changes nothing.
    """
    if last_applied > stored.acked:
        raise cursor_invalid("last_applied_mailbox_seq is beyond what this stream pulled")
    return stored.acked


def moved_by_push(state: DeviceState) -> bool:
    """The invariant's detector: the position is beyond everything that was handed by a PULL."""
    return state.acked > state.handed
