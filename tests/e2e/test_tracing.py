"""Spans of a message, from SEND to PUSH, as a collector receives them."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.e2e.support.dev import DevServer
from tests.e2e.support.stream import Stream, message, refusal
from tests.e2e.support.tenancy import Tenancy
from tests.support.collector import Collector, attributes, collecting

from qim.gateway.v1 import gateway_pb2
from qimd.app.dev_settings import DevSettings
from qimd.app.setting_kinds import SettingRefused
from qimd.app.settings import load
from qimd.core.errors import QimError

STAGES = {"commit", "dispatch", "mailbox", "session", "push", "PUSH_EVENTS"}
REQUESTS = {"ACK_MAILBOX", "PULL_SESSION_LIST", "PULL_HISTORY"}
CANARY = b"c4nary-of-the-body"


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


def start_of(span: Span) -> int:
    return span.start_time_unix_nano


async def ask_for_all(device: Stream) -> None:
    """A PULL_MAILBOX, and one request of each other kind of REQUESTS."""
    page = (await device.pull()).mailbox_page
    await device.ack(page.covered_through_seq)
    await device.sessions()
    await device.ask(pull_history=gateway_pb2.PullHistory(conversation_id="room"))


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
    path = ("commit", "dispatch", "mailbox", "push", "PUSH_EVENTS")
    order = [send, *(found[name] for name in path)]
    assert sorted(order, key=start_of) == order
    assert attributes(found["mailbox"])["qim.mailbox_seq"] > 0
    assert attributes(found["commit"])["qim.fencing_epoch"] > 0
    assert attributes(found["PUSH_EVENTS"])["qim.mailbox_seq"] > 0
    assert attributes(found["PUSH_EVENTS"])["qim.streams"] == 2


async def test_each_request_of_a_stream_is_a_trace_of_its_own_with_its_outcome(
    collector: Collector, tenancy: Tenancy
) -> None:
    async with tenancy.device("bob") as bob:
        assert refusal(await bob.pull(token=b"no cursor"))[0] == "CURSOR_INVALID"
        await ask_for_all(bob)
    wanted = {*REQUESTS, "PULL_MAILBOX"}
    await collector.until(lambda: {s.name for s in collector.spans} >= wanted)
    pulls = collector.named("PULL_MAILBOX")
    requests = [*pulls, *(span for name in REQUESTS for span in collector.named(name))]
    assert not any(span.parent_span_id for span in requests)
    assert len({span.trace_id for span in requests}) == len(requests)
    assert {attributes(span)["qim.tenant_id"] for span in requests} == {"dev"}
    told = [attributes(span).get("qim.error_code") for span in sorted(pulls, key=start_of)]
    assert told == ["CURSOR_INVALID", None]


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


async def test_no_body_no_token_and_no_cursor_is_in_a_span(
    collector: Collector, tenancy: Tenancy
) -> None:
    await say_one(tenancy)
    async with tenancy.device("bob", "tablet") as tablet:
        await ask_for_all(tablet)
        cursor = tablet.auth_ok.cursor_token
    credentials = tenancy.server.credentials
    # Beside this loop, which the collector needs.
    await asyncio.to_thread(tenancy.server.stop)
    assert {span.name for span in collector.spans} >= STAGES | REQUESTS | {"SEND"}
    for secret in (
        CANARY,
        b"eyJ",
        cursor,
        *(credentials[k].encode() for k in ("admin_token", "private_key")),
    ):
        assert secret not in collector.bytes


async def test_a_collector_that_is_away_breaks_nothing_and_is_sent_to_once_it_is_there(
    tmp_path: Path,
) -> None:
    async with collecting() as (_, gone):
        pass
    arguments = ("--trace-to", gone, "--trace-share", "1")
    with DevServer(tmp_path / "data", arguments) as server:
        await say_one(Tenancy(server))
        async with collecting(int(gone.rpartition(":")[2])) as (collector, _):
            async with Tenancy(server).device("ann") as ann:
                await ann.pull()
            await collector.until(lambda: bool(collector.named("PULL_MAILBOX")))
        assert server.stop() == 0
        server.start()


async def test_a_collector_that_hangs_holds_up_neither_a_message_nor_a_stop(
    collector: Collector, tenancy: Tenancy
) -> None:
    collector.open.clear()
    await say_one(tenancy)
    await collector.asked.wait()
    async with tenancy.device("bob", "tablet") as tablet:
        await ask_for_all(tablet)
    assert await asyncio.to_thread(tenancy.server.stop) == 0
    assert not collector.spans


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
