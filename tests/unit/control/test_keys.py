"""Keys under which anybody could sign: shown by the forged signature, and refused."""

import contextlib

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from qimd.control.keys import SMALL_ORDER, key_problem

NEUTRAL = b"\x01" + bytes(31)
"""The encoding of the group's neutral element."""
FORGED = NEUTRAL + bytes(32)
"""R is neutral and S is 0: valid wherever the key times the message's hash is neutral too."""


def forgeries(public_key: bytes, messages: int = 200) -> int:
    """How many messages the one forged signature fits."""
    fitting = 0
    key = Ed25519PublicKey.from_public_bytes(public_key)
    for number in range(messages):
        with contextlib.suppress(InvalidSignature):
            key.verify(FORGED, str(number).encode())
            fitting += 1
    return fitting


def test_seven_encodings_have_small_order() -> None:
    assert len(SMALL_ORDER) == 7


@pytest.mark.parametrize("key", sorted(SMALL_ORDER), ids=bytes.hex)
def test_a_key_under_which_anybody_can_sign_is_refused_with_either_sign(key: bytes) -> None:
    assert forgeries(key)
    signed = key[:-1] + bytes([key[-1] | 0x80])
    assert "small order" in key_problem(key)
    assert "small order" in key_problem(signed)


def test_a_real_key_is_good_and_nothing_is_forged_under_it() -> None:
    key = Ed25519PrivateKey.from_private_bytes(b"s" * 32).public_key().public_bytes_raw()
    assert not forgeries(key)
    assert key_problem(key) == ""


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_length_is_refused(size: int) -> None:
    assert "32 bytes" in key_problem(b"k" * size)
