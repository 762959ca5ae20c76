"""A TCP way to somewhere that a test can lead elsewhere, cut without a FIN and mend, or let replies
get lost on: what was sent has its effect all the same.
"""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_CHUNK = 65_536


@dataclass
class Loss:
    """The replies to what holds `mark` are lost, each with its connection, `times` times.

    A mark is looked for in what arrives at once, so it must belong to a small request. The empty
    one is in everything.
    """

    mark: bytes
    times: int
    seen: int = 0
    """How often the mark was sent, also when its reply was not lost."""

    def takes(self, data: bytes) -> bool:
        """Whether the reply to this is to be lost."""
        self.seen += self.mark in data
        if self.mark not in data or not self.times:
            return False
        self.times -= 1
        return True


class Wire:
    """Listens on `address` and carries each connection to `target`, as that is when it opens.

    Where nobody listens at the target, a connection is closed at once.
    """

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.address = ""
        self._whole = asyncio.Event()
        self._whole.set()
        self._losses: list[Loss] = []
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

    def lose_reply(self, mark: bytes = b"", *, times: int = 1) -> Loss:
        """Let the connection end that carries `mark`, between its arrival and the reply to it."""
        loss = Loss(mark, times)
        self._losses.append(loss)
        return loss

    def passed(self, data: bytes, *, up: bool) -> None:
        """For who wants to watch: this went to the target, or came from it."""

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
        doomed = asyncio.Event()
        both = (
            asyncio.ensure_future(self._carry_up(reader, up_writer, doomed)),
            asyncio.ensure_future(self._carry_down(up_reader, writer, doomed)),
        )
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Before anything is waited for: the wait itself may be cancelled.
            up_writer.close()
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _carry_up(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        while data := await reader.read(_CHUNK):
            await self._whole.wait()
            for loss in self._losses:
                if loss.takes(data):
                    doomed.set()
            self.passed(data, up=True)
            writer.write(data)
            await writer.drain()

    async def _carry_down(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        while data := await reader.read(_CHUNK):
            await self._whole.wait()
            if doomed.is_set():
                return
            self.passed(data, up=False)
            writer.write(data)
            await writer.drain()
