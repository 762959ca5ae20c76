"""Opening Redis."""

import ssl
from dataclasses import dataclass

from qimd.adapters.redis.conversations import RedisConversationStore
from qimd.adapters.redis.engine import REPLY_TIMEOUT_S, RedisEngine
from qimd.adapters.redis.gates import gate
from qimd.adapters.redis.mailbox import RedisMailboxStore
from qimd.adapters.redis.projection import RedisProjectionStore
from qimd.adapters.redis.quarantine import RedisQuarantineStore
from qimd.adapters.redis.tenants import RedisEpochStore, RedisTenantStore
from qimd.ports.mailbox import MailboxStore
from qimd.ports.projection import ProjectionStore
from qimd.ports.quarantine import QuarantineStore
from qimd.ports.store import ConversationStore, EpochStore, TenantStore


@dataclass(frozen=True, slots=True)
class RedisStores:
    """The ports that Redis serves, over one set of connections.

    `run_id` is that of the server as it was found: another one is another start, and whoever keeps
    a position in memory reads it again.
    """

    tenants: TenantStore
    epochs: EpochStore
    conversations: ConversationStore
    mailbox: MailboxStore
    projection: ProjectionStore
    quarantine: QuarantineStore
    engine: RedisEngine
    run_id: str

    async def close(self) -> None:
        """Close the connections."""
        await self.engine.close()


async def open_redis(
    url: str,
    namespace: str,
    *,
    tls: ssl.SSLContext | None = None,
    may_lose_acknowledged_writes: bool = False,
    reply_timeout_s: float = REPLY_TIMEOUT_S,
) -> RedisStores:
    """Open the deployment `namespace` in the Redis at `url`, which may name a user and a password.

    For `may_lose_acknowledged_writes` see `gates.gate`. Raises GateRefused; QimError(UNAVAILABLE)
    if the server can't be reached; ValueError for what is no URL or no namespace.
    """
    engine = RedisEngine(url, namespace, tls=tls, reply_timeout_s=reply_timeout_s)
    try:
        run_id = await gate(engine, may_lose_acknowledged_writes=may_lose_acknowledged_writes)
    except BaseException:
        await engine.close()
        raise
    return RedisStores(
        tenants=RedisTenantStore(engine),
        epochs=RedisEpochStore(engine),
        conversations=RedisConversationStore(engine),
        mailbox=RedisMailboxStore(engine),
        projection=RedisProjectionStore(engine),
        quarantine=RedisQuarantineStore(engine),
        engine=engine,
        run_id=run_id,
    )
