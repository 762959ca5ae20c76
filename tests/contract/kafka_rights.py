"""A broker with rules of who may do what, and how a test makes one."""

import asyncio
from enum import IntEnum
from typing import Final

from aiokafka.protocol.admin import CreateAclsRequest

from qimd.adapters.kafka import KafkaLog

AUTHORIZED: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Settings of such a broker. What no rule names is allowed to everybody."""

_LITERAL: Final = 3
_CLUSTER_NAME: Final = "kafka-cluster"


class _Kind(IntEnum):
    """Kafka's numbers for what a rule is about."""

    TOPIC = 2
    CLUSTER = 4


class _Operation(IntEnum):
    """Kafka's numbers for what is done."""

    ALL = 2
    DESCRIBE_CONFIGS = 10


class _Permission(IntEnum):
    DENY = 2
    ALLOW = 3


async def hide_topic_settings(log: KafkaLog) -> None:
    """Let everybody do all with the topic, but for a look at its settings; return once it holds."""
    await _allow_all_but_settings(log, _Kind.TOPIC, log.topic)
    async with asyncio.timeout(60):
        while (await log.settings()).retention_ms is not None:
            pass


async def hide_broker_settings(log: KafkaLog) -> None:
    """The same for the brokers' settings. Rules take a moment to hold."""
    await _allow_all_but_settings(log, _Kind.CLUSTER, _CLUSTER_NAME)


async def _allow_all_but_settings(log: KafkaLog, kind: _Kind, name: str) -> None:
    for operation, permission in (
        (_Operation.ALL, _Permission.ALLOW),
        (_Operation.DESCRIBE_CONFIGS, _Permission.DENY),
    ):
        rule = CreateAclsRequest(kind, name, _LITERAL, "User:*", "*", operation, permission)
        reply = await log.brokers.ask_any(rule)
        assert [code for code, _ in reply.creation_responses] == [0]
