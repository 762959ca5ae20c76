"""Hints to users who are online, after the durable W covers what they are told of.

Insert first, then look at presence: a stream that registers its presence before its first PULL
either is found here, or pulls what was inserted. A hint that is lost costs latency, never data.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from qimd.contract.events import encode_delivered
from qimd.core.errors import QimError
from qimd.core.ids import UserId
from qimd.mailbox.ports import RoomPorts
from qimd.ports.mailbox import RecordStep, mask_users
from qimd.ports.services import Hint
from qimd.telemetry.logs import logger

_log = logger("mailbox")


@dataclass(frozen=True, slots=True)
class Materialised:
    """A record and the lanes (a mask) of it that have entries now."""

    record: RecordStep
    applied: int


async def hint(ports: RoomPorts, materialised: Sequence[Materialised]) -> None:
    """Push a batch to those who are online: one read of bodies, each record encoded once."""
    online: list[tuple[RecordStep, Collection[UserId]]] = []
    for done in materialised:
        ref = done.record.ref
        users = mask_users(done.record.blocks, done.applied)
        if ports.supplement is not None:
            ports.supplement.touched(ref.key, users, ref.created_at_ms)
        if here := ports.hints.online(ref.key.tenant, users):
            online.append((done.record, here))
    if not online:
        return
    try:
        bodies = await ports.conversations.events([record.ref for record, _ in online])
    except QimError as error:
        _log.info("hints were lost: bodies can't be read", error=str(error), records=len(online))
        return
    hints = [
        Hint(record.ref.key.tenant, here, encode_delivered(record.seq, body))
        for record, here in online
        if (body := bodies.get(record.ref.event_id)) is not None
    ]
    if hints:
        ports.hints.push(hints)
    ports.metrics.stage_records_total.labels("push").inc(len(hints))
