"""A client that only pings, in a process of its own, beside whatever else is tested meanwhile.

    python -m tests.e2e.support.idle ADDRESS        the access token comes on standard input

It pings as often as a client may, until PINGS have gone out on a stream without events; then it
writes what it saw as JSON.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.support.http2 import GOAWAY, PING, CountingWire
from tests.e2e.support.stream import PATIENCE_S, Stream

from qimd.core.parameters import CLIENT_PING_INTERVAL_MIN_MS

PINGS = 6
"""With gRPC's own minimum between pings, a server says GOAWAY at the fifth (measured); one more may
be a measurement of bandwidth."""
_OPTIONS = (
    ("grpc.keepalive_time_ms", CLIENT_PING_INTERVAL_MIN_MS),
    ("grpc.http2.max_pings_without_data", 0),
)


@contextmanager
def idle_client(address: str, token: str) -> Iterator["subprocess.Popen[str]"]:
    """Start it. Its output comes after PINGS intervals."""
    command = [sys.executable, "-m", "tests.e2e.support.idle", address]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as process:
        assert process.stdin is not None
        process.stdin.write(token)
        process.stdin.close()
        # `communicate` must not flush what is closed.
        process.stdin = None
        try:
            yield process
        finally:
            process.kill()


async def main(address: str, token: str) -> None:
    """Be that client."""
    async with CountingWire(address) as network, Stream(network.address, _OPTIONS) as stream:
        await stream.auth(token)
        async with asyncio.timeout(PINGS * CLIENT_PING_INTERVAL_MIN_MS / 1000 + PATIENCE_S):
            await network.pings(PINGS)
        answered = await stream.ping()
        seen = {
            "pings": network.sent.seen[PING],
            "goaways": network.received.seen[GOAWAY],
            "answered": answered,
            "events": [frame.WhichOneof("frame") for frame in stream.unasked()],
        }
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.stdin.read()))
