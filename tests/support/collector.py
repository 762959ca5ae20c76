"""An OTLP collector that keeps what it is sent."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as collector_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as collector_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PATIENCE_S = 60.0
"""How long spans may take on a machine that is busy with other things. No test waits for it."""

HOST = "127.0.0.1"


class Collector(collector_grpc.TraceServiceServicer):
    """What came, and a way to wait for it. It answers while `open` is set, by `refusal` if any."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.bytes = b""
        self.open = asyncio.Event()
        self.open.set()
        self.refusal: grpc.StatusCode | None = None
        self.asked = asyncio.Event()
        self._more = asyncio.Condition()

    async def Export(self, request: Any, context: Any) -> Any:
        self.asked.set()
        await self.open.wait()
        if self.refusal is not None:
            await context.abort(self.refusal, "refused by the test")
        async with self._more:
            self.bytes += request.SerializeToString()
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self.spans += scope.spans
            self._more.notify_all()
        return collector_pb.ExportTraceServiceResponse()

    async def until(self, enough: Callable[[], bool]) -> None:
        """Return once it holds, which is looked at whenever spans have come."""
        async with asyncio.timeout(PATIENCE_S), self._more:
            await self._more.wait_for(enough)

    def named(self, name: str) -> list[Span]:
        """The spans of a name."""
        return [span for span in self.spans if span.name == name]


@asynccontextmanager
async def collecting(
    port: int = 0, credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[tuple[Collector, str]]:
    """A collector that runs, and its host:port; under TLS with credentials."""
    collector = Collector()
    server = grpc.aio.server()
    collector_grpc.add_TraceServiceServicer_to_server(collector, server)
    place = f"{HOST}:{port}"
    bound = (
        server.add_insecure_port(place)
        if credentials is None
        else server.add_secure_port(place, credentials)
    )
    await server.start()
    try:
        yield collector, f"{HOST}:{bound}"
    finally:
        collector.open.set()
        await server.stop(0)


def attributes(span: Span) -> dict[str, Any]:
    """A span's attributes as Python's values."""
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value")))
        for each in span.attributes
    }
