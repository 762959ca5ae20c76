"""What `qimd dev` prints once it is ready."""

import secrets
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from qimd.app.credentials import FILE_NAME, Credentials
from qimd.app.dev_settings import DATA_DEFAULT

DEV_USER: Final = "alice"
DEV_DEVICE: Final = "laptop"
TOKEN_LIFE_S: Final = 3600


def dev_token(credentials: Credentials) -> str:
    """An access token of the seeded tenant for `alice`, good for an hour."""
    now_s = int(time.time())
    claims = {
        "sub": DEV_USER,
        "tenant": credentials.tenant,
        "device": DEV_DEVICE,
        "jti": secrets.token_hex(16),
        "iat": now_s,
        "exp": now_s + TOKEN_LIFE_S,
    }
    key = Ed25519PrivateKey.from_private_bytes(credentials.private_key)
    return jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": credentials.key_id})


def banner(
    version: str, credentials: Credentials, folder: Path, *, ephemeral: bool, token: str
) -> str:
    """The text. `token` is empty where the output may be kept: then only its command is shown."""
    path = folder / FILE_NAME
    life = "removed at the end" if ephemeral else "durable"
    lines = [
        f"qimd {version} is ready",
        "",
        f"  gRPC         {credentials.address}",
        f"  metrics      http://{credentials.metrics_address}/metrics",
        f"  data         {folder} ({life})",
        f"  tenant       {credentials.tenant}",
        f"  credentials  {path}",
    ]
    if token:
        lines.append(f"  token        {token}")
        lines.append(f"               (for {DEV_USER} on {DEV_DEVICE}, one hour)")
    else:
        lines.append(f"  token        {_qimctl(folder)} token --user {DEV_USER}")
    lines += [
        "",
        "Next:",
        "",
        f"  {_qimctl(folder)} conversation create hello --member {DEV_USER} --member bob",
        f"  {_qimctl(folder)} send hello 'Hello, Bob' --user {DEV_USER}",
        f"  {_qimctl(folder)} pull --user bob",
        "",
        "Ctrl-C ends it.",
    ]
    return "\n".join(lines) + "\n"


def _qimctl(folder: Path) -> str:
    """The command, as it can be pasted into a shell in the folder where the server was started."""
    program = shlex.quote(qimctl_program())
    if folder == DATA_DEFAULT.absolute():
        return program
    return f"{program} --data {shlex.quote(str(folder))}"


def qimctl_program() -> str:
    """`qimctl` where a shell finds ours by that name, else the path of the one that we came with.

    A server is often started as `.venv/bin/qimd`: there the bare name is no command, or another's.
    """
    ours = Path(sys.executable).absolute().with_name("qimctl")
    found = shutil.which("qimctl")
    if not ours.is_file() or (found is not None and Path(found).absolute() == ours):
        return "qimctl"
    here = Path.cwd()
    return str(ours.relative_to(here) if ours.is_relative_to(here) else ours)
