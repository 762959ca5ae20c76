"""A coordinator whose connection breaks between a conditional write and its reply.

The driver must have another one to try. So to it the node is two, each behind a wire of its own:
the node tells of a peer, which is itself.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tests.contract.builders import event, key, value
from tests.contract.cassandra_engine import cassandra_settings, runs_here
from tests.contract.cassandra_faults import commit, conversation
from tests.engines.cassandra import Cassandra
from tests.engines.process import HOST
from tests.support.wire import Wire

from qimd.adapters.scylla import ScyllaBackends, ScyllaSettings, open_scylla
from qimd.adapters.scylla.backends import open_driver
from qimd.core.outcome import Unknown

MARK = b"CUT HERE"
"""In the conditional write alone. The driver packs what repeats, so nothing is like it."""

_OF_ITSELF = "SELECT data_center, rack, release_version, schema_version FROM system.local"
_OF_A_PEER = """
INSERT INTO system.peers_v2 (
    data_center, rack, release_version, schema_version,
    peer, peer_port, native_address, native_port, host_id, tokens
) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""


def port(address: str) -> int:
    return int(address.rpartition(":")[2])


def tell_of_a_peer(direct: ScyllaSettings, at: Wire) -> None:
    """Behind the making of the tables: a change of the schema waits for every peer's consent."""
    cluster, driver = open_driver(direct)
    place = (HOST, port(at.address))
    driver.execute(
        _OF_A_PEER, (*driver.execute(_OF_ITSELF).one(), *place, *place, uuid.uuid4(), {"0"})
    )
    cluster.shutdown()


@asynccontextmanager
async def behind_two_wires(folder: Path) -> AsyncIterator[tuple[ScyllaBackends, Sequence[Wire]]]:
    """A node of the test's own, and what production opens of it where it finds two."""
    with Cassandra(folder) as node:
        direct = replace(cassandra_settings(), keyspace="qim", port=node.port)
        async with Wire(node.address) as one, Wire(node.address) as other:
            await asyncio.to_thread(tell_of_a_peer, direct, other)
            opened = await open_scylla(replace(direct, port=port(one.address)), "deployment")
            try:
                yield opened, (one, other)
            finally:
                await opened.close()


@runs_here
async def test_a_conditional_write_whose_coordinator_is_lost_goes_to_no_other(
    tmp_path: Path,
) -> None:
    """F21: it is sent once and unknown, and the same step again tells that it was applied."""
    async with behind_two_wires(tmp_path / "cassandra") as (backends, wires):
        epoch = await conversation(backends)
        losses = [wire.lose_reply(MARK) for wire in wires]

        def sent() -> int:
            return sum(loss.seen for loss in losses)

        said = event(1, text=f"<{MARK.decode()}>")
        assert isinstance(await commit(backends, epoch, said), Unknown)
        assert sent() == 1
        assert value(await commit(backends, epoch, said)).head_version == 1
        assert sent() == 1, "it was found to be there"
        assert await backends.conversations.outbox(key(), 0, 10) == [said]
