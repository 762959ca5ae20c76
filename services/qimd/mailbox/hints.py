"""Hints to users who are online, after the durable W covers what they are told of.

Insert first, then look at presence: a stream that registers its presence before its first PULL
either is found here, or pulls what was inserted. A hint that is lost costs latency, never data.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from qimd.contract.events import encode_delivered
from qimd.core.errors import QimError
from qimd.core.ids import TenantId, UserId
from qimd.mailbox.ports import RoomPorts
from qimd.ports.mailbox import RecordStep, mask_users
from qimd.ports.services import Hint
from qimd.telemetry.logs import logger

_log = logger("mailbox")


@dataclass(frozen=True, slots=True)
class Materialised:
    """A record and the lanes (a mask) of it that have entries now.

    `trace_parent` is empty unless the trace is recorded.
    """

    record: RecordStep
    applied: int
    trace_parent: str = ""


async def hint(ports: RoomPorts, materialised: Sequence[Materialised]) -> Sequence[RecordStep]:
    """Push a batch to those who are online: one read of bodies, each record encoded once.

    Returns the records that somebody was told of.
    """
    online: list[tuple[Materialised, Collection[UserId]]] = []
    # Most records of a batch are for the same users: who of them is here is asked once for all.
    found: dict[tuple[TenantId, int, int], tuple[list[UserId], Collection[UserId]]] = {}
    for done in materialised:
        ref, blocks = done.record.ref, done.record.blocks
        audience = (ref.key.tenant, id(blocks), done.applied)
        if audience not in found:
            users = mask_users(blocks, done.applied)
            found[audience] = (users, ports.hints.online(ref.key.tenant, users))
        users, here = found[audience]
        if ports.supplement is not None:
            ports.supplement.touched(ref.key, users, ref.created_at_ms)
        if here:
            online.append((done, here))
    if not online:
        return ()
    try:
        bodies = await ports.conversations.events([done.record.ref for done, _ in online])
    except QimError as error:
        _log.info("hints were lost: bodies can't be read", error=str(error), records=len(online))
        return ()
    told = [(done, here) for done, here in online if done.record.ref.event_id in bodies]
    if told:
        ports.hints.push(
            [
                Hint(
                    done.record.ref.key.tenant,
                    here,
                    encode_delivered(done.record.seq, bodies[done.record.ref.event_id]),
                    done.trace_parent,
                )
                for done, here in told
            ]
        )
    ports.metrics.stage_records_total.labels("push").inc(len(told))
    return [done.record for done, _ in told]
