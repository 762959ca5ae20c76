"""Which public keys a tenant may have."""

from typing import Final

KEY_BYTES: Final = 32
"""A raw Ed25519 public key."""

_SIGN_BIT: Final = 0x80

SMALL_ORDER: Final = frozenset(
    bytes.fromhex(low) + middle * 16 + bytes.fromhex(high)
    for low, middle, high in (
        ("0000000000000000", b"\x00", "0000000000000000"),
        ("0100000000000000", b"\x00", "0000000000000000"),
        ("ecffffffffffffff", b"\xff", "ffffffffffffff7f"),
        ("edffffffffffffff", b"\xff", "ffffffffffffff7f"),
        ("eeffffffffffffff", b"\xff", "ffffffffffffff7f"),
    )
) | {
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
    bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
}
"""Every encoding, but for the sign bit, of a point of order 1, 2, 4 or 8 (RFC 8032, section 5.1.3).
Under such a key anybody can sign: of all signatures, the one of zeros fits up to every message. The
first of them, 32 zero bytes, is what a placeholder looks like.
"""


def key_problem(public_key: bytes) -> str:
    """What is wrong with a raw public key; empty if nothing is."""
    if len(public_key) != KEY_BYTES:
        return f"an Ed25519 public key has {KEY_BYTES} bytes"
    if public_key[:-1] + bytes([public_key[-1] & ~_SIGN_BIT]) in SMALL_ORDER:
        return "the key is a point of small order: anybody could sign with it"
    return ""
