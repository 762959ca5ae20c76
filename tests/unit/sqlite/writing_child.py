"""Writes to a file until it is killed, printing each number once all of it is acknowledged."""

import asyncio
import sys
from pathlib import Path

from tests.contract.builders import ANNA, value
from tests.support.runtime import ManualRuntime
from tests.unit.sqlite.scenes import message, opened_shard, owned, records

from qimd.adapters.sqlite import open_sqlite
from qimd.ports.log import ProduceRecord


async def main(path: Path) -> None:
    store = await open_sqlite(path, ManualRuntime())
    backends = store.backends
    epoch = await owned(store)
    position = await opened_shard(store)
    producer = await backends.log.open_producer()
    number = 0
    while True:
        number += 1
        entry = records(position, [number - 1], [ANNA], f"apply {number}")
        commit, produced, applied = await asyncio.gather(
            backends.conversations.commit(message(epoch, number)),
            producer.produce([ProduceRecord(0, f"record {number}".encode())]),
            backends.mailbox.apply(entry),
        )
        value(commit)
        value(produced[0])
        value(applied)
        position = entry.position
        print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
