"""Brokers that answer as a test says, and write down what they were asked."""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from qimd.adapters.kafka.brokers import Brokers, Cluster, Node
from qimd.adapters.kafka.protocol import (
    FetchResponse_v13,
    MetadataResponse_v12,
    ProduceResponse_v13,
)

TOPIC = "qim.dispatch"
TOPIC_ID = uuid.UUID(int=7)
ANOTHER_ID = uuid.UUID(int=8)
LEADER, OTHER = Node("127.0.0.1", 1), Node("127.0.0.1", 2)

Answer = Callable[[Node, Any], Any]


class Script(Brokers):
    """`ask` is answered by `answer`, which may raise; `ask_any` asks the leader."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(Cluster((LEADER,)), set())
        self._answer = answer
        self.asked: list[tuple[Node, Any]] = []

    async def ask(self, node: Node, request: Any) -> Any:
        self.asked.append((node, request))
        return self._answer(node, request)

    async def ask_any(self, request: Any) -> Any:
        return await self.ask(LEADER, request)


def metadata(
    *,
    code: int = 0,
    topic_id: uuid.UUID = TOPIC_ID,
    cluster_id: str | None = "cluster",
    leaders: Sequence[int] = (1, 1),
) -> Any:
    """The topic, its partition n led by broker `leaders[n]` of two."""
    brokers = [(1, LEADER.host, LEADER.port, None, {}), (2, OTHER.host, OTHER.port, None, {})]
    partitions = [
        (0, number, leader, 0, [1, 2], [1, 2], [], {}) for number, leader in enumerate(leaders)
    ]
    topic = (code, TOPIC, topic_id, False, partitions, 0, {})
    return MetadataResponse_v12(0, brokers, cluster_id, 1, [topic], {})


def produced(codes: dict[int, int]) -> Any:
    """The reply to a produce: an error code a partition."""
    partitions = [(number, code, 0, 0, 0, [], None, {}) for number, code in codes.items()]
    return ProduceResponse_v13([(TOPIC_ID, partitions, {})], 0, {})


def fetched(records: bytes = b"", *, code: int = 0) -> Any:
    """The reply to a fetch from partition 0."""
    partition = (0, code, 0, 0, 0, None, -1, records, {})
    return FetchResponse_v13(0, 0, 0, [(TOPIC_ID, [partition], {})], {})


def encoded(first_offset: int, *values: bytes) -> bytes:
    """A batch as a broker stores it."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, 7, 0, 0, 1_000_000)
    for place, value in enumerate(values):
        builder.append(place, 0, None, value, [])
    batch = bytes(builder.build())
    return first_offset.to_bytes(8, "big") + batch[8:]
