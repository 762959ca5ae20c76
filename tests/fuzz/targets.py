"""What is fuzzed: each target takes bytes, and raises unless the code under it kept its word.

A target knows nothing of a fuzzer, so that its kept corpus also runs as a test, on any machine.
Whatever escapes that is not the error that the code promises is a finding: so is an acceptance of
bytes that are not the one spelling of what they mean.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from qim.common.v1.error_pb2 import Error
from qim.conversation.v1.event_pb2 import ConversationEvent
from qim.cursor.v1.mailbox_cursor_pb2 import MailboxCursor, MailboxCursorToken
from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch
from qim.gateway.v1.gateway_pb2 import ClientFrame, DeliveredEvent, ServerFrame
from qim.mailbox.v1.mailbox_service_pb2 import ReadMailboxResponse
from qim.session.v1.session_service_pb2 import ListSessionsResponse
from qim.writer.v1.writer_service_pb2 import CommitRequest, CommitResponse
from qimd.auth.admin import AdminToken
from qimd.auth.service import TokenAuthenticator
from qimd.client.chat import Line, read_chat, turns
from qimd.client.positions import FilePositions
from qimd.connection.sends import prepare
from qimd.contract import codec
from qimd.contract.cursor import CursorKeys, sign_cursor, verify_cursor
from qimd.contract.dispatch import decode_dispatch
from qimd.contract.errors import error_of
from qimd.contract.events import summarise
from qimd.contract.violation import ContractViolation, ReaderTooOld
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import DeviceId, TenantId, UserId, id_problem
from qimd.core.parameters import BODY_BYTES_MAX, EXACT_INTEGER_MAX, LANES, READER_VERSION
from qimd.core.records import DeviceKey
from qimd.core.seq import SEQ_MAX
from qimd.ports.store import TenantRecord
from qimd.session.listing import PageToken

T = TypeVar("T")
Target = Callable[[bytes], None]


class Broken(Exception):
    """The code accepted or refused something that it must not."""


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


# --- strict decode -----------------------------------------------------------------------------


def dispatch(data: bytes) -> None:
    """A record of the log: read, refused, or too new; what is read has one spelling."""
    try:
        read = decode_dispatch(data)
    except ContractViolation:
        return
    except ReaderTooOld as error:
        _demand(error.min_reader_version > READER_VERSION, "a record is too new, and is not")
        return
    message = GroupDispatch.FromString(data)
    _demand(message.SerializeToString(deterministic=True) == data, "a second spelling is accepted")
    _demand(codec.encode(message) == data, "what is read can't be written")
    _demand(1 <= read.fencing_epoch <= EXACT_INTEGER_MAX, "a fencing_epoch out of range")
    lanes = [block.lane for block in read.blocks]
    _demand(lanes == sorted(set(lanes)), "lanes do not increase")
    _demand(bool(lanes) and lanes[-1] < LANES, "no lane, or one too many")
    _demand(all(block.users for block in read.blocks), "a block without users")
    _demand(read.lane_mask.bit_count() == len(lanes), "the mask is not of the blocks")


CARRIED: Final[tuple[type[Message], ...]] = (
    # The first byte of an input picks one: append only, or the kept corpus means something else.
    ClientFrame,
    ServerFrame,
    ConversationEvent,
    DeliveredEvent,
    CommitRequest,
    CommitResponse,
    ReadMailboxResponse,
    ListSessionsResponse,
    Error,
)
SENDER: Final = DeviceKey(TenantId("acme"), UserId("anna"), DeviceId("phone"))


def frame(data: bytes) -> None:
    """A message that crosses the wire: read without losing a byte, or refused."""
    message_type, encoded = CARRIED[data[0] % len(CARRIED) if data else 0], data[1:]
    try:
        message = codec.decode(message_type, encoded)
    except ContractViolation as violation:
        _demand(violation.code is ErrorCode.CONTRACT_VIOLATION, "a violation of another code")
        return
    again = codec.encode(message)
    _demand(len(again) == len(encoded), "reading loses bytes, or makes some up")
    _demand(codec.encode(codec.decode(message_type, again)) == again, "no fixed point")
    _use(message, encoded)


def _use(message: Message, encoded: bytes) -> None:
    """What is done with a message first, before anything else has looked at it."""
    match message:
        case ClientFrame() if message.HasField("send"):
            try:
                prepared = prepare(SENDER, message.send)
            except QimError:
                return
            places = sum(result is None for result in prepared.results)
            _demand(places == len(prepared.drafts), "a draft without a place")
        case ConversationEvent():
            _demand(summarise(encoded).event_id == message.event_id, "a summary of another event")
        case Error():
            _demand(isinstance(error_of(message), QimError), "an error that is none")


# --- cursors -----------------------------------------------------------------------------------

CURSOR_KEY: Final = bytes(range(32))
CURSOR_KEYS: Final = CursorKeys("k1", {"k1": CURSOR_KEY, "k0": CURSOR_KEY[::-1]})
_DOMAIN: Final = b"qim.cursor.v1\x00"


def cursor(data: bytes) -> None:
    """A token as a client sends it; and the same bytes as a cursor that our key has signed, since
    no fuzzer gets past a signature.
    """
    _cursor(data)
    signature = hmac.digest(CURSOR_KEY, _DOMAIN + data, "sha256")
    token = MailboxCursorToken(cursor=data, signature=signature)
    _cursor(token.SerializeToString(deterministic=True))


def _cursor(token: bytes) -> None:
    try:
        claims = verify_cursor(token, CURSOR_KEYS)
    except QimError as error:
        _demand(error.code is ErrorCode.CURSOR_INVALID, f"a cursor is refused as {error.code}")
        _demand(error.field == "cursor_token", "the refusal names no field")
        return
    parts = MailboxCursorToken.FromString(token)
    if _is_of_this_version(parts) and _is_of_this_version(MailboxCursor.FromString(parts.cursor)):
        _demand(sign_cursor(claims, CURSOR_KEYS) == token, "a second token of the same claims")


def _is_of_this_version(message: Message) -> bool:
    return len(UnknownFieldSet(message)) == 0


# --- tokens ------------------------------------------------------------------------------------

NOW_MS: Final = 1_750_000_000_000
TOKEN_KEY: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ADMIN_TOKEN: Final = "an admin token of the fuzzer"


class _Tenants:
    """Every tenant that is called acme has one key."""

    async def tenant(self, tenant: TenantId) -> TenantRecord | None:
        if tenant != "acme":
            return None
        return TenantRecord(tenant, {"k1": TOKEN_KEY.public_key().public_bytes_raw()}, 0)


class _Still:
    """A clock that stands."""

    def wall_ms(self) -> int:
        return NOW_MS

    def monotonic_s(self) -> float:
        return 0.0


_AUTHENTICATOR: Final[Any] = TokenAuthenticator(_Tenants(), _Still())  # type: ignore[arg-type]


def token(data: bytes) -> None:
    """An access token as it comes; the same bytes as a payload, or as header and payload, that the
    tenant's key has signed; as an admin's credential; as a page token.
    """
    text = data.decode("latin-1")
    _access_token(text)
    _access_token(data.decode("utf-8", "surrogateescape"))
    _access_token(signed_token(b'{"alg":"EdDSA","kid":"k1"}', data))
    header, _, payload = data.partition(b"\n")
    _access_token(signed_token(header, payload))
    _admin_token(data)
    _page_token(data)


def signed_token(header: bytes, payload: bytes) -> str:
    """A token that the tenant's key has signed, whatever it says."""
    parts = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, payload))
    signature = base64.urlsafe_b64encode(TOKEN_KEY.sign(parts)).rstrip(b"=")
    return b".".join((parts, signature)).decode()


