"""Making the topic: for the demo and for tests. In production an operator does."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiokafka.errors import NoError
from aiokafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest

from qimd.adapters.kafka.batches import BATCH_OVERHEAD_BYTES
from qimd.adapters.kafka.brokers import refused
from qimd.adapters.kafka.log import KafkaLog
from qimd.adapters.kafka.topic import look
from qimd.core.errors import QimError, unavailable
from qimd.ports.log import LogFault

_TIMEOUT_MS: Final = 10_000


async def create_topic(
    log: KafkaLog,
    *,
    partitions: int,
    retention_ms: int,
    max_record_bytes: int,
    replicas: int = 1,
    others: Mapping[str, str] | None = None,
) -> None:
    """Make the log's topic as the start gates want it, and return once it can be used.

    `others` are settings by Kafka's names, which overrule those. Raises QimError(UNAVAILABLE).
    """
    configs = {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
        "retention.ms": str(retention_ms),
        "retention.bytes": "-1",
        "compression.type": "producer",
        "max.message.bytes": str(max_record_bytes + BATCH_OVERHEAD_BYTES),
        "min.insync.replicas": str(max(1, replicas - 1)),
        **(others or {}),
    }
    topic: Any = (log.topic, partitions, replicas, [], list(configs.items()))
    reply = await log.brokers.ask_any(CreateTopicsRequest([topic], _TIMEOUT_MS, False))
    ((_, code, _),) = reply.topic_errors
    if code != NoError.errno:
        raise refused(code, f"making the topic {log.topic}")
    await _until(lambda: _serves(log, partitions))


async def delete_topic(log: KafkaLog) -> None:
    """Delete the log's topic, and return once it is gone. Raises QimError(UNAVAILABLE)."""
    reply = await log.brokers.ask_any(DeleteTopicsRequest([log.topic], _TIMEOUT_MS))
    ((_, code),) = reply.topic_error_codes
    if code != NoError.errno:
        raise refused(code, f"deleting the topic {log.topic}")
    await _until(lambda: _is_gone(log))


async def _serves(log: KafkaLog, partitions: int) -> bool:
    """Whether every partition's leader knows that it is: it is named before it does."""
    try:
        for partition in range(partitions):
            await log.watermarks(partition)
    except (LogFault, QimError):
        return False
    return True


async def _is_gone(log: KafkaLog) -> bool:
    try:
        await look(log.brokers, log.topic)
    except LogFault:
        return True
    return False


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it holds; each question is a round trip. A broker learns of changes in its time."""
    try:
        async with asyncio.timeout(_TIMEOUT_MS / 1000):
            while not await holds():
                pass
    except TimeoutError:
        raise unavailable("Kafka does not carry the change out in time") from None
