"""One server for all tests that leave it as it was: each uses names of its own."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.e2e.support.dev import DevServer
from tests.e2e.support.proxy import Proxy, proxy_to
from tests.e2e.support.stream import Stream
from tests.e2e.support.tenancy import Operator, Tenancy, zeros

from qimd.core.parameters import CLIENT_PING_INTERVAL_MIN_MS
from qimd.telemetry.metrics import ZEROS


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> None:
    """gRPC's poller belongs to the loop that it first saw: all tests of this folder share one."""


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """A server that lives for the whole run; at its end the five zeros are still zero."""
    with DevServer(tmp_path_factory.mktemp("shared") / "data") as server:
        yield server
        assert zeros(server) == dict.fromkeys(ZEROS, 0.0)


@pytest.fixture(scope="session")
async def idle_stream(shared: DevServer) -> AsyncIterator[tuple[Stream, Proxy]]:
    """A stream that only pings, as often as it may. Tests that come before the one that looks at it
    let it grow old meanwhile.
    """
    options = (
        ("grpc.keepalive_time_ms", CLIENT_PING_INTERVAL_MIN_MS),
        ("grpc.http2.max_pings_without_data", 0),
    )
    async with proxy_to(shared.grpc) as network, Stream(network.address, options) as stream:
        await stream.auth(Tenancy(shared).token("idle"))
        yield stream, network


@pytest.fixture
def tenancy(shared: DevServer) -> Tenancy:
    """The seeded tenant of the shared server."""
    return Tenancy(shared)


@pytest.fixture
async def operator(tenancy: Tenancy) -> AsyncIterator[Operator]:
    """Administration calls to the shared server."""
    async with tenancy.operator() as opened:
        yield opened
