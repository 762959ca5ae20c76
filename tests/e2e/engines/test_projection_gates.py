"""The session list is refused where it can't be proved to be complete; so are mailboxes.

Each fault is made in a partition of its own, so that one start is shown all of them. One of them is
enough for a process to refuse every list; a mailbox shard halts alone.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from aiokafka.protocol.admin import AlterConfigsRequest, DeleteRecordsRequest
from tests.contract.builders import value
from tests.contract.kafka_rights import AUTHORIZED, hide_topic_settings
from tests.e2e.engines.deployment import (
    SEED_LEASE,
    SHARDS,
    TENANT,
    Deployment,
    Process,
    deployed,
    owned_by,
    until,
)
from tests.e2e.engines.traffic import Traffic
from tests.engines.kafka import Kafka

from qimd.adapters.kafka import KafkaLog, delete_topic
from qimd.adapters.redis import open_redis
from qimd.client import ErrorCode, QimError
from qimd.core.ids import TenantId, UserId
from qimd.core.outcome import Applied
from qimd.core.routing import RoutingTable
from qimd.ports.log import ProduceRecord
from qimd.ports.mailbox import EpochBoundary

PARTITIONS = 8
IDENTITY = ("format_version", "topic", "partitions", "cluster_id", "topic_id")
"""Each is another one in the checkpoint of the partition that has its place here."""
AHEAD, MISSING, GOOD = 5, 6, 7
_HALTED = 'shard_halted{kind="mailbox"'
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


async def spoil_mailboxes(deployment: Deployment) -> None:
    """The same for mailbox shards, whose identity of the log is the cluster's and the topic's."""
    stores = await open_redis(f"redis://{deployment.at('redis')}", deployment.name)
    for shard, boundary in {
        0: (3, "x{cluster}/{topic}"),
        1: (3, "{cluster}/{topic}x"),
        AHEAD: (1_000_000, "{cluster}/{topic}"),
        MISSING: (0, "{cluster}/{topic}"),
    }.items():
        state = await stores.mailbox.shard_state(shard)
        assert state is not None
        cluster, topic = state.boundaries[-1].log_identity.rsplit("/", 1)
        first, identity = boundary
        spoilt = EpochBoundary(2, first, identity.format(cluster=cluster, topic=topic))
        value(await stores.mailbox.begin_epoch(shard, state.term, spoilt))
    await stores.close()


async def halted(deployment: Deployment, process: Process, shards: int) -> dict[int, str]:
    """Why mailbox shards have halted, once so many have."""

    def so_many() -> bool:
        found = process.samples().items()
        return shards == sum(n for name, n in found if name.startswith(_HALTED))

    await until(so_many, f"{shards} shards have halted")
    found = await deployment.administrate(lambda admin: admin.mailbox_shards())
    return {one.mailbox_shard_id: one.fault for one in found if one.fault}


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

        await spoil_mailboxes(deployment)
        await server.start()
        assert await halted(deployment, server, 4) == {
            **dict.fromkeys((0, 1), "identity_changed"),
            **dict.fromkeys((AHEAD, MISSING), "out_of_range"),
        }
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
        everywhere = dict.fromkeys(range(PARTITIONS), "identity_changed")
        assert await halted(deployment, server, PARTITIONS) == everywhere


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


@pytest.fixture
def authorized(tmp_path: Path) -> Iterator[Kafka]:
    """A broker with rules of who may do what."""
    with Kafka(tmp_path / "kafka", AUTHORIZED) as broker:
        yield broker


async def test_a_log_whose_settings_may_not_be_read_any_more_is_refused(
    authorized: Kafka, tmp_path: Path
) -> None:
    """DescribeConfigs is what proves the retention; everything else of the topic is allowed."""
    async with deployed(tmp_path, at={"kafka": authorized.address}) as deployment:
        owner, heir = (deployment.process(name, "all") for name in ("owner", "heir"))
        await owner.start()
        await owned_by(owner, "mailbox", "session")
        # It has passed the gates of a start; what it owns later has gates of its own.
        await heir.start()
        async with deployment.log() as log:
            await hide_topic_settings(log)
        await deployment.kill(owner)
        shards = dict.fromkeys(range(SHARDS), "retention_unknown")
        assert await halted(deployment, heir, SHARDS) == shards
        partitions = await deployment.administrate(lambda admin: admin.projection_partitions())
        told = "the log does not tell its retention.ms, or it can't be read"
        assert [one.dirty for one in partitions] == [told] * SHARDS

        missing = f"DescribeConfigs: the right to it is missing on the topic {deployment.topic}"
        for role in ("mailbox", "session"):
            late = deployment.process(f"late-{role}", role)
            async with asyncio.timeout(60):
                assert missing in await late.refuses()
            assert late.exit_status == 2
