"""The gRPC face, on real loopback connections, with a room of the test's own behind it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from qim.gateway.v1 import gateway_pb2_grpc
from qim.gateway.v1.gateway_pb2 import ClientFrame, Ping, Pong, ServerFrame
from qim.writer.v1 import writer_service_pb2, writer_service_pb2_grpc
from qimd.app.dev_settings import DevSettings
from qimd.app.grpc_server import OPTIONS, GrpcServer
from qimd.app.grpc_stream import GatewayStream
from qimd.app.runtime import AsyncioRuntime
from qimd.app.setting_kinds import SettingRefused
from qimd.auth.admin import AdminToken
from qimd.contract.frames import push_frame, server_frame
from qimd.contract.grpc_aio import StrictChannel
from qimd.contract.grpc_status import from_rpc_error
from qimd.contract.violation import ContractViolation
from qimd.core.errors import ErrorCode, QimError
from qimd.core.parameters import CLIENT_PING_INTERVAL_MIN_MS
from qimd.telemetry.metrics import Metrics

TOKEN = "an-admin-token-of-the-test"
SERVICE = writer_service_pb2.DESCRIPTOR.services_by_name["WriterService"]


def pong(request_id: int) -> ServerFrame:
    return ServerFrame(request_id=request_id, pong=Pong())


def ping(request_id: int) -> ClientFrame:
    return ClientFrame(request_id=request_id, ping=Ping())


class Room:
    """Answers pings; what else it does, a test says by `script`."""

    def __init__(self) -> None:
        self.received: list[ClientFrame | QimError | None] = []
        self.peers: list[str] = []
        self.ended = asyncio.Event()
        self.script: Callable[[GatewayStream], Awaitable[None]] = self.echo

    async def handle(self, stream: GatewayStream) -> None:
        self.peers.append(stream.peer)
        try:
            await self.script(stream)
        finally:
            self.ended.set()

    async def echo(self, stream: GatewayStream) -> None:
        while (frame := await stream.receive()) is not None:
            self.received.append(frame)
            if isinstance(frame, ClientFrame):
                await stream.send(server_frame(pong(frame.request_id)))
        self.received.append(None)
        await stream.close(None)


class Handlers:
    """The writer service's face, failing as the test says."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    async def Commit(
        self, request: writer_service_pb2.CommitRequest
    ) -> writer_service_pb2.CommitResponse:
        if self.error is not None:
            raise self.error
        return writer_service_pb2.CommitResponse()


class Site:
    """A running server and a channel to it."""

    def __init__(self) -> None:
        self.room = Room()
        self.handlers = Handlers()
        self.metrics = Metrics()
        self.runtime = AsyncioRuntime(self.metrics)
        self.server = GrpcServer(
            settings=DevSettings(grpc_port=0),
            admin_token=AdminToken(TOKEN),
            runtime=self.runtime,
            metrics=self.metrics,
        )

    async def __aenter__(self) -> "Site":
        self.server.bind()
        self.server.offer(streams=self.room, services=[(SERVICE, self.handlers)])
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(self.server.address)
        strict = StrictChannel(self.channel)
        self.gateway = gateway_pb2_grpc.GatewayStub(strict)
        self.writer = writer_service_pb2_grpc.WriterServiceStub(strict)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.server.stop(0)
        await self.runtime.cancel_all()

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with asyncio.timeout(30), Site() as running:
        yield running


# --- streams ----------------------------------------------------------------------------------


async def test_frames_go_both_ways_in_order(site: Site) -> None:
    call = site.gateway.Connect(timeout=10)
    for number in range(1, 51):
        await call.write(ping(number))
    answers = [(await call.read()).request_id for _ in range(50)]
    assert answers == list(range(1, 51))
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    assert site.room.peers[0].startswith("ipv4:127.0.0.1:")


async def test_a_refused_frame_reaches_the_room_as_a_value_and_the_stream_lives_on(
    site: Site,
) -> None:
    raw = site.channel.stream_stream("/qim.gateway.v1.Gateway/Connect")
    call = raw(timeout=10)
    await call.write(b"\xff\xff\xff")
    await call.write(ping(2).SerializeToString())
    assert ServerFrame.FromString(await call.read()).request_id == 2
    assert isinstance(site.room.received[0], ContractViolation)
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK


