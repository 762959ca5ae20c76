"""etcd's leases beside the memory engine's other ports, under a prefix of their own a test.

etcd ends leases by its own clock. Here the test's clock decides when one is over, and its lease in
etcd is then revoked, which removes its key as the expiry does; `test_etcd.py` waits for real ones.
"""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from aetcd import Client
from tests import engines
from tests.contract.engines import Engine, memory_engine
from tests.support.runtime import ManualRuntime

from qimd.adapters.etcd import EtcdLease, open_etcd
from qimd.core.outcome import Applied, Outcome
from qimd.ports.lease import LeaseView
from qimd.ports.store import ShardKind


@asynccontextmanager
async def etcd_engine(runtime: ManualRuntime) -> AsyncIterator[Engine]:
    address = engines.address("etcd")
    assert address is not None
    host, _, port = address.rpartition(":")
    prefix = f"/qim-test/{uuid.uuid4().hex}"
    memory = memory_engine(runtime)
    async with Client(host, int(port), timeout=5) as client:
        etcd = open_etcd(host, int(port), prefix)
        timed = _Timed(etcd, client, prefix, runtime)
        try:
            yield replace(
                memory,
                name="etcd",
                backends=replace(memory.backends, lease=timed),
                end_leases=timed.end_leases,
            )
        finally:
            await etcd.close()


class _Timed:
    """`ports.lease.LeasePort`: etcd's, with ends on the test's clock."""

    def __init__(
        self, etcd: EtcdLease, client: Client, prefix: str, runtime: ManualRuntime
    ) -> None:
        self._etcd = etcd
        self._client = client
        self._prefix = prefix
        self._runtime = runtime
        self._ends_s: dict[tuple[ShardKind, int], float] = {}

    async def end_leases(self) -> None:
        """Have etcd end those that are over."""
        now_s = self._runtime.monotonic_s()
        for (kind, shard), end_s in list(self._ends_s.items()):
            key = f"{self._prefix}/{kind.value}/{shard}/holder".encode()
            if end_s <= now_s and (held := await self._client.get(key)) is not None:
                await self._client.revoke_lease(held.lease)
                del self._ends_s[kind, shard]

    async def view(self, kind: ShardKind, shard: int) -> LeaseView:
        return await self._etcd.view(kind, shard)

    async def acquire(self, kind: ShardKind, shard: int, owner: str, ttl_s: float) -> Outcome[None]:
        outcome = await self._etcd.acquire(kind, shard, owner, ttl_s)
        return self._timed(outcome, kind, shard, ttl_s)

    async def renew(self, kind: ShardKind, shard: int, owner: str, ttl_s: float) -> Outcome[None]:
        outcome = await self._etcd.renew(kind, shard, owner, ttl_s)
        return self._timed(outcome, kind, shard, ttl_s)

    async def release(self, kind: ShardKind, shard: int, owner: str) -> Outcome[None]:
        return await self._etcd.release(kind, shard, owner)

    def _timed(
        self, outcome: Outcome[None], kind: ShardKind, shard: int, ttl_s: float
    ) -> Outcome[None]:
        if isinstance(outcome, Applied):
            self._ends_s[kind, shard] = self._runtime.monotonic_s() + ttl_s
        return outcome
