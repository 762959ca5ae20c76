"""Of a partition a prefix lands, each record once, whatever brokers answer."""

from collections.abc import Sequence
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch
from tests.support.runtime import ManualRuntime
from tests.unit.kafka.script import (
    ANOTHER_ID,
    LEADER,
    OTHER,
    TOPIC,
    Script,
    metadata,
    produced,
)

from qimd.adapters.kafka.batches import BATCH_OVERHEAD_BYTES, Cutter
from qimd.adapters.kafka.brokers import Node
from qimd.adapters.kafka.producer import PRODUCE_WITHIN_S, KafkaProducer
from qimd.adapters.kafka.protocol import BatchesProduce, ProduceRequest_v13
from qimd.adapters.kafka.topic import look
from qimd.core.errors import unavailable
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.ports.log import ProduceRecord

LIMIT = 100
NOT_LEADER, TIMED_OUT, TOO_LARGE, NOT_ENOUGH_AFTER, DUPLICATE = 6, 7, 10, 20, 46


class Cluster:
    """Answers produces with what the test has queued, else takes them; keeps what it took."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.landed: list[tuple[int, bytes]] = []
        self.sent: list[tuple[Node, int]] = []
        self.metadata = metadata()
        self.brokers = Script(self.answer)

    def answer(self, node: Node, request: Any) -> Any:
        if not isinstance(request, BatchesProduce):
            return self.metadata
        codes: dict[int, int] = {}
        ((_, batches, _),) = request.build(ProduceRequest_v13).topic_data
        for partition, encoded, _ in batches:
            batch = DefaultRecordBatch(encoded)
            self.sent.append((node, batch.base_sequence))
            answer = self.answers.pop(0) if self.answers else 0
            if isinstance(answer, Exception):
                raise answer
            if answer == 0:
                self.landed += [(partition, record.value) for record in batch]
            codes[partition] = answer
        return produced(codes)

    async def producer(self, runtime: ManualRuntime) -> KafkaProducer:
        topic = await look(self.brokers, TOPIC)
        cutter = Cutter(7, 0, LIMIT + BATCH_OVERHEAD_BYTES)
        return KafkaProducer(self.brokers, runtime, topic, cutter, LIMIT)


def records(*values: bytes, partition: int = 0) -> list[ProduceRecord]:
    return [ProduceRecord(partition, each) for each in values]


async def produce(
    runtime: ManualRuntime, producer: KafkaProducer, batch: Sequence[ProduceRecord]
) -> list[Outcome[None]]:
    """What came of it, with all the time that it wants."""
    outcomes: list[Outcome[None]] = []

    async def call() -> None:
        outcomes.extend(await producer.produce(batch))

    task = runtime.spawn(call(), "produce")
    await runtime.until(task.done)
    return outcomes


A, B, C = b"a" * 90, b"b" * 90, b"c" * 90
"""Two of them exceed a batch."""


async def test_a_moved_leader_is_followed_with_the_same_sequence_number() -> None:
    cluster = Cluster(NOT_LEADER)
    async with ManualRuntime() as runtime:
        producer = await cluster.producer(runtime)
        cluster.metadata = metadata(leaders=(2, 2))
        assert await produce(runtime, producer, records(A)) == [Applied(None)]
    assert cluster.sent == [(LEADER, 0), (OTHER, 0)]
    assert cluster.landed == [(0, A)]


async def test_a_lost_reply_is_asked_for_again_and_a_duplicate_is_success() -> None:
    cluster = Cluster(unavailable("lost"), DUPLICATE)
    async with ManualRuntime() as runtime:
        producer = await cluster.producer(runtime)
        assert await produce(runtime, producer, records(A)) == [Applied(None)]
        assert await produce(runtime, producer, records(B)) == [Applied(None)]
    assert [sequence for _, sequence in cluster.sent] == [0, 0, 1]


async def test_nothing_is_sent_behind_a_batch_that_failed() -> None:
    cluster = Cluster(0, TOO_LARGE)
    async with ManualRuntime() as runtime:
        producer = await cluster.producer(runtime)
        first, second, third = await produce(runtime, producer, records(A, B, C))
        assert (first, type(second)) == (Applied(None), Unknown)
        assert isinstance(third, NotApplied)
        assert third.refusal is Refusal.UNREACHABLE
        (later,) = await produce(runtime, producer, records(A))
        assert isinstance(later, NotApplied)
    assert cluster.landed == [(0, A)]
    assert len(cluster.sent) == 2


async def test_partitions_fail_alone() -> None:
    cluster = Cluster(TOO_LARGE, 0)
    async with ManualRuntime() as runtime:
        producer = await cluster.producer(runtime)
        batch = [*records(A, partition=0), *records(B, partition=1), *records(C, partition=1)]
        outcomes = await produce(runtime, producer, batch)
    assert [type(outcome) for outcome in outcomes] == [Unknown, Applied, Applied]
    assert cluster.landed == [(1, B), (1, C)]


async def test_what_may_have_landed_is_unknown_and_what_never_left_is_not_applied() -> None:
    lost = [unavailable("lost")] * 1_000
    cluster = Cluster(*lost)
    async with ManualRuntime() as runtime:
        producer = await cluster.producer(runtime)
        began_s = runtime.monotonic_s()
        outcomes = await produce(runtime, producer, records(A, B))
        assert runtime.monotonic_s() - began_s <= PRODUCE_WITHIN_S + 1
    assert [type(outcome) for outcome in outcomes] == [Unknown, NotApplied]


async def test_a_refusal_that_says_not_appended_leaves_nothing_unknown() -> None:
    cluster = Cluster(*[NOT_LEADER] * 1_000)
    async with ManualRuntime() as runtime:
        outcomes = await produce(runtime, await cluster.producer(runtime), records(A))
    assert [type(outcome) for outcome in outcomes] == [NotApplied]


async def test_a_refusal_after_the_append_stays_unknown() -> None:
    """Also where a later one says that nothing was appended: that was said of the later try."""
    for answers in ([NOT_ENOUGH_AFTER] * 1_000, [TIMED_OUT, *[NOT_LEADER] * 1_000]):
        cluster = Cluster(*answers)
        async with ManualRuntime() as runtime:
            outcomes = await produce(runtime, await cluster.producer(runtime), records(A))
        assert [type(outcome) for outcome in outcomes] == [Unknown]


async def test_a_topic_that_was_made_anew_is_not_tried_again() -> None:
    cluster = Cluster(NOT_LEADER)
    async with ManualRuntime() as runtime:
        producer = await cluster.producer(runtime)
        cluster.metadata = metadata(topic_id=ANOTHER_ID)
        outcomes = await produce(runtime, producer, records(A))
    assert [type(outcome) for outcome in outcomes] == [NotApplied]
    assert len(cluster.sent) == 1


async def test_a_closed_producer_stops_trying() -> None:
    cluster = Cluster(*[NOT_LEADER] * 1_000)
    async with ManualRuntime() as runtime:
        producer = await cluster.producer(runtime)

        async def call() -> None:
            await producer.produce(records(A))

        task = runtime.spawn(call(), "produce")
        await runtime.settle()
        await producer.close()
        await runtime.until(task.done)
    assert len(cluster.sent) == 1
