"""`push_per_s`: the push stage alone, beside a bare gRPC stream of frames made before.

The stage is that of a whole server: hints as the mailbox gives them, those of a step's records at a
time, the streams' queues, frames, the strict gRPC server. Its peer writes one frame of 100 events
again and again. Both are read by the same client, which parses each frame and counts the events.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from bench.harness import AT_LEAST, Measure, Pair, Target, demand
from bench.peers import user
from bench.processes import Peer
from bench.server import tokens_of
from bench.streams import CHANNEL_OPTIONS, CONNECT, device
from qim.gateway.v1.gateway_pb2 import ServerFrame

_TARGET: Final = Target(AT_LEAST, 0.3)


@dataclass(frozen=True, slots=True)
class Sizes:
    """`streams` of each row; `deliveries` of a round, over all of them.

    `events_most` a stream and round is what its queue of 4 MiB holds: nobody becomes a slow
    consumer by the bench's own doing.
    """

    streams: Sequence[int] = (1, 16, 200)
    deliveries: int = 400_000
    events_most: int = 20_000
    rounds: int = 9

    def events(self, streams: int) -> int:
        """Events of a round for so many streams, a multiple of a frame's."""
        return max(100, min(self.events_most, self.deliveries // streams) // 100 * 100)


SMOKE: Final = Sizes(streams=(2,), deliveries=400, rounds=1)


def run(sizes: Sizes) -> Sequence[Measure]:
    """A row for each number of streams."""
    return [asyncio.run(_measure(sizes, streams)) for streams in sizes.streams]


async def _measure(sizes: Sizes, streams: int) -> Measure:
    events = sizes.events(streams)
    rates: tuple[list[float], list[float]] = ([], [])
    async with AsyncExitStack() as stack:
        stage = stack.enter_context(Peer("stage"))
        bare = stack.enter_context(Peer("push"))
        tokens = tokens_of(Path(stage.words[1]))
        ours = [
            (await stack.enter_async_context(device(stage.address, tokens.token(user(n))))).call
            for n in range(streams)
        ]
        theirs = [await stack.enter_async_context(_bare(bare.address)) for _ in range(streams)]
        stage.order(streams)
        for number in range(sizes.rounds + 1):
            for side, peer, calls in ((0, stage, ours), (1, bare, theirs)):
                began = time.perf_counter()
                peer.order(events)
                await asyncio.gather(*(_take(call, events, ordered=side == 0) for call in calls))
                if number:
                    rates[side].append(events * streams / (time.perf_counter() - began))
    pair = Pair(*rates)
    return Measure(
        "push_per_s" if streams == sizes.streams[0] else f"push_per_s_{streams}_streams",
        pair.value,
        "events/s",
        f"bare gRPC, {streams} stream(s), frames made before",
        pair.against,
        _TARGET,
        pair.spread,
    )


@asynccontextmanager
async def _bare(address: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        call: Any = channel.stream_stream(CONNECT)()
        await call.write(b"begin")
        await call.read()
        try:
            yield call
        finally:
            call.cancel()


async def _take(call: Any, events: int, *, ordered: bool) -> None:
    """Read until `events` came; in the stage's pushes each seq stands above the one before."""
    last = taken = 0
    while taken < events:
        delivered = ServerFrame.FromString(await call.read()).push_events.events
        taken += len(delivered)
        if ordered:
            first = delivered[0].mailbox_seq
            demand(last < first <= delivered[-1].mailbox_seq, "pushes are out of order")
            last = delivered[-1].mailbox_seq
    demand(taken == events, f"{taken} events came, not {events}")
