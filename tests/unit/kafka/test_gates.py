"""A cluster on which an acknowledged record could be lost is refused, by the setting's name."""

import pytest

from qimd.adapters.kafka.gates import (
    Demands,
    LogRefused,
    judge_broker,
    judge_copies,
    judge_topic,
    judge_versions,
)

DAY_MS = 86_400_000
FIT = {
    "retention.ms": str(7 * DAY_MS),
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "LogAppendTime",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
}
DEMANDS = Demands(partitions=8, recovery_window_ms=7 * DAY_MS, record_bytes=40_000)
KAFKA_4_1 = [(0, 0, 13), (1, 4, 17), (3, 0, 13)]


def test_a_fit_topic_is_let_through() -> None:
    judge_topic(FIT, DEMANDS)
    judge_copies(FIT, 3, 3, DEMANDS)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("retention.ms", str(7 * DAY_MS - 1)),
        ("retention.ms", "-1"),
        ("retention.ms", "a week"),
        ("retention.bytes", "1073741824"),
        ("max.message.bytes", "40000"),
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("compression.type", "zstd"),
        ("message.timestamp.type", "CreateTime"),
        ("unclean.leader.election.enable", "true"),
    ],
)
def test_a_setting_that_endangers_records_is_refused_by_name(setting: str, value: str) -> None:
    with pytest.raises(LogRefused) as refused:
        judge_topic({**FIT, setting: value}, DEMANDS)
    assert refused.value.setting == setting
    assert "must be" in refused.value.why or value in refused.value.why or "None" in str(refused)


@pytest.mark.parametrize("setting", sorted(FIT.keys() - {"min.insync.replicas"}))
def test_a_setting_that_can_not_be_read_is_refused(setting: str) -> None:
    """As without the right to describe the topic."""
    with pytest.raises(LogRefused) as refused:
        judge_topic({key: value for key, value in FIT.items() if key != setting}, DEMANDS)
    assert refused.value.setting == setting


@pytest.mark.parametrize("replicas", ["1", None])
def test_one_copy_is_refused(replicas: str | None) -> None:
    with pytest.raises(LogRefused, match=r"min\.insync\.replicas"):
        judge_copies({**FIT, "min.insync.replicas": replicas}, 3, 3, DEMANDS)


def test_fewer_copies_than_must_be_in_sync_are_refused() -> None:
    """Nothing could be appended, and it would show at the first message only."""
    with pytest.raises(LogRefused, match="replicas"):
        judge_copies(FIT, 3, 1, DEMANDS)


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(LogRefused, match="brokers"):
        judge_copies(FIT, 2, 2, DEMANDS)


def test_a_single_node_has_one_copy_by_choice_and_nothing_else_is_waived() -> None:
    single = Demands(
        partitions=8, recovery_window_ms=7 * DAY_MS, record_bytes=40_000, single_node=True
    )
    judge_copies({**FIT, "min.insync.replicas": "1"}, 1, 1, single)
    with pytest.raises(LogRefused, match=r"message\.timestamp\.type"):
        judge_topic({**FIT, "message.timestamp.type": "CreateTime"}, single)


@pytest.mark.parametrize("configs", [{"auto.create.topics.enable": "true"}, {}])
def test_a_broker_that_makes_topics_by_itself_is_refused(configs: dict[str, str]) -> None:
    judge_broker(1, {"auto.create.topics.enable": "false"})
    with pytest.raises(LogRefused, match="broker 1"):
        judge_broker(1, configs)


def test_a_broker_without_topic_ids_is_refused() -> None:
    judge_versions(KAFKA_4_1)
    with pytest.raises(LogRefused, match="Fetch v13"):
        judge_versions([(0, 0, 9), (1, 0, 11), (3, 0, 12)])
    with pytest.raises(LogRefused, match="Metadata v12"):
        judge_versions([(0, 0, 9), (1, 0, 13)])
