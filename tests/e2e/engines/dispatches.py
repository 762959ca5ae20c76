"""What a topic holds, and records that nobody in their right mind would append to it."""

from collections.abc import Sequence
from typing import Final

from aiokafka.protocol.admin import DeleteRecordsRequest
from tests.e2e.engines.deployment import SHARDS, TENANT, Deployment, Process, until

from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch
from qimd.adapters.kafka import KafkaLog
from qimd.contract import codec
from qimd.core.ids import EventId, TenantId, UserId, dispatch_id
from qimd.core.outcome import Applied
from qimd.core.routing import RoutingTable
from qimd.ports.log import ProduceRecord

STRANGERS: Final = tuple(f"stranger-{number}" for number in range(8))
"""In no room: lanes of theirs have met no epoch."""


async def records(log: KafkaLog) -> list[GroupDispatch]:
    """Everything that the topic holds."""
    found = []
    for partition in range(SHARDS):
        marks = await log.watermarks(partition)
        reader = await log.open_reader(partition, marks.low)
        position = marks.low
        while position < marks.high:
            for record in await reader.fetch(500, 1.0):
                found.append(GroupDispatch.FromString(record.value))
                position = record.offset + 1
    return found


def forged(real: Sequence[GroupDispatch], old_epoch: int, count: int) -> list[ProduceRecord]:
    """Records of committed events under the old epoch, cut in another way, so that no dispatch_id
    absorbs them: for members and, every other one, for a stranger, whose lane met no epoch.
    """
    table = RoutingTable(1, SHARDS, SHARDS)
    made = []
    for number in range(count):
        record = GroupDispatch()
        record.CopyFrom(real[number % len(real)])
        record.fencing_epoch = old_epoch
        record.chunk_index, record.chunk_count = number + 1, count + 1
        event = EventId(record.event_id)
        record.dispatch_id = dispatch_id(event, record.mailbox_shard, record.chunk_index)
        if number % 2:
            places = {user: table.mailbox(TenantId(TENANT), UserId(user)) for user in STRANGERS}
            here = [user for user, place in places.items() if place[0] == record.mailbox_shard]
            del record.blocks[:]
            record.blocks.add(lane=places[here[0]][1], user_ids=here[:1])
        made.append(ProduceRecord(record.mailbox_shard, codec.encode(record)))
    return made


async def append(log: KafkaLog, batch: Sequence[ProduceRecord]) -> None:
    """Have them durable, under a producer of their own."""
    producer = await log.open_producer()
    assert all(isinstance(each, Applied) for each in await producer.produce(batch))
    await producer.close()


async def inject(deployment: Deployment, batch: Sequence[ProduceRecord], process: Process) -> None:
    """Append them as another process would, and return once the mailbox has been past them."""
    async with deployment.log() as log:
        await append(log, batch)

    def is_past() -> bool:
        with deployment.admin_of(process) as admin:
            return all(one.next_offset == one.high_watermark for one in admin.mailbox_shards())

    await until(is_past, "the mailbox has read what was injected")


async def delete_records(log: KafkaLog) -> None:
    """All that there are, as retention does."""
    ends = [(partition, await high(log, partition)) for partition in range(SHARDS)]
    reply = await log.brokers.ask_any(DeleteRecordsRequest([(log.topic, ends)], 10_000))
    ((_, partitions, *_),) = reply.topics
    assert [code for _, _, code, *_ in partitions] == [0] * SHARDS


async def high(log: KafkaLog, partition: int) -> int:
    """The offset behind the partition's last record."""
    return (await log.watermarks(partition)).high
