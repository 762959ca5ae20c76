"""Access tokens of simulated devices: good ones, which are checked as any other."""

from functools import lru_cache
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from tests.sim.runtime import WALL_START_MS

from qimd.auth import service as auth
from qimd.core.records import DeviceKey

TENANT_KEY: Final = Ed25519PrivateKey.from_private_bytes(b"a tenant's key for simulations..")
KEY_ID: Final = "k1"


@lru_cache(maxsize=4096)
def token_of(device: DeviceKey) -> str:
    """A good access token for the time of any world."""
    now_s = WALL_START_MS // 1000
    claims = {
        "sub": device.user,
        "tenant": device.tenant,
        "device": device.device,
        "jti": f"{device.tenant}/{device.user}/{device.device}",
        "iat": now_s - 3_600,
        "exp": now_s + 30 * 24 * 3_600,
    }
    return jwt.encode(claims, TENANT_KEY, algorithm="EdDSA", headers={"kid": KEY_ID})


def read_tokens_once() -> None:
    """Read each token once in this process's life, and remember what came of it.

    The few devices there are connect over and over, and the elliptic curve alone would cost a run
    as much as its dispatch log. What a token says under a key never changes; whether it has expired
    is judged each time, as ever.
    """
    read = auth._read
    known: dict[tuple[str, bytes], Any] = {}

    def remembered(token: str, key: Ed25519PublicKey | None) -> Any:
        place = token, b"" if key is None else key.public_bytes_raw()
        if place not in known:
            known[place] = read(token, key)
        return known[place]

    auth._read = remembered
