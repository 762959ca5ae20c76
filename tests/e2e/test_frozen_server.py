"""A server that stands still: it acknowledges TCP, and nothing else."""

import asyncio
import signal
import time
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from pathlib import Path

from tests.e2e.support.dev import DevServer
from tests.e2e.support.tenancy import Tenancy
from tests.support.wire import Wire

from qimd.client import Client, ClientConfig

KEEPALIVE_S, TIMEOUT_S, BUSY_S = 10.0, 2.0, 5.0


class Door(Wire):
    """Counts who comes in."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.came = asyncio.Semaphore(0)

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.came.release()
        await super()._accept(reader, writer)


async def test_a_silent_client_leaves_a_server_that_stands_still(tmp_path: Path) -> None:
    """F25's clients: one that only listens comes anew by its keepalive, as its settings say."""
    config = ClientConfig(keepalive_s=KEEPALIVE_S, keepalive_timeout_s=TIMEOUT_S)
    with DevServer(tmp_path / "data") as server:
        token = Tenancy(server).token("ann")
        async with Door(server.grpc) as door, Client(door.address, token=token, config=config):
            await door.came.acquire()
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            stopped_s = time.monotonic()
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(door.came.acquire(), 90)
                assert time.monotonic() - stopped_s < KEEPALIVE_S + TIMEOUT_S + BUSY_S
            finally:
                server.process.send_signal(signal.SIGCONT)
