"""What makes an access token good: its claims, and `now` against its `exp`. No I/O, no library."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import DeviceId, TenantId, UserId, id_problem
from qimd.core.parameters import EXACT_INTEGER_MAX
from qimd.core.records import DeviceKey

ALGORITHM: Final = "EdDSA"
"""Pinned: a token never chooses how it is checked."""


def unauthenticated() -> QimError:
    """The one refusal of a bad token.

    It says nothing about which part was wrong: whoever guesses tenants, key ids or signatures
    learns nothing from it.
    """
    return QimError(ErrorCode.UNAUTHENTICATED, "the access token is not accepted")


@dataclass(frozen=True, slots=True)
class Claims:
    """An access token's claims (design section 4): all of them are required."""

    device: DeviceKey
    token_id: str
    issued_at_s: int
    expires_at_s: int
    not_before_s: int
    """0 if the token has no `nbf`, which is optional."""


def read_claims(payload: Mapping[str, object]) -> Claims:
    """The claims of a payload. Raises QimError(UNAUTHENTICATED) for a missing or ill-typed one."""
    return Claims(
        device=DeviceKey(
            TenantId(_id(payload, "tenant")),
            UserId(_id(payload, "sub")),
            DeviceId(_id(payload, "device")),
        ),
        token_id=_id(payload, "jti"),
        issued_at_s=_seconds(payload, "iat"),
        expires_at_s=_seconds(payload, "exp"),
        not_before_s=_seconds(payload, "nbf") if "nbf" in payload else 0,
    )


def judge_time(claims: Claims, now_ms: int) -> None:
    """Raise QimError(TOKEN_EXPIRED) from `exp` on, the instant itself included (AUT-03).

    `iat` decides nothing: the issuer's clock may be ahead of ours, and `exp` bounds the life.
    """
    if now_ms >= claims.expires_at_s * 1000:
        raise QimError(ErrorCode.TOKEN_EXPIRED, "the access token has expired")
    if now_ms < claims.not_before_s * 1000:
        raise unauthenticated()


def key_id_of(header: Mapping[str, object]) -> str:
    """The header's `kid`. Raises QimError(UNAUTHENTICATED) for another algorithm or no key id."""
    key_id = header.get("kid")
    if header.get("alg") != ALGORITHM or not isinstance(key_id, str) or not key_id:
        raise unauthenticated()
    return key_id


def _id(payload: Mapping[str, object], claim: str) -> str:
    value = payload.get(claim)
    if not isinstance(value, str) or id_problem(value):
        raise unauthenticated()
    return value


def _seconds(payload: Mapping[str, object], claim: str) -> int:
    value = payload.get(claim)
    # JSON's true is an int to Python, and 1e9 is a float: neither is a time here.
    if type(value) is not int or not 0 <= value <= EXACT_INTEGER_MAX // 1000:
        raise unauthenticated()
    return value
