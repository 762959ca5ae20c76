"""How a process enters an engine, or the collector of its spans (`trace`): the TLS that it speaks,
and as whom it comes.

Every engine has the same settings for it: an authority, with which TLS is spoken, the certificate
and key that prove this process, a user and the file with the password. An engine that can't be
entered is asked once more by a bare handshake, since what an engine's client tells of one that
failed names no setting.
"""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from qimd.app.setting_kinds import SettingRefused
from qimd.app.settings import ProcessSettings

CONNECT_TIMEOUT_S: Final = 5.0
HANDSHAKE_TIMEOUT_S: Final = 5.0
REFUSAL_WAIT_S: Final = 1.0
"""In TLS 1.3 a server judges the client's certificate after the handshake, to which it is over."""


@dataclass(frozen=True, slots=True)
class Access:
    """How one engine is entered. Nothing secret shows in its repr."""

    engine: str
    tls: ssl.SSLContext | None
    """None: in clear."""
    pem: "Pem | None" = field(repr=False)
    """What `tls` was made of, for a client that makes its own of it."""
    user: str
    password: str = field(repr=False)
    """Empty: nobody asks for one."""

    @classmethod
    def of(cls, settings: ProcessSettings, engine: str) -> "Access":
        """Read an engine's files. Raises SettingRefused, which quotes none of them."""

        def path(name: str) -> Path | None:
            found: Path | None = getattr(settings, f"{engine}_{name}", None)
            return found

        def flag(name: str) -> str:
            return f"--{engine}-{name}"

        password = path("password_file")
        secret = "" if password is None else _text(flag("password-file"), password)
        user = getattr(settings, f"{engine}_user", None) or ""
        authority, certificate, key = map(
            path, ("certificate_authority", "certificate", "private_key")
        )
        if authority is None:
            return cls(engine, None, None, user, secret)
        pem = Pem(_text(flag("certificate-authority"), authority))
        tls = _trusting(flag("certificate-authority"), authority, pem.authority)
        if certificate is not None and key is not None:
            chain = _text(flag("certificate"), certificate)
            _trusting(flag("certificate"), certificate, chain)
            pem = Pem(pem.authority, chain, _text(flag("private-key"), key))
            try:
                # Of an encrypted key it would ask the terminal for the password.
                tls.load_cert_chain(certificate, key, password="")
            except (ssl.SSLError, ValueError) as error:
                raise _unfit(flag("private-key"), key, error) from None
        return cls(engine, tls, pem, user, secret)

    async def fault_at(self, addresses: Sequence[str]) -> SettingRefused | None:
        """Why an engine that did not answer did not, if TLS is why; addresses are host:port."""
        for address in addresses:
            fault = await self._fault_at(address)
            if fault is not None:
                return fault
        return None

    async def _fault_at(self, address: str) -> SettingRefused | None:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host, int(port))
        except (OSError, TimeoutError, UnicodeError):
            # Out of reach, or no name of a host at all: TLS is not why.
            return None
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await writer.start_tls(self.tls or _anybody(), server_hostname=host)
            if self.tls is None:
                return self._refused("certificate-authority", f"{address} speaks TLS: set it")
            return await self._fault_after(reader, address)
        except ssl.SSLCertVerificationError as error:
            told = f"{address} shows a certificate that is not taken: {error.verify_message}"
            return self._refused("certificate-authority", told)
        except (OSError, TimeoutError) as error:
            if _is_alert(error):
                return self._without_certificate(address)
            if self.tls is None:
                return None
            return self._refused("certificate-authority", f"{address} speaks no TLS")
        finally:
            writer.close()

    async def _fault_after(
        self, reader: asyncio.StreamReader, address: str
    ) -> SettingRefused | None:
        try:
            async with asyncio.timeout(REFUSAL_WAIT_S):
                await reader.read(1)
        except (OSError, TimeoutError) as error:
            return self._without_certificate(address) if _is_alert(error) else None
        return None

    def _without_certificate(self, address: str) -> SettingRefused:
        return self._refused("certificate", f"{address} wants one that it trusts")

    def _refused(self, name: str, reason: str) -> SettingRefused:
        return SettingRefused(f"--{self.engine}-{name}", reason)


@dataclass(frozen=True, slots=True)
class Pem:
    """Certificates as PEM; without `chain` and `key`, the process proves nothing."""

    authority: str
    chain: str = ""
    key: str = field(default="", repr=False)


def _anybody() -> ssl.SSLContext:
    """For a handshake whose outcome alone counts: nothing is sent over it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _is_alert(error: OSError) -> bool:
    """Whether the other side ended TLS by one of its own words."""
    return isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "")


def _text(flag: str, path: Path) -> str:
    """A file's text, which is not empty: an authority without text would be the system's own."""
    try:
        text = path.read_text().strip()
    except OSError as error:
        raise SettingRefused(flag, f"{path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingRefused(flag, f"{path} is not text") from None
    if not text:
        raise SettingRefused(flag, f"{path} is empty")
    return text


def _trusting(flag: str, path: Path, pem: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise _unfit(flag, path, error) from None


def _unfit(flag: str, path: Path, error: Exception) -> SettingRefused:
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return SettingRefused(flag, f"{path} is refused: {reason or 'it is not what it should be'}")
