"""mailbox_seq: `(0, shard_epoch: 12, log offset: 43, index: 8 bits)` in a uint64.

A pure function of the log, so a replay or a standby gives the same numbers. Its top bit is 0: it
fits a signed 64-bit integer. Stored as 8 big-endian bytes or as such an integer, never as a double.
"""

from typing import Final, NewType

from qimd.core.parameters import LOG_OFFSET_MAX, SHARD_EPOCH_MAX

MailboxSeq = NewType("MailboxSeq", int)

_INDEX_BITS: Final = 8
_OFFSET_BITS: Final = 43
SEQ_NONE: Final = MailboxSeq(0)
"""Below every real one: epochs begin at 1."""
SEQ_MAX: Final = MailboxSeq((1 << 63) - 1)


def mailbox_seq(shard_epoch: int, offset: int) -> MailboxSeq:
    """The seq of the record at `offset`. Raises ValueError outside the bits' range."""
    if not 1 <= shard_epoch <= SHARD_EPOCH_MAX:
        raise ValueError(f"shard_epoch {shard_epoch} is outside 1..{SHARD_EPOCH_MAX}")
    if not 0 <= offset <= LOG_OFFSET_MAX:
        raise ValueError(f"log offset {offset} is outside 0..{LOG_OFFSET_MAX}")
    return MailboxSeq((shard_epoch << (_OFFSET_BITS + _INDEX_BITS)) | (offset << _INDEX_BITS))


def before_offset(shard_epoch: int, offset: int) -> MailboxSeq:
    """The largest seq below the record at `offset`: W once everything before it is finished."""
    return MailboxSeq(mailbox_seq(shard_epoch, offset) - 1)


def epoch_of(seq: int) -> int:
    """The shard_epoch of a seq."""
    return seq >> (_OFFSET_BITS + _INDEX_BITS)


def offset_of(seq: int) -> int:
    """The log offset of a seq."""
    return (seq >> _INDEX_BITS) & LOG_OFFSET_MAX
