"""Leases in memory, on the engine's clock, which may end one early or late as real engines do."""

from dataclasses import dataclass

from qimd.adapters.memory.network import Wire
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.ports.lease import LeaseView
from qimd.ports.runtime import Runtime
from qimd.ports.store import ShardKind

_Key = tuple[ShardKind, int]


@dataclass(slots=True)
class _Lease:
    owner: str
    ttl_s: float
    ends_s: float
    released: bool = False


class LeaseDisk:
    """What survives a process: the keys, with their ends on the engine's monotonic clock."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._leases: dict[_Key, _Lease] = {}

    def end_early(self, kind: ShardKind, shard: int) -> None:
        """End a lease before its time, unknown to its owner."""
        if (lease := self._leases.get((kind, shard))) is not None:
            lease.ends_s = min(lease.ends_s, self._runtime.monotonic_s())

    def end_late(self, kind: ShardKind, shard: int, seconds: float) -> None:
        """Keep a lease for longer than it was taken for, as after a change of etcd's leader."""
        if (lease := self._leases.get((kind, shard))) is not None:
            lease.ends_s += seconds

    def start_over(self) -> None:
        """Give every lease that still runs its whole time again, as etcd does when it was started
        anew or has another leader.
        """
        now_s = self._runtime.monotonic_s()
        for lease in self._leases.values():
            if now_s < lease.ends_s:
                lease.ends_s = now_s + lease.ttl_s

    def lose(self) -> None:
        """Forget every key, marks of release and all, unknown to the owners."""
        self._leases.clear()

    def view(self, key: _Key) -> LeaseView:
        """The key as it is now.

        A key that nobody ever held looks like one that has expired: an engine can't tell them apart
        either.
        """
        lease = self._leases.get(key)
        if lease is None:
            return LeaseView("", released=False)
        holds = not lease.released and self._runtime.monotonic_s() < lease.ends_s
        return LeaseView(lease.owner if holds else "", lease.released)

    def acquire(self, key: _Key, owner: str, ttl_s: float) -> Outcome[None]:
        """See `ports.lease.LeasePort`."""
        holder = self.view(key).holder
        if holder not in {"", owner}:
            return NotApplied(Refusal.CONFLICT, "another owner holds the key")
        self._leases[key] = _Lease(owner, ttl_s, self._runtime.monotonic_s() + ttl_s)
        return Applied(None)

    def renew(self, key: _Key, owner: str, ttl_s: float) -> Outcome[None]:
        """See `ports.lease.LeasePort`."""
        lost = self._not_held(key, owner)
        if lost is None:
            lease = self._leases[key]
            lease.ttl_s, lease.ends_s = ttl_s, self._runtime.monotonic_s() + ttl_s
            return Applied(None)
        return lost

    def release(self, key: _Key, owner: str) -> Outcome[None]:
        """See `ports.lease.LeasePort`. Repeating it changes nothing."""
        lease = self._leases.get(key)
        if lease is not None and lease.released and lease.owner == owner:
            return Applied(None)
        lost = self._not_held(key, owner)
        if lost is None:
            self._leases[key].released = True
            return Applied(None)
        return lost

    def _not_held(self, key: _Key, owner: str) -> NotApplied | None:
        holder = self.view(key).holder
        if holder == owner:
            return None
        if not holder:
            return NotApplied(Refusal.NOT_FOUND, "the lease has ended")
        return NotApplied(Refusal.CONFLICT, "another owner holds the key")


class MemoryLease:
    """`ports.lease.LeasePort`."""

    def __init__(self, disk: LeaseDisk, wire: Wire) -> None:
        self._disk = disk
        self._wire = wire

    async def view(self, kind: ShardKind, shard: int) -> LeaseView:
        return await self._wire.read("view", (kind, shard), lambda: self._disk.view((kind, shard)))

    async def acquire(self, kind: ShardKind, shard: int, owner: str, ttl_s: float) -> Outcome[None]:
        key = (kind, shard)
        return await self._wire.step("acquire", key, lambda: self._disk.acquire(key, owner, ttl_s))

    async def renew(self, kind: ShardKind, shard: int, owner: str, ttl_s: float) -> Outcome[None]:
        key = (kind, shard)
        return await self._wire.step("renew", key, lambda: self._disk.renew(key, owner, ttl_s))

    async def release(self, kind: ShardKind, shard: int, owner: str) -> Outcome[None]:
        key = (kind, shard)
        return await self._wire.step("release", key, lambda: self._disk.release(key, owner))
