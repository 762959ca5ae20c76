"""Where a process's spans go. Off unless set, and then nothing of OpenTelemetry is loaded."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from grpc import aio

from qimd.app.engine_access import Access
from qimd.app.settings import ProcessSettings
from qimd.core.address import host_of, is_loopback
from qimd.core.ids import TenantId
from qimd.core.records import ConversationKey
from qimd.ports.runtime import Runtime
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import NO_SPANS, Spans, Traced

_log = logger("tracing")


@dataclass(frozen=True, slots=True)
class Tracing:
    """What the rooms tell of, and what sees the administration calls."""

    spans: Spans = NO_SPANS
    interceptors: Sequence[aio.ServerInterceptor] = ()


NO_TRACING: Final = Tracing()


@asynccontextmanager
async def open_tracing(
    settings: ProcessSettings, runtime: Runtime, metrics: Metrics
) -> AsyncIterator[Tracing]:
    """By the settings, which were checked; leaving the block exports what still waits.

    Spans name tenants, conversations and events: beyond loopback they travel under TLS. Raises
    SettingRefused for files that are unfit.
    """
    if settings.trace_to is None:
        yield NO_TRACING
        return
    from qimd.app.otel import OtelSpans

    pem = Access.of(settings, "trace").pem
    spans = OtelSpans(
        settings.trace_to,
        insecure=pem is None and is_loopback(host_of(settings.trace_to)),
        pem=pem,
        share=settings.trace_share,
        runtime=runtime,
        metrics=metrics,
    )
    guard = Guard(metrics)
    try:
        yield Tracing(Guarded(spans, guard), (spans.interceptor(),))
    finally:
        with guard:
            await spans.close()


class Guard:
    """A context in which a defect of tracing ends: counted each time, logged the first."""

    def __init__(self, metrics: Metrics) -> None:
        self._count = metrics.defects_total.labels("tracing")
        self._told = False

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._count.inc()
        if not self._told:
            self._told = True
            _log.error("tracing failed by a defect; from now on it is counted", exc_info=error)
        return True


class Guarded:
    """`telemetry.tracing.Spans` that harm no request by a defect of theirs."""

    def __init__(self, spans: Spans, guard: Guard) -> None:
        self._spans = spans
        self._guard = guard

    def new_trace(self, random_bytes: Callable[[int], bytes]) -> str:
        """See `Spans`."""
        with self._guard:
            return self._spans.new_trace(random_bytes)
        return NO_SPANS.new_trace(random_bytes)

    def sent(
        self, trace_parent: str, key: ConversationKey, events: int, began_s: float, error: str
    ) -> None:
        """See `Spans`."""
        with self._guard:
            self._spans.sent(trace_parent, key, events, began_s, error)

    def served(self, name: str, tenant: TenantId, began_s: float, error: str) -> None:
        """See `Spans`."""
        with self._guard:
            self._spans.served(name, tenant, began_s, error)

    def stage(self, name: str, began_s: float, traced: Iterable[Traced], **attributes: int) -> None:
        """See `Spans`."""
        with self._guard:
            self._spans.stage(name, began_s, traced, **attributes)
