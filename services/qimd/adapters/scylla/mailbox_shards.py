"""A mailbox shard's own row: its state as JSON, and a version that each change raises.

A change reads the row, judges it, and writes under the condition that the version still is the one
that was read. Its owner is the only one who changes a shard, so the condition nearly always holds.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from qimd.adapters.scylla.session import DECISIONS_MAX, Row, Session, Write, contended
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.parameters import LANES
from qimd.core.seq import SEQ_NONE, MailboxSeq, before_offset, epoch_of
from qimd.ports.mailbox import DayBucket, EpochBoundary, RecordVerdict, ShardState

T = TypeVar("T")

STALE_TERM: Final = NotApplied(Refusal.STALE_EPOCH, "the shard's term is not the caller's")
NO_SHARD: Final = NotApplied(Refusal.NOT_FOUND, "the shard was never opened")

_ROW: Final = (
    "SELECT DISTINCT version, state FROM mailbox_shards WHERE deployment = ? AND shard = ?"
)
_SWAP: Final = """
UPDATE mailbox_shards SET version = ?, state = ? WHERE deployment = ? AND shard = ? IF version = ?
"""


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Where the watermarks stood when a shard_epoch ended. Above them nothing of it counts."""

    shard_epoch: int
    position: MailboxSeq
    lagging: Mapping[int, MailboxSeq]

    def covers(self, seq: int, lane: int) -> bool:
        """Whether the lane had finished the record at this seq."""
        return seq <= self.lagging.get(lane, self.position)


@dataclass(frozen=True, slots=True)
class ShardRow:
    """The shard, with what only this engine needs of it."""

    state: ShardState
    version: int | None = None
    """None if it is not stored yet."""
    gone: MailboxSeq = SEQ_NONE
    """Every record at or below it was dropped."""
    collected: MailboxSeq = SEQ_NONE
    """Of what was seen at or below it alone, no progress is left."""
    ends: tuple[EpochEnd, ...] = ()
    last_request_id: bytes = b""
    last_verdicts: tuple[RecordVerdict, ...] = ()

    def begun(self, boundary: EpochBoundary) -> "ShardRow":
        """The shard in its next epoch: the one before ends where its watermarks stand."""
        before = self.state
        end = EpochEnd(before.boundaries[-1].shard_epoch, before.position, before.lagging)
        state = replace(
            before,
            boundaries=(*before.boundaries, boundary),
            next_offset=boundary.first_offset,
            position=before_offset(boundary.shard_epoch, boundary.first_offset),
            lagging={},
        )
        return replace(self, state=state, ends=(*self.ends, end))

    def counts(self, seq: int, lane: int) -> bool:
        """Whether what a lane holds at a seq counts: it does unless its epoch ended before it."""
        epoch = epoch_of(seq)
        return all(end.covers(seq, lane) for end in self.ends if end.shard_epoch == epoch)

    def counted(self, seq: int, lanes: int) -> int:
        """Those of the lanes (a mask) that count."""
        if epoch_of(seq) == self.state.boundaries[-1].shard_epoch:
            return lanes
        finished = sum(1 << lane for lane in range(LANES) if self.counts(seq, lane))
        return lanes & finished


@dataclass(frozen=True, slots=True)
class Become(Generic[T]):
    """What a shard is to become, and what the step gives then."""

    row: ShardRow
    value: T


class Shards:
    """The rows of one deployment."""

    def __init__(self, session: Session, deployment: str) -> None:
        self._session = session
        self._deployment = deployment

    async def row(self, shard: int) -> ShardRow | None:
        """None if it was never opened. Raises QimError(UNAVAILABLE)."""
        return _row(shard, await self._session.rows(_ROW, self._deployment, shard))

    async def decided_row(self, shard: int) -> ShardRow | None:
        """The same once every change that was begun is decided."""
        return _row(shard, await self._session.rows_decided(_ROW, self._deployment, shard))

    async def swap(self, row: ShardRow, writes: Sequence[Write] = ()) -> Outcome[bool]:
        """Store the row, and write to its partition, if the stored version is still the row's."""
        version = 1 if row.version is None else row.version + 1
        place = (self._deployment, row.state.shard)
        return await self._session.decide(
            [Write(_SWAP, (version, _encode(row), *place, row.version)), *writes]
        )

    async def change(
        self,
        shard: int,
        decide: Callable[[ShardRow | None], Become[T] | Outcome[T]],
        known: ShardRow | None = None,
    ) -> Outcome[T]:
        """Have the shard become what is decided of it as it is. Raises QimError(UNAVAILABLE) with
        nothing done.

        `known` saves a read: a row that was read and is to become something, if it still stands.
        """
        for _ in range(DECISIONS_MAX):
            decided = decide(known or await self.decided_row(shard))
            known = None
            if not isinstance(decided, Become):
                return decided
            swapped = await self.swap(decided.row)
            if not isinstance(swapped, Applied):
                return swapped
            if swapped.value:
                return Applied(decided.value)
        return contended()


def held(row: ShardRow | None, term: int) -> ShardRow | NotApplied:
    """The shard, for the owner of this term."""
    if row is None:
        return NO_SHARD
    return row if row.state.term == term else STALE_TERM


# --- JSON -------------------------------------------------------------------------------------


def _encode(row: ShardRow) -> str:
    state = row.state
    return json.dumps(
        {
            "term": state.term,
            "next_offset": state.next_offset,
            "position": state.position,
            "lagging": list(state.lagging.items()),
            "floor": state.floor,
            "gone": row.gone,
            "collected": row.collected,
            "lane_last": state.lane_last,
            "boundaries": [
                (one.shard_epoch, one.first_offset, one.log_identity) for one in state.boundaries
            ],
            "buckets": [(one.day, one.first_seq) for one in state.buckets],
            "ends": [
                (one.shard_epoch, one.position, list(one.lagging.items())) for one in row.ends
            ],
            "last_request_id": row.last_request_id.hex(),
            "last_verdicts": [
                (one.applied, one.duplicate, one.digest_differs) for one in row.last_verdicts
            ],
        },
        separators=(",", ":"),
    )


def _row(shard: int, rows: Sequence[Row]) -> ShardRow | None:
    if not rows or rows[0][0] is None:
        return None
    version, text = rows[0]
    stored = json.loads(text)
    state = ShardState(
        shard=shard,
        term=stored["term"],
        next_offset=stored["next_offset"],
        position=stored["position"],
        lagging=dict(stored["lagging"]),
        floor=stored["floor"],
        lane_last=tuple(stored["lane_last"]),
        boundaries=tuple(EpochBoundary(*one) for one in stored["boundaries"]),
        buckets=tuple(DayBucket(*one) for one in stored["buckets"]),
    )
    return ShardRow(
        state=state,
        version=version,
        gone=stored["gone"],
        # A row of schema 1 has none.
        collected=stored.get("collected", SEQ_NONE),
        ends=tuple(
            EpochEnd(epoch, position, dict(lagging)) for epoch, position, lagging in stored["ends"]
        ),
        last_request_id=bytes.fromhex(stored["last_request_id"]),
        last_verdicts=tuple(RecordVerdict(*one) for one in stored["last_verdicts"]),
    )
