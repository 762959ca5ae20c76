"""The dispatch log on Kafka, or on a broker that speaks its protocol and knows topic ids (KIP-516).

`open_kafka` gives the port, `gate` says whether the cluster is fit for it, `create_topic` makes the
topic for the demo and the tests.

A topic's name proves nothing: a topic that was deleted and made anew has the same name, offsets
that look right, and none of the records. So everything here goes by the topic's UUID: the identity
is read with it, fetches carry it, and so do produces where the broker takes it. That, and a produce
that settles in time, is why this package stands on aiokafka's connection, codec and record batches,
and not on its consumer and producer.
"""

from qimd.adapters.kafka.admin import create_topic, delete_topic
from qimd.adapters.kafka.brokers import Cluster
from qimd.adapters.kafka.gates import Demands, LogRefused, gate
from qimd.adapters.kafka.log import DISPATCH_TOPIC, KafkaLog, open_kafka

__all__ = [
    "DISPATCH_TOPIC",
    "Cluster",
    "Demands",
    "KafkaLog",
    "LogRefused",
    "create_topic",
    "delete_topic",
    "gate",
    "open_kafka",
]
