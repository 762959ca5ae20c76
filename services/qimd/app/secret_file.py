"""The secrets of a deployment that `qimd run` serves: one file, the same for every process.

    {"format": 1, "admin_token": text, "peer_token": text,
     "cursor_keys": {"current": "1", "keys": {"1": base64 of 32 bytes}}}

`admin_token` lets an operator administrate, `peer_token` lets processes of the deployment call one
another, `cursor_keys` sign the positions that clients bring back: add a key and make it current to
rotate, keep the older ones until no client holds their cursors. Nothing of it is ever logged.
"""

import base64
import binascii
import json
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from qimd.app.folder import write_private
from qimd.app.setting_kinds import SettingRefused

FORMAT: Final = 1
KEY_BYTES: Final = 32
TOKEN_CHARACTERS_MIN: Final = 32
_FLAG: Final = "--secrets"


@dataclass(frozen=True, slots=True)
class Secrets:
    """What the file holds. Nothing of it shows in its repr."""

    admin_token: str = field(repr=False)
    peer_token: str = field(repr=False)
    cursor_key_id: str
    cursor_keys: Mapping[str, bytes] = field(repr=False)


def make(path: Path) -> None:
    """Write a new file, readable by its owner alone. Raises SettingRefused if there is one."""
    if path.exists():
        raise SettingRefused(
            _FLAG, f"{path} is there already; a new one would void every token and cursor"
        )
    document = {
        "format": FORMAT,
        "admin_token": secrets.token_urlsafe(KEY_BYTES),
        "peer_token": secrets.token_urlsafe(KEY_BYTES),
        "cursor_keys": {"current": "1", "keys": {"1": key_text(secrets.token_bytes(KEY_BYTES))}},
    }
    write_private(path, json.dumps(document, indent=2) + "\n", _FLAG)


def read(path: Path) -> Secrets:
    """The file's secrets. Raises SettingRefused; its text never quotes the file."""
    try:
        mode = path.stat().st_mode
        text = path.read_text()
    except OSError as error:
        raise SettingRefused(_FLAG, f"{path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingRefused(_FLAG, f"{path} is not text") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingRefused(_FLAG, f"others may read {path}: chmod 600 it")
    try:
        return _parsed(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # The error's own text could quote a key.
        raise SettingRefused(
            _FLAG, f"{path} does not parse ({type(error).__name__}); `qimd secrets FILE` makes one"
        ) from None


def key_text(key: bytes) -> str:
    """A key as the files hold it."""
    return base64.b64encode(key).decode()


def key_bytes(text: str) -> bytes:
    """The key of 32 bytes that a file holds. Raises ValueError."""
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("base64") from None
    if len(key) != KEY_BYTES:
        raise ValueError("length")
    return key


def cursor_keys_of(document: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """(current key id, keys) of the files' `cursor_keys`. Raises ValueError, KeyError."""
    keys = {key_id: key_bytes(text) for key_id, text in document["keys"].items()}
    if document["current"] not in keys:
        raise ValueError("cursor_keys")
    return document["current"], keys


def _parsed(document: dict[str, Any]) -> Secrets:
    if document["format"] != FORMAT:
        raise ValueError("format")
    current, keys = cursor_keys_of(document["cursor_keys"])
    for name in ("admin_token", "peer_token"):
        if len(document[name]) < TOKEN_CHARACTERS_MIN:
            raise ValueError(name)
    return Secrets(document["admin_token"], document["peer_token"], current, keys)
