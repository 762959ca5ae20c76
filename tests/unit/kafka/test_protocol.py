"""Requests go by the topic's UUID wherever the broker takes it, and never make a topic."""

import uuid
from io import BytesIO

from qimd.adapters.kafka.protocol import (
    BatchesProduce,
    MetadataRequest_v12,
    ProduceRequest_v9,
    ProduceRequest_v13,
    TopicMetadata,
    Uuid,
)

TOPIC_ID = uuid.UUID(int=7)


def test_no_question_about_a_topic_makes_it() -> None:
    assert TopicMetadata("t").build(MetadataRequest_v12).allow_auto_topic_creation is False


def test_a_produce_names_the_topic_by_its_uuid_where_the_broker_takes_it() -> None:
    produce = BatchesProduce("t", TOPIC_ID, {0: b"batch"}, 1_000)
    by_id, by_name = produce.prepare({0: (3, 13)}), produce.prepare({0: (3, 12)})
    assert isinstance(by_id, ProduceRequest_v13)
    assert isinstance(by_name, ProduceRequest_v9)
    assert by_id.topic_data == [(TOPIC_ID, [(0, b"batch", {})], {})]
    assert by_name.topic_data == [("t", [(0, b"batch", {})], {})]
    assert by_id.acks == by_name.acks == -1, "every in-sync replica"


def test_a_uuid_is_its_sixteen_bytes() -> None:
    assert Uuid.encode(TOPIC_ID) == bytes(15) + b"\x07"
    assert Uuid.decode(BytesIO(TOPIC_ID.bytes)) == TOPIC_ID
