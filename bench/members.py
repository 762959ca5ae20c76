"""A process of members who are online: `python -m bench.members`, run by `Members`.

It reads its work from its input as lines of JSON, and answers each with one:

    {"address": …, "tokens": […]}   opens a stream for each token, and reads on all of them
    {"expect": N, "within_s": S}    waits until each stream was pushed N messages, or has ended

The answer has each stream's count and a digest over the event_ids in the order in which they came,
so that the parent can compare exact sequences without being told all of them.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from hashlib import blake2b
from operator import lt
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc

from bench.harness import Wrong
from bench.streams import Device, device
from qim.gateway.v1.gateway_pb2 import ServerFrame

_TOP: Final = Path(__file__).resolve().parent.parent
_PATIENCE_S: Final = 300.0
_STOP_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Received:
    """What the streams of a process were pushed, and when the last of it came (monotonic)."""

    counts: Sequence[int]
    digests: Sequence[str]
    at_s: float


def digest(event_ids: Sequence[bytes]) -> str:
    """Of a sequence of events."""
    return blake2b(b"".join(event_ids), digest_size=16).hexdigest()


class Members:
    """The parent's side: one process with a stream for each token."""

    def __init__(self, address: str, tokens: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.members"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_TOP,
        )
        self._tell({"address": address, "tokens": list(tokens)})
        self._told()

    def expect(self, messages: int, within_s: float = _PATIENCE_S) -> None:
        """Begin to wait for so many messages a stream."""
        self._tell({"expect": messages, "within_s": within_s})

    def received(self) -> Received:
        """What came since `expect`: waits for all of it, or for the streams' end."""
        answer = self._told()
        return Received(answer["counts"], answer["digests"], answer["at_s"])

    def _tell(self, words: object) -> None:
        if self._process.stdin is None:
            raise Wrong("a process without a pipe")
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def _told(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise Wrong("a members' process ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# --- the process ------------------------------------------------------------------------------


class _Member:
    """One stream. It reads all the time, so that the server never waits for it, and does no more
    with a frame than to know that it is right: its process has the server's cores.
    """

    def __init__(self, stream: Device) -> None:
        self._stream = stream
        self._last_seq = 0
        self._wanted = 0
        self._come = asyncio.Event()
        self.ids: list[bytes] = []
        self.ended = False
        self.at_s = 0.0

    async def read(self) -> None:
        """Take pushes until the stream ends."""
        try:
            while (data := await self._stream.call.read()) is not grpc.aio.EOF:
                # A slice is one call into C, where iterating is one an event.
                delivered = ServerFrame.FromString(data).push_events.events[:]
                seqs = [self._last_seq, *[each.mailbox_seq for each in delivered]]
                if not all(map(lt, seqs, seqs[1:])):
                    raise Wrong("a push is out of order")
                self._last_seq = seqs[-1]
                self.ids += [each.event.event_id for each in delivered]
                self.at_s = time.monotonic()
                if len(self.ids) >= self._wanted:
                    self._come.set()
        except (grpc.RpcError, asyncio.CancelledError):
            pass
        finally:
            self.ended = True
            self._come.set()

    async def have(self, count: int) -> None:
        """Return once so many events came, or none will come any more."""
        self._wanted = count
        if len(self.ids) < count and not self.ended:
            self._come.clear()
            await self._come.wait()

    def taken(self) -> Sequence[bytes]:
        """What came since the last call."""
        taken, self.ids = self.ids, []
        return taken


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    work = json.loads(await loop.run_in_executor(None, sys.stdin.readline))
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(device(work["address"], token))
            for token in work["tokens"]
        ]
        members = [_Member(stream) for stream in opened]
        readers = [asyncio.create_task(member.read()) for member in members]
        _answer(members, [])
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            order = json.loads(line)
            async with asyncio.timeout(order["within_s"]):
                await asyncio.gather(*(member.have(order["expect"]) for member in members))
            _answer(members, [member.taken() for member in members])
        for reader in readers:
            reader.cancel()


def _answer(members: Sequence[_Member], taken: Sequence[Sequence[bytes]]) -> None:
    answer = {
        "counts": [len(ids) for ids in taken],
        "digests": [digest(ids) for ids in taken],
        "at_s": max((member.at_s for member in members), default=0.0),
    }
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_serve())
