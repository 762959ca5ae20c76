"""The implementation's side of the line protocol, for drivers written in Python."""

import sys
from collections.abc import Callable

from compat.protocol import VERSION, decode_bytes, encode_bytes


class Refused(Exception):
    """The implementation refuses the bytes; `reason` is one word."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(f"{reason} {text}".strip())
        self.reason = reason
        self.text = text


def serve(name: str, level: str, answer: Callable[[str, str, bytes], bytes]) -> None:
    """Answer requests until end of input.

    `answer(operation, message, data)` gives bytes, raises Refused, or KeyError for a message or
    operation that it doesn't have.
    """
    for line in sys.stdin:
        parts = line.split()
        if parts[0] == "hello":
            print(f"hello {VERSION} {level} {name}", flush=True)
            continue
        number, operation, message, data = parts
        try:
            print(number, "ok", encode_bytes(answer(operation, message, decode_bytes(data))))
        except Refused as error:
            text = f"{error.reason} {error.text}".encode("ascii", "backslashreplace").decode()
            print(number, "refused", " ".join(text.split()))
        except KeyError as error:
            print(number, "unsupported", str(error))
        sys.stdout.flush()
