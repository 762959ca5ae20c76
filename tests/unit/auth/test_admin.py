"""The admin token, and the admission that says yes."""

import pytest

from qimd.auth.admin import AdminToken
from qimd.auth.admission import OpenAdmission
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import TenantId, UserId
from qimd.core.records import UserKey
from qimd.ports.store import key_of

TOKEN = "a-long-enough-admin-token"


@pytest.mark.parametrize(
    "value", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER {TOKEN}".encode()]
)
def test_the_admin_token_is_accepted(value: str | bytes) -> None:
    AdminToken(TOKEN).check(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer  {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}é",
        "Bearer \udcff",
        b"Bearer \xff\xfe",
    ],
)
def test_anything_else_is_refused_with_one_message(value: str | bytes | None) -> None:
    """AUT-07: bytes are compared with bytes, so a non-ASCII credential is a refusal, no crash."""
    with pytest.raises(QimError, match="the admin token is not accepted") as caught:
        AdminToken(TOKEN).check(value)
    assert caught.value.code is ErrorCode.UNAUTHENTICATED


def test_a_short_admin_token_is_refused_at_start() -> None:
    with pytest.raises(QimError) as caught:
        AdminToken("short")
    assert caught.value.field == "admin_token"


async def test_open_admission_admits() -> None:
    sender = UserKey(TenantId("t"), UserId("u"))
    await OpenAdmission().admit(sender, key_of("t", "c"), 100, 0)
