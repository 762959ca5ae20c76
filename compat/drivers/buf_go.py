"""Go: buf's own protobuf runtime, through `buf convert` against the schema's sources.

One process a request, several at a time; answers keep the order of the requests.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from compat.drivers.line import Refused
from compat.messages import PROTO
from compat.protocol import VERSION, decode_bytes, encode_bytes

FORMATS = {"reencode": "binpb", "decode": "json"}


class BufGo:
    """Converts bytes with buf, on an image built once."""

    def __init__(self, folder: Path) -> None:
        beside = Path(sys.executable).with_name("buf")
        self._buf = str(beside) if beside.exists() else (shutil.which("buf") or "buf")
        self._image = folder / "image.binpb"
        subprocess.run([self._buf, "build", str(PROTO), "-o", str(self._image)], check=True)

    def answer(self, operation: str, message: str, data: bytes) -> bytes:
        """See `compat.drivers.line.serve`."""
        done = subprocess.run(
            [
                self._buf, "convert", str(self._image), "--type", message,
                "--from", "-#format=binpb", "--to", f"-#format={FORMATS[operation]}",
            ],
            input=data,
            capture_output=True,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise Refused("malformed", done.stderr.decode(errors="replace")[:200])
        return done.stdout

    def line(self, request: str) -> str:
        """One answer line."""
        number, operation, message, data = request.split()
        try:
            return (
                f"{number} ok {encode_bytes(self.answer(operation, message, decode_bytes(data)))}"
            )
        except Refused as error:
            text = str(error).encode("ascii", "backslashreplace").decode()
            return f"{number} refused {' '.join(text.split())}"
        except KeyError as error:
            return f"{number} unsupported {error}"


def main() -> None:
    """Speak the protocol on standard input and output."""
    if not sys.stdin.readline().startswith("hello"):
        raise SystemExit("expected: hello " + VERSION)
    print(f"hello {VERSION} wire buf-go", flush=True)
    with TemporaryDirectory() as folder:
        buf = BufGo(Path(folder))
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            for answer in pool.map(buf.line, sys.stdin):
                print(answer, flush=True)


if __name__ == "__main__":
    main()
