"""Cursor tokens: only what this server signed is taken, and nothing tells a forger why."""

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim.cursor.v1.mailbox_cursor_pb2 import MailboxCursor, MailboxCursorToken
from qimd.contract import wire
from qimd.contract.cursor import CursorClaims, CursorKeys, sign_cursor, verify_cursor
from qimd.contract.violation import ContractViolation
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import DeviceId, TenantId, UserId
from qimd.core.records import DeviceKey

KEYS = CursorKeys("k2", {"k1": b"1" * 32, "k2": b"2" * 32})
DEVICE = DeviceKey(TenantId("acme"), UserId("ann/1:😀"), DeviceId("phone"))
CLAIMS = CursorClaims(3, 63, 1, DEVICE, 1_700_000_000_000, "k2")
TOKEN = sign_cursor(CLAIMS, KEYS)
SIGNED = MailboxCursorToken.FromString(TOKEN).cursor


def token_of(cursor=b"", signature=b""):
    return MailboxCursorToken(cursor=cursor, signature=signature).SerializeToString()


def refused(token, keys=KEYS):
    with pytest.raises(QimError) as error:
        verify_cursor(token, keys)
    assert error.value.code is ErrorCode.CURSOR_INVALID
    assert error.value.__cause__ is None
    return str(error.value)


def test_a_signed_token_gives_its_claims():
    assert verify_cursor(TOKEN, KEYS) == CLAIMS


def test_an_older_key_still_verifies_and_a_removed_one_does_not():
    old = sign_cursor(CursorClaims(3, 63, 1, DEVICE, 5, "k1"), KEYS)
    assert verify_cursor(old, KEYS).key_id == "k1"
    refused(old, CursorKeys("k2", {"k2": b"2" * 32}))


def test_the_signature_is_hmac_sha256_over_prefix_and_received_bytes():
    parts = MailboxCursorToken.FromString(TOKEN)
    assert parts.signature == hmac.digest(b"2" * 32, b"qim.cursor.v1\x00" + parts.cursor, "sha256")
    assert MailboxCursor.FromString(parts.cursor).lane_id == 63


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00", id="zero"),
        pytest.param(TOKEN[:-1], id="cut short"),
        pytest.param(TOKEN + b"\x00", id="longer"),
        pytest.param(TOKEN + TOKEN, id="doubled"),
        pytest.param(TOKEN[:-1] + "é".encode(), id="ends in U+00E9"),
        pytest.param(TOKEN.replace(b"phone", b"tablt"), id="another device"),
        pytest.param(token_of(cursor=SIGNED), id="no signature"),
        pytest.param(token_of(signature=b"s" * 32), id="no cursor"),
        pytest.param(token_of(cursor=b"junk", signature=b"s" * 32), id="no cursor's bytes"),
        pytest.param(b"\xff" * 100, id="junk"),
    ],
)
def test_junk_is_cursor_invalid(token):
    """AUT-07: CURSOR_INVALID, bytes compared to bytes, no traceback of the codec."""
    assert refused(token) == refused(b"other junk")


@given(st.integers(0, len(TOKEN) - 1), st.integers(1, 255))
def test_a_token_with_any_byte_changed_is_refused(index, flip):
    changed = bytearray(TOKEN)
    changed[index] ^= flip
    refused(bytes(changed))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(token):
    refused(token)


def test_a_key_of_the_wrong_value_refuses():
    refused(TOKEN, CursorKeys("k2", {"k2": b"3" * 32}))


def test_a_signature_for_another_domain_does_not_pass():
    cursor = MailboxCursorToken.FromString(TOKEN).cursor
    foreign = hmac.digest(b"2" * 32, cursor, "sha256")
    refused(MailboxCursorToken(cursor=cursor, signature=foreign).SerializeToString())


def test_what_a_newer_server_of_the_same_key_adds_is_covered_by_the_signature():
    cursor = MailboxCursorToken.FromString(TOKEN).cursor + wire.delimited(1000, b"newer")
    signature = hmac.digest(b"2" * 32, b"qim.cursor.v1\x00" + cursor, "sha256")
    token = MailboxCursorToken(cursor=cursor, signature=signature).SerializeToString()
    assert verify_cursor(token, KEYS) == CLAIMS


@pytest.mark.parametrize(
    ("current", "keys"),
    [("k", {}), ("k", {"k": b"short"}), ("k", {"k": b"1" * 32, "": b"1" * 32})],
)
def test_weak_or_absent_keys_are_refused_at_start(current, keys):
    with pytest.raises(QimError):
        CursorKeys(current, keys)


def test_keys_are_not_in_any_text():
    assert "2222" not in repr(KEYS)


@pytest.mark.parametrize(
    "claims",
    [
        CursorClaims(3, 64, 1, DEVICE, 1, "k2"),
        CursorClaims(3, 1, 0, DEVICE, 1, "k2"),
        CursorClaims(3, 1, 4096, DEVICE, 1, "k2"),
    ],
)
def test_claims_outside_their_range_are_never_signed(claims):
    with pytest.raises(ContractViolation):
        sign_cursor(claims, KEYS)


def test_an_unknown_key_signs_nothing():
    with pytest.raises(QimError):
        sign_cursor(CursorClaims(3, 1, 1, DEVICE, 1, "k9"), KEYS)
