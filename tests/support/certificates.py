"""Certificates for the tests' servers, and for those who come to them."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Identity:
    """A certificate with its key, both as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class Files:
    """The same beside its authority's certificate, in files."""

    authority: Path
    certificate: Path
    key: Path
    both: Path
    """Key and certificate in one file, as servers in Java want them."""


class Authority:
    """Signs what it is given, for an hour."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority")
        self._certificate = self._signed(self._name, self._key.public_key(), [], authority=True)

    @property
    def pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str) -> Identity:
        """A certificate for a name, and for a server of that name on loopback."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        signed = self._signed(_name(name), key.public_key(), names, authority=False)
        return Identity(
            signed.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )

    def write(self, folder: Path, name: str) -> Files:
        """What `issue` gives, in files of a new folder."""
        folder.mkdir(parents=True)
        issued = self.issue(name)
        texts = (self.pem, issued.certificate, issued.key, issued.key + issued.certificate)
        paths = [folder / f"{part}.pem" for part in ("authority", "certificate", "key", "both")]
        for path, text in zip(paths, texts, strict=True):
            path.write_bytes(text)
        return Files(*paths)

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        names: list[x509.GeneralName],
        *,
        authority: bool,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def self_signed(path: Path, address: str) -> str:
    """Write a key and its certificate for an IP address to `path`; the certificate, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("a test")
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(private + pem)
    return pem.decode()
