"""Processes that prove themselves by certificates of the deployment's own authority."""

import asyncio
import datetime
import ipaddress
from dataclasses import dataclass

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
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


@dataclass(frozen=True)
class Identity:
    """A certificate with its key, both as PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs what it is given."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority")
        self._certificate = self._signed(self._name, self._key.public_key(), [], authority=True)

    @property
    def pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        signed = self._signed(_name(name), key.public_key(), names, authority=False)
        return Identity(
            signed.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        names: list[x509.GeneralName],
        *,
        authority: bool,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


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