async def test_a_stream_closed_with_an_error_shows_its_status_after_the_frames_before(
    site: Site,
) -> None:
    async def refuse(stream: GatewayStream) -> None:
        await stream.receive()
        await stream.send(server_frame(pong(1)))
        await stream.close(QimError(ErrorCode.SLOW_CONSUMER, "read faster"))

    site.room.script = refuse
    call = site.gateway.Connect(timeout=10)
    await call.write(ping(1))
    assert (await call.read()).request_id == 1
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await call.read()
    assert from_rpc_error(ended.value).code is ErrorCode.SLOW_CONSUMER


async def test_a_room_that_fails_ends_the_stream_with_a_typed_internal_error(site: Site) -> None:
    async def fail(stream: GatewayStream) -> None:
        await stream.receive()
        raise RuntimeError("s3cret")

    site.room.script = fail
    call = site.gateway.Connect(timeout=10)
    await call.write(ping(1))
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await call.read()
    error = from_rpc_error(ended.value)
    assert error.code is ErrorCode.INTERNAL
    assert "s3cret" not in str(ended.value)
    assert site.sample("defects_total", task="gateway-stream") == 1


async def test_a_room_that_is_cancelled_ends_the_stream_retryably(site: Site) -> None:
    """GW-01: a terminal status that is retryable, although nobody is left to answer."""

    async def cancelled(stream: GatewayStream) -> None:
        await stream.receive()
        raise asyncio.CancelledError

    site.room.script = cancelled
    call = site.gateway.Connect(timeout=10)
    await call.write(ping(1))
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await call.read()
    error = from_rpc_error(ended.value)
    assert (error.code, error.retryable) == (ErrorCode.UNAVAILABLE, True)
    assert "interrupted" in error.message


async def test_a_client_that_cancels_is_gone_for_the_room(site: Site) -> None:
    call = site.gateway.Connect(timeout=10)
    await call.write(ping(1))
    await call.read()
    call.cancel()
    await site.room.ended.wait()
    assert site.room.received[-1] is None


async def test_a_connection_that_breaks_is_a_client_that_is_gone(site: Site) -> None:
    call = site.gateway.Connect(timeout=10)
    await call.write(ping(1))
    await call.read()
    await site.channel.close()
    await site.room.ended.wait()
    assert site.room.received[-1] is None


async def test_a_receive_given_up_loses_no_frame(site: Site) -> None:
    """The AUTH deadline cancels a receive; the frame that comes later must still arrive."""
    gave_up = asyncio.Event()

    async def impatient(stream: GatewayStream) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await stream.receive()
        gave_up.set()
        await site.room.echo(stream)

    site.room.script = impatient
    call = site.gateway.Connect(timeout=10)
    await gave_up.wait()
    await call.write(ping(7))
    assert (await call.read()).request_id == 7
    call.cancel()


async def test_a_client_that_does_not_read_holds_the_sender_back(site: Site) -> None:
    sent = 0
    stuck = asyncio.Event()

    async def flood(stream: GatewayStream) -> None:
        nonlocal sent
        frame = push_frame([b"\x12\x80\x80\x10" + bytes(256 * 1024)])
        while sent < 1_000:
            try:
                async with asyncio.timeout(1.0):
                    await stream.send(frame)
            except TimeoutError:
                stuck.set()
                return
            sent += 1

    site.room.script = flood
    call = site.gateway.Connect(timeout=20)
    await call.wait_for_connection()
    await stuck.wait()
    assert 0 < sent < 100
    call.cancel()


