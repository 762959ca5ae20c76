"""Leases in etcd: a key an owner, attached to a lease of etcd's that ends it.

What etcd promises, and what is made of it:

- A key that is attached to a lease goes when the lease does, never before somebody looked after its
  TTL; but a restart or a change of the leader starts all TTLs over, and leases have ended early.
  The key's absence is therefore the only sign of expiry; what is safe in spite of an early end is
  safe by the epochs (`ports.store.EpochStore`).
- A keepalive of a lease that has ended is answered without an error, with a TTL of 0: that is lost.
- A call whose reply was lost may still land. So each mutating call changes something in its last
  step alone, one transaction, and a release lands only on the very acquire that it read: one that
  comes late never gives up a key that its owner has taken again since.

Beside the owner's key stands `released`, written in the transaction that removes the owner's key
and removed in the one that sets it: a durable word that the last owner had finished.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

from aetcd import Client, ClientError  # type: ignore[import-untyped]
from aetcd.rpc import KVStub, LeaseStub  # type: ignore[import-untyped]
from grpc import ChannelCredentials, StatusCode
from grpc.aio import AioRpcError, secure_channel

from qimd.core.errors import unavailable
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.ports.lease import LeaseView
from qimd.ports.store import ShardKind

CALL_TIMEOUT_S: Final = 2.0
"""A renewal that hangs must leave time for two more before its owner fences itself (12 s)."""

CHANNEL_OPTIONS: Final = {
    # By default a channel that etcd refused waits up to two minutes for its next try, while the
    # lease that it should renew ends.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 1_000,
    "grpc.max_reconnect_backoff_ms": 1_000,
    # A peer that is cut off answers nothing and refuses nothing: the connection must be given up.
    # etcd takes pings 5 s apart or more, and none without a call.
    "grpc.keepalive_time_ms": 10_000,
    "grpc.keepalive_timeout_ms": 3_000,
}

_HELD: Final = NotApplied(Refusal.CONFLICT, "another owner holds the key")
_ENDED: Final = NotApplied(Refusal.NOT_FOUND, "the lease has ended")


@dataclass(frozen=True, slots=True)
class _Keys:
    """The two keys of a shard."""

    holder: bytes
    released: bytes


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the keys of a shard hold. `holder` and `released_by` are empty if the key is absent."""

    holder: str
    lease: int
    """The id of etcd's lease that ends the holder's key; 0 without one."""
    revision: int
    """Of the acquire that set the holder's key."""
    released_by: str


class EtcdLease:
    """`ports.lease.LeasePort`; `close` it at the end."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    async def close(self) -> None:
        """Give the connection up; no lease ends by it."""
        await self._client.close()

    async def view(self, kind: ShardKind, shard: int) -> LeaseView:
        try:
            stored = await self._look(self._keys(kind, shard))
        except ClientError as error:
            raise unavailable(f"etcd does not answer ({_reason(error)})") from error
        return LeaseView(stored.holder, released=not stored.holder and bool(stored.released_by))

    async def acquire(self, kind: ShardKind, shard: int, owner: str, ttl_s: float) -> Outcome[None]:
        keys, transactions = self._keys(kind, shard), self._client.transactions
        try:
            # One that ends up without a key does nothing, and ends by itself.
            lease = await self._client.lease(math.ceil(ttl_s))
        except ClientError as error:
            return _not_begun(error)
        taking = [
            transactions.put(keys.holder, owner.encode(), lease.id),
            transactions.delete(keys.released),
        ]
        absent = transactions.create(keys.holder) == 0
        mine = transactions.value(keys.holder) == owner.encode()
        try:
            for condition in (absent, mine):
                taken, _ = await self._client.transaction([condition], taking, [])
                if taken:
                    return Applied(None)
        except ClientError as error:
            return _in_doubt(error)
        return _HELD

    async def renew(self, kind: ShardKind, shard: int, owner: str, ttl_s: float) -> Outcome[None]:
        """See `ports.lease.LeasePort`. etcd prolongs by the TTL that was acquired with: `ttl_s` is
        the same throughout a deployment.
        """
        try:
            stored = await self._look(self._keys(kind, shard))
        except ClientError as error:
            return _not_begun(error)
        if stored.holder != owner:
            return _lost(stored)
        try:
            reply = await self._client.refresh_lease(stored.lease)
        except ClientError as error:
            return _in_doubt(error)
        if reply is None:
            return Unknown("etcd ended the keepalive without a word")
        return Applied(None) if reply.TTL > 0 else _ENDED

    async def release(self, kind: ShardKind, shard: int, owner: str) -> Outcome[None]:
        keys, transactions = self._keys(kind, shard), self._client.transactions
        try:
            stored = await self._look(keys)
        except ClientError as error:
            return _not_begun(error)
        if not stored.holder and stored.released_by == owner:
            return Applied(None)
        if stored.holder != owner:
            return _lost(stored)
        giving_up = [
            transactions.delete(keys.holder),
            transactions.put(keys.released, owner.encode()),
        ]
        try:
            done, _ = await self._client.transaction(
                [transactions.mod(keys.holder) == stored.revision], giving_up, []
            )
        except ClientError as error:
            return _in_doubt(error)
        return Applied(None) if done else _ENDED

    async def claim(self, name: str, claimant: str) -> str:
        """Who claimed a name first, of all deployments that this etcd is shared by: the claimant,
        if nobody had. A claim is for ever. Raises QimError(UNAVAILABLE).
        """
        key, transactions = claim_key(name).encode(), self._client.transactions
        try:
            taken, found = await self._client.transaction(
                [transactions.create(key) == 0],
                [transactions.put(key, claimant.encode())],
                [transactions.get(key)],
            )
        except ClientError as error:
            raise unavailable(f"etcd does not answer ({_reason(error)})") from error
        return claimant if taken else found[0][0][0].decode()

    async def _look(self, keys: _Keys) -> _Stored:
        """Both keys at one revision. Raises ClientError."""
        get = self._client.transactions.get
        _, (holders, releases) = await self._client.transaction(
            [], [get(keys.holder), get(keys.released)], []
        )
        released_by = releases[0][0].decode() if releases else ""
        if not holders:
            return _Stored("", 0, 0, released_by)
        _, key = holders[0]
        return _Stored(key.value.decode(), key.lease, key.mod_revision, released_by)

    def _keys(self, kind: ShardKind, shard: int) -> _Keys:
        place = f"{self._prefix}/{kind.value}/{shard}"
        return _Keys(f"{place}/holder".encode(), f"{place}/released".encode())


def claim_key(name: str) -> str:
    """The key of a claim: under no deployment's prefix."""
    return f"qim.claims/{name}"


