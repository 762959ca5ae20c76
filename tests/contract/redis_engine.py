"""Redis under the suites: its stores beside the memory adapters of the other ports."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

from tests import engines
from tests.contract.engines import Engine, memory_engine
from tests.support.runtime import ManualRuntime

from qimd.adapters.redis import open_redis


@asynccontextmanager
async def redis_engine(runtime: ManualRuntime) -> AsyncIterator[Engine]:
    """A deployment of its own in the Redis that runs."""
    stores = await open_redis(f"redis://{engines.address('redis')}", f"test-{uuid4()}")
    memory = memory_engine(runtime)
    backends = replace(
        memory.backends,
        tenants=stores.tenants,
        epochs=stores.epochs,
        conversations=stores.conversations,
        quarantine=stores.quarantine,
        mailbox=stores.mailbox,
        projection=stores.projection,
    )
    try:
        yield replace(memory, name="redis", backends=backends)
    finally:
        await stores.close()
