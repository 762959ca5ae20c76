"""Spans as OpenTelemetry's, to an OTLP collector. Needs the extra `tracing`; imported only with it.

A thread of the SDK exports in batches from a bounded queue. Where the collector is away, or slower
than what is told, spans are dropped and counted, and nothing else waits for it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from itertools import islice
from typing import Any, Final

from grpc import aio, ssl_channel_credentials
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.grpc import aio_server_interceptor, filters
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from qim.gateway.v1 import gateway_pb2
from qimd.app.engine_access import Pem
from qimd.core.ids import TenantId
from qimd.core.records import ConversationKey
from qimd.ports.runtime import Runtime
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import TraceContext, Traced, context_of, new_trace_parent

QUEUE_SPANS_MAX: Final = 8192
"""About 16 MiB of spans that wait for the collector; what comes beyond is dropped."""

EXPORT_BATCH_SPANS: Final = 512
"""About 200 KB a request to the collector."""

EXPORT_DELAY_MS: Final = 1000
"""How long a span waits for others to leave with."""

EXPORT_TIMEOUT_S: Final = 5.0
"""For one batch, its tries included."""

FLUSH_GRACE_S: Final = 2.0
"""What an orderly stop gives the spans that still wait."""

SPANS_A_BATCH_MAX: Final = 64
"""Spans of one stage's batch: with every trace sampled, a burst must not fill the queue alone."""

_GATEWAY: Final = gateway_pb2.DESCRIPTOR.services_by_name["Gateway"].full_name


class _Ids(RandomIdGenerator):
    """The SDK's, but for a root whose ids were given out before: a SEND's, in its traceparent."""

    def __init__(self) -> None:
        self.given: TraceContext | None = None

    def generate_trace_id(self) -> int:
        if self.given is None:
            return super().generate_trace_id()
        return int(self.given.trace_id, 16)

    def generate_span_id(self) -> int:
        if self.given is None:
            return super().generate_span_id()
        return int(self.given.span_id, 16)


