"""The `dev` server: one process, one data folder, everything in it.

Start: lock the folder, read or make its credentials, open the embedded engine, take the ports, own
the shards, and only then say so. Stop: the other way round. A kill at any instant leaves a folder
that starts: each file is written whole or not at all, and the engine's own log recovers.
"""

import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from qimd.adapters.sqlite import OpenRefused, SqliteBackends, open_sqlite
from qimd.app.banner import banner, dev_token
from qimd.app.credentials import Credentials, load_or_create, store, with_addresses
from qimd.app.deployment import note_database, settle_facts
from qimd.app.dev_settings import DevSettings
from qimd.app.folder import DATABASE_NAME, KeptFiles, prepare_folder
from qimd.app.housekeeping import enforce_retention
from qimd.app.lock import LOCK_NAME, FolderLock
from qimd.app.running import Sockets, write_ready_file
from qimd.app.runtime import AsyncioRuntime
from qimd.app.setting_kinds import SettingRefused
from qimd.app.tracing import Tracing, open_tracing
from qimd.app.wiring import Node
from qimd.auth.admin import AdminToken
from qimd.contract.cursor import CursorKeys
from qimd.core.errors import unavailable
from qimd.core.outcome import Applied, NotApplied, Refusal, Unknown
from qimd.ports.runtime import Runtime
from qimd.ports.store import TenantRecord, TenantStore
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics

_log = logger("server")

FOLDER_CHECK_INTERVAL_S: Final = 1.0
"""How long acknowledgements can go on after somebody removed the data folder."""

SEED_TRIES: Final = 5
"""The seeding of a tenant on the local disk either works or never will."""


class Server:
    """A running `dev` server, from `open_server`."""

    def __init__(self, credentials: Credentials, folder: Path, node: Node, banner: str) -> None:
        self.credentials = credentials
        self.folder = folder
        self.node = node
        self.banner = banner
        self._files = KeptFiles([folder / LOCK_NAME, folder / DATABASE_NAME])
        self.lost = asyncio.Event()
        """Set when the data folder was removed or replaced: what is written now is lost."""

    async def watch_folder(self, runtime: Runtime) -> None:
        """Set `lost` once it is."""
        while (path := self._files.lost()) is None:
            await runtime.sleep(FOLDER_CHECK_INTERVAL_S)
        _log.error("the data folder was removed or replaced under the server", path=str(path))
        self.lost.set()


@asynccontextmanager
async def open_server(settings: DevSettings, version: str = "") -> AsyncIterator[Server]:
    """A server that is ready; leaving the block drains and closes it. `version` is for its banner.

    Raises SettingRefused, FolderInUse, CredentialsBroken.
    """
    async with AsyncExitStack() as stack:
        folder = _folder(settings, stack)
        lock = FolderLock.take(folder)
        stack.callback(lock.release)
        settle_facts(folder, settings)
        credentials = load_or_create(folder)
        metrics = Metrics()
        runtime = AsyncioRuntime(metrics)
        engine = await _open_engine(folder, settings, runtime)
        stack.push_async_callback(engine.close)
        note_database(folder)
        tracing = await stack.enter_async_context(open_tracing(settings, runtime, metrics))
        stack.push_async_callback(runtime.cancel_all)
        admin = AdminToken(credentials.admin_token)
        sockets = Sockets(stack, settings, admin, runtime, metrics, tracing=tracing)
        credentials = with_addresses(credentials, sockets.grpc, sockets.metrics)
        store(folder, credentials)
        lock.describe(sockets.grpc)
        await _seed_tenant(engine.backends.tenants, credentials, runtime)
        node = _node(settings, engine, credentials, runtime, metrics, tracing)
        await sockets.serve(node)
        if settings.ready_file is not None:
            write_ready_file(settings.ready_file, sockets.grpc, sockets.metrics)
        server = Server(credentials, folder, node, _banner(settings, credentials, folder, version))
        runtime.spawn(server.watch_folder(runtime), "folder-watch")
        yield server
        _log.info("draining")
    _log.info("stopped")


def _banner(settings: DevSettings, credentials: Credentials, folder: Path, version: str) -> str:
    # A token may stand on a terminal, never in a file that output was sent to.
    token = dev_token(credentials) if sys.stdout.isatty() else ""
    return banner(version, credentials, folder, ephemeral=settings.ephemeral, token=token)


def _folder(settings: DevSettings, stack: AsyncExitStack) -> Path:
    if settings.ephemeral:
        temporary = tempfile.TemporaryDirectory(prefix="qim-", ignore_cleanup_errors=True)
        return Path(stack.enter_context(temporary))
    folder = settings.data.absolute()
    prepare_folder(folder)
    return folder


async def _open_engine(
    folder: Path, settings: DevSettings, runtime: AsyncioRuntime
) -> SqliteBackends:
    try:
        return await open_sqlite(
            folder / DATABASE_NAME,
            runtime,
            partitions=settings.mailbox_shards,
            retention_ms=settings.log_retention_ms,
            sole_owner=True,
        )
    except OpenRefused as refused:
        raise SettingRefused("--data", f"{folder} can't be opened: {refused}") from None


def _node(
    settings: DevSettings,
    engine: SqliteBackends,
    credentials: Credentials,
    runtime: AsyncioRuntime,
    metrics: Metrics,
    tracing: Tracing,
) -> Node:
    return Node(
        table=settings.table,
        backends=engine.backends,
        cursor_keys=CursorKeys(credentials.cursor_key_id, credentials.cursor_keys),
        runtime=runtime,
        metrics=metrics,
        recovery_window_ms=settings.dispatch_recovery_window_ms,
        replay_safety_window_ms=settings.replay_safety_window_ms,
        owner=f"{os.getpid()}-{secrets.token_hex(8)}",
        lease=settings.lease,
        # The folder's lock is ours: whoever owned a shard before is dead.
        sole=True,
        drain_grace_s=settings.drain_grace_s,
        audit_interval_s=settings.audit_interval_s,
        chunk_recipients=settings.dispatch_chunk_recipients,
        chores=[enforce_retention(engine.log.enforce_retention, runtime)],
        spans=tracing.spans,
    )


async def _seed_tenant(
    tenants: TenantStore, credentials: Credentials, runtime: AsyncioRuntime
) -> None:
    """Make the tenant of the credentials, or give it their key back. Raises UNAVAILABLE."""
    record = TenantRecord(
        credentials.tenant, {credentials.key_id: credentials.public_key}, runtime.wall_ms()
    )
    for _ in range(SEED_TRIES):
        outcome = await tenants.create_tenant(record)
        if isinstance(outcome, NotApplied) and outcome.refusal is Refusal.CONFLICT:
            # Keys were added since; ours may have been taken out.
            outcome = await tenants.put_key(
                credentials.tenant, credentials.key_id, credentials.public_key
            )
        match outcome:
            case Applied():
                return
            case NotApplied(refusal=Refusal.CONFLICT):
                raise SettingRefused(
                    "--data", "the credentials are not those that this data was made with"
                )
            case NotApplied() | Unknown():
                continue
    raise unavailable("the tenant can't be written: is the disk full?")
