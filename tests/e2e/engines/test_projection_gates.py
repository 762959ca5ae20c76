"""The session list is refused where it can't be proved to be complete.

Each fault is made in a partition of its own, so that one start is shown all of them. One of them is
enough for a process to refuse every list.
"""

import json
from pathlib import Path

import pytest
import redis
from aiokafka.protocol.admin import AlterConfigsRequest, DeleteRecordsRequest
from tests.e2e.engines.deployment import SEED_LEASE, TENANT, Deployment, deployed
from tests.e2e.engines.traffic import Traffic

from qimd.adapters.kafka import KafkaLog, delete_topic
from qimd.client import ErrorCode, QimError
from qimd.core.ids import TenantId, UserId
from qimd.core.outcome import Applied
from qimd.core.routing import RoutingTable
from qimd.ports.log import ProduceRecord

PARTITIONS = 8
IDENTITY = ("format_version", "topic", "partitions", "cluster_id", "topic_id")
"""Each is another one in the checkpoint of the partition that has its place here."""
AHEAD, MISSING, GOOD = 5, 6, 7
TOPIC = 2
"""Kafka's number for the kind of resource."""


def users() -> list[str]:
    """A user in each partition, in its place."""
    table = RoutingTable(1, PARTITIONS, 1)
    found: dict[int, str] = {}
    number = 0
    while len(found) < PARTITIONS:
        user = f"user-{number}"
        found.setdefault(table.mailbox(TenantId(TENANT), UserId(user))[0], user)
        number += 1
    return [found[partition] for partition in range(PARTITIONS)]


def spoil(deployment: Deployment) -> None:
    """Make every partition's checkpoint wrong in another way, but for the good one's."""
    host, _, port = deployment.at("redis").rpartition(":")
    client = redis.Redis(host, int(port))
    key = f"{deployment.name}:projection:partition:%d"
    for partition, field in enumerate(IDENTITY):
        meta = json.loads(client.hget(key % partition, "meta"))  # type: ignore[arg-type]
        assert set(meta) == set(IDENTITY)
        meta[field] = meta[field] + 1 if isinstance(meta[field], int) else meta[field] + "x"
        client.hset(key % partition, "meta", json.dumps(meta, sort_keys=True))
    client.hset(key % AHEAD, "next_offset", 1_000_000)
    assert client.delete(key % MISSING) == 1
    client.close()


async def drop_first_record(log: KafkaLog, partition: int) -> None:
    """What retention does."""
    reply = await log.brokers.ask_any(DeleteRecordsRequest([(log.topic, [(partition, 1)])], 10_000))
    ((_, ((_, low, code, *_),), *_),) = reply.topics
    assert (low, code) == (1, 0)


async def keep_only(log: KafkaLog, retention_ms: int) -> None:
    """Set the topic's retention."""
    settings = [("retention.ms", str(retention_ms)), ("message.timestamp.type", "LogAppendTime")]
    reply = await log.brokers.ask_any(AlterConfigsRequest([(TOPIC, log.topic, settings)], False))
    assert [code for code, *_ in reply.resources] == [0]


async def refusals(traffic: Traffic) -> list[ErrorCode]:
    """With what each partition's user is refused their list."""
    found = []
    for user in users():
        async with traffic.client(user, "phone") as client:
            with pytest.raises(QimError) as refused:
                [row async for row in client.sessions()]
            found.append(refused.value.code)
    return found


async def test_a_list_that_can_not_be_proved_complete_is_refused(tmp_path: Path) -> None:
    async with deployed(tmp_path, lease=SEED_LEASE, mailbox_shards=PARTITIONS) as deployment:
        server = deployment.process("server", "all")
        await server.start()
        deployment.lead_to(server)
        traffic = Traffic(deployment, ["room"], users())
        await traffic.set_up()
        await traffic.verify()
        await deployment.stop(server)

        spoil(deployment)
        async with deployment.log() as log:
            await drop_first_record(log, MISSING)
        await server.start()
        deployment.lead_to(server)
        assert await refusals(traffic) == [ErrorCode.SESSION_PROJECTION_DIRTY] * PARTITIONS
        partitions = await deployment.administrate(lambda admin: admin.projection_partitions())
        why = {one.partition: one.dirty for one in partitions}
        for partition in range(len(IDENTITY)):
            assert "another log, format or partition count" in why[partition]
        assert "is outside of the log's" in why[AHEAD]
        assert "there is no checkpoint, and the log begins at 1" in why[MISSING]
        assert why[GOOD] == ""
        await deployment.stop(server)

        # The same name and settings, other records, and more of them than there were.
        async with deployment.log() as log:
            await delete_topic(log)
            await deployment.make_topic()
            producer = await log.open_producer()
            filler = [ProduceRecord(n % PARTITIONS, b"filler") for n in range(20 * PARTITIONS)]
            assert all(isinstance(one, Applied) for one in await producer.produce(filler))
        await server.start()
        partitions = await deployment.administrate(lambda admin: admin.projection_partitions())
        assert all(one.dirty for one in partitions)
        assert "another log" in partitions[GOOD].dirty


async def test_a_log_that_keeps_too_little_or_has_other_partitions_is_refused(
    deployment: Deployment,
) -> None:
    fewer = deployment.process("fewer", "session", "--mailbox-shards", "4")
    assert "partitions: the topic has 2, not 4" in await fewer.refuses()
    assert fewer.exit_status == 2
    for retention_ms in (1_000, -1):
        async with deployment.log() as log:
            await keep_only(log, retention_ms)
        server = deployment.process(f"keeps-{retention_ms}", "session")
        assert f"retention.ms: it is {retention_ms}" in await server.refuses()
        assert server.exit_status == 2
