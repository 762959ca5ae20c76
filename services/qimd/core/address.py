"""Addresses as people write them: `host:port`, an IPv6 address in brackets."""

import ipaddress
import re
from typing import Final

_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
"""A name, an IPv4 address, or an IPv6 address in brackets."""


def address(text: str) -> str:
    """Read a `host:port`, an IPv6 address in brackets."""
    host, _, port = text.rpartition(":")
    if "//" in text:
        raise ValueError("must be host:port, without a scheme")
    if ":" in host and not host.startswith("[") and "@" not in host:
        raise ValueError("an IPv6 address stands in brackets")
    if not (_HOST.fullmatch(host) and port.isascii() and port.isdecimal()):
        raise ValueError("must be host:port, and nothing else")
    if not 0 < int(port) <= 65_535:
        raise ValueError("a port is from 1 to 65,535")
    return text


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. A name counts only if it is `localhost`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(place: str) -> str:
    """The host of a `host:port`, without brackets."""
    return place.rpartition(":")[0].removeprefix("[").removesuffix("]")


def joined(host: str, port: int) -> str:
    """`host:port` as gRPC takes it, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
