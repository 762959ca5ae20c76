"""Processes to measure beside, or to measure alone: they say their port, then obey lines of input.

    python -m bench.peers echo      bare gRPC: each frame of a stream comes back as it is
    python -m bench.peers push      bare gRPC: a line `EVENTS` sends them, in frames made before
    python -m bench.peers stage     a whole server, of which a line `EVENTS` runs the push stage
    python -m bench.peers unary     bare gRPC: each request of a unary call comes back as it is
    python -m bench.peers hop       a process behind a hop, whose writer accepts everything at once

They end with their input.
"""

import asyncio
import itertools
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import grpc

from bench.streams import CONNECT
from qimd.app.dev_settings import DevSettings
from qimd.app.hops.credentials import SharedSecret
from qimd.app.hops.options import SERVER_OPTIONS
from qimd.app.hops.rooms import LocalRooms
from qimd.app.hops.server import HopHandlers
from qimd.app.runtime import AsyncioRuntime
from qimd.app.server import open_server
from qimd.contract.events import encode_delivered, encode_event
from qimd.contract.frames import push_frame
from qimd.contract.grpc_aio import StrictServerInterceptor
from qimd.core.errors import QimError
from qimd.core.ids import (
    DIGEST_BYTES,
    ConversationId,
    DeviceId,
    EventId,
    TenantId,
    UserId,
    event_id,
)
from qimd.core.parameters import MAILBOX_BATCH_RECORDS_MAX
from qimd.core.records import Accepted, ConversationKey, EventKind
from qimd.core.seq import mailbox_seq
from qimd.ports.services import Commit, Hint
from qimd.telemetry.logs import configure
from qimd.telemetry.metrics import Metrics

TENANT: Final = TenantId("dev")
_KEY: Final = ConversationKey(TENANT, ConversationId("harbour"))
BODY: Final = b"see you at the harbour at nine"
FRAME_EVENTS: Final = 100
"""Of a frame that was made before."""

UNARY: Final = "/bench.Unary/Call"
HOP_SECRET: Final = SharedSecret("a-secret-of-the-bench")
_ANY_ID: Final = EventId(bytes(DIGEST_BYTES))


def user(number: int) -> UserId:
    """The names of a push bench's users."""
    return UserId(f"user-{number:06}")


def encoded_event(seq: int) -> bytes:
    """The seq-th message of the conversation."""
    return encode_event(
        key=_KEY,
        conversation_seq=seq,
        event_id=event_id(TENANT, _KEY.conversation, seq),
        kind=EventKind.MESSAGE,
        sender=user(0),
        sender_device=DeviceId("phone"),
        created_at_ms=1_790_000_000_000 + seq,
        client_msg_id=f"m-{seq}",
        membership_version=1,
        body=BODY,
    )


# --- bare gRPC --------------------------------------------------------------------------------


