"""What becomes of spans: they arrive under TLS, or are counted; no defect reaches who tells."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import grpc
import pytest
from tests.support.certificates import Authority
from tests.support.collector import collecting

from qimd.app.dev_settings import DevSettings
from qimd.app.engine_access import Access
from qimd.app.otel import EXPORT_BATCH_SPANS, QUEUE_SPANS_MAX
from qimd.app.runtime import AsyncioRuntime
from qimd.app.setting_kinds import SettingRefused
from qimd.app.settings import load
from qimd.app.tracing import Tracing, open_tracing
from qimd.core.ids import TenantId
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import COMMIT, Traced, context_of

TENANT: Final = TenantId("acme")


class Told:
    """Tracing by settings, every span recorded, with what is counted of it."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.runtime = AsyncioRuntime(self.metrics)

    def open(self, place: str, **flags: str) -> AbstractAsyncContextManager[Tracing]:
        given = {"trace_to": place, "trace_share": "1", **flags}
        return open_tracing(load(DevSettings, given, {}), self.runtime, self.metrics)

    def tell(self, tracing: Tracing, count: int = 1) -> None:
        for _ in range(count):
            tracing.spans.served("PING", TENANT, self.runtime.monotonic_s(), "")

    def dropped(self, reason: str) -> int:
        found = self.metrics.registry.get_sample_value("spans_dropped_total", {"reason": reason})
        return int(found or 0)

    @property
    def defects(self) -> float:
        labels = {"task": "tracing"}
        return self.metrics.registry.get_sample_value("defects_total", labels) or 0.0


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    made = Told()
    yield made
    await made.runtime.cancel_all()


async def test_beyond_the_queue_spans_are_dropped_and_each_is_counted(told: Told) -> None:
    many = QUEUE_SPANS_MAX + 2 * EXPORT_BATCH_SPANS
    async with collecting() as (collector, place):
        collector.open.clear()
        async with told.open(place) as tracing:
            told.tell(tracing, EXPORT_BATCH_SPANS)
            await collector.asked.wait()
            # One batch is on its way and stays there: the queue has room for its bound alone.
            told.tell(tracing, many)
            assert told.dropped("queue_full") == many - QUEUE_SPANS_MAX
            collector.open.set()
        arrived = len(collector.spans)
    assert arrived == EXPORT_BATCH_SPANS + QUEUE_SPANS_MAX
    assert told.dropped("not_taken") == 0


async def test_what_a_collector_does_not_take_is_counted(told: Told) -> None:
    async with collecting() as (collector, place):
        collector.refusal = grpc.StatusCode.INVALID_ARGUMENT
        async with told.open(place) as tracing:
            told.tell(tracing, 3)
    assert told.dropped("not_taken") == 3


async def test_a_defect_is_counted_and_reaches_nobody(told: Told) -> None:
    def broken() -> Iterator[Traced]:
        yield from ()
        raise RuntimeError("a defect")

    fails = iter([True, False, False])

    def random_bytes(size: int) -> bytes:
        if next(fails):
            raise RuntimeError("a defect")
        return b"\x01" * size

    async with collecting() as (collector, place):
        async with told.open(place) as tracing:
            tracing.spans.stage(COMMIT, 0.0, broken())
            trace = context_of(tracing.spans.new_trace(random_bytes))
            told.tell(tracing)
        assert [span.name for span in collector.spans] == ["PING"]
    assert trace is not None
    assert not trace.sampled
    assert told.defects == 2


async def test_spans_go_under_tls_to_whom_the_authority_has_signed(
    told: Told, tmp_path: Path
) -> None:
    authority = Authority()
    files = authority.write(tmp_path / "own", "qim-node")
    server = authority.issue("collector")
    demanding = grpc.ssl_server_credentials(
        [(server.key, server.certificate)], authority.pem, require_client_auth=True
    )
    flags = {
        "trace_certificate_authority": str(files.authority),
        "trace_certificate": str(files.certificate),
        "trace_private_key": str(files.key),
    }
    async with collecting(credentials=demanding) as (collector, place):
        async with told.open(place, **flags) as tracing:
            told.tell(tracing)
        assert len(collector.spans) == 1


async def test_nothing_goes_to_a_collector_of_another_authority_nor_in_clear(
    told: Told, tmp_path: Path
) -> None:
    trusted = Authority().write(tmp_path / "own", "qim-node").authority
    other = Authority().issue("collector")
    foreign = grpc.ssl_server_credentials([(other.key, other.certificate)])
    for credentials in (foreign, None):
        async with collecting(credentials=credentials) as (collector, place):
            async with told.open(place, trace_certificate_authority=str(trusted)) as tracing:
                told.tell(tracing)
            assert not collector.spans
    assert told.dropped("not_taken") == 2


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"trace_certificate": "a"}, "--trace-private-key"),
        ({"trace_private_key": "a"}, "--trace-certificate:"),
        ({"trace_certificate": "a", "trace_private_key": "a"}, "--trace-certificate-authority"),
    ],
)
def test_files_that_belong_together_are_given_together(given: dict[str, str], named: str) -> None:
    with pytest.raises(SettingRefused, match=named):
        load(DevSettings, given, {})


def test_an_authority_that_is_none_is_refused_by_its_setting(tmp_path: Path) -> None:
    settings = load(DevSettings, {"trace_certificate_authority": str(tmp_path / "none.pem")}, {})
    with pytest.raises(SettingRefused, match="--trace-certificate-authority"):
        Access.of(settings, "trace")
