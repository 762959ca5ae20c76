"""A TCP way to somewhere that a test can lead elsewhere, or cut without a FIN, and mend."""

import asyncio
from types import TracebackType
from typing import Self

_CHUNK = 65_536


class Wire:
    """Listens on `address` and carries each connection to `target`, as that is when it opens.

    Where nobody listens at the target, a connection is closed at once.
    """

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.address = ""
        self._whole = asyncio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._carrying)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Nothing passes from now on, either way, and nobody is told."""
        self._whole.clear()

    def mend(self) -> None:
        """What was under way goes on, as TCP's own repetition would have it."""
        self._whole.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        try:
            await self._carry_both(reader, writer)
        except (OSError, asyncio.CancelledError):
            # An end of it is gone, or the test is over: asyncio would call the latter an error.
            pass
        finally:
            writer.close()
            self._carrying.discard(task)

    async def _carry_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        host, _, port = self.target.rpartition(":")
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        both = (
            asyncio.ensure_future(self._carry(reader, up_writer)),
            asyncio.ensure_future(self._carry(up_reader, writer)),
        )
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Before anything is waited for: the wait itself may be cancelled.
            up_writer.close()
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            await self._whole.wait()
            writer.write(data)
            await writer.drain()
