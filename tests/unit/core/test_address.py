"""Addresses: what is read, and why another one is not."""

import pytest

from qimd.core.address import address, host_of, is_loopback, joined


@pytest.mark.parametrize("text", ["127.0.0.1:7400", "qim.example.org:443", "[::1]:1", "a_b:65535"])
def test_a_host_and_a_port_are_an_address(text: str) -> None:
    assert address(text) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "host:port"),
        ("127.0.0.1", "host:port"),
        ("127.0.0.1:", "host:port"),
        (":7400", "host:port"),
        ("127.0.0.1:x", "host:port"),
        ("127.0.0.1:٣", "host:port"),
        ("ann@host:1", "host:port"),
        ("host:1/path", "host:port"),
        ("http://127.0.0.1:7400", "scheme"),
        ("http://127.0.0.1", "scheme"),
        ("dns:///host:1", "scheme"),
        ("::1:7400", "brackets"),
        ("host:0", "port"),
        ("host:65536", "port"),
    ],
)
def test_anything_else_is_refused_by_its_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        address(text)


def test_an_ipv6_address_is_joined_in_brackets() -> None:
    assert joined("127.0.0.1", 7402) == "127.0.0.1:7402"
    assert joined("::1", 7402) == "[::1]:7402"
    assert host_of("[::1]:7402") == "::1"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "localhost.evil.example", ""])
def test_what_is_not_loopback_is_not_taken_for_it(host: str) -> None:
    assert not is_loopback(host)
