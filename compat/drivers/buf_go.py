"""Go: buf's own protobuf runtime, through `buf convert`.

A process takes 50 ms to start, so requests that have arrived are converted together: the items of a
message are put into one field of a made-up batch message, and taken out of it again. A batch that
Go refuses is converted item by item, to find which.
"""

import json
import queue
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from compat.cases import sized, split_fields
from compat.messages import PROTO, descriptors
from compat.protocol import VERSION, decode_bytes, encode_bytes

FORMATS = {"reencode": "binpb", "decode": "json"}
TOGETHER_MAX = 500
"""Requests taken from the input at once."""


@dataclass(frozen=True)
class Request:
    """One line of the suite."""

    number: str
    operation: str
    message: str
    data: bytes


class BufGo:
    """Converts bytes with buf, on an image that also holds a batch message for each message."""

    def __init__(self, folder: Path) -> None:
        beside = Path(sys.executable).with_name("buf")
        self._buf = str(beside) if beside.exists() else (shutil.which("buf") or "buf")
        self._image = folder / "image.binpb"
        self._batches = {name: f"Batch{index}" for index, name in enumerate(descriptors())}
        schema = folder / "proto"
        shutil.copytree(PROTO, schema)
        (schema / "batch.proto").write_text(self._batch_proto(), encoding="utf-8")
        subprocess.run([self._buf, "build", str(schema), "-o", str(self._image)], check=True)

    def _batch_proto(self) -> str:
        files = sorted({descriptor.file.name for descriptor in descriptors().values()})
        imports = "".join(f'import "{file}";\n' for file in files)
        messages = "".join(
            f"message {batch} {{ repeated .{name} items = 1; }}\n"
            for name, batch in self._batches.items()
        )
        return f'edition = "2023";\npackage batch;\n{imports}{messages}'

    def _convert(self, operation: str, message: str, data: bytes) -> bytes | str:
        """The output, or the text of a refusal."""
        done = subprocess.run(
            [
                self._buf, "convert", str(self._image), "--type", message,
                "--from", "-#format=binpb", "--to", f"-#format={FORMATS[operation]}",
            ],
            input=data,
            capture_output=True,
            check=False,
        )  # fmt: skip
        return done.stdout if done.returncode == 0 else done.stderr.decode(errors="replace")

    def answer_together(self, requests: Sequence[Request]) -> list[str]:
        """The answer lines to requests of one operation and message."""
        operation, message = requests[0].operation, requests[0].message
        if operation not in FORMATS or message not in self._batches:
            return [f"{request.number} unsupported" for request in requests]
        if len(requests) > 1:
            batch = b"".join(sized(1, request.data) for request in requests)
            done = self._convert(operation, f"batch.{self._batches[message]}", batch)
            if isinstance(done, bytes):
                items = _items(operation, done)
                return [_ok(r, item) for r, item in zip(requests, items, strict=True)]
        return [self._answer_alone(request) for request in requests]

    def _answer_alone(self, request: Request) -> str:
        done = self._convert(request.operation, request.message, request.data)
        if isinstance(done, bytes):
            return _ok(request, done)
        text = done.encode("ascii", "backslashreplace").decode()
        return f"{request.number} refused malformed {' '.join(text.split())[:200]}"


def _ok(request: Request, data: bytes) -> str:
    return f"{request.number} ok {encode_bytes(data)}"


def _items(operation: str, batch: bytes) -> list[bytes]:
    """The items of a converted batch."""
    if operation == "decode":
        return [json.dumps(item).encode() for item in json.loads(batch)["items"]]
    return [payload for _, payload in split_fields(batch)]


def _requests(lines: "queue.SimpleQueue[str | None]") -> list[Request] | None:
    """What has arrived, at least one; None at the end of input."""
    taken: list[Request] = []
    while len(taken) < TOGETHER_MAX and (not taken or not lines.empty()):
        line = lines.get()
        if line is None:
            lines.put(None)
            break
        number, operation, message, data = line.split()
        taken.append(Request(number, operation, message, decode_bytes(data)))
    return taken or None


def main() -> None:
    """Speak the protocol on standard input and output."""
    if not sys.stdin.readline().startswith("hello"):
        raise SystemExit("expected: hello " + VERSION)
    print(f"hello {VERSION} wire buf-go", flush=True)
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    # Read beside the converting, so that the suite is never kept from writing.
    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    with TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=2) as pool:
        buf = BufGo(Path(folder))
        while (requests := _requests(lines)) is not None:
            groups: dict[tuple[str, str], list[Request]] = defaultdict(list)
            for request in requests:
                groups[request.operation, request.message].append(request)
            answers = {
                answer.split(" ", 1)[0]: answer
                for answered in pool.map(buf.answer_together, groups.values())
                for answer in answered
            }
            for request in requests:
                print(answers[request.number])
            sys.stdout.flush()


if __name__ == "__main__":
    main()
