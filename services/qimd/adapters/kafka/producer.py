"""Appends batches: acknowledged by all in-sync replicas, each once, of a partition a prefix.

aiokafka's producer retries without end, sends what is behind a batch that failed, and can't be
closed while a broker is away. What the port promises is shorter said than wrapped around that: of a
partition one batch is under way at a time, the next one leaves when it is durable, and after
`PRODUCE_WITHIN_S` everything is settled. Within it a batch that met a moved leader or a lost
connection is sent again under its sequence number; the broker knows it then.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Final

from aiokafka.errors import DuplicateSequenceNumber, NoError

from qimd.adapters.kafka.batches import Cutter, Lot
from qimd.adapters.kafka.brokers import Brokers, Node, refused
from qimd.adapters.kafka.protocol import BatchesProduce, error_codes
from qimd.adapters.kafka.topic import Topic, look
from qimd.core.errors import QimError
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.ports.log import LogFault, ProduceRecord
from qimd.ports.runtime import Runtime

PRODUCE_WITHIN_S: Final = 5.0
"""After it nothing is sent again. With one request that is never answered a produce lasts twice as
long, which still is within the writer's self-fence deadline."""

RETRY_AFTER_S: Final = 0.1

_NOT_NOW: Final = {
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    5: "LEADER_NOT_AVAILABLE",
    6: "NOT_LEADER_OR_FOLLOWER",
    9: "REPLICA_NOT_AVAILABLE",
    19: "NOT_ENOUGH_REPLICAS",
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    89: "THROTTLING_QUOTA_EXCEEDED",
    100: "UNKNOWN_TOPIC_ID",
}
"""Not appended, and it may be in a moment."""

_NOT_KNOWN: Final = {
    7: "REQUEST_TIMED_OUT",
    13: "NETWORK_EXCEPTION",
    20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    56: "KAFKA_STORAGE_ERROR",
}
"""The leader may have appended it, or it may be lost again."""


class KafkaProducer:
    """`ports.log.Producer`. One call is served at a time."""

    def __init__(
        self, brokers: Brokers, runtime: Runtime, topic: Topic, cutter: Cutter, limit: int
    ) -> None:
        self._brokers = brokers
        self._runtime = runtime
        self._topic = topic
        self._cutter = cutter
        self._limit = limit
        self._spent = False
        self._closed = False
        self._one_at_a_time = asyncio.Lock()

    async def produce(self, batch: Sequence[ProduceRecord]) -> Sequence[Outcome[None]]:
        async with self._one_at_a_time:
            if self._spent or self._closed:
                return [NotApplied(Refusal.UNREACHABLE, "the producer is spent")] * len(batch)
            # A call that is cancelled on its way spends the producer as well: what it sent may
            # land, and nothing may come behind it as if it had not been.
            self._spent = True
            outcomes = await self._produce(batch)
            self._spent = not all(map(_settled, outcomes))
            return outcomes

    async def close(self) -> None:
        self._closed = True
        await self._brokers.close()

    async def _produce(self, batch: Sequence[ProduceRecord]) -> Sequence[Outcome[None]]:
        outcomes: list[Outcome[None]] = [_BEHIND] * len(batch)
        parts: defaultdict[int, list[tuple[int, ProduceRecord]]] = defaultdict(list)
        for place, record in enumerate(batch):
            if len(record.value) > self._limit:
                # Before it has a sequence number: the broker's refusal would leave a hole there.
                outcomes[place] = NotApplied(
                    Refusal.REJECTED, f"{len(record.value)} bytes, {self._limit} are allowed"
                )
            elif not 0 <= record.partition < self._topic.identity.partitions:
                outcomes[place] = NotApplied(Refusal.NOT_FOUND, "there is no such partition")
            else:
                parts[record.partition].append((place, record))
        now_ms = self._runtime.wall_ms()
        lots = {number: self._cutter.cut(number, part, now_ms) for number, part in parts.items()}
        await self._deliver(lots, outcomes)
        return outcomes

    async def _deliver(self, lots: dict[int, deque[Lot]], outcomes: list[Outcome[None]]) -> None:
        """Send every partition's lots, its next one once the one before is durable."""
        deadline_s = self._runtime.monotonic_s() + PRODUCE_WITHIN_S
        while lots:
            first = [queue[0] for queue in lots.values()]
            settled = await self._send(first)
            for lot, outcome in settled:
                for place in lot.places:
                    outcomes[place] = outcome
                lots[lot.partition].popleft()
                if not isinstance(outcome, Applied):
                    # What is behind it stays unsent.
                    lots[lot.partition].clear()
            lots = {number: queue for number, queue in lots.items() if queue}
            if len(settled) == len(first):
                continue
            if self._runtime.monotonic_s() >= deadline_s or not await self._look_again():
                self._give_up(lots, outcomes)
                return

    async def _send(self, lots: Sequence[Lot]) -> list[tuple[Lot, Outcome[None]]]:
        """Send one lot of each partition, in one request a broker; those that are settled."""
        by_leader: defaultdict[Node, dict[int, Lot]] = defaultdict(dict)
        for lot in lots:
            leader = self._topic.leaders.get(lot.partition)
            if leader is not None:
                by_leader[leader][lot.partition] = lot
        sent = await asyncio.gather(
            *(self._send_to(leader, theirs) for leader, theirs in by_leader.items())
        )
        return [each for some in sent for each in some]

    async def _send_to(self, leader: Node, lots: dict[int, Lot]) -> list[tuple[Lot, Outcome[None]]]:
        request = BatchesProduce(
            self._topic.identity.topic,
            self._topic.topic_id,
            {partition: lot.encoded for partition, lot in lots.items()},
            round(self._brokers.cluster.request_timeout_s * 1000),
        )
        before = {partition: lot.maybe_landed for partition, lot in lots.items()}
        for lot in lots.values():
            lot.maybe_landed = True
        try:
            reply = await self._brokers.ask(leader, request)
        except QimError:
            return []
        settled: list[tuple[Lot, Outcome[None]]] = []
        for partition, code in error_codes(reply):
            lot = lots[partition]
            if code in {NoError.errno, DuplicateSequenceNumber.errno}:
                settled.append((lot, Applied(None)))
            elif code in _NOT_NOW:
                lot.maybe_landed = before[partition]
            elif code not in _NOT_KNOWN:
                detail = refused(code, f"a produce to partition {partition}").message
                settled.append((lot, Unknown(detail)))
        return settled

    async def _look_again(self) -> bool:
        """Wait a little and find the leaders anew; False if the topic is not ours any more."""
        await self._runtime.sleep(RETRY_AFTER_S)
        if self._closed:
            return False
        try:
            topic = await look(self._brokers, self._topic.identity.topic)
        except QimError:
            return True
        except LogFault:
            return False
        if topic.identity != self._topic.identity:
            return False
        self._topic = topic
        return True

    def _give_up(self, lots: dict[int, deque[Lot]], outcomes: list[Outcome[None]]) -> None:
        for queue in lots.values():
            lot = queue[0]
            if lot.maybe_landed:
                for place in lot.places:
                    outcomes[place] = Unknown("no broker confirmed it in time")


_BEHIND: Final = NotApplied(Refusal.UNREACHABLE, "it was not sent: what is before it failed")


def _settled(outcome: Outcome[None]) -> bool:
    """Whether the producer can go on behind it."""
    match outcome:
        case Applied():
            return True
        case NotApplied(refusal=refusal):
            return refusal is Refusal.REJECTED
        case Unknown():
            return False
