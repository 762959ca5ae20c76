"""How a client leaves: a server that stands still, and a loop that ends right after."""

import asyncio
import signal
import time
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.support.dev import DevServer
from tests.e2e.support.tenancy import Tenancy
from tests.support.wire import Wire

from qimd.client import Client, ClientConfig, Replaced

KEEPALIVE_S, TIMEOUT_S, BUSY_S = 10.0, 2.0, 5.0
PATIENT = ClientConfig(close_timeout_s=30.0)
ROUNDS = 30
"""A call that is only cut is over before its loop in six of ten rounds."""


class Door(Wire):
    """Counts who comes in."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.came = asyncio.Semaphore(0)

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.came.release()
        await super()._accept(reader, writer)


async def test_a_client_that_left_holds_nothing_of_its_loop(tenancy: Tenancy) -> None:
    """As `asyncio.run` needs it: a call's end that came later would find the loop closed."""
    token, before = tenancy.token("ann"), asyncio.all_tasks()
    for _ in range(ROUNDS):
        async with Client(tenancy.server.grpc, token=token, config=PATIENT):
            assert asyncio.all_tasks() - before
        assert asyncio.all_tasks() == before


async def test_a_client_that_was_replaced_holds_nothing_of_its_loop(tenancy: Tenancy) -> None:
    token, before = tenancy.token("ben"), asyncio.all_tasks()
    for _ in range(ROUNDS):
        async with (
            Client(tenancy.server.grpc, token=token, config=PATIENT) as older,
            Client(tenancy.server.grpc, token=token, config=PATIENT),
        ):
            with pytest.raises(Replaced):
                await anext(older.events())
        assert asyncio.all_tasks() == before


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
