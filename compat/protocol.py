"""The line protocol between the suite and an implementation, and the suite's side of it.

The implementation is a process that reads requests from its standard input and writes one answer
a line to its standard output, in the order of the requests, and ends at end of input. All is
ASCII; fields are separated by one space; bytes are base64 (standard alphabet, padded; empty bytes
are `-`).

    suite          hello qim-compat/1
    implementation hello qim-compat/1 LEVEL NAME
    suite          ID OPERATION full.Message BASE64
    implementation ID ok BASE64
    implementation ID refused REASON [text]
    implementation ID unsupported [text]

LEVEL is `strict` if the implementation refuses all that the contract refuses, `wire` if it is a
plain protobuf runtime. OPERATION is `reencode` (decode, then encode: binary) or `decode` (decode,
then ProtoJSON as UTF-8). REASON is one word.
"""

import base64
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, cast

VERSION = "qim-compat/1"


@dataclass(frozen=True)
class Answer:
    """What an implementation says to one request."""

    verdict: str
    data: bytes = b""
    text: str = ""


class ProtocolError(Exception):
    """The implementation does not speak the protocol."""


def encode_bytes(data: bytes) -> str:
    """Bytes as a field."""
    return base64.b64encode(data).decode() if data else "-"


def decode_bytes(text: str) -> bytes:
    """A field as bytes. Raises ValueError."""
    return b"" if text == "-" else base64.b64decode(text, validate=True)


def parse_answer(line: str, expected_id: int) -> Answer:
    """One answer line. Raises ProtocolError."""
    parts = line.rstrip("\n").split(" ", 3)
    if len(parts) < 2 or parts[0] != str(expected_id):
        raise ProtocolError(f"expected an answer to {expected_id}, got {line.strip()!r}")
    verdict = parts[1]
    if verdict == "ok" and len(parts) == 3:
        try:
            return Answer("ok", data=decode_bytes(parts[2]))
        except ValueError as error:
            raise ProtocolError(f"answer {expected_id} is not base64") from error
    if verdict in ("refused", "unsupported"):
        return Answer(verdict, text=" ".join(parts[2:]))
    raise ProtocolError(f"answer {expected_id} is neither ok, refused nor unsupported")


class Implementation:
    """A running implementation: a process that speaks the protocol."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="ascii"
        )
        self._in, self._out = (
            cast(IO[str], self._process.stdin),
            cast(IO[str], self._process.stdout),
        )
        self._write(f"hello {VERSION}\n")
        parts = self._out.readline().split()
        if len(parts) != 4 or parts[:2] != ["hello", VERSION] or parts[2] not in ("strict", "wire"):
            self.close()
            raise ProtocolError(
                f"{command[0]} did not answer 'hello {VERSION} strict|wire NAME' "
                f"but {' '.join(parts)!r}"
            )
        self.level, self.name = parts[2], parts[3]

    def _write(self, text: str) -> None:
        try:
            self._in.write(text)
            self._in.flush()
        except BrokenPipeError as error:
            raise ProtocolError(
                "the implementation ended before it was asked everything"
            ) from error

    def ask(self, requests: Sequence[tuple[str, str, bytes]]) -> list[Answer]:
        """Answers to (operation, message, bytes), pipelined. Raises ProtocolError."""
        lines = "".join(
            f"{index} {operation} {message} {encode_bytes(data)}\n"
            for index, (operation, message, data) in enumerate(requests)
        )
        failure: list[ProtocolError] = []

        # Written beside the reading: else both sides could wait for the other's full pipe.
        def write() -> None:
            try:
                self._write(lines)
            except ProtocolError as error:
                failure.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        answers = []
        for index in range(len(requests)):
            line = self._out.readline()
            if not line:
                writer.join()
                raise ProtocolError(f"the implementation ended before answer {index}") from (
                    failure[0] if failure else None
                )
            answers.append(parse_answer(line, index))
        writer.join()
        return answers

    def close(self) -> None:
        """End it."""
        self._in.close()
        self._process.terminate()
        self._process.wait()
        self._out.close()
