"""A topic that is given more partitions: its UUID stays, the routing table is another's."""

from typing import Any

import pytest
from aiokafka.protocol.admin import CreatePartitionsRequest
from tests.contract.engines import PARTITIONS, Engine
from tests.contract.kafka_engine import eventually

from qimd.adapters.kafka import KafkaLog
from qimd.core.parameters import DISPATCH_CHUNK_RECIPIENTS
from qimd.fanout.line import HaltedError, KnownLog, LogUnfitError
from qimd.mailbox.gates import same_log
from qimd.mailbox.ports import Halted

ENGINES = ("kafka",)


async def add_partitions(log: KafkaLog, count: int) -> None:
    """Bring the topic to `count` partitions, as Kafka's own tools do."""
    more: Any = [(log.topic, (count, None))]
    reply = await log.brokers.ask_any(CreatePartitionsRequest(more, 10_000, False))
    assert [code for _, code, _ in reply.topic_errors] == [0]
    while (await eventually(log.identity)).partitions != count:
        pass


async def test_partitions_that_are_added_to_a_log_in_use_stop_who_uses_it(engine: Engine) -> None:
    """FAN-03: whoever is at work stops at its next look, whoever starts is told which setting
    it is.
    """
    log = engine.backends.log
    assert isinstance(log, KafkaLog)

    def known() -> KnownLog:
        return KnownLog(log, engine.backends.conversations, PARTITIONS, DISPATCH_CHUNK_RECIPIENTS)

    at_work = known()
    before = await at_work.check()
    await add_partitions(log, 2 * PARTITIONS)
    assert (await log.identity()).text == before.text, "the UUID tells nothing"
    with pytest.raises(HaltedError):
        await at_work.check()
    with pytest.raises(Halted):
        await same_log(log, before)
    with pytest.raises(LogUnfitError) as refusal:
        await known().check()
    assert refusal.value.field == "mailbox_shards"
