"""Cursor tokens: what a client can't forge of its place in a mailbox.

The signature is over the cursor's bytes as they were received, behind a prefix that names domain
and version, so that no other signature of the same key can pass for one.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from qim.cursor.v1.mailbox_cursor_pb2 import MailboxCursor, MailboxCursorToken
from qimd.contract import codec
from qimd.contract.violation import ContractViolation
from qimd.core.errors import ErrorCode, QimError, invalid
from qimd.core.ids import DeviceId, TenantId, UserId, check_id
from qimd.core.records import DeviceKey

_DOMAIN: Final = b"qim.cursor.v1\x00"
KEY_BYTES_MIN: Final = 32
"""As many as the hash gives: a shorter key is the weakest part of the signature."""


@dataclass(frozen=True, slots=True)
class CursorClaims:
    """What a token proves: this device may pull this lane of this shard, in this epoch."""

    mailbox_shard: int
    lane: int
    shard_epoch: int
    device: DeviceKey
    issued_at_ms: int
    key_id: str


@dataclass(frozen=True, slots=True)
class CursorKeys:
    """The HMAC keys by id: `current` signs, every one verifies, so that keys can rotate."""

    current: str
    keys: Mapping[str, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        """Raise QimError(INVALID_ARGUMENT) for a short key or a current one that is not there."""
        if self.current not in self.keys:
            raise invalid("the current cursor key is not among the keys", "current")
        for key_id, key in self.keys.items():
            check_id(key_id, "key_id")
            if len(key) < KEY_BYTES_MIN:
                raise invalid(f"a cursor key has less than {KEY_BYTES_MIN} bytes", "keys")


def sign_cursor(claims: CursorClaims, keys: CursorKeys) -> bytes:
    """The token of the claims, signed with the key that `claims.key_id` names.

    Raises ContractViolation for claims outside their range, QimError(INVALID_ARGUMENT) for a key
    that is not there.
    """
    key = keys.keys.get(claims.key_id)
    if key is None:
        raise invalid("the claims name a cursor key that is not there", "key_id")
    cursor = codec.encode(
        MailboxCursor(
            mailbox_shard_id=claims.mailbox_shard,
            lane_id=claims.lane,
            shard_epoch=claims.shard_epoch,
            tenant_id=claims.device.tenant,
            user_id=claims.device.user,
            device_id=claims.device.device,
            issued_at_ms=claims.issued_at_ms,
            key_id=claims.key_id,
        )
    )
    return codec.encode(MailboxCursorToken(cursor=cursor, signature=_signature(key, cursor)))


def verify_cursor(token: bytes, keys: CursorKeys) -> CursorClaims:
    """The claims of a token that one of the keys signed.

    Raises QimError(CURSOR_INVALID) for anything else, with one text for all: what exactly is wrong
    with a forged token is nobody's business.
    """
    try:
        parts = codec.decode(MailboxCursorToken, token)
        cursor = codec.decode(MailboxCursor, parts.cursor)
    except ContractViolation:
        raise _refused() from None
    key = keys.keys.get(cursor.key_id)
    # compare_digest takes as long for a wrong signature as for a right one.
    if key is None or not hmac.compare_digest(_signature(key, parts.cursor), parts.signature):
        raise _refused()
    return CursorClaims(
        mailbox_shard=cursor.mailbox_shard_id,
        lane=cursor.lane_id,
        shard_epoch=cursor.shard_epoch,
        device=DeviceKey(
            TenantId(cursor.tenant_id), UserId(cursor.user_id), DeviceId(cursor.device_id)
        ),
        issued_at_ms=cursor.issued_at_ms,
        key_id=cursor.key_id,
    )


def _signature(key: bytes, cursor: bytes) -> bytes:
    return hmac.digest(key, _DOMAIN + cursor, "sha256")


def _refused() -> QimError:
    return QimError(
        ErrorCode.CURSOR_INVALID,
        "the cursor token is not one that this server issued",
        field="cursor_token",
    )
