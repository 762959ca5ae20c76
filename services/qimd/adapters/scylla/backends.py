"""Opening the engine: migrate, connect, ready. It never falls back to another one."""

import asyncio
from dataclasses import dataclass
from typing import Any

from qimd.adapters.scylla.conversations import ScyllaConversationStore
from qimd.adapters.scylla.mailbox import ScyllaMailboxStore
from qimd.adapters.scylla.schema import migrate
from qimd.adapters.scylla.session import ENGINE_ERRORS, ScyllaSettings, Session, connect
from qimd.adapters.scylla.tenants import ScyllaEpochStore, ScyllaTenantStore
from qimd.core.errors import unavailable
from qimd.ports.store import ShardKind


@dataclass(frozen=True, slots=True)
class ScyllaBackends:
    """The ports that this engine serves, of one deployment; `close` them at the end."""

    deployment: str
    tenants: ScyllaTenantStore
    epochs: ScyllaEpochStore
    conversations: ScyllaConversationStore
    mailbox: ScyllaMailboxStore
    session: Session

    @classmethod
    def over(cls, session: Session, deployment: str) -> "ScyllaBackends":
        """The ports of a deployment over a session to a keyspace that has its tables."""
        return cls(
            deployment=deployment,
            tenants=ScyllaTenantStore(session, deployment),
            epochs=ScyllaEpochStore(session, deployment),
            conversations=ScyllaConversationStore(session, deployment),
            mailbox=ScyllaMailboxStore(session, deployment),
            session=session,
        )

    async def close(self) -> None:
        """Give the connections up."""
        await self.session.close()


async def open_scylla(settings: ScyllaSettings, deployment: str) -> ScyllaBackends:
    """Open a deployment in the keyspace, made with its tables if it is new.

    Raises QimError(UNAVAILABLE) if the engine can't be reached or has no quorum, SchemaTooNew.
    """
    session = await open_session(settings)
    backends = ScyllaBackends.over(session, deployment)
    try:
        # Ready is who can answer at a quorum.
        await backends.epochs.current(ShardKind.WRITER, 0)
    except BaseException:
        await session.close()
        raise
    return backends


async def open_session(settings: ScyllaSettings) -> Session:
    """A session to the keyspace, which has its tables then. Raises as `open_scylla`."""
    try:
        return Session(*await asyncio.to_thread(open_driver, settings))
    except ENGINE_ERRORS as error:
        raise unavailable(f"the store can't be opened ({type(error).__name__})") from error


def open_driver(settings: ScyllaSettings) -> tuple[Any, Any]:
    """What a Session is made of, with the keyspace and its tables there. Blocks; raises
    ENGINE_ERRORS, SchemaTooNew.
    """
    cluster, driver = connect(settings)
    try:
        migrate(driver, settings.keyspace, settings.datacenter, settings.replication_factor)
    except BaseException:
        cluster.shutdown()
        raise
    return cluster, driver