# --- administration ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        (("authorization", "Bearer wrong-token-of-the-test"),),
        (("authorization", TOKEN),),
        (("authorization", "Bearer "),),
        (("authorization", f"Basic {TOKEN}"),),
    ],
)
async def test_an_administration_call_without_the_admin_token_is_unauthenticated(
    site: Site, metadata: tuple[tuple[str, str], ...] | None
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await site.writer.Commit(writer_service_pb2.CommitRequest(), timeout=10, metadata=metadata)
    assert from_rpc_error(refused.value).code is ErrorCode.UNAUTHENTICATED
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert site.sample("errors_total", code="UNAUTHENTICATED") == 1


def admin() -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {TOKEN}"),)


async def test_with_the_admin_token_the_call_reaches_its_handler(site: Site) -> None:
    answer = await site.writer.Commit(
        writer_service_pb2.CommitRequest(), timeout=10, metadata=admin()
    )
    assert answer == writer_service_pb2.CommitResponse()


async def test_a_handlers_refusal_arrives_typed_and_is_counted(site: Site) -> None:
    site.handlers.error = QimError(ErrorCode.INVALID_ARGUMENT, "too long", field="events[3]")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await site.writer.Commit(writer_service_pb2.CommitRequest(), timeout=10, metadata=admin())
    error = from_rpc_error(refused.value)
    assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "events[3]")
    assert site.sample("errors_total", code="INVALID_ARGUMENT") == 1


async def test_a_defect_shows_no_detail_and_counts_as_one(site: Site) -> None:
    site.handlers.error = RuntimeError("s3cret")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await site.writer.Commit(writer_service_pb2.CommitRequest(), timeout=10, metadata=admin())
    assert from_rpc_error(refused.value).code is ErrorCode.INTERNAL
    assert "s3cret" not in str(refused.value)
    assert site.sample("defects_total", task="grpc-call") == 1


async def test_a_service_whose_handlers_lack_a_method_is_refused_at_start() -> None:
    metrics = Metrics()
    server = GrpcServer(
        settings=DevSettings(),
        admin_token=AdminToken(TOKEN),
        runtime=AsyncioRuntime(metrics),
        metrics=metrics,
    )
    with pytest.raises(AttributeError, match="Commit"):
        server.offer(streams=Room(), services=[(SERVICE, object())])


# --- health, reflection, ports ----------------------------------------------------------------


async def test_health_says_serving_only_while_the_node_is_ready(site: Site) -> None:
    stub = health_pb2_grpc.HealthStub(site.channel)

    async def status(name: str) -> int:
        request = health_pb2.HealthCheckRequest(service=name)
        return int((await stub.Check(request, timeout=10)).status)

    for name in ("", "qim.gateway.v1.Gateway", "qim.writer.v1.WriterService"):
        assert await status(name) == health_pb2.HealthCheckResponse.NOT_SERVING
        await site.server.set_serving(True)
        assert await status(name) == health_pb2.HealthCheckResponse.SERVING
        await site.server.set_serving(False)


async def test_health_names_each_dependency(site: Site) -> None:
    stub = health_pb2_grpc.HealthStub(site.channel)
    request = health_pb2.HealthCheckRequest(service="qim.dependency.redis")
    for up, told in (
        (True, health_pb2.HealthCheckResponse.SERVING),
        (False, health_pb2.HealthCheckResponse.NOT_SERVING),
    ):
        await site.server.set_dependency("redis", up)
        assert (await stub.Check(request, timeout=10)).status == told


async def test_reflection_lists_the_services(site: Site) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(site.channel)
    call = stub.ServerReflectionInfo(timeout=10)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    names = {each.name for each in answer.list_services_response.service}
    assert {"qim.gateway.v1.Gateway", "qim.writer.v1.WriterService"} <= names
    assert "grpc.health.v1.Health" in names
    # To its end: what a cancelled call still reports would reach the next test, on a closed loop.
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_a_port_in_use_is_refused_by_the_name_of_its_flag() -> None:
    metrics = Metrics()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = GrpcServer(
            settings=DevSettings(grpc_port=port),
            admin_token=AdminToken(TOKEN),
            runtime=AsyncioRuntime(metrics),
            metrics=metrics,
        )
        with pytest.raises(SettingRefused, match=f"--grpc-port: port {port} .* in use"):
            server.bind()


def test_the_accepted_ping_interval_is_at_most_the_documented_one() -> None:
    """GW-02: a client that pings at the documented interval never meets too_many_pings."""
    options = dict(OPTIONS)
    assert options["grpc.http2.min_ping_interval_without_data_ms"] <= CLIENT_PING_INTERVAL_MIN_MS
    assert options["grpc.so_reuseport"] == 0