class _Exporter(SpanExporter):
    """The SDK's, with a count of what it took and of what the collector did not take."""

    def __init__(self, exporter: SpanExporter, metrics: Metrics) -> None:
        self._exporter = exporter
        self._lost = metrics.spans_dropped_total.labels("not_taken")
        self.taken = 0
        """Written by the exporting thread alone."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is not SpanExportResult.SUCCESS:
                self._lost.inc(len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _Queue(BatchSpanProcessor):
    """The SDK's, which would drop the oldest without a count, and log a line for each.

    Spans end on the event loop alone, so that each of the two counts has one writer.
    """

    def __init__(self, exporter: _Exporter, metrics: Metrics) -> None:
        super().__init__(
            exporter,
            max_queue_size=QUEUE_SPANS_MAX,
            schedule_delay_millis=EXPORT_DELAY_MS,
            max_export_batch_size=EXPORT_BATCH_SPANS,
        )
        self._own_exporter = exporter
        self._dropped = metrics.spans_dropped_total.labels("queue_full")
        self._queued = 0

    def on_end(self, span: ReadableSpan) -> None:
        if self._queued - self._own_exporter.taken >= QUEUE_SPANS_MAX:
            self._dropped.inc()
            return
        self._queued += 1
        super().on_end(span)


class OtelSpans:
    """`telemetry.tracing.Spans`. Used from the event loop alone.

    TLS is spoken unless `insecure`: with `pem`, or as the SDK's own variables say.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        insecure: bool,
        pem: Pem | None,
        share: float,
        runtime: Runtime,
        metrics: Metrics,
    ) -> None:
        self._runtime = runtime
        self._share = share
        self._ids = _Ids()
        self._exporter = _Exporter(
            OTLPSpanExporter(
                endpoint=f"{'http' if insecure else 'https'}://{endpoint}",
                insecure=insecure,
                credentials=None if pem is None else _credentials(pem),
                timeout=EXPORT_TIMEOUT_S,
            ),
            metrics,
        )
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(share)),
            resource=Resource.create(
                {"service.name": "qimd", "service.version": metadata.version("qim")}
            ),
            # The library adds exceptions as events, with tracebacks: their texts pass no redaction.
            span_limits=SpanLimits(max_events=0),
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        self._provider.add_span_processor(_Queue(self._exporter, metrics))
        self._tracer = self._provider.get_tracer("qimd")

    def interceptor(self) -> aio.ServerInterceptor:
        """Spans of the unary administration calls.

        Not of streams: they last for hours, and their handlers' reads and writes would go through
        the library for each frame.
        """
        ours = filters.service_prefix("qim.")
        unary = filters.all_of(ours, filters.negate(filters.service_name(_GATEWAY)))
        made: aio.ServerInterceptor = aio_server_interceptor(self._provider, unary)
        return made

    async def close(self) -> None:
        """Export what waits, for `FLUSH_GRACE_S` at the most."""
        ending = asyncio.ensure_future(asyncio.to_thread(self._provider.shutdown))
        await asyncio.wait([ending], timeout=FLUSH_GRACE_S)
        if not ending.done():
            # It cuts the export off that the other thread waits for; the rest is refused at once.
            await asyncio.to_thread(self._exporter.shutdown)
        await ending

    # --- telemetry.tracing.Spans ---

    def new_trace(self, random_bytes: Callable[[int], bytes]) -> str:
        return new_trace_parent(random_bytes, self._share)

    def sent(
        self, trace_parent: str, key: ConversationKey, events: int, began_s: float, error: str
    ) -> None:
        send = context_of(trace_parent)
        if send is None or not send.sampled:
            return
        attributes = {**_of_conversation(key), "qim.events": events}
        self._answered("SEND", send, began_s, error, attributes)

    def served(self, name: str, tenant: TenantId, began_s: float, error: str) -> None:
        trace = context_of(self.new_trace(self._runtime.random_bytes))
        if trace is not None and trace.sampled:
            self._answered(name, trace, began_s, error, {"qim.tenant_id": tenant})

    def stage(self, name: str, began_s: float, traced: Iterable[Traced], **attributes: int) -> None:
        began_ns, ended_ns = self._window(began_s)
        shared = {f"qim.{key}": value for key, value in attributes.items()}
        for parent, done in islice(_sampled(traced), SPANS_A_BATCH_MAX):
            event = done.event
            own: dict[str, Any] = {
                **_of_conversation(event.key),
                "qim.event_id": event.event_id.hex(),
                "qim.conversation_seq": event.conversation_seq,
                **shared,
            }
            if done.mailbox_seq:
                own["qim.mailbox_seq"] = done.mailbox_seq
            span = self._tracer.start_span(
                name, _below(parent), attributes=own, start_time=began_ns
            )
            span.end(ended_ns)

    def _answered(
        self,
        name: str,
        root: TraceContext,
        began_s: float,
        error: str,
        attributes: dict[str, Any],
    ) -> None:
        """A request of a stream: the root of its trace, under the ids that were drawn for it."""
        began_ns, ended_ns = self._window(began_s)
        if error:
            attributes["qim.error_code"] = error
        self._ids.given = root
        try:
            span = self._tracer.start_span(
                name, Context(), SpanKind.SERVER, attributes, start_time=began_ns
            )
        finally:
            self._ids.given = None
        if error:
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended_ns)

    def _window(self, began_s: float) -> tuple[int, int]:
        """From `began_s` (monotonic) until now, in nanoseconds since the epoch."""
        now_ns = time.time_ns()
        return now_ns - int((self._runtime.monotonic_s() - began_s) * 1e9), now_ns


def _credentials(pem: Pem) -> Any:
    chain, key = (text.encode() or None for text in (pem.chain, pem.key))
    return ssl_channel_credentials(pem.authority.encode(), key, chain)


def _sampled(traced: Iterable[Traced]) -> Iterable[tuple[TraceContext, Traced]]:
    for done in traced:
        context = context_of(done.trace_parent)
        if context is not None and context.sampled:
            yield context, done


def _below(parent: TraceContext) -> Context:
    remote = SpanContext(
        int(parent.trace_id, 16),
        int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(remote), Context())


def _of_conversation(key: ConversationKey) -> dict[str, Any]:
    return {"qim.tenant_id": key.tenant, "qim.conversation_id": key.conversation}
