"""The session projection's life: it opens once it has caught up, and only on the log it began with;
what goes wrong while it runs closes it until a restart from its last good checkpoint.
"""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable

import grpc
import pytest
import redis
from tests.e2e.engines.builds import journal, throw
from tests.e2e.engines.deployment import SHARDS, TENANT, Deployment, Process, until
from tests.e2e.engines.traffic import MEMBERS, ROOMS, Traffic, served
from tests.engines.process import HOST, free_port

from qim.session.v1.session_service_pb2 import (
    ListSessionsRequest,
    ListSessionsResponse,
    ProjectionPartition,
)
from qim.session.v1.session_service_pb2_grpc import SessionServiceStub
from qimd.adapters.kafka import delete_topic
from qimd.app.demo_verdict import Verdict
from qimd.client import ErrorCode, QimError


class Checkpoints:
    """The projection's, in Redis: a test takes them away and puts them back."""

    def __init__(self, deployment: Deployment) -> None:
        self._host, _, port = deployment.at("redis").rpartition(":")
        self._port = int(port)
        self._keys = [f"{deployment.name}:projection:partition:{n}" for n in range(SHARDS)]
        self._kept: list[bytes] = []

    def take_away(self) -> None:
        with redis.Redis(self._host, self._port) as client:
            kept = [client.dump(key) for key in self._keys]
            assert client.delete(*self._keys) == SHARDS
        self._kept = [each for each in kept if each is not None]

    def put_back(self) -> None:
        with redis.Redis(self._host, self._port) as client:
            for key, kept in zip(self._keys, self._kept, strict=True):
                client.restore(key, 0, kept)


def asked(deployment: Deployment, at: str, user: str) -> ListSessionsResponse:
    """A user's list, from one process and no other. Raises grpc.RpcError."""
    with grpc.insecure_channel(at) as channel:
        request = ListSessionsRequest(tenant_id=TENANT, user_id=user)
        found = SessionServiceStub(channel).ListSessions(
            request, timeout=30, metadata=deployment.admin_metadata
        )
    assert isinstance(found, ListSessionsResponse)
    return found


def refusal(deployment: Deployment, at: str, user: str) -> tuple[grpc.StatusCode, str]:
    """With what a process refuses a user's list."""
    with pytest.raises(grpc.RpcError) as refused:
        asked(deployment, at, user)
    return refused.value.code(), refused.value.details()


def readiness(at: str) -> int:
    """The status of /readyz."""
    try:
        with urllib.request.urlopen(f"http://{at}/readyz", timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


async def held(deployment: Deployment, where: str) -> None:
    """Return once every partition stands still there."""
    await until(
        lambda: sum(line["where"] == where for line in journal(deployment.folder)) >= SHARDS,
        f"the projection is held at {where}",
    )


async def dirty(deployment: Deployment) -> list[ProjectionPartition]:
    """The partitions, once all of them are dirty."""
    found: list[ProjectionPartition] = []
    while not (len(found) == SHARDS and all(one.dirty for one in found)):
        found = list(await deployment.administrate(lambda admin: admin.projection_partitions()))
    return found


async def projected(steady: Deployment) -> tuple[Process, Traffic]:
    """A server, and what was sent through it and is in its log."""
    server = steady.process("server", "all")
    traffic = await served(steady, server)
    await traffic.say()
    await traffic.settle()
    return server, traffic


async def test_nothing_is_shown_before_all_is_caught_up(
    steady: Deployment, shown: Callable[[Verdict], None]
) -> None:
    """Without checkpoints all of the log is projected again, which counts nothing twice."""
    server, traffic = await projected(steady)
    await steady.stop(server)
    Checkpoints(steady).take_away()

    ports = [f"{HOST}:{free_port()}" for _ in range(2)]
    flags = [port.rpartition(":")[2] for port in ports]
    throw(steady.folder, "hold-fetch")
    session = steady.process(
        *("session", "session", "--grpc-port", flags[0], "--metrics-port", flags[1]),
        build=("held-log",),
    )
    session.spawn()
    await held(steady, "fetch")
    for user in MEMBERS[:4]:
        code, why = await asyncio.to_thread(refusal, steady, ports[0], user)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "catching up" in why
    assert await asyncio.to_thread(readiness, ports[1]) == 503
    throw(steady.folder, "hold-fetch", on=False)
    await session.ready()
    assert await asyncio.to_thread(readiness, ports[1]) == 200
    listed = await asyncio.to_thread(asked, steady, ports[0], MEMBERS[0])
    assert {row.conversation_id for row in listed.sessions} == set(ROOMS)
    await server.start()
    steady.lead_to(server)
    shown(await traffic.verify())


@pytest.mark.parametrize("where", ["ends", "reader"])
async def test_a_log_that_changes_during_the_start_is_refused(
    where: str, steady: Deployment
) -> None:
    """At either check: around the log's ends, and at readiness, behind the reader's opening."""
    throw(steady.folder, f"hold-{where}")
    session = steady.process("session", "session", build=("held-log",))
    session.spawn()
    await held(steady, where)
    async with steady.log() as log:
        await delete_topic(log)
    await steady.make_topic()
    throw(steady.folder, f"hold-{where}", on=False)
    await session.ready()
    for partition in await dirty(steady):
        assert "identity changed while it was looked at" in partition.dirty
    code, why = await asyncio.to_thread(refusal, steady, session.grpc, MEMBERS[0])
    assert (code, "can't be proved complete" in why) == (grpc.StatusCode.FAILED_PRECONDITION, True)


async def test_what_goes_wrong_while_it_runs_closes_it_until_a_restart(
    steady: Deployment, shown: Callable[[Verdict], None]
) -> None:
    """The way back is the last good checkpoint, and nothing that came meanwhile is missing."""
    server, traffic = await projected(steady)
    before = Checkpoints(steady)
    before.take_away()
    await traffic.say()
    for partition in await dirty(steady):
        assert "projecting was refused" in partition.dirty
    await no_list(traffic, server)
    before.put_back()
    await no_list(traffic, server)

    await steady.stop(server)
    await server.start()
    steady.lead_to(server)
    shown(await traffic.verify())


async def no_list(traffic: Traffic, server: Process) -> None:
    """Nobody gets a list, though messages go on."""
    await traffic.say()
    for user in MEMBERS[:4]:
        async with traffic.client(user, "phone") as client:
            with pytest.raises(QimError) as refused:
                [row async for row in client.sessions()]
        assert refused.value.code is ErrorCode.SESSION_PROJECTION_DIRTY
    assert await asyncio.to_thread(server.total, "shard_halted") == SHARDS
