"""`hop_calls_per_s`: commits to another process through the hop, beside unary gRPC of such bytes.

The hop does all that it does in a deployment: it finds the owner, keeps a conversation's order,
checks both ways, and gives a result for each draft. The unary call carries the bytes of such a call
and gives them back, nothing looked at.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import grpc

from bench.harness import AT_LEAST, Measure, Pair, Target, demand
from bench.peers import BODY, HOP_SECRET, TENANT, UNARY, user
from bench.processes import Peer
from qimd.app.hops import asks
from qimd.app.hops.directory import Directory
from qimd.app.hops.options import CHANNEL_OPTIONS
from qimd.app.hops.owner import owner_name
from qimd.app.hops.peers import Peers
from qimd.app.hops.remote import RemoteWriter
from qimd.app.hops.router import Router
from qimd.app.runtime import AsyncioRuntime
from qimd.core.errors import QimError
from qimd.core.ids import ConversationId, DeviceId
from qimd.core.records import ConversationKey, Draft, EventKind
from qimd.core.routing import RoutingTable
from qimd.ports.lease import LeaseView
from qimd.ports.services import Commit
from qimd.ports.store import ShardKind
from qimd.telemetry.metrics import Metrics

_TARGET: Final = Target(AT_LEAST, 2.0)
_TABLE: Final = RoutingTable(version=1, mailbox_shards=1, writer_shards=1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """`callers` at a time of each row, each with a conversation of its own; `calls` of a round."""

    callers: Sequence[int] = (1, 16, 256)
    calls: int = 8_192
    rounds: int = 7


SMOKE: Final = Sizes(callers=(4,), calls=64, rounds=1)


class _OneOwner:
    """Every shard's lease is one process's."""

    def __init__(self, address: str) -> None:
        self._owner = owner_name(address, "bench")

    async def view(self, kind: ShardKind, shard: int) -> LeaseView:
        return LeaseView(self._owner, released=False)


def run(sizes: Sizes) -> Sequence[Measure]:
    """A row for each number of callers."""
    return [asyncio.run(_measure(sizes, callers)) for callers in sizes.callers]


async def _measure(sizes: Sizes, callers: int) -> Measure:
    metrics = Metrics()
    runtime = AsyncioRuntime(metrics)
    with Peer("hop") as behind, Peer("unary") as bare:
        writer, peers = _writer(behind.address, runtime, metrics)
        commands = [_command(number) for number in range(callers)]
        encoded = asks.commit(commands[0]).call.SerializeToString()
        async with grpc.aio.insecure_channel(bare.address) as channel:
            call = channel.unary_unary(UNARY)

            async def ours(number: int) -> None:
                [result] = await writer.commit(commands[number])
                demand(not isinstance(result, QimError), "a commit was refused")

            async def theirs(_: int) -> None:
                demand(await call(encoded) == encoded, "an echo is another")

            rates: tuple[list[float], list[float]] = ([], [])
            for number in range(sizes.rounds + 1):
                for side, act in enumerate((ours, theirs)):
                    rate = await _rate(act, callers, sizes.calls // callers)
                    if number:
                        rates[side].append(rate)
        items = metrics.registry.get_sample_value("hop_items_total") or 0.0
        frames = metrics.registry.get_sample_value("hop_frames_total") or 1.0
        peers.close()
        await runtime.cancel_all()
    pair = Pair(*rates)
    return Measure(
        f"hop_calls_per_s_{callers}_callers",
        pair.value,
        "calls/s",
        f"unary gRPC, {callers} caller(s), {len(encoded)} B",
        pair.against,
        _TARGET if callers == max(sizes.callers) > 16 else None,
        f"{items / frames:.1f} calls a frame; {pair.spread}",
    )


def _writer(address: str, runtime: AsyncioRuntime, metrics: Metrics) -> tuple[RemoteWriter, Peers]:
    directory = Directory(_OneOwner(address), runtime)
    peers = Peers(
        directory=directory,
        channel_factory=lambda to: grpc.aio.insecure_channel(to, CHANNEL_OPTIONS),
        credentials=HOP_SECRET.credentials,
        runtime=runtime,
        metrics=metrics,
    )
    router = Router(address="", directory=directory, peers=peers, runtime=runtime)
    return RemoteWriter(router, _TABLE), peers


def _command(number: int) -> Commit:
    return Commit(
        key=ConversationKey(TENANT, ConversationId(f"harbour-{number}")),
        sender=user(number),
        sender_device=DeviceId("phone"),
        drafts=[Draft("m-1", EventKind.MESSAGE, BODY)],
        trace_parent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )


async def _rate(act: Callable[[int], Awaitable[None]], callers: int, each: int) -> float:
    """Calls a second of so many callers, each calling again as soon as it has its answer."""

    async def caller(number: int) -> None:
        for _ in range(each):
            await act(number)

    began = time.perf_counter()
    await asyncio.gather(*map(caller, range(callers)))
    return callers * each / (time.perf_counter() - began)
