"""One server for all tests that leave it as it was: each uses names of its own."""

import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.e2e.support.dev import DevServer
from tests.e2e.support.idle import idle_client
from tests.e2e.support.tenancy import Operator, Tenancy, zeros

from qimd.telemetry.metrics import ZEROS


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """A server that lives for the whole run; at its end the five zeros are still zero."""
    with DevServer(tmp_path_factory.mktemp("shared") / "data") as server:
        yield server
        assert zeros(server) == dict.fromkeys(ZEROS, 0.0)


@pytest.fixture(scope="session")
def idle(shared: DevServer) -> Iterator["subprocess.Popen[str]"]:
    """A client that only pings. Tests that come before the one that looks at it let it grow old."""
    with idle_client(shared.grpc, Tenancy(shared).token("idle")) as process:
        yield process


@pytest.fixture
def tenancy(shared: DevServer) -> Tenancy:
    """The seeded tenant of the shared server."""
    return Tenancy(shared)


@pytest.fixture
async def operator(tenancy: Tenancy) -> AsyncIterator[Operator]:
    """Administration calls to the shared server."""
    async with tenancy.operator() as opened:
        yield opened
