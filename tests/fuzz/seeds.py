"""Writes the inputs that the corpus began with: `python -m tests.fuzz.seeds`.

The contract's own fixtures, good and bad, and some chats and tokens by hand. A fuzzer that begins
with good ones finds what lies next to them; with nothing it finds that random bytes are refused.
"""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from tests.fuzz.targets import ADMIN_TOKEN, CARRIED, CURSOR_KEYS, NOW_MS, signed_token

from qim.cursor.v1.mailbox_cursor_pb2 import MailboxCursorToken
from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch
from qimd.contract.cursor import CursorClaims, sign_cursor
from qimd.core.ids import DeviceId, TenantId, UserId
from qimd.core.records import DeviceKey

TOP = Path(__file__).resolve().parent.parent.parent
CORPUS = Path(__file__).resolve().parent / "corpus"
INPUT_BYTES_MAX = 4096
KINDS = ("full", "minimal", "unknown_fields", "text_0", "integers_widest")


def fixtures(name: str, *kinds: str) -> Iterator[bytes]:
    """The newest release's fixtures of a message."""
    for folder in ("golden", "reject"):
        releases = sorted((TOP / "compat" / folder).glob("*.*.*/"))
        for path in sorted((releases[-1] / name).glob("*.binpb")):
            data = path.read_bytes()
            if len(data) < INPUT_BYTES_MAX and (not kinds or path.stem in kinds):
                yield data


def dispatches() -> Iterator[bytes]:
    yield from fixtures(GroupDispatch.DESCRIPTOR.full_name)


def frames() -> Iterator[bytes]:
    for place, message_type in enumerate(CARRIED):
        for data in fixtures(message_type.DESCRIPTOR.full_name, *KINDS):
            yield bytes([place]) + data


def cursors() -> Iterator[bytes]:
    phone = DeviceKey(TenantId("acme"), UserId("anna"), DeviceId("phone"))
    token = sign_cursor(CursorClaims(1, 7, 1, phone, NOW_MS, "k1"), CURSOR_KEYS)
    signed = MailboxCursorToken.FromString(token).cursor
    yield token
    # Forged: one bit of the signature. Then cursors to be signed: good, doubled, out of order.
    yield token[:-1] + bytes([token[-1] ^ 1])
    yield signed
    yield signed + signed
    yield signed[2:] + signed[:2]
    yield sign_cursor(CursorClaims(0, 0, 4095, phone, 0, "k0"), CURSOR_KEYS)
    yield from fixtures("qim.cursor.v1.MailboxCursor")
    yield from fixtures("qim.cursor.v1.MailboxCursorToken")


def tokens() -> Iterator[bytes]:
    now_s = NOW_MS // 1000
    claims = {
        "sub": "anna",
        "tenant": "acme",
        "device": "phone",
        "jti": "t1",
        "iat": now_s,
        "exp": now_s + 3600,
    }
    header, payload = b'{"alg":"EdDSA","kid":"k1"}', json.dumps(claims).encode()
    yield payload
    yield json.dumps({**claims, "exp": now_s}).encode()
    yield json.dumps({**claims, "nbf": now_s + 1}).encode()
    yield header + b"\n" + payload
    yield signed_token(header, payload).encode()
    yield b"Bearer " + ADMIN_TOKEN.encode()
    yield bytes(20)


def chats() -> Iterator[bytes]:
    def row(n: object, user: object = "u", text: object = "hi", kind: object = "message") -> str:
        return json.dumps({"n": n, "kind": kind, "user": user, "text": text})

    yield row(1).encode()
    yield "\n".join([row(1), row(2, "v"), row(3, kind="rename"), row(9, kind="action")]).encode()
    yield "\r\n".join([row(1, "日本"), row(2, "v", "\ud800 lone")]).encode()
    yield "\n".join([row(2), row(1)]).encode()
    yield row(1, 3).encode() + b"\n[]\n{\n"


def positions() -> Iterator[bytes]:
    heads = {"standup": [7, True], "é/": [3, False]}
    yield json.dumps({"format": 1, "applied_seq": "2251799813685248", "heads": heads}).encode()
    yield b'{"format": 1, "applied_seq": "0", "heads": {}}'
    yield b'{"format": 2}'


SEEDS = {
    "dispatch": dispatches,
    "frame": frames,
    "cursor": cursors,
    "token": tokens,
    "replay": chats,
    "position": positions,
}


def main() -> None:
    for target, seeds in SEEDS.items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for data in seeds():
            (folder / sha256(data).hexdigest()[:16]).write_bytes(data)


if __name__ == "__main__":
    main()
