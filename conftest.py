"""What holds for every test: loopback only, the same examples in CI each time, one event loop."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.pytest_plugin import get_runner
from hypothesis import settings

# Node and buf may live in the environment alone; the tests that run them look on PATH.
os.environ["PATH"] = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")


def refuse_outside(event: str, args: tuple[object, ...]) -> None:
    """Fail a connection to another machine: a test that needs one passes only where it exists."""
    if event != "socket.connect":
        return
    address = args[1]
    host = address[0] if isinstance(address, tuple) else "localhost"
    if host not in {"localhost", "::1"} and not str(host).startswith("127."):
        raise RuntimeError(f"a test may reach this machine alone, not {host}")


sys.addaudithook(refuse_outside)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The services run on asyncio; a session's scope lets wider fixtures be async too."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def one_loop() -> Iterator[None]:
    """Keep one event loop for all async tests.

    gRPC's poller belongs to the loop that it first saw; once that is closed, whatever test comes
    next fails. No async fixture: it would hand `anyio_backend` to tests that are not async too, and
    Hypothesis's state machines can't take it.
    """
    with get_runner("asyncio", {}):
        yield
