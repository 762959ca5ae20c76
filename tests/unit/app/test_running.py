"""The sockets of a process: what they say of it while an engine is away."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc

from qimd.app.dev_settings import DevSettings
from qimd.app.grpc_stream import StreamHandler
from qimd.app.running import Sockets
from qimd.app.runtime import AsyncioRuntime
from qimd.auth.admin import AdminToken
from qimd.core.errors import unavailable
from qimd.ports.health import Dependency
from qimd.telemetry.metrics import Metrics

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class ReadyNode:
    """A node that serves nothing, and is ready."""

    connections: StreamHandler | None = None
    is_ready = True

    def services(self) -> Sequence[tuple[ServiceDescriptor, object]]:
        return []

    def start(self) -> None:
        """Own nothing."""

    async def ready(self) -> None:
        """At once."""

    async def drain(self) -> None:
        """At once."""


async def away() -> None:
    raise unavailable("connection refused")


async def there() -> None:
    """Answer."""


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


async def serving(stack: AsyncExitStack, *dependencies: Dependency) -> Sockets:
    metrics = Metrics()
    runtime = AsyncioRuntime(metrics)
    settings = DevSettings(grpc_port=0, metrics_port=0)
    sockets = Sockets(stack, settings, AdminToken("t" * 16), runtime, metrics, dependencies)
    stack.push_async_callback(runtime.cancel_all)
    await sockets.serve(ReadyNode())
    return sockets


async def health_becomes(sockets: Sockets, service: str, wanted: int) -> None:
    """Return once the health service says so: it tells each change."""
    async with grpc.aio.insecure_channel(sockets.grpc) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        watch = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=20)
        async for told in watch:
            if told.status == wanted:
                watch.cancel()
                return


async def readiness(sockets: Sockets) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{sockets.metrics}/readyz", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def test_a_process_without_what_it_needs_is_not_ready_and_says_why(
    stack: AsyncExitStack,
) -> None:
    sockets = await serving(stack, Dependency("redis", away, needed=True))
    await health_becomes(sockets, "qim.dependency.redis", NOT_SERVING)
    await health_becomes(sockets, "", NOT_SERVING)
    status, text = await readiness(sockets)
    assert status == 503
    assert text.startswith("not ready\nredis: connection refused, since 20")


async def test_a_process_that_serves_a_part_is_ready(stack: AsyncExitStack) -> None:
    sockets = await serving(
        stack, Dependency("kafka", away, needed=False), Dependency("redis", there, needed=True)
    )
    await health_becomes(sockets, "qim.dependency.kafka", NOT_SERVING)
    await health_becomes(sockets, "qim.dependency.redis", SERVING)
    await health_becomes(sockets, "", SERVING)
    assert await readiness(sockets) == (200, "ready\n")