def _access_token(text: str) -> None:
    try:
        identity = _now(_AUTHENTICATOR.verify_access_token(text))
    except QimError as error:
        known = {ErrorCode.UNAUTHENTICATED, ErrorCode.TOKEN_EXPIRED}
        _demand(error.code in known, f"a token is refused as {error.code}")
        return
    device = identity.device
    _demand(device.tenant == "acme", "a token of a tenant that has no key")
    for value in (device.user, device.device, identity.token_id):
        _demand(not id_problem(value), "a token with a claim that is no id")
    _demand(NOW_MS < identity.expires_at_ms <= EXACT_INTEGER_MAX, "a token that has expired")
    claims = json.loads(_decoded(text.split(".")[1]))
    _demand(claims["sub"] == device.user, "another user than the token's")
    _demand(type(claims["exp"]) is int and type(claims["iat"]) is int, "a time that is no integer")


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _admin_token(data: bytes) -> None:
    for given in (data, data.decode("latin-1"), b"Bearer " + data):
        try:
            AdminToken(ADMIN_TOKEN).check(given)
        except QimError as error:
            _demand(error.code is ErrorCode.UNAUTHENTICATED, "an admin is refused otherwise")
        else:
            _demand(data.endswith(ADMIN_TOKEN.encode()), "another admin token is accepted")


