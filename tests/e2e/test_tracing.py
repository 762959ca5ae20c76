"""Spans of a message, from SEND to PUSH, as a collector receives them."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as collector_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as collector_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.e2e.support.dev import DevServer
from tests.e2e.support.stream import PATIENCE_S, message
from tests.e2e.support.tenancy import Tenancy

from qimd.app.dev_settings import DevSettings
from qimd.app.settings import SettingRefused, load
from qimd.core.errors import QimError

STAGES = {"commit", "dispatch", "mailbox", "session", "push"}
CANARY = b"c4nary-of-the-body"


class Collector(collector_grpc.TraceServiceServicer):
    """An OTLP collector that keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.bytes = b""
        self._more = asyncio.Condition()

    async def Export(self, request: Any, context: Any) -> Any:
        async with self._more:
            self.bytes += request.SerializeToString()
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self.spans += scope.spans
            self._more.notify_all()
        return collector_pb.ExportTraceServiceResponse()

    async def until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), self._more:
            await self._more.wait_for(enough)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@asynccontextmanager
async def collecting() -> AsyncIterator[tuple[Collector, str]]:
    collector = Collector()
    server = grpc.aio.server()
    collector_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield collector, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@pytest.fixture
async def collected() -> AsyncIterator[tuple[Collector, str]]:
    async with collecting() as running:
        yield running


@pytest.fixture
async def collector(collected: tuple[Collector, str]) -> Collector:
    return collected[0]


@pytest.fixture
def tenancy(collected: tuple[Collector, str], tmp_path: Path) -> Iterator[Tenancy]:
    arguments = ("--trace-to", collected[1], "--trace-share", "1")
    with DevServer(tmp_path / "data", arguments) as server:
        yield Tenancy(server)


def attributes(span: Span) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value")))
        for each in span.attributes
    }


async def say_one(tenancy: Tenancy) -> bytes:
    """Ann says something, and Bob, who is online, is pushed it; the event's id."""
    async with tenancy.operator() as operator:
        await operator.create("room", ["ann", "bob"])
    async with tenancy.device("ann") as ann, tenancy.device("bob") as bob:
        [result] = await ann.say("room", message("m-1", CANARY))
        await bob.pushed(result.accepted.conversation_seq)
        await bob.session("room", result.accepted.conversation_seq)
        return bytes(result.accepted.event_id)


async def test_one_trace_goes_from_send_to_push(collector: Collector, tenancy: Tenancy) -> None:
    event_id = await say_one(tenancy)

    def stages() -> dict[str, Span]:
        return {s.name: s for s in collector.spans if s.name in STAGES}

    await collector.until(lambda: stages().keys() == STAGES and bool(collector.named("SEND")))
    [send] = collector.named("SEND")
    assert send.parent_span_id == b""
    for span in stages().values():
        assert (span.trace_id, span.parent_span_id) == (send.trace_id, send.span_id)
        assert attributes(span)["qim.event_id"] == event_id.hex()
        assert attributes(span)["qim.conversation_id"] == "room"
    found = stages()
    order = [send, *(found[name] for name in ("commit", "dispatch", "mailbox", "push"))]
    assert [s.name for s in sorted(order, key=lambda s: s.start_time_unix_nano)] == [
        s.name for s in order
    ]
    assert attributes(found["mailbox"])["qim.mailbox_seq"] > 0
    assert attributes(found["commit"])["qim.fencing_epoch"] > 0


async def test_an_administration_call_is_a_span_with_its_outcome(
    collector: Collector, tenancy: Tenancy
) -> None:
    name = "/qim.conversation.v1.ConversationService/GetConversation"
    async with tenancy.operator() as operator:
        with pytest.raises(QimError):
            await operator.get("nowhere")
    await collector.until(lambda: bool(collector.named(name)))
    [span] = collector.named(name)
    assert attributes(span)["rpc.grpc.status_code"] == grpc.StatusCode.NOT_FOUND.value[0]
    assert not span.events


async def test_no_body_and_no_token_is_in_a_span(collector: Collector, tenancy: Tenancy) -> None:
    await say_one(tenancy)
    credentials = tenancy.server.credentials
    # Beside this loop, which the collector needs.
    await asyncio.to_thread(tenancy.server.stop)
    assert {span.name for span in collector.spans} >= STAGES | {"SEND"}
    for secret in (
        CANARY,
        b"eyJ",
        *(credentials[k].encode() for k in ("admin_token", "private_key")),
    ):
        assert secret not in collector.bytes


async def test_a_collector_that_is_away_breaks_nothing(tmp_path: Path) -> None:
    async with collecting() as (_, gone):
        pass
    arguments = ("--trace-to", gone, "--trace-share", "1")
    with DevServer(tmp_path / "data", arguments) as server:
        await say_one(Tenancy(server))
        assert server.stop() == 0
        server.start()


@pytest.mark.parametrize(
    ("command", "forbidden"),
    [
        ("server", "opentelemetry"),
        # The client of Redis imports the API where it is installed; what exports is ours alone.
        ("run", "opentelemetry.exporter"),
        ("run", "opentelemetry.instrumentation"),
    ],
)
def test_off_nothing_of_opentelemetry_is_loaded(command: str, forbidden: str) -> None:
    code = (
        f"import sys, qimd.app.main, qimd.app.{command}\n"
        "from qimd.app.dev_settings import DevSettings\n"
        "from qimd.app.settings import load\n"
        "load(DevSettings, {}, {})\n"
        f"assert not [name for name in sys.modules if name.startswith({forbidden!r})]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_the_extra_a_start_is_refused() -> None:
    code = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from qimd.app.main import main\n"
        "sys.exit(main(['check', '--trace-to', 'localhost:4317']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--trace-to" in done.stderr
    assert "extra `tracing`" in done.stderr


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("trace_to", "collector"),
        ("trace_to", "collector:0"),
        ("trace_to", "::1:4317"),
        ("trace_share", "1.1"),
        ("trace_share", "-0.1"),
        ("trace_share", "nan"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(flag: str, text: str) -> None:
    with pytest.raises(SettingRefused, match=flag.replace("_", "-")):
        load(DevSettings, {flag: text}, {})
