"""Processes that prove themselves by certificates of the deployment's own authority."""

import asyncio

import grpc
import pytest
from tests.support.certificates import Authority
from tests.unit.hops.fakes import Bell, FakeMailbox, device

from qim.hop.v1.hop_service_pb2 import HopReply
from qimd.app.hops import asks
from qimd.app.hops.credentials import by_certificate
from qimd.app.hops.options import CHANNEL_OPTIONS, SERVER_OPTIONS
from qimd.app.hops.peer import METHOD
from qimd.app.hops.rooms import LocalRooms
from qimd.app.hops.server import HopHandlers
from qimd.app.runtime import AsyncioRuntime
from qimd.contract.codec import encode
from qimd.contract.grpc_aio import StrictServerInterceptor
from qimd.contract.hops import request_frame
from qimd.telemetry.metrics import Metrics


@pytest.mark.parametrize(
    ("client", "trusted", "refused"),
    [
        ("qim-node", True, None),
        ("some-client", True, grpc.StatusCode.UNAUTHENTICATED),
        # TLS itself turns it away.
        ("qim-node", False, grpc.StatusCode.UNAVAILABLE),
    ],
    ids=["a node", "another name", "another authority"],
)
async def test_a_peer_is_let_in_by_its_certificate_alone(
    client: str, trusted: bool, refused: grpc.StatusCode | None
) -> None:
    ours = Authority()
    node, caller = ours.issue("qim-node"), (ours if trusted else Authority()).issue(client)
    metrics = Metrics()
    runtime = AsyncioRuntime(metrics)
    mailbox = FakeMailbox(Bell())
    handlers = HopHandlers(
        rooms=LocalRooms(mailbox=mailbox),
        presence=None,
        authenticate=by_certificate(["qim-node"]),
        runtime=runtime,
        metrics=metrics,
    )
    server = grpc.aio.server(interceptors=[StrictServerInterceptor()], options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers([handlers.service()])
    asked = grpc.ssl_server_credentials([(node.key, node.certificate)], ours.pem, True)
    port = server.add_secure_port("127.0.0.1:0", asked)
    shown = grpc.ssl_channel_credentials(ours.pem, caller.key, caller.certificate)
    await server.start()
    async with (
        asyncio.timeout(60),
        grpc.aio.secure_channel(f"127.0.0.1:{port}", shown, CHANNEL_OPTIONS) as channel,
    ):
        call = channel.stream_stream(METHOD)()
        if refused is not None:
            assert await call.code() is refused
        else:
            asked_for = asks.open_device(device("ann")).call
            asked_for.call_id, asked_for.deadline_ms = 1, 10_000
            await call.write(request_frame([encode(asked_for)]))
            [answer] = HopReply.FromString(await call.read()).answers
            assert answer.device_opened.cursor_token == b"token"
            call.cancel()
    assert bool(mailbox.calls) is (refused is None)
    await server.stop(0)
    await runtime.cancel_all()
