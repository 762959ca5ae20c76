"""Cassandra's stores beside the memory engine's other ports: one keyspace and one connection for
all tests, and a deployment of its own for each.
"""

import atexit
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from zlib import crc32

import pytest
from tests import engines
from tests.contract.engines import Engine, memory_engine
from tests.support.runtime import ManualRuntime

from qimd.adapters.scylla import ScyllaSettings
from qimd.adapters.scylla.backends import ScyllaBackends, open_driver
from qimd.adapters.scylla.schema import TABLES
from qimd.adapters.scylla.session import Session

runs_here = pytest.mark.skipif(
    engines.address("cassandra") is None, reason="Cassandra does not run here (make engines)"
)


def cassandra_settings() -> ScyllaSettings:
    address = engines.address("cassandra")
    assert address is not None
    host, _, port = address.rpartition(":")
    return ScyllaSettings(
        hosts=[host],
        port=int(port),
        # Tables that were changed meanwhile are other tables.
        keyspace=f"qim_tests_{crc32(' '.join(TABLES).encode()):08x}",
        datacenter="datacenter1",
        replication_factor=1,
        # Tables are made in seconds beside other suites, and these tests wait for no timeout.
        request_timeout_s=30,
    )


@asynccontextmanager
async def cassandra_engine(runtime: ManualRuntime) -> AsyncIterator[Engine]:
    # A session belongs to a test's event loop; the driver below it has threads of its own.
    opened = ScyllaBackends.over(Session(*shared_driver()), uuid.uuid4().hex)
    memory = memory_engine(runtime)
    yield replace(
        memory,
        name="cassandra",
        backends=replace(
            memory.backends,
            tenants=opened.tenants,
            epochs=opened.epochs,
            conversations=opened.conversations,
            mailbox=opened.mailbox,
        ),
        forgets_by_itself=True,
    )


@cache
def shared_driver() -> tuple[Any, Any]:
    cluster, driver = open_driver(cassandra_settings())
    atexit.register(cluster.shutdown)
    return cluster, driver
