"""Roles that prove themselves to one another by certificates, and clients over TLS: who has none of
the deployment's own is let in by nobody.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from tests.e2e.engines.deployment import Deployment, Process, deployed
from tests.e2e.engines.traffic import CONFIG, ROOMS, Traffic
from tests.engines.process import HOST, free_port
from tests.support.certificates import Authority, Files, Identity

from qimd.app import secret_file
from qimd.app.demo_verdict import Verdict
from qimd.app.hops.peer import METHOD
from qimd.client import AdminClient, Client, QimError
from qimd.client.config import ClientConfig

ROLES = ("writer", "mailbox", "session", "connection")
NAME = "qim-node"


class Certified:
    """A deployment whose processes have certificates, and clients that trust its authority."""

    def __init__(self, deployment: Deployment, folder: Path) -> None:
        self.deployment = deployment
        self.folder = folder
        self.authority = Authority()
        self.hop_ports: dict[str, int] = {}
        self.config = replace(CONFIG, credentials=grpc.ssl_channel_credentials(self.authority.pem))
        deployment.admin_of = self._admin_of  # type: ignore[method-assign]

    def process(self, name: str, role: str, files: Files) -> Process:
        self.hop_ports[name] = free_port()
        return self.deployment.process(
            name,
            role,
            *("--tls-certificate", str(files.certificate), "--tls-private-key", str(files.key)),
            *("--peer-certificate-authority", str(files.authority), "--peer-names", NAME),
            *("--hop-port", str(self.hop_ports[name])),
        )

    async def start(self) -> dict[str, Process]:
        """A process a role, all of the deployment's own, clients led to `connection`."""
        files = self.authority.write(self.folder / "node", NAME)
        roles = {role: self.process(role, role, files) for role in ROLES}
        await asyncio.gather(*(process.start() for process in roles.values()))
        self.deployment.lead_to(roles["connection"])
        return roles

    def _admin_of(self, process: Process) -> AdminClient:
        token = secret_file.read(self.folder / "secrets.json").admin_token
        return AdminClient(process.grpc, token, credentials=self.config.credentials)


class TlsTraffic(Traffic):
    """Traffic whose clients speak TLS."""

    def __init__(self, certified: Certified) -> None:
        super().__init__(certified.deployment)
        self._certified = certified

    def client(self, user: str, device: str) -> Client:
        return self.client_at(self.deployment.door.address, user, device, self._certified.config)

    def client_at(self, address: str, user: str, device: str, config: ClientConfig) -> Client:
        async def provider() -> str:
            return self.deployment.token(user, device)

        return Client(address, token_provider=provider, config=config)


@pytest.fixture
async def certified(tmp_path: Path) -> AsyncIterator[Certified]:
    async with deployed(tmp_path) as made:
        yield Certified(made, tmp_path)


async def test_messages_arrive_between_roles_that_prove_themselves(
    certified: Certified, shown: Callable[[Verdict], None]
) -> None:
    await certified.start()
    traffic = TlsTraffic(certified)
    await traffic.set_up()
    async with traffic.flowing():
        await traffic.more()
    shown(await traffic.verify())


@pytest.mark.parametrize("stranger", ["another authority", "another name"])
async def test_nothing_of_a_stranger_passes_though_it_has_all_secrets(
    stranger: str, certified: Certified
) -> None:
    await certified.start()
    traffic = TlsTraffic(certified)
    await traffic.set_up()
    other = stranger == "another authority"
    issuer, name = (Authority(), NAME) if other else (certified.authority, "somebody")
    intruder = certified.process(
        "intruder", "connection", issuer.write(certified.folder / "x", name)
    )
    await intruder.start()
    trusting = grpc.ssl_channel_credentials(issuer.pem)
    # Clients reach it as any other process; it is its peers that let nothing of it in.
    async with grpc.aio.secure_channel(intruder.grpc, trusting) as face, asyncio.timeout(60):
        await face.channel_ready()
    config = replace(CONFIG, credentials=trusting, request_timeout_s=5, open_timeout_s=5)
    with pytest.raises(QimError):
        async with traffic.client_at(intruder.grpc, traffic.members[0], "x", config) as client:
            await client.send(ROOMS[0], b"smuggled")
    certified.deployment.processes.remove(intruder)
    intruder.kill()
    await traffic.say()
    # Every mailbox is compared with what was acknowledged: one more event would show.
    await traffic.verify()


async def test_a_hop_port_answers_those_alone_who_have_a_certificate_of_its_authority(
    certified: Certified,
) -> None:
    roles = await certified.start()
    authority = certified.authority
    ours, foreign = authority.issue(NAME), Authority().issue(NAME)
    for role in roles:
        address = f"{HOST}:{certified.hop_ports[role]}"
        assert await answer_at(address, proven(authority, ours)) is grpc.StatusCode.OK
        for stranger in (None, proven(authority), proven(authority, foreign)):
            assert await answer_at(address, stranger) is grpc.StatusCode.UNAVAILABLE


def proven(authority: Authority, identity: Identity | None = None) -> grpc.ChannelCredentials:
    """Trusts the authority, and shows a certificate."""
    if identity is None:
        return grpc.ssl_channel_credentials(authority.pem)
    return grpc.ssl_channel_credentials(authority.pem, identity.key, identity.certificate)


async def answer_at(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.StatusCode:
    """How an exchange ends in which nothing is asked; in clear without credentials."""
    if credentials is None:
        channel = grpc.aio.insecure_channel(address)
    else:
        channel = grpc.aio.secure_channel(address, credentials)
    async with channel, asyncio.timeout(60):
        call = channel.stream_stream(METHOD)()
        # A side that can't be ended any more was ended by its peer, which `code` tells.
        with suppress(grpc.aio.BaseError):
            await call.done_writing()
        return await call.code()
