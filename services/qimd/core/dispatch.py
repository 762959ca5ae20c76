"""From members to dispatches: who receives an event, and how the recipients are cut into records.

Pure, so that a replay after a crash builds the same records from what the event pins.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qimd.core.ids import TenantId, UserId
from qimd.core.records import LaneBlock
from qimd.core.routing import RoutingTable


@dataclass(frozen=True, slots=True)
class Chunk:
    """The recipients of one record: `index` counts within the mailbox shard, from 0."""

    mailbox_shard: int
    index: int
    blocks: tuple[LaneBlock, ...]


def plan_chunks(
    table: RoutingTable, tenant: TenantId, recipients: Iterable[UserId], chunk_recipients: int
) -> tuple[Chunk, ...]:
    """Cut distinct recipients into chunks, ordered by (mailbox shard, lane, user bytes).

    Ordering by lane first means that a chunk touches few lanes. Its length is the event's
    chunk_count.
    """
    by_shard: dict[int, list[tuple[int, bytes, UserId]]] = defaultdict(list)
    for user in recipients:
        shard, lane = table.mailbox(tenant, user)
        by_shard[shard].append((lane, user.encode(), user))
    chunks: list[Chunk] = []
    for shard in sorted(by_shard):
        ordered = sorted(by_shard[shard])
        for index, start in enumerate(range(0, len(ordered), chunk_recipients)):
            part = ordered[start : start + chunk_recipients]
            chunks.append(Chunk(shard, index, _blocks(part)))
    return tuple(chunks)


def _blocks(ordered: Sequence[tuple[int, bytes, UserId]]) -> tuple[LaneBlock, ...]:
    users: dict[int, list[UserId]] = defaultdict(list)
    for lane, _, user in ordered:
        users[lane].append(user)
    return tuple(LaneBlock(lane, tuple(members)) for lane, members in users.items())
