"""What a cluster knows of the topic: its identity, and where its partitions are."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aiokafka.errors import InvalidTopicError, NoError, UnknownTopicOrPartitionError

from qimd.adapters.kafka.brokers import Brokers, Node, refused
from qimd.adapters.kafka.protocol import NO_UUID, TopicMetadata
from qimd.core.errors import unavailable
from qimd.core.records import LogIdentity
from qimd.ports.log import LogFault, LogFaultKind

_NOT_THERE: Final = {UnknownTopicOrPartitionError.errno, InvalidTopicError.errno}


@dataclass(frozen=True, slots=True)
class Topic:
    """One look at the topic. `leaders` lacks a partition that has none at the moment."""

    identity: LogIdentity
    brokers: Mapping[int, Node]
    leaders: Mapping[int, Node]
    replicas: int
    """Copies of the partition that has the fewest."""

    @property
    def topic_id(self) -> uuid.UUID:
        """Its UUID, as requests carry it."""
        return uuid.UUID(self.identity.topic_id)

    def leader(self, partition: int) -> Node:
        """Who leads a partition. Raises LogFault(MISSING), QimError(UNAVAILABLE)."""
        if not 0 <= partition < self.identity.partitions:
            raise LogFault(LogFaultKind.MISSING, f"there is no partition {partition}")
        leader = self.leaders.get(partition)
        if leader is None:
            raise unavailable(f"partition {partition} has no leader")
        return leader


async def look(brokers: Brokers, name: str) -> Topic:
    """Ask for the topic.

    Raises LogFault(MISSING) without the topic, its UUID or a cluster id, QimError(UNAVAILABLE).
    """
    reply = await brokers.ask_any(TopicMetadata(name))
    ((code, _, topic_id, _, partitions, *_),) = reply.topics
    if code in _NOT_THERE:
        raise LogFault(LogFaultKind.MISSING, f"there is no topic {name}")
    if code != NoError.errno:
        raise refused(code, f"the topic {name}")
    if topic_id == NO_UUID or not reply.cluster_id:
        raise LogFault(
            LogFaultKind.MISSING,
            f"nothing proves which log {name} is: topic id {topic_id}, "
            f"cluster id {reply.cluster_id!r}",
        )
    nodes = {node_id: Node(host, port) for node_id, host, port, *_ in reply.brokers}
    return Topic(
        LogIdentity(reply.cluster_id, name, str(topic_id), len(partitions)),
        nodes,
        {number: nodes[leader] for _, number, leader, *_ in partitions if leader in nodes},
        min((len(replicas) for _, _, _, _, replicas, *_ in partitions), default=0),
    )
