"""`send_ack_p50`, `send_ack_p99`: from a SEND's write to its SEND_ACK's arrival, one at a time.

Beside the least that it could take: one round trip on a bare gRPC stream, of frames of the same
sizes, plus one transaction of one small row in SQLite. The three take turns, in blocks.

Two loads: `send_ack_…` leaves a pause between SENDs, as people do, and between the bare round trips
and transactions too, since whatever runs after a pause runs on a cold processor. In `…_busy_…` one
follows the other at once, so that the dispatch, the mailbox and the session list of the last
message compete with the next SEND.
"""

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from bench.harness import AT_MOST, Measure, Target, demand, percentile
from bench.processes import Peer
from bench.rawsqlite import commits_s, connect
from bench.server import TENANT, DevServer, caught_up, dispatched, wait_until
from bench.streams import CHANNEL_OPTIONS, CONNECT, Device, accepted, device, send_frame
from qim.gateway.v1.gateway_pb2 import ServerFrame

_MEMBERS: Final = 20
_BODY: Final = b"see you at the harbour at nine"


@dataclass(frozen=True, slots=True)
class Sizes:
    """`blocks` of `sends`; `pause_s` between the SENDs of the first load."""

    blocks: int = 20
    sends: int = 50
    pause_s: float = 0.02


SMOKE: Final = Sizes(blocks=1, sends=5, pause_s=0.001)


@dataclass(slots=True)
class _Times:
    """Seconds of single SENDs, round trips and transactions, under one load."""

    send: list[float] = field(default_factory=list)
    echo: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)


def run(sizes: Sizes, folder: Path) -> Sequence[Measure]:
    """Four rows."""
    paced, busy = asyncio.run(_measure(sizes, folder))
    rows: list[Measure] = []
    for load, times in (("", paced), ("busy_", busy)):
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            echo, commit = percentile(times.echo, share), percentile(times.commit, share)
            rows.append(
                Measure(
                    f"send_ack_{load}{name}",
                    percentile(times.send, share) * 1e3,
                    "ms",
                    "bare gRPC round trip + SQLite commit",
                    (echo + commit) * 1e3,
                    Target(AT_MOST, 2.0) if name == "p50" else None,
                    f"{len(times.send)} SENDs; {echo * 1e3:.2f} + {commit * 1e3:.2f} ms",
                )
            )
    return rows


async def _measure(sizes: Sizes, folder: Path) -> tuple[_Times, _Times]:
    loads = ((_Times(), sizes.pause_s), (_Times(), 0.0))
    members = [f"user-{number}" for number in range(_MEMBERS)]
    with DevServer(folder / "data") as server, Peer("echo") as peer, server.admin() as admin:
        admin.create_conversation(TENANT, "chat", members)
        raw = connect(folder / "raw.sqlite3")
        token = server.tokens().token(members[0])
        async with (
            device(server.address, token) as sender,
            grpc.aio.insecure_channel(peer.address, options=CHANNEL_OPTIONS) as channel,
        ):
            bare: Any = channel.stream_stream(CONNECT)()
            ids: list[bytes] = []
            for block in range(-1, sizes.blocks):
                for times, pause_s in loads:
                    send = await send_times(sender, sizes, block, pause_s, ids)
                    wait_until(lambda: dispatched(admin, "chat"), "the log having all")
                    wait_until(lambda: caught_up(admin), "the mailbox catching up")
                    echo = await echo_times(bare, sizes.sends, pause_s)
                    commit = await _commit(raw, sizes.sends, pause_s)
                    if block >= 0:
                        times.send += send
                        times.echo += echo
                        times.commit += commit
            found = await sender.mailbox(0)
            bare.cancel()
        raw.close()
    pulled = [each.event.event_id for each in found if each.event.client_msg_id]
    demand(pulled == ids, "the mailbox is not what was acknowledged, in order")
    return loads[0][0], loads[1][0]


async def send_times(
    sender: Device, sizes: Sizes, block: int, pause_s: float, ids: list[bytes]
) -> list[float]:
    """Seconds of each SEND of a block; the event_ids go to `ids`."""
    times: list[float] = []
    for number in range(sizes.sends):
        frame = send_frame("chat", [f"{block}-{pause_s}-{number}"], _BODY)
        data = sender.stamped(frame)
        await asyncio.sleep(pause_s)
        began = time.perf_counter()
        await sender.call.write(data)
        answer, arrived = await _arrival(sender)
        while answer.request_id != frame.request_id:
            # A push of an earlier message.
            answer, arrived = await _arrival(sender)
        times.append(arrived - began)
        ids += accepted(answer)
    return times


async def _arrival(sender: Device) -> tuple[ServerFrame, float]:
    """The next frame, and when it came: parsing it is no part of the server's time."""
    data = await sender.call.read()
    arrived = time.perf_counter()
    demand(data is not grpc.aio.EOF, "the server ended the stream")
    return ServerFrame.FromString(data), arrived


async def echo_times(bare: Any, count: int, pause_s: float) -> list[float]:
    """Seconds of each round trip of a frame of a SEND's size."""
    data = send_frame("chat", ["0-0.02-0"], _BODY).SerializeToString()
    times: list[float] = []
    for _ in range(count):
        await asyncio.sleep(pause_s)
        began = time.perf_counter()
        await bare.write(data)
        demand(await bare.read() == data, "an echo is not what was sent")
        times.append(time.perf_counter() - began)
    return times


async def _commit(raw: sqlite3.Connection, count: int, pause_s: float) -> list[float]:
    times: list[float] = []
    for _ in range(count):
        await asyncio.sleep(pause_s)
        times += commits_s(raw, 1)
    return times
