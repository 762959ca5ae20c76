"""The credentials file that `qimd dev` leaves in its data folder, as a client reads it.

JSON, format 1: `address`, `metrics_address`, `tenant`, `key_id`, `private_key` (base64 of a raw
Ed25519 key) and `admin_token`; the cursor keys in it are the server's alone.
"""

import base64
import binascii
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from qimd.ctl.exits import Missing

FILE_NAME: Final = "dev-credentials.json"
DATA_DEFAULT: Final = Path("qim-data")
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the file holds for clients."""

    address: str
    tenant: str
    key_id: str
    private_key: bytes = field(repr=False)
    admin_token: str = field(repr=False)


def load(path: Path) -> Credentials | None:
    """The file's credentials; None if there is no file. Raises Missing for one that is broken."""
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Missing(
            f"{path} can't be read ({error.strerror}).", "Run as the user who runs the server."
        ) from None
    try:
        document = json.loads(text)
        if document["format"] != _FORMAT:
            raise ValueError("format")
        return Credentials(
            address=str(document["address"]),
            tenant=str(document["tenant"]),
            key_id=str(document["key_id"]),
            private_key=base64.b64decode(document["private_key"], validate=True),
            admin_token=str(document["admin_token"]),
        )
    except (ValueError, KeyError, TypeError, binascii.Error):
        # The error's own text could quote a key.
        raise Missing(
            f"{path} is not a credentials file of this version.",
            "Name the right data folder with --data.",
        ) from None


@dataclass(frozen=True, slots=True)
class Signer:
    """Whose tokens a key signs."""

    tenant: str
    key_id: str
    private_key: bytes = field(repr=False)
    """32 bytes of Ed25519."""


def read_key(path: Path) -> bytes:
    """The Ed25519 key of a PEM file. Raises Missing, which quotes nothing of it."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ModuleNotFoundError:
        raise _no_crypto() from None
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise Missing(
            f"{path} is no unencrypted PEM file of an Ed25519 key.",
            "Make one: openssl genpkey -algorithm ed25519 -out key.pem",
        )
    return key.private_bytes_raw()


def mint(signer: Credentials | Signer, user: str, device: str, life_s: int) -> str:
    """A new access token of the tenant, signed with its key. Raises Missing without PyJWT."""
    import secrets

    from qimd.core.ids import check_id

    try:
        import jwt
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ModuleNotFoundError:
        raise _no_crypto() from None
    now_s = int(time.time())
    claims = {
        "sub": check_id(user, "user"),
        "tenant": signer.tenant,
        "device": check_id(device, "device"),
        "jti": secrets.token_hex(16),
        "iat": now_s,
        "exp": now_s + life_s,
    }
    key = Ed25519PrivateKey.from_private_bytes(signer.private_key)
    return jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": signer.key_id})


def _no_crypto() -> Missing:
    return Missing(
        "Signing a token needs PyJWT with cryptography.",
        "Install the extra: pip install 'qim[server]', or give a token with --token.",
    )
