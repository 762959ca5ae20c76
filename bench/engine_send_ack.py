"""`engine_send_ack_p50`, `engine_send_ack_p99`: from a SEND's write to its SEND_ACK's arrival, one
at a time, through a process a role, with Redis under `appendfsync always`.

Beside the least that it could take: one round trip on a bare gRPC stream of frames of the same
sizes, plus one write of a small value to such a Redis, which answers when its file is synced. They
take turns in blocks, each with a pause before each act, as `bench.send_ack` does.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from bench.deployment import ALWAYS, ROLES, Deployment, engines
from bench.harness import AT_MOST, Measure, Target, demand, percentile
from bench.processes import Peer
from bench.rawredis import RawRedis
from bench.send_ack import Sizes, echo_times, send_times
from bench.server import TENANT, caught_up, dispatched, wait_until
from bench.streams import CHANNEL_OPTIONS, CONNECT, device
from qimd.core.parameters import DISPATCH_CHUNK_RECIPIENTS

_MEMBERS: Final = 20
_TARGETS: Final = {"p50": None, "p99": Target(AT_MOST, 3.0)}
_SHARES: Final = {"p50": 0.5, "p99": 0.99}


def run(sizes: Sizes, folder: Path) -> Sequence[Measure]:
    """Two rows."""
    with (
        engines(folder) as up,
        Deployment(folder / "qimd", up, ALWAYS, DISPATCH_CHUNK_RECIPIENTS) as deployment,
        Peer("echo") as peer,
    ):
        deployment.start(*ROLES)
        deployment.create_tenant()
        raw = RawRedis(up.raw[ALWAYS])
        sends, echoes, writes = asyncio.run(_measure(sizes, deployment, peer, raw))
        raw.close()
    rows = []
    for name, target in _TARGETS.items():
        echo, write = (percentile(times, _SHARES[name]) for times in (echoes, writes))
        rows.append(
            Measure(
                f"engine_send_ack_{name}",
                percentile(sends, _SHARES[name]) * 1e3,
                "ms",
                "bare gRPC round trip + a write to Redis, synced",
                (echo + write) * 1e3,
                target,
                f"{len(sends)} SENDs; {echo * 1e3:.2f} + {write * 1e3:.2f} ms",
            )
        )
    return rows


async def _measure(
    sizes: Sizes, deployment: Deployment, peer: Peer, raw: RawRedis
) -> tuple[list[float], list[float], list[float]]:
    sends: list[float] = []
    echoes: list[float] = []
    writes: list[float] = []
    members = [f"user-{number}" for number in range(_MEMBERS)]
    with deployment.admin("connection") as admin:
        admin.create_conversation(TENANT, "chat", members)
    async with (
        device(deployment.address, deployment.tokens().token(members[0])) as sender,
        grpc.aio.insecure_channel(peer.address, options=CHANNEL_OPTIONS) as channel,
    ):
        bare: Any = channel.stream_stream(CONNECT)()
        ids: list[bytes] = []
        with deployment.admin("connection") as admin, deployment.admin("mailbox") as mailbox:
            for block in range(-1, sizes.blocks):
                send = await send_times(sender, sizes, block, sizes.pause_s, ids)
                wait_until(lambda: dispatched(admin, "chat"), "the log having all")
                wait_until(lambda: caught_up(mailbox), "the mailbox catching up")
                echo = await echo_times(bare, sizes.sends, sizes.pause_s)
                write = await _writes(raw, sizes)
                if block >= 0:
                    sends += send
                    echoes += echo
                    writes += write
        found = await sender.mailbox(0)
        bare.cancel()
    pulled = [each.event.event_id for each in found if each.event.client_msg_id]
    demand(pulled == ids, "the mailbox is not what was acknowledged, in order")
    return sends, echoes, writes


async def _writes(raw: RawRedis, sizes: Sizes) -> list[float]:
    times: list[float] = []
    for _ in range(sizes.sends):
        await asyncio.sleep(sizes.pause_s)
        times += raw.writes_s(1)
    return times
