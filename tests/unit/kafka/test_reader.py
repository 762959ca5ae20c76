"""A reader hands out what its own log holds, in order, each once, whatever brokers answer."""

from typing import Any

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.kafka.script import (
    ANOTHER_ID,
    LEADER,
    OTHER,
    TOPIC,
    TOPIC_ID,
    Script,
    encoded,
    fetched,
    metadata,
)

from qimd.adapters.kafka.brokers import Node
from qimd.adapters.kafka.protocol import FetchRequest_v13, PartitionFetch
from qimd.adapters.kafka.reader import KafkaReader
from qimd.adapters.kafka.topic import look
from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.ports.log import LogFault, LogFaultKind

NOT_LEADER, UNKNOWN_TOPIC_ID = 6, 100


class Cluster:
    """Answers fetches with what the test has queued."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Node, int]] = []
        self.metadata = metadata()
        self.brokers = Script(self.answer)

    def answer(self, node: Node, request: Any) -> Any:
        if not isinstance(request, PartitionFetch):
            return self.metadata
        ((topic_id, ((_, _, offset, *_),), _),) = request.build(FetchRequest_v13).topics
        assert topic_id == TOPIC_ID
        self.asked.append((node, offset))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def reader(self, runtime: ManualRuntime, offset: int = 0) -> KafkaReader:
        return KafkaReader(self.brokers, runtime, await look(self.brokers, TOPIC), 0, offset)


async def test_a_page_that_was_fetched_is_handed_out_before_the_next_fetch() -> None:
    cluster = Cluster(fetched(encoded(0, b"a", b"b") + encoded(2, b"c")), fetched())
    async with ManualRuntime() as runtime:
        reader = await cluster.reader(runtime)
        pages = [[record.value for record in await reader.fetch(2, 0)] for _ in range(3)]
    assert pages == [[b"a", b"b"], [b"c"], []]
    assert [offset for _, offset in cluster.asked] == [0, 3]


async def test_what_is_before_the_position_in_a_batch_is_left_out() -> None:
    cluster = Cluster(fetched(encoded(10, b"a", b"b", b"c")))
    async with ManualRuntime() as runtime:
        records = await (await cluster.reader(runtime, 11)).fetch(10, 0)
    assert [(record.offset, record.value) for record in records] == [(11, b"b"), (12, b"c")]


async def test_a_batch_that_the_broker_cut_off_is_fetched_whole_next() -> None:
    whole = encoded(1, b"b" * 100)
    cluster = Cluster(fetched(encoded(0, b"a") + whole[:-1]), fetched(whole))
    async with ManualRuntime() as runtime:
        reader = await cluster.reader(runtime)
        assert [record.offset for record in await reader.fetch(10, 0)] == [0]
        assert [record.offset for record in await reader.fetch(10, 0)] == [1]


async def test_a_broken_batch_is_never_handed_out_and_never_passed() -> None:
    broken = bytearray(encoded(1, b"b"))
    broken[-2] ^= 1  # in the value
    good = encoded(0, b"a")
    answers = [fetched(good + bytes(broken)), fetched(bytes(broken)), fetched(encoded(1, b"b"))]
    cluster = Cluster(*answers)
    async with ManualRuntime() as runtime:
        reader = await cluster.reader(runtime)
        assert [record.value for record in await reader.fetch(10, 0)] == [b"a"]
        with pytest.raises(QimError) as error:
            await reader.fetch(10, 0)
        assert error.value.code is ErrorCode.UNAVAILABLE
        assert [record.value for record in await reader.fetch(10, 0)] == [b"b"]
    assert [offset for _, offset in cluster.asked] == [0, 1, 1]


@pytest.mark.parametrize("failure", [fetched(code=NOT_LEADER), unavailable("lost")])
async def test_a_moved_leader_is_followed_at_the_next_fetch(failure: Any) -> None:
    cluster = Cluster(failure, fetched(encoded(0, b"a")))
    async with ManualRuntime() as runtime:
        reader = await cluster.reader(runtime)
        with pytest.raises(QimError) as error:
            await reader.fetch(10, 0)
        assert error.value.code is ErrorCode.UNAVAILABLE
        cluster.metadata = metadata(leaders=(2, 2))
        assert [record.value for record in await reader.fetch(10, 0)] == [b"a"]
    assert [node for node, _ in cluster.asked] == [LEADER, OTHER]


async def test_a_broker_that_does_not_know_the_id_yet_is_no_other_log() -> None:
    cluster = Cluster(fetched(code=UNKNOWN_TOPIC_ID), fetched(encoded(0, b"a")))
    async with ManualRuntime() as runtime:
        reader = await cluster.reader(runtime)
        with pytest.raises(QimError) as error:
            await reader.fetch(10, 0)
        assert error.value.code is ErrorCode.UNAVAILABLE
        assert len(await reader.fetch(10, 0)) == 1


@pytest.mark.parametrize(
    ("now", "kind"),
    [
        (metadata(topic_id=ANOTHER_ID), LogFaultKind.IDENTITY_CHANGED),
        (metadata(cluster_id="another"), LogFaultKind.IDENTITY_CHANGED),
        (metadata(leaders=(1, 1, 1)), LogFaultKind.IDENTITY_CHANGED),
        (metadata(code=3), LogFaultKind.MISSING),
    ],
    ids=["made anew", "another cluster", "more partitions", "deleted"],
)
async def test_a_log_that_is_another_one_is_a_fault(now: Any, kind: LogFaultKind) -> None:
    cluster = Cluster(*[fetched(code=UNKNOWN_TOPIC_ID)] * 2)
    async with ManualRuntime() as runtime:
        reader = await cluster.reader(runtime)
        cluster.metadata = now
        for _ in range(2):
            with pytest.raises(LogFault) as fault:
                await reader.fetch(10, 0)
            assert fault.value.kind is kind