async def _serve_bare(handle: Callable[[Any, Any], Any]) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    service, _, method = CONNECT[1:].rpartition("/")
    connect: Any = grpc.stream_stream_rpc_method_handler(handle)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {method: connect})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def echo(orders: "asyncio.Queue[int]") -> None:
    """See the module."""

    async def handle(frames: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for frame in frames:
            yield frame

    server, port = await _serve_bare(handle)
    say(port)
    while await orders.get():
        pass
    await server.stop(None)


async def push(orders: "asyncio.Queue[int]") -> None:
    """See the module."""
    waiting: list[asyncio.Queue[int]] = []
    delivered = [
        encode_delivered(mailbox_seq(1, seq), encoded_event(seq + 1)) for seq in range(FRAME_EVENTS)
    ]
    frame = push_frame(delivered).data

    async def handle(frames: AsyncIterator[bytes], context: Any) -> None:
        await anext(frames)
        await context.write(b"")
        mine: asyncio.Queue[int] = asyncio.Queue()
        waiting.append(mine)
        while count := await mine.get():
            for _ in range(count):
                await context.write(frame)

    server, port = await _serve_bare(handle)
    say(port)
    while events := await orders.get():
        for stream in waiting:
            stream.put_nowait(events // FRAME_EVENTS)
    await server.stop(None)


async def unary(orders: "asyncio.Queue[int]") -> None:
    """See the module."""

    async def handle(request: bytes, _: object) -> bytes:
        return request

    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    echoes: Any = grpc.unary_unary_rpc_method_handler(cast("Any", handle))
    service, _, method = UNARY[1:].rpartition("/")
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {method: echoes})]
    )
    say(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    while await orders.get():
        pass
    await server.stop(None)


# --- a hop ------------------------------------------------------------------------------------


class _AcceptingWriter:
    """Numbers what it is given."""

    def __init__(self) -> None:
        self._seqs = itertools.count(1)

    async def commit(self, command: Commit) -> Sequence[Accepted | QimError]:
        return [Accepted(_ANY_ID, next(self._seqs), 1, duplicate=False) for _ in command.drafts]


async def hop(orders: "asyncio.Queue[int]") -> None:
    """See the module."""
    metrics = Metrics()
    runtime = AsyncioRuntime(metrics)
    handlers = HopHandlers(
        rooms=LocalRooms(writer=_AcceptingWriter()),
        presence=None,
        authenticate=HOP_SECRET.authenticate,
        runtime=runtime,
        metrics=metrics,
    )
    server = grpc.aio.server(interceptors=[StrictServerInterceptor()], options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers([handlers.service()])
    say(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    while await orders.get():
        pass
    await server.stop(None)
    await runtime.cancel_all()


# --- the push stage alone ---------------------------------------------------------------------


async def stage(orders: "asyncio.Queue[int]") -> None:
    """A whole server whose mailbox is idle: hints come from here, as the mailbox gives them."""
    configure(level="warning")
    with tempfile.TemporaryDirectory(prefix="qim-bench-") as folder:
        settings = DevSettings(data=Path(folder) / "data", grpc_port=0, metrics_port=0)
        async with open_server(settings) as server:
            credentials = server.credentials
            say(
                credentials.address.rpartition(":")[2],
                str(server.folder),
            )
            encoded: list[bytes] = []
            # As the log's offsets give them: numbering is no part of the stage.
            first = mailbox_seq(1, 0)
            seqs = itertools.count(first, mailbox_seq(1, 1) - first)
            streams = await orders.get()
            users = tuple(user(number) for number in range(streams))
            while events := await orders.get():
                while len(encoded) < events:
                    encoded.append(encoded_event(len(encoded) + 1))
                for start in range(0, events, MAILBOX_BATCH_RECORDS_MAX):
                    here = server.node.connections.online(TENANT, users)
                    hints = [
                        Hint(TENANT, here, encode_delivered(seq, event))
                        for event, seq in zip(
                            encoded[start : min(events, start + MAILBOX_BATCH_RECORDS_MAX)],
                            seqs,
                            strict=False,
                        )
                    ]
                    server.node.connections.push(hints)
                    # As behind the mailbox, whose next batch comes a turn of the loop later.
                    await asyncio.sleep(0)


# --- the process ------------------------------------------------------------------------------


def say(*words: object) -> None:
    """One line of output."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def _obey(run: Callable[["asyncio.Queue[int]"], Any]) -> None:
    orders: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(orders.put_nowait, int(line))
        loop.call_soon_threadsafe(orders.put_nowait, 0)

    threading.Thread(target=read, daemon=True).start()
    await run(orders)


def main(arguments: Sequence[str]) -> None:
    """Be one of the peers."""
    [name] = arguments
    peers = {"echo": echo, "push": push, "stage": stage, "unary": unary, "hop": hop}
    asyncio.run(_obey(peers[name]))


if __name__ == "__main__":
    main(sys.argv[1:])
