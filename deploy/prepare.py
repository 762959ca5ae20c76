"""Makes what a deployment needs before its first start, in one folder: certificates of an authority
of its own, a password for Redis, and the secrets of `qimd`. What is there already stays.

    python prepare.py FOLDER

Each party has a folder that it alone may read, so that all of them can mount the whole. The
authority's key is used here and kept nowhere: to renew, remove the folder and prepare anew.
"""

import datetime
import hashlib
import ipaddress
import os
import secrets
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from qimd.app import secret_file

YEARS = 2
PARTIES = {
    # Name: (user id in its image, names and addresses that others dial it by).
    "qim": (10001, ["writer", "mailbox", "session", "connection-1", "connection-2", "localhost"]),
    "kafka": (1000, ["kafka"]),
    "redis": (999, ["redis"]),
    "etcd": (10002, ["etcd"]),
    "scylla": (0, ["scylla", "172.31.77.10"]),
}


def main(folder: Path) -> None:
    if not (folder / "qim" / "secrets.json").exists():
        _make(folder)
    # Also of what a start that was cut short has made.
    for party, (user, _) in PARTIES.items():
        for path in (folder / party, *(folder / party).iterdir()):
            path.chmod(0o700 if path.is_dir() else 0o600)
            if os.geteuid() == 0:
                os.chown(path, user, user)


def _make(folder: Path) -> None:
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _signed("qim authority", [], authority_key.public_key(), authority_key)
    for party, (_, names) in PARTIES.items():
        own = folder / party
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _signed(party, names, key.public_key(), authority_key)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        (own / "authority.pem").write_bytes(_pem(authority))
        (own / "certificate.pem").write_bytes(_pem(certificate))
        (own / "key.pem").write_bytes(private)
        # As Kafka wants them.
        (own / "both.pem").write_bytes(private + _pem(certificate))
    _redis_user(folder)
    # Last: it says that all is there.
    secret_file.make(folder / "qim" / "secrets.json")


def _redis_user(folder: Path) -> None:
    password = secrets.token_urlsafe(32)
    digest = hashlib.sha256(password.encode()).hexdigest()
    (folder / "qim" / "redis-password").write_text(password)
    # Whoever has no password may ask whether it lives.
    users = f"user default on nopass resetkeys -@all +ping\nuser qim on #{digest} ~* &* +@all\n"
    (folder / "redis" / "users.acl").write_text(users)


def _signed(
    name: str,
    names: list[str],
    key: ec.EllipticCurvePublicKey,
    authority_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name("qim authority"))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True)
    )
    if names:
        alternatives = [*map(_alternative, (name, *names, "127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(authority_key, hashes.SHA256())


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
