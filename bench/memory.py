"""`memory_…`: what an idle connection holds, and whether a loaded server grows.

An idle connection is an authenticated stream that waits for pushes; beside it a stream of a bare
gRPC server that echoed one frame. What is measured is the growth of the resident memory, divided by
their number.

Growth under load: messages at a steady rate to a group of which some are online, for ten minutes.
The median of the last third of the time stands beside that of the middle third; caches that have a
bound are full by then.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from bench.harness import AT_MOST, Measure, Target, demand
from bench.machine import resident_bytes
from bench.members import Members, digest
from bench.processes import Peer
from bench.server import TENANT, DevServer
from bench.streams import CHANNEL_OPTIONS, CONNECT, device

_BODY: Final = b"see you at the harbour at nine"
_KIB: Final = 1024
_SETTLE_S: Final = 2.0
"""Between the last AUTH and the look: what only a start needs is given back by then."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """`messages_per_s` to a group of `members`, `online` of them, for `minutes`."""

    connections: int = 1_000
    processes: int = 2
    minutes: float = 10.0
    messages_per_s: int = 50
    members: int = 200
    online: int = 20
    settle_s: float = _SETTLE_S


SMOKE: Final = Sizes(connections=20, minutes=0.05, members=10, online=4, settle_s=0.0)


def run(sizes: Sizes, folder: Path) -> Sequence[Measure]:
    """Two rows."""
    return [_idle(sizes, folder / "idle"), asyncio.run(_growth(sizes, folder / "growth"))]


# --- idle connections -------------------------------------------------------------------------


def _idle(sizes: Sizes, data: Path) -> Measure:
    ours = _streams_bytes(sizes, data)
    bare = asyncio.run(_bare_bytes(sizes))
    return Measure(
        "memory_per_idle_connection",
        ours / sizes.connections / _KIB,
        "KiB",
        "a stream of a bare gRPC server",
        bare / sizes.connections / _KIB,
        None,
        f"{sizes.connections} connections, one stream each",
    )


def _streams_bytes(sizes: Sizes, data: Path) -> int:
    with ExitStack() as stack:
        server = stack.enter_context(DevServer(data))
        tokens = server.tokens()
        before = resident_bytes(server.pid)
        for part in range(sizes.processes):
            numbers = range(part, sizes.connections, sizes.processes)
            mine = [tokens.token(f"user-{number}") for number in numbers]
            stack.enter_context(Members(server.address, mine))
        time.sleep(sizes.settle_s)
        held = server.samples()["connections"]
        demand(held == sizes.connections, f"the server holds {held} connections")
        return resident_bytes(server.pid) - before


async def _bare_bytes(sizes: Sizes) -> int:
    with Peer("echo") as peer:
        before = resident_bytes(peer.pid)
        async with AsyncExitStack() as stack:
            for _ in range(sizes.connections):
                channel = await stack.enter_async_context(
                    grpc.aio.insecure_channel(peer.address, options=CHANNEL_OPTIONS)
                )
                call: Any = channel.stream_stream(CONNECT)()
                stack.callback(call.cancel)
                await call.write(_BODY)
                demand(await call.read() == _BODY, "an echo is not what was sent")
            await asyncio.sleep(sizes.settle_s)
            return resident_bytes(peer.pid) - before


# --- steady load ------------------------------------------------------------------------------


async def _growth(sizes: Sizes, data: Path) -> Measure:
    names = [f"user-{number}" for number in range(sizes.members)]
    with ExitStack() as stack:
        server = stack.enter_context(DevServer(data))
        admin = stack.enter_context(server.admin())
        admin.create_conversation(TENANT, "chat", names)
        tokens = server.tokens()
        online = stack.enter_context(
            Members(server.address, [tokens.token(name) for name in names[: sizes.online]])
        )
        seconds = max(3, round(sizes.minutes * 60))
        online.expect(seconds * sizes.messages_per_s, within_s=10 * seconds + 60)
        ids, samples = await _load(sizes, server, tokens.token(names[0], "sender"), seconds)
        received = online.received()
        demand(set(received.digests) == {digest(ids)}, "a member was not pushed what was sent")
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]
    return Measure(
        "memory_under_load",
        statistics.median(last) / _KIB**2,
        "MiB",
        "the same, a third of the time before",
        statistics.median(middle) / _KIB**2,
        Target(AT_MOST, 1.05),
        f"{seconds} s of {sizes.messages_per_s} messages/s to {sizes.members} members; "
        f"{samples[0] / _KIB**2:.0f} MiB at first, {max(samples) / _KIB**2:.0f} MiB at most",
    )


async def _load(
    sizes: Sizes, server: DevServer, token: str, seconds: int
) -> tuple[Sequence[bytes], Sequence[int]]:
    """Messages second by second; their event_ids, and the server's memory after each second."""
    ids: list[bytes] = []
    samples: list[int] = []
    async with device(server.address, token, pushes=False) as sender:
        began_s = time.monotonic()
        for second in range(seconds):
            messages = [f"{second}-{place}" for place in range(sizes.messages_per_s)]
            # One SEND a message, as people write them.
            for message in messages:
                ids += await sender.say("chat", [message], _BODY)
            samples.append(resident_bytes(server.pid))
            await asyncio.sleep(max(0.0, began_s + second + 1 - time.monotonic()))
    return ids, samples
