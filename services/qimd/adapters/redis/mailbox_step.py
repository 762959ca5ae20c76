"""An ApplyStep as the arguments of `lua/mailbox_apply.lua`: a few packed blobs, however many
records and recipients it has.

Most of a step's cost is one APPEND an entry, so entries of a user that lie in one step are written
by one APPEND: records for the same recipients form a *run*. What must not be lost by that is the
order of a user's entries. So a run ends where a record comes for other recipients of whom some are
the same, and runs are written in the order in which they began.
"""

import json
import struct
from collections.abc import Sequence
from typing import Final

from qimd.adapters.redis.engine import Arg
from qimd.adapters.redis.keys import joined
from qimd.adapters.redis.mailbox_packing import (
    pack_buckets,
    pack_lagging,
    pack_mark,
    pack_record,
    seq_bytes,
)
from qimd.core.ids import TenantId, UserId, sized
from qimd.core.records import ConversationKey, LaneBlock, lane_mask
from qimd.ports.mailbox import ApplyStep, EpochMark, RecordStep

_HEAD: Final = struct.Struct(">Q16s16sHH")
"""A record's seq, dispatch_id and digest, its run, and the bytes of what follows."""

_U16: Final = struct.Struct(">H")
_U64: Final = struct.Struct(">Q")


class _Runs:
    """Gives each record its run, in the order of the records."""

    def __init__(self) -> None:
        self.audiences: dict[tuple[TenantId, int], int] = {}
        """Distinct recipients, by the identity of their blocks: most records of a step share them,
        and the step holds them as long as this lives."""
        self.blocks: list[tuple[TenantId, Sequence[LaneBlock]]] = []
        self.audience_of: list[int] = []
        """Each run's."""
        self._open: dict[int, int] = {}
        """Of each audience, the run that may still grow."""
        self._last: dict[TenantId, dict[UserId, int]] = {}
        """Of each user, the audience of its last record."""

    def of(self, record: RecordStep) -> int:
        """The record's run."""
        audience = self._audience(record)
        run = self._open.get(audience)
        if run is None:
            run = self._open[audience] = len(self.audience_of)
            self.audience_of.append(audience)
        return run

    def _audience(self, record: RecordStep) -> int:
        place = (record.ref.key.tenant, id(record.blocks))
        audience = self.audiences.get(place)
        if audience is None:
            audience = self.audiences[place] = len(self.blocks)
            self.blocks.append((record.ref.key.tenant, record.blocks))
        if audience not in self._open:
            self._close_others(audience)
        return audience

    def _close_others(self, audience: int) -> None:
        """End the runs that share users with the one that begins."""
        tenant, blocks = self.blocks[audience]
        users = [user for block in blocks for user in block.users]
        last = self._last.setdefault(tenant, {})
        for other in set(map(last.get, users)):
            if other is not None:
                self._open.pop(other, None)
        last.update(dict.fromkeys(users, audience))


def arguments(step: ApplyStep) -> list[Arg]:
    """The script's arguments behind the prefix, in its order."""
    runs = _Runs()
    records = b"".join(_packed(runs.of(record), record, step.at_ms) for record in step.records)
    arguments: list[Arg] = [
        step.shard,
        step.term,
        step.request_id,
        seq_bytes(step.expected_position),
        seq_bytes(step.position),
        step.next_offset,
        pack_lagging(step.lagging),
        records,
        b"".join(_marked(key, mark) for key, mark in step.marks),
        pack_buckets(step.buckets),
        b"".join(map(_U16.pack, runs.audience_of)),
    ]
    for tenant, blocks in runs.blocks:
        # LaneBlock is a tuple: this gives [[lane, [user, ...]], ...], all of it in C.
        lanes = _U64.pack(lane_mask(blocks))
        arguments += (sized(tenant), lanes, json.dumps(blocks, ensure_ascii=False))
    return arguments


def _packed(run: int, record: RecordStep, at_ms: int) -> bytes:
    shared = pack_record(record, at_ms)
    head = _HEAD.pack(record.seq, record.dispatch_id, record.content_digest, run, len(shared))
    return head + shared


def _marked(key: ConversationKey, mark: EpochMark) -> bytes:
    conversation = joined(key)
    return pack_mark(mark) + _U16.pack(len(conversation)) + conversation
