"""What proves which log it is must all be there, or it is no log."""

import uuid

import pytest
from tests.unit.kafka.script import LEADER, OTHER, TOPIC, TOPIC_ID, Script, metadata

from qimd.adapters.kafka.protocol import NO_UUID
from qimd.adapters.kafka.topic import Topic, look
from qimd.core.errors import ErrorCode, QimError
from qimd.core.records import LogIdentity
from qimd.ports.log import LogFault, LogFaultKind


async def seen(**told: object) -> Topic:
    return await look(Script(lambda *_: metadata(**told)), TOPIC)  # type: ignore[arg-type]


async def test_the_identity_is_the_clusters_and_the_topics_uuid() -> None:
    topic = await seen()
    assert topic.identity == LogIdentity("cluster", TOPIC, str(TOPIC_ID), 2)
    assert topic.topic_id == TOPIC_ID
    assert topic.replicas == 2


@pytest.mark.parametrize(
    "told",
    [{"topic_id": NO_UUID}, {"cluster_id": None}, {"cluster_id": ""}, {"code": 3}],
    ids=["no topic id", "no cluster id", "an empty cluster id", "no topic"],
)
async def test_a_log_that_nothing_proves_is_missing(told: dict[str, uuid.UUID]) -> None:
    with pytest.raises(LogFault) as fault:
        await seen(**told)
    assert fault.value.kind is LogFaultKind.MISSING


async def test_a_topic_that_can_not_be_seen_now_is_unavailable() -> None:
    with pytest.raises(QimError) as error:
        await seen(code=5)
    assert error.value.code is ErrorCode.UNAVAILABLE


async def test_a_partition_is_at_its_leader_or_nowhere_at_the_moment() -> None:
    topic = await seen(leaders=(1, 2, -1))
    assert [topic.leader(0), topic.leader(1)] == [LEADER, OTHER]
    with pytest.raises(QimError) as error:
        topic.leader(2)
    assert error.value.code is ErrorCode.UNAVAILABLE
    for number in (-1, 3):
        with pytest.raises(LogFault) as fault:
            topic.leader(number)
        assert fault.value.kind is LogFaultKind.MISSING
