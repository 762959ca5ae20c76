"""NATS JetStream as a peer: each mailbox a subject of one stream, an entry of it a small message.

A message to a group is one atomic batch (at most 1,000 messages), published in the protocol's own
bytes, which are made before the clock runs: no client library is quicker. The stream is a file,
synced at each write (`sync_interval: always`), so an acknowledged batch is as durable as ours.
"""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.engines.process import HOST, accepts, free_port

from bench.harness import Wrong
from bench.server import wait_until

BATCH_MAX: Final = 1_000
_PAYLOAD: Final = b"x" * 64
"""A reference: an event's id, its conversation and number, its sender, its time."""
_INBOX: Final = "acks"


@contextmanager
def nats(folder: Path) -> Iterator["Nats"]:
    """A server with its files in the folder, and a connection with an empty stream."""
    program = shutil.which("nats-server", path=Path(sys.executable).parent)
    if program is None:
        raise Wrong("nats-server is not installed (make setup)")
    folder.mkdir()
    port = free_port()
    config = folder / "nats.conf"
    store = json.dumps(str(folder / "data"))
    config.write_text(
        f"listen: {HOST}:{port}\njetstream {{ store_dir: {store}, sync_interval: always }}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "-c", str(config)], stdout=log, stderr=log)
    try:
        wait_until(lambda: accepts(port), "nats-server listening")
        connection = Nats(port)
        connection.create("mailboxes", ["mailbox.>"])
        yield connection
        connection.close()
    finally:
        process.terminate()
        process.wait()


class Nats:
    """One connection, in the bytes of the protocol."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self.version = json.loads(self._line()[len("INFO ") :])["version"]
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        self._socket.sendall(f"CONNECT {json.dumps(options)}\r\nSUB {_INBOX} 1\r\n".encode())
        self._batches = 0

    def create(self, stream: str, subjects: Sequence[str]) -> None:
        """A stream on disk that takes atomic batches."""
        settings = {
            "name": stream,
            "subjects": subjects,
            "storage": "file",
            "allow_atomic": True,
            "num_replicas": 1,
        }
        body = json.dumps(settings).encode()
        head = f"PUB $JS.API.STREAM.CREATE.{stream} {_INBOX} {len(body)}\r\n".encode()
        self._socket.sendall(head + body + b"\r\n")
        self._acked()

    def publish_s(self, batches: Sequence[Sequence[str]]) -> float:
        """Seconds to have batches of mailboxes acknowledged, one behind the other."""
        packed = [self._packed(mailboxes) for mailboxes in batches]
        began = time.perf_counter()
        for batch in packed:
            self._socket.sendall(batch)
            self._acked()
        return time.perf_counter() - began

    def _packed(self, mailboxes: Sequence[str]) -> bytes:
        self._batches += 1
        lines = []
        for number, mailbox in enumerate(mailboxes, 1):
            last = number == len(mailboxes)
            headers = (
                f"NATS/1.0\r\nNats-Batch-Id: b{self._batches}\r\nNats-Batch-Sequence: {number}\r\n"
                f"{'Nats-Batch-Commit: 1' + chr(13) + chr(10) if last else ''}\r\n"
            ).encode()
            to = f"{_INBOX} " if last else ""
            sizes = f"{len(headers)} {len(headers) + len(_PAYLOAD)}"
            lines.append(f"HPUB mailbox.{mailbox} {to}{sizes}\r\n".encode() + headers + _PAYLOAD)
        return b"\r\n".join(lines) + b"\r\n"

    def _acked(self) -> dict[str, Any]:
        while not (line := self._line()).startswith("MSG "):
            if line.startswith("PING"):
                self._socket.sendall(b"PONG\r\n")
            elif line.startswith(("-ERR", "HMSG")):
                raise Wrong(f"NATS refuses: {line}")
        size = int(line.rsplit(" ", 1)[1])
        answer: dict[str, Any] = json.loads(self._file.read(size + 2))
        if "error" in answer:
            raise Wrong(f"NATS refuses: {answer['error']}")
        return answer

    def _line(self) -> str:
        line = self._file.readline()
        if not line:
            raise Wrong("NATS has ended the connection")
        return line.decode().rstrip("\r\n")

    def close(self) -> None:
        """Let go."""
        self._file.close()
        self._socket.close()