def _page_token(data: bytes) -> None:
    try:
        parsed = PageToken.parse(data)
    except QimError as error:
        _demand(error.code is ErrorCode.INVALID_ARGUMENT, "a page token is refused otherwise")
    else:
        _demand(parsed.text == data, "a second spelling of a page token")


def _now(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise Broken("it waits for something")


# --- recorded chats ----------------------------------------------------------------------------


def replay(data: bytes) -> None:
    """A file for `qimctl replay`: read, or refused with the line at fault."""
    handle, name = tempfile.mkstemp(suffix=".jsonl", dir=_scratch())
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        _replay(Path(name), data)
    finally:
        os.unlink(name)


def _replay(path: Path, data: bytes) -> None:
    try:
        lines = read_chat(path)
    except QimError as error:
        _demand(error.code is ErrorCode.INVALID_ARGUMENT, f"a file is refused as {error.code}")
        _demand(error.field == "file", "the refusal does not name the file")
        told = error.message.removeprefix(f"{path}, line ")
        if told == error.message:
            _demand(error.message == f"{path} holds no message", "no line is named")
            return
        number = int(told.partition(":")[0])
        _demand(1 <= number <= data.count(b"\n") + 1, "a line is named that is not there")
        return
    _demand(bool(lines), "a file of nothing is accepted")
    _demand(all(a.n < b.n for a, b in pairwise(lines)), "n does not increase")
    _demand(all(not id_problem(line.user) for line in lines), "a user that is no id")
    _demand(all(len(line.body) <= BODY_BYTES_MAX for line in lines), "a body that is too large")
    cut: list[Line] = [line for turn in turns(lines) for line in turn]
    _demand(cut == lines, "turns lose a line")


# --- a device's position -----------------------------------------------------------------------


def position(data: bytes) -> None:
    """The file in which the SDK keeps a position: read, or refused; never guessed."""
    path = Path(_scratch() or tempfile.gettempdir()) / f"qim-position-{os.getpid()}.json"
    path.write_bytes(data)
    try:
        read = FilePositions(path)._load()
    except QimError as error:
        _demand(error.code is ErrorCode.INVALID_ARGUMENT, f"a file is refused as {error.code}")
        _demand(error.field == "positions", "the refusal does not name the file")
        return
    finally:
        path.unlink()
    if read is None:
        raise Broken("a file that is there is none")
    _demand(0 <= read.applied_seq <= SEQ_MAX, "a position that no mailbox has")
    heads = read.heads.values()
    _demand(all(0 <= head.seq <= EXACT_INTEGER_MAX for head in heads), "a head out of range")


def _scratch() -> str | None:
    """Memory, where the machine has some: a file is written for each input."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


TARGETS: Final[Mapping[str, Target]] = {
    "dispatch": dispatch,
    "frame": frame,
    "cursor": cursor,
    "token": token,
    "replay": replay,
    "position": position,
}
