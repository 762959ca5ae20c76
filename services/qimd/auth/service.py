"""Checks access tokens against the keys of their tenant."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from qimd.auth.logic import ALGORITHM, judge_time, key_id_of, read_claims, unauthenticated
from qimd.core.ids import TenantId
from qimd.core.parameters import (
    ACCESS_TOKEN_BYTES_MAX,
    TENANT_KEYS_CACHE_MAX,
    TENANT_KEYS_CACHE_S,
)
from qimd.ports.runtime import Runtime
from qimd.ports.services import Identity
from qimd.ports.store import TenantStore

_UNREADABLE: Final = (jwt.PyJWTError, ValueError, RecursionError)
"""What the library raises for junk: nested JSON exhausts the parser's stack, it does not raise a
library error."""


@dataclass(frozen=True, slots=True)
class _HeldKeys:
    keys: Mapping[str, Ed25519PublicKey]
    read_at_s: float


class TokenAuthenticator:
    """`ports.services.Authenticator` over the tenants' Ed25519 keys.

    Keys are held for TENANT_KEYS_CACHE_S, so that a removed one stops working after it. Only what
    exists is held: a tenant or key that was made a moment ago works at once.
    """

    def __init__(self, tenants: TenantStore, runtime: Runtime) -> None:
        self._tenants = tenants
        self._runtime = runtime
        self._held: OrderedDict[TenantId, _HeldKeys] = OrderedDict()

    async def verify_access_token(self, token: str) -> Identity:
        """The identity that the token proves.

        Raises QimError: UNAUTHENTICATED for anything that is not a good token, TOKEN_EXPIRED for a
        good one from its `exp` on, UNAVAILABLE if the tenants can't be read.
        """
        header, payload = _read(token, None)
        key_id = key_id_of(header)
        claims = read_claims(payload)
        key = await self._key(claims.device.tenant, key_id)
        if key is None:
            raise unauthenticated()
        # Everything above was read from unproven bytes, and is proven by this line.
        _read(token, key)
        judge_time(claims, self._runtime.wall_ms())
        return Identity(claims.device, claims.token_id, claims.expires_at_s * 1000)

    async def _key(self, tenant: TenantId, key_id: str) -> Ed25519PublicKey | None:
        now_s = self._runtime.monotonic_s()
        held = self._held.get(tenant)
        if held is not None and now_s - held.read_at_s < TENANT_KEYS_CACHE_S:
            self._held.move_to_end(tenant)
            if (key := held.keys.get(key_id)) is not None:
                return key
        record = await self._tenants.tenant(tenant)
        if record is None:
            self._held.pop(tenant, None)
            return None
        keys = {name: Ed25519PublicKey.from_public_bytes(raw) for name, raw in record.keys.items()}
        # Timed from before the read: what was removed while it ran must not live longer for it.
        self._held[tenant] = _HeldKeys(keys, now_s)
        self._held.move_to_end(tenant)
        while len(self._held) > TENANT_KEYS_CACHE_MAX:
            self._held.popitem(last=False)
        return keys.get(key_id)


def _read(
    token: str, key: Ed25519PublicKey | None
) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """(header, payload), with the signature checked if there is a key.

    The library's own clock checks are off: time is `judge_time`'s, on the runtime's clock.
    """
    if not token or not token.isascii() or len(token) > ACCESS_TOKEN_BYTES_MAX:
        raise unauthenticated()
    options: Any = {
        "verify_signature": key is not None,
        **dict.fromkeys(
            ("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss"), False
        ),
        "verify_sub": False,
        "verify_jti": False,
    }
    try:
        whole = jwt.decode_complete(token, key or "", algorithms=[ALGORITHM], options=options)
    except _UNREADABLE:
        # Raised from nothing: the library's error quotes parts of the token.
        raise unauthenticated() from None
    return whole["header"], whole["payload"]
