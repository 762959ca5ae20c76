"""Where a process's spans go. Off unless set, and then nothing of OpenTelemetry is loaded."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from grpc import aio

from qimd.app.settings import ProcessSettings, host_of, is_loopback
from qimd.ports.runtime import Runtime
from qimd.telemetry.tracing import NO_SPANS, Spans


@dataclass(frozen=True, slots=True)
class Tracing:
    """What the rooms tell of, and what sees the administration calls."""

    spans: Spans = NO_SPANS
    interceptors: Sequence[aio.ServerInterceptor] = ()


NO_TRACING: Final = Tracing()


@asynccontextmanager
async def open_tracing(settings: ProcessSettings, runtime: Runtime) -> AsyncIterator[Tracing]:
    """By the settings, which were checked; leaving the block exports what still waits.

    Spans name tenants, conversations and events: beyond loopback they travel under TLS.
    """
    if settings.trace_to is None:
        yield NO_TRACING
        return
    from qimd.app.otel import OtelSpans

    spans = OtelSpans(
        settings.trace_to,
        insecure=is_loopback(host_of(settings.trace_to)),
        share=settings.trace_share,
        runtime=runtime,
    )
    try:
        yield Tracing(spans, (spans.interceptor(),))
    finally:
        await spans.close()
