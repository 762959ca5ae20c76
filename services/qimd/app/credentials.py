"""The `dev` profile's credentials: made at the first start, kept in the data folder, mode 0600.

`DATA/dev-credentials.json`:

    {"format": 1, "address": "127.0.0.1:7400", "metrics_address": "127.0.0.1:7401",
     "tenant": "dev", "key_id": "dev-1", "private_key": base64 of the raw Ed25519 key (32 bytes),
     "admin_token": text, "cursor_keys": {"current": "1", "keys": {"1": base64 of 32 bytes}}}

The addresses are those of the last start; `qimctl` reads the file to find the server. Nothing of
it is ever logged.
"""

import json
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from qimd.app.folder import read_kept, write_private
from qimd.app.secret_file import KEY_BYTES, cursor_keys_of, key_bytes, key_text
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import TenantId

FILE_NAME: Final = "dev-credentials.json"
FORMAT: Final = 1
DEV_TENANT: Final = TenantId("dev")


class CredentialsBroken(QimError):
    """The file is there, but is not what we wrote."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            ErrorCode.INVALID_ARGUMENT,
            f"{path} can't be used: {reason}. Restore it; a new one would make every token and "
            "cursor that was given out worthless",
            field="--data",
        )


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the file holds. Keys never show in its repr."""

    tenant: TenantId
    key_id: str
    private_key: bytes = field(repr=False)
    admin_token: str = field(repr=False)
    cursor_key_id: str
    cursor_keys: dict[str, bytes] = field(repr=False)
    address: str = ""
    metrics_address: str = ""

    @property
    def public_key(self) -> bytes:
        """The raw Ed25519 public key: 32 bytes."""
        return (
            Ed25519PrivateKey.from_private_bytes(self.private_key).public_key().public_bytes_raw()
        )


def generate() -> Credentials:
    """New credentials, from the system's randomness."""
    return Credentials(
        tenant=DEV_TENANT,
        key_id="dev-1",
        private_key=secrets.token_bytes(KEY_BYTES),
        admin_token=secrets.token_urlsafe(KEY_BYTES),
        cursor_key_id="1",
        cursor_keys={"1": secrets.token_bytes(KEY_BYTES)},
    )


def load_or_create(folder: Path) -> Credentials:
    """The folder's credentials. Raises CredentialsBroken; SettingRefused if they are missing."""
    path = folder / FILE_NAME
    text = read_kept(path)
    if text is None:
        made = generate()
        store(folder, made)
        return made
    try:
        return _parsed(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # The error's own text could quote a key.
        raise CredentialsBroken(path, f"it does not parse ({type(error).__name__})") from None


def store(folder: Path, credentials: Credentials) -> None:
    """Write them whole or not at all: a kill at any time leaves the old file or the new one."""
    path = folder / FILE_NAME
    write_private(path, json.dumps(_document(credentials), indent=2) + "\n")


def with_addresses(credentials: Credentials, address: str, metrics_address: str) -> Credentials:
    """The same, with where the server listens now."""
    return replace(credentials, address=address, metrics_address=metrics_address)


def _document(credentials: Credentials) -> dict[str, object]:
    return {
        "format": FORMAT,
        "address": credentials.address,
        "metrics_address": credentials.metrics_address,
        "tenant": credentials.tenant,
        "key_id": credentials.key_id,
        "private_key": key_text(credentials.private_key),
        "admin_token": credentials.admin_token,
        "cursor_keys": {
            "current": credentials.cursor_key_id,
            "keys": {key_id: key_text(key) for key_id, key in credentials.cursor_keys.items()},
        },
    }


def _parsed(document: dict[str, Any]) -> Credentials:
    if document["format"] != FORMAT:
        raise ValueError("format")
    current, keys = cursor_keys_of(document["cursor_keys"])
    return Credentials(
        tenant=TenantId(document["tenant"]),
        key_id=document["key_id"],
        private_key=key_bytes(document["private_key"]),
        admin_token=document["admin_token"],
        cursor_key_id=current,
        cursor_keys=keys,
        address=document["address"],
        metrics_address=document["metrics_address"],
    )
