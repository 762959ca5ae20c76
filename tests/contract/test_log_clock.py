"""What an embedded log adds to `ports.log`: its clock is the process's, whatever is done to that.

A broker stamps records by a clock of its own, which steps back with its machine's; the mailbox
holds its day buckets together by itself.
"""

from tests.contract.builders import value
from tests.contract.engines import Engine

from qimd.ports.log import ProduceRecord


async def test_append_times_never_go_back_within_a_partition(engine: Engine) -> None:
    start_ms = engine.runtime.wall_ms()
    await append(engine, 0)
    engine.runtime.step_wall(5_000)
    await append(engine, 0)
    engine.runtime.step_wall(-8_000)
    await append(engine, 0)
    await append(engine, 1)
    assert await times(engine, 0) == [start_ms, start_ms + 5_000, start_ms + 5_000]
    assert await times(engine, 1) == [start_ms - 3_000]


async def append(engine: Engine, partition: int) -> None:
    producer = await engine.backends.log.open_producer()
    for outcome in await producer.produce([ProduceRecord(partition, b"a")]):
        value(outcome)


async def times(engine: Engine, partition: int) -> list[int]:
    reader = await engine.backends.log.open_reader(partition, 0)
    return [record.timestamp_ms for record in await reader.fetch(10, 0)]