class _TlsClient(Client):  # type: ignore[misc]
    """aetcd's client over TLS: its own `connect` knows channels in clear alone."""

    channel: Any

    def __init__(
        self, host: str, port: int, credentials: ChannelCredentials, call_timeout_s: float
    ) -> None:
        super().__init__(host, port, timeout=call_timeout_s)
        self._target = f"{host}:{port}"
        self._credentials = credentials

    async def connect(self) -> None:
        """Make the channel, which connects by itself, and the stubs of what is called here."""
        if self.channel is None:
            options = tuple(CHANNEL_OPTIONS.items())
            self.channel = secure_channel(self._target, self._credentials, options)
            self.kvstub = KVStub(self.channel)
            self.leasestub = LeaseStub(self.channel)


def open_etcd(
    host: str,
    port: int,
    prefix: str,
    *,
    tls: ChannelCredentials | None = None,
    call_timeout_s: float = CALL_TIMEOUT_S,
) -> EtcdLease:
    """The leases of the deployment whose keys begin with `prefix`, at an etcd that is reached when
    it is first asked. `host` may be a name for all members of a cluster. A user of etcd's is whom
    the certificate in `tls` names.
    """
    if tls is not None:
        return EtcdLease(_TlsClient(host, port, tls, call_timeout_s), prefix)
    client = Client(host, port, timeout=call_timeout_s, options=CHANNEL_OPTIONS)
    return EtcdLease(client, prefix)


def _lost(stored: _Stored) -> NotApplied:
    return _HELD if stored.holder else _ENDED


def _not_begun(error: ClientError) -> NotApplied:
    """A call failed before the step that changes something."""
    return NotApplied(_refusal(error) or Refusal.UNREACHABLE, _reason(error))


def _in_doubt(error: ClientError) -> NotApplied | Unknown:
    """The step that changes something failed: only a refusal is certain."""
    refusal = _refusal(error)
    return Unknown(_reason(error)) if refusal is None else NotApplied(refusal, _reason(error))


def _refusal(error: ClientError) -> Refusal | None:
    """What etcd refused for; None if it did not refuse.

    It is out of resources before it proposes a change: its database's quota is spent, or too many
    changes wait.
    """
    cause = error.__cause__
    exhausted = isinstance(cause, AioRpcError) and cause.code() is StatusCode.RESOURCE_EXHAUSTED
    return Refusal.NO_SPACE if exhausted else None


def _reason(error: ClientError) -> str:
    cause = error.__cause__
    return str(cause.code().name) if isinstance(cause, AioRpcError) else type(error).__name__
