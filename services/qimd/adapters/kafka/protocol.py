"""Requests of Kafka's protocol that aiokafka does not have: those that name a topic by its UUID.

The schemas are those of Apache Kafka's message definitions (KIP-516). aiokafka picks of a request's
classes the newest that the broker speaks. Fields are named as Kafka names them; `tags` is the empty
set of tagged fields that ends each structure since KIP-482.
"""

import uuid
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Final

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

NO_UUID: Final = uuid.UUID(int=0)
"""What a broker without topic ids answers."""

_TEXT: Final = CompactString("utf-8")


class Uuid(AbstractType[uuid.UUID]):
    """16 bytes, big-endian."""

    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        return uuid.UUID(bytes=data.read(16))


# --- Metadata: which brokers there are, what the topic's UUID is, who leads its partitions --------


class MetadataResponse_v12(Response):
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", _TEXT),
                ("port", Int32),
                ("rack", _TEXT),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", _TEXT),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition_index", Int32),
                        ("leader_id", Int32),
                        ("leader_epoch", Int32),
                        ("replica_nodes", CompactArray(Int32)),
                        ("isr_nodes", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("topic_authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class MetadataRequest_v12(RequestStruct):
    API_KEY = 3
    API_VERSION = 12
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = MetadataResponse_v12
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", Uuid), ("name", _TEXT), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicMetadata(Request[MetadataRequest_v12]):
    """What the cluster knows of one topic. Never makes it: it may have been deleted on purpose."""

    API_KEY = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[MetadataRequest_v12]) -> MetadataRequest_v12:
        return request_struct_class([(NO_UUID, self._topic, {})], False, False, {})


# --- Fetch: records of the topic with this UUID, and of no other ----------------------------------


class FetchResponse_v13(Response):
    API_KEY = 1
    API_VERSION = 13
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("session_id", Int32),
        (
            "responses",
            CompactArray(
                ("topic_id", Uuid),
                (
                    "partitions",
                    CompactArray(
                        ("partition_index", Int32),
                        ("error_code", Int16),
                        ("high_watermark", Int64),
                        ("last_stable_offset", Int64),
                        ("log_start_offset", Int64),
                        (
                            "aborted",
                            CompactArray(
                                ("producer_id", Int64),
                                ("first_offset", Int64),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("preferred_read_replica", Int32),
                        ("records", CompactBytes),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class FetchRequest_v13(RequestStruct):
    API_KEY = 1
    API_VERSION = 13
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = FetchResponse_v13
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("max_wait_ms", Int32),
        ("min_bytes", Int32),
        ("max_bytes", Int32),
        ("isolation_level", Int8),
        ("session_id", Int32),
        ("session_epoch", Int32),
        (
            "topics",
            CompactArray(
                ("topic_id", Uuid),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("current_leader_epoch", Int32),
                        ("fetch_offset", Int64),
                        ("last_fetched_epoch", Int32),
                        ("log_start_offset", Int64),
                        ("partition_max_bytes", Int32),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        (
            "forgotten_topics_data",
            CompactArray(
                ("topic_id", Uuid), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)
            ),
        ),
        ("rack_id", _TEXT),
        ("tags", TaggedFields),
    )


class PartitionFetch(Request[FetchRequest_v13]):
    """Records of one partition from `offset` on, outside of a fetch session.

    The broker answers at once if it has any, else with the first one or after `wait_ms`.
    """

    API_KEY = 1

    def __init__(
        self, topic_id: uuid.UUID, partition: int, offset: int, wait_ms: int, bytes_max: int
    ) -> None:
        self._topic_id = topic_id
        self._partition: Sequence[Any] = (partition, -1, offset, -1, -1, bytes_max, {})
        self._wait_ms = wait_ms
        self._bytes_max = bytes_max

    def build(self, request_struct_class: type[FetchRequest_v13]) -> FetchRequest_v13:
        topics: Sequence[Any] = [(self._topic_id, [self._partition], {})]
        return request_struct_class(
            -1, self._wait_ms, 1, self._bytes_max, 0, 0, -1, topics, [], "", {}
        )


# --- Produce: to the topic with this UUID (v13, Kafka 4.1), else to the one of this name ----------


def _produced(topic: tuple[str, Any]) -> Schema:
    return Schema(
        (
            "responses",
            CompactArray(
                topic,
                (
                    "partition_responses",
                    CompactArray(
                        ("index", Int32),
                        ("error_code", Int16),
                        ("base_offset", Int64),
                        ("log_append_time_ms", Int64),
                        ("log_start_offset", Int64),
                        (
                            "record_errors",
                            CompactArray(
                                ("batch_index", Int32),
                                ("batch_index_error_message", _TEXT),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("error_message", _TEXT),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("throttle_time_ms", Int32),
        ("tags", TaggedFields),
    )


def _to_produce(topic: tuple[str, Any]) -> Schema:
    return Schema(
        ("unused_id", _TEXT),
        ("acks", Int16),
        ("timeout_ms", Int32),
        (
            "topic_data",
            CompactArray(
                topic,
                (
                    "partition_data",
                    CompactArray(
                        ("index", Int32), ("records", CompactBytes), ("tags", TaggedFields)
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class ProduceResponse_v9(Response):
    API_KEY = 0
    API_VERSION = 9
    SCHEMA = _produced(("name", _TEXT))


class ProduceRequest_v9(RequestStruct):
    API_KEY = 0
    API_VERSION = 9
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ProduceResponse_v9
    SCHEMA = _to_produce(("name", _TEXT))


class ProduceResponse_v13(Response):
    API_KEY = 0
    API_VERSION = 13
    SCHEMA = _produced(("topic_id", Uuid))


class ProduceRequest_v13(RequestStruct):
    API_KEY = 0
    API_VERSION = 13
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ProduceResponse_v13
    SCHEMA = _to_produce(("topic_id", Uuid))


class BatchesProduce(Request[ProduceRequest_v9 | ProduceRequest_v13]):
    """One encoded batch a partition, acknowledged by all in-sync replicas."""

    API_KEY = 0

    def __init__(
        self,
        topic: str,
        topic_id: uuid.UUID,
        batches: Mapping[int, bytes],
        timeout_ms: int,
    ) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._batches: Sequence[Any] = [
            (partition, batch, {}) for partition, batch in batches.items()
        ]
        self._timeout_ms = timeout_ms

    def build(
        self, request_struct_class: type[ProduceRequest_v9 | ProduceRequest_v13]
    ) -> ProduceRequest_v9 | ProduceRequest_v13:
        by_id = request_struct_class is ProduceRequest_v13
        topic = self._topic_id if by_id else self._topic
        return request_struct_class(None, -1, self._timeout_ms, [(topic, self._batches, {})], {})


def error_codes(reply: Any) -> Sequence[tuple[int, int]]:
    """(partition, error code) for each partition of a ProduceResponse."""
    return [(index, code) for _, found, _ in reply.responses for index, code, *_ in found]


NEEDED: Final[Mapping[str, tuple[int, int]]] = {
    "Metadata": (MetadataRequest_v12.API_KEY, MetadataRequest_v12.API_VERSION),
    "Fetch": (FetchRequest_v13.API_KEY, FetchRequest_v13.API_VERSION),
    "Produce": (ProduceRequest_v9.API_KEY, ProduceRequest_v9.API_VERSION),
}
"""Per API its key and the version that a broker must speak."""
