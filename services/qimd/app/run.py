"""`qimd run`: roles of a deployment on Kafka, Redis and etcd.

Start: read the secrets, open and gate every engine, take the ports, own shards, and only then say
so. Many processes may run the same role: leases say which of them owns a shard.
"""

import asyncio
import secrets as chance
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from qimd.app import secret_file
from qimd.app.hops.owner import owner_name
from qimd.app.peers import PeerPort
from qimd.app.profiles import open_backends
from qimd.app.run_settings import RunSettings
from qimd.app.running import Sockets, write_ready_file
from qimd.app.runtime import AsyncioRuntime
from qimd.app.tracing import open_tracing
from qimd.app.wiring import Node
from qimd.auth.admin import AdminToken
from qimd.contract.cursor import CursorKeys
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics

_log = logger("server")


@dataclass(frozen=True)
class RunServer:
    """A running process, from `open_run`."""

    banner: str
    grpc: str
    metrics: str
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Never set: what it stands on is in the engines."""


@asynccontextmanager
async def open_run(settings: RunSettings, version: str) -> AsyncIterator[RunServer]:
    """A process that is ready; leaving the block drains and closes it. Raises SettingRefused."""
    async with AsyncExitStack() as stack:
        held = secret_file.read(settings.secrets_file)
        metrics = Metrics()
        runtime = AsyncioRuntime(metrics)
        backends = await stack.enter_async_context(open_backends(settings, runtime, metrics))
        tracing = await stack.enter_async_context(open_tracing(settings, runtime, metrics))
        stack.push_async_callback(runtime.cancel_all)
        sockets = Sockets(
            stack,
            settings,
            AdminToken(held.admin_token),
            runtime,
            metrics,
            backends.dependencies,
            tracing,
        )
        port = PeerPort(stack, settings, held.peer_token, metrics)
        node = Node(
            table=settings.table,
            backends=backends,
            cursor_keys=CursorKeys(held.cursor_key_id, held.cursor_keys),
            runtime=runtime,
            metrics=metrics,
            recovery_window_ms=settings.recovery_window_ms,
            replay_safety_window_ms=settings.replay_safety_window_ms,
            owner=owner_name(port.site.address, chance.token_hex(8)),
            roles=settings.roles,
            site=port.site,
            lease=settings.lease,
            drain_grace_s=settings.drain_grace_s,
            audit_interval_s=settings.audit_interval_s,
            chunk_recipients=settings.dispatch_chunk_recipients,
            spans=tracing.spans,
        )
        assert node.links is not None
        await port.serve(node.links)
        await sockets.serve(node)
        if settings.ready_file is not None:
            write_ready_file(settings.ready_file, sockets.grpc, sockets.metrics)
        yield RunServer(_banner(settings, version, sockets), sockets.grpc, sockets.metrics)
        _log.info("draining")
    _log.info("stopped")


def _banner(settings: RunSettings, version: str, sockets: Sockets) -> str:
    lines = [
        f"qimd {version} is ready, role {settings.role}",
        "",
        f"  gRPC         {sockets.grpc}",
        f"  metrics      http://{sockets.metrics}/metrics",
        f"  log          {settings.dispatch_topic} on {','.join(settings.redpanda_brokers)}",
        f"  store        {settings.store_backend}, Redis {settings.redis}",
        f"  leases       etcd {settings.etcd}",
        f"  deployment   {settings.deployment}",
    ]
    return "\n".join(lines) + "\n"
