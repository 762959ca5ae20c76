"""What DescribeConfigs tells of the topic and of a broker."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    NoError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.protocol.admin import DescribeConfigsRequest

from qimd.adapters.kafka.batches import BATCH_OVERHEAD_BYTES
from qimd.adapters.kafka.brokers import Brokers, Node, refused
from qimd.ports.log import LogFault, LogFaultKind, LogSettings

Configs = Mapping[str, str | None]

_NOT_ALLOWED: Final = {TopicAuthorizationFailedError.errno, ClusterAuthorizationFailedError.errno}


class NotAllowed(Exception):
    """The cluster does not let us see the settings of something."""


class Resource(IntEnum):
    """Kafka's numbers for what has a configuration."""

    TOPIC = 2
    BROKER = 4


async def describe(
    brokers: Brokers, resource: Resource, name: str, keys: Sequence[str], node: Node | None = None
) -> Configs:
    """The values of `keys`, of a broker's only by that broker (`node`) itself.

    A key that the cluster does not know is absent. Raises NotAllowed, LogFault(MISSING),
    QimError(UNAVAILABLE).
    """
    request = DescribeConfigsRequest([(resource, name, list(keys))])
    reply = await (brokers.ask(node, request) if node else brokers.ask_any(request))
    ((code, _, _, _, entries),) = reply.resources
    if code == UnknownTopicOrPartitionError.errno:
        raise LogFault(LogFaultKind.MISSING, f"there is no topic {name}")
    if code in _NOT_ALLOWED:
        raise NotAllowed(f"the right to it is missing on the {resource.name.lower()} {name}")
    if code != NoError.errno:
        raise refused(code, f"the settings of {name}")
    return {key: value for key, value, *_ in entries}


def log_settings(configs: Configs) -> LogSettings:
    """What the port tells of a topic's `retention.ms` and `max.message.bytes`."""
    batch_bytes = number(configs, "max.message.bytes")
    return LogSettings(
        number(configs, "retention.ms"),
        None if batch_bytes is None else batch_bytes - BATCH_OVERHEAD_BYTES,
    )


def number(configs: Configs, key: str) -> int | None:
    """A value as an integer; None if it is absent or none."""
    try:
        return int(configs.get(key) or "")
    except ValueError:
        return None
