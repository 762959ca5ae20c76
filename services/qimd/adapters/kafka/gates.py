"""What a cluster must be before a service starts on it (design: the dispatch log).

Each setting that would let an acknowledged record be lost, moved in time or put into another log is
refused by name. A deployment may say that it is a single node: then it has one copy of everything
by choice, and only what guards copies is waived.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.protocol.admin import ApiVersionRequest

from qimd.adapters.kafka.configs import (
    Configs,
    NotAllowed,
    Resource,
    describe,
    log_settings,
    number,
)
from qimd.adapters.kafka.log import KafkaLog
from qimd.adapters.kafka.protocol import NEEDED
from qimd.adapters.kafka.topic import look

REPLICAS_MIN: Final = 2
"""In-sync replicas that an acknowledged record is on, where there are brokers for it."""

BROKERS_FOR_REPLICAS: Final = 3
"""With fewer, one broker that is away would stop every write."""

TOPIC_SETTINGS: Final = (
    "retention.ms",
    "retention.bytes",
    "max.message.bytes",
    "cleanup.policy",
    "compression.type",
    "message.timestamp.type",
    "min.insync.replicas",
    "unclean.leader.election.enable",
)


class LogRefused(Exception):
    """The cluster is not fit. `setting` is Kafka's name, `why` says what it is and must be."""

    def __init__(self, setting: str, why: str) -> None:
        super().__init__(f"{setting}: {why}")
        self.setting = setting
        self.why = why


@dataclass(frozen=True, slots=True)
class Demands:
    """What the deployment needs of the log."""

    partitions: int
    recovery_window_ms: int
    record_bytes: int
    """The largest record that it may produce."""
    single_node: bool = False
    """Its operator accepts one copy of everything."""


async def gate(log: KafkaLog, demands: Demands) -> None:
    """Return if the log may be used.

    Raises LogRefused, LogFault(MISSING), QimError(UNAVAILABLE).
    """
    try:
        await _gate(log, demands)
    except NotAllowed as hidden:
        raise LogRefused("DescribeConfigs", str(hidden)) from None


async def _gate(log: KafkaLog, demands: Demands) -> None:
    judge_versions(_versions(await log.brokers.ask_any(ApiVersionRequest())))
    topic = await look(log.brokers, log.topic)
    if topic.identity.partitions != demands.partitions:
        raise LogRefused(
            "partitions", f"the topic has {topic.identity.partitions}, not {demands.partitions}"
        )
    configs = await describe(log.brokers, Resource.TOPIC, log.topic, TOPIC_SETTINGS)
    judge_topic(configs, demands)
    judge_copies(configs, len(topic.brokers), topic.replicas, demands)
    for broker, node in topic.brokers.items():
        judge_versions(_versions(await log.brokers.ask(node, ApiVersionRequest())))
        keys = ("auto.create.topics.enable",)
        judge_broker(broker, await describe(log.brokers, Resource.BROKER, str(broker), keys, node))


def judge_topic(configs: Configs, demands: Demands) -> None:
    """Raises LogRefused for a setting of the topic that endangers what it holds."""
    for setting, wanted in _EXACTLY.items():
        found = configs.get(setting)
        if found != wanted:
            raise LogRefused(setting, f"it is {found}, and must be {wanted}")
    settings = log_settings(configs)
    retention_ms = settings.retention_ms
    if retention_ms is None or retention_ms < demands.recovery_window_ms:
        raise LogRefused(
            "retention.ms",
            f"it is {retention_ms}, the recovery window is {demands.recovery_window_ms} ms",
        )
    if settings.max_record_bytes is None or settings.max_record_bytes < demands.record_bytes:
        raise LogRefused(
            "max.message.bytes",
            f"it leaves {settings.max_record_bytes} bytes, a record may have "
            f"{demands.record_bytes}",
        )


def judge_copies(configs: Configs, brokers: int, copies: int, demands: Demands) -> None:
    """Raises LogRefused for a log with one copy, unless the deployment is a single node."""
    if demands.single_node:
        return
    if brokers < BROKERS_FOR_REPLICAS:
        raise LogRefused(
            "brokers",
            f"there are {brokers}, not {BROKERS_FOR_REPLICAS}, and this is no single node",
        )
    replicas = number(configs, "min.insync.replicas")
    if replicas is None or replicas < REPLICAS_MIN:
        raise LogRefused("min.insync.replicas", f"it is {replicas}, not {REPLICAS_MIN} or more")
    if copies < replicas:
        raise LogRefused("replicas", f"there are {copies}, below min.insync.replicas {replicas}")


def judge_broker(broker: int, configs: Configs) -> None:
    """Raises LogRefused for a broker that would make a topic because somebody asks for it: a
    deleted one would be back, empty and with the settings of none.
    """
    setting = "auto.create.topics.enable"
    found = configs.get(setting)
    if found != "false":
        raise LogRefused(setting, f"on broker {broker} it is {found}, and must be false")


def judge_versions(spoken: Sequence[tuple[int, int, int]]) -> None:
    """Raises LogRefused for a broker whose (API key, oldest, newest version) lack one we speak."""
    newest = {key: (oldest, latest) for key, oldest, latest in spoken}
    for name, (key, needed) in NEEDED.items():
        oldest, latest = newest.get(key, (0, -1))
        if not oldest <= needed <= latest:
            raise LogRefused(
                f"{name} v{needed}", f"the broker speaks v{oldest} to v{latest}: it is too old"
            )


_EXACTLY: Final = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
    # It would cut the retention short whenever much is sent.
    "retention.bytes": "-1",
    # A broker that compresses may do it in a way that readers lack the library for.
    "compression.type": "producer",
}


def _versions(reply: Any) -> Sequence[tuple[int, int, int]]:
    return [(key, oldest, latest) for key, oldest, latest, *_ in reply.api_versions]
