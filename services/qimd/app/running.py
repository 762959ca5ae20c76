"""What a process of any profile does around its node: take the ports, serve, end in order."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Protocol

from google.protobuf.descriptor import ServiceDescriptor

from qimd.app.folder import write_private
from qimd.app.grpc_server import GrpcServer
from qimd.app.grpc_stream import StreamHandler
from qimd.app.health import Health
from qimd.app.metrics_server import MetricsServer
from qimd.app.settings import ProcessSettings
from qimd.app.tracing import NO_TRACING, Tracing
from qimd.auth.admin import AdminToken
from qimd.ports.health import Dependency
from qimd.ports.runtime import Runtime
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics

_log = logger("server")

CLOSE_GRACE_S: Final = 0.5
"""What gRPC waits for calls that are still there after the drain: administration calls alone."""


class Running(Protocol):
    """A process that is ready."""

    @property
    def banner(self) -> str:
        """What it says of itself."""

    @property
    def lost(self) -> asyncio.Event:
        """Set when what it stands on was taken away: it must not go on."""


class Served(Protocol):
    """A node, as its sockets see it."""

    @property
    def connections(self) -> StreamHandler | None:
        """Who serves clients' streams; None in a process that has no clients."""

    @property
    def is_ready(self) -> bool:
        """Whether it may be sent clients."""

    def services(self) -> Sequence[tuple[ServiceDescriptor, object]]:
        """The administration services, each with its handlers."""

    def start(self) -> None:
        """Begin to own shards."""

    async def ready(self) -> None:
        """Return once it is."""

    async def drain(self) -> None:
        """Send clients away, finish what is under way, release every lease."""


class Sockets:
    """The ports of a process: bound from the start, answering from `serve` on."""

    def __init__(
        self,
        stack: AsyncExitStack,
        settings: ProcessSettings,
        admin_token: AdminToken,
        runtime: Runtime,
        metrics: Metrics,
        dependencies: Sequence[Dependency] = (),
        tracing: Tracing = NO_TRACING,
    ) -> None:
        if settings.replay_safety_window_ms is not None:
            _log.warning(
                "the progress of dispatches older than the replay safety window is dropped",
                replay_safety_window_ms=settings.replay_safety_window_ms,
                audit=settings.replay_safety_audit,
            )
        self._stack = stack
        self._node: Served | None = None
        self._serving = False
        self._health = health = Health(dependencies, runtime, metrics)
        self._metrics_server = MetricsServer(
            metrics, settings.metrics_port, self._is_ready, lambda: health.failing
        )
        stack.callback(self._metrics_server.stop)
        self._grpc_server = GrpcServer(
            settings=settings,
            admin_token=admin_token,
            runtime=runtime,
            metrics=metrics,
            interceptors=tracing.interceptors,
        )
        stack.push_async_callback(self._grpc_server.stop, CLOSE_GRACE_S)
        self._grpc_server.bind()

    def _is_ready(self) -> bool:
        return self._node is not None and self._node.is_ready and self._health.serves

    @property
    def grpc(self) -> str:
        """host:port of the gRPC services."""
        return self._grpc_server.address

    @property
    def metrics(self) -> str:
        """host:port of /metrics, /healthz and /readyz."""
        return self._metrics_server.address

    async def serve(self, node: Served) -> None:
        """Answer; return once the node is ready. The stack's end drains it."""
        self._node = node
        self._grpc_server.offer(streams=node.connections, services=node.services())
        self._metrics_server.start()
        await self._grpc_server.start()
        node.start()
        self._stack.push_async_callback(node.drain)
        await node.ready()
        self._serving = True
        await self._grpc_server.set_serving(self._health.serves)
        self._stack.push_async_callback(self._end_serving)
        self._health.start(self._tell_dependency)
        _log.info("ready", grpc=self.grpc, metrics=self.metrics)

    async def _end_serving(self) -> None:
        self._serving = False
        await self._grpc_server.set_serving(False)

    async def _tell_dependency(self, name: str, up: bool) -> None:
        await self._grpc_server.set_dependency(name, up)
        if self._serving:
            await self._grpc_server.set_serving(self._health.serves)


def write_ready_file(path: Path, grpc: str, metrics: str) -> None:
    """Tell a program that started us where we listen: it waits for this file.

    Raises SettingRefused.
    """
    told = {
        "grpc": grpc,
        "metrics": metrics,
        "pid": os.getpid(),
        "at_ms": time.time_ns() // 1_000_000,
    }
    write_private(path, json.dumps(told) + "\n", "--ready-file")


def watch_signals(stop: Callable[[], None]) -> None:
    """Call `stop` on SIGTERM and SIGINT; a second one ends the process at once."""
    loop = asyncio.get_running_loop()

    def first(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, first, number)
