"""Access tokens: what is proven, what is refused, and when a key stops working."""

import base64
import json
from collections.abc import Mapping
from dataclasses import replace

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from tests.support.runtime import WALL_START_MS, ManualRuntime

from qimd.auth.logic import Claims, judge_time, read_claims
from qimd.auth.service import TokenAuthenticator
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import DeviceId, TenantId, UserId
from qimd.core.outcome import Outcome
from qimd.core.records import DeviceKey
from qimd.ports.store import TenantRecord

NOW_S = WALL_START_MS // 1000
KEY = Ed25519PrivateKey.from_private_bytes(b"\x01" * 32)
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(b"\x02" * 32)
DEVICE = DeviceKey(TenantId("acme"), UserId("u:1"), DeviceId("phone/1"))


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def payload(**changes: object) -> dict[str, object]:
    claims: dict[str, object] = {
        "sub": "u:1",
        "tenant": "acme",
        "device": "phone/1",
        "jti": "token-1",
        "iat": NOW_S,
        "exp": NOW_S + 3600,
    }
    claims.update(changes)
    return {name: value for name, value in claims.items() if value is not ...}


def token(
    key: Ed25519PrivateKey = KEY, headers: Mapping[str, object] | None = None, **changes: object
) -> str:
    return sign(payload(**changes), key, {"kid": "k1"} if headers is None else headers)


def sign(claims: object, key: Ed25519PrivateKey, headers: Mapping[str, object]) -> str:
    """Signed by hand, since the library refuses to make some of the tokens that must be refused."""
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "EdDSA", "typ": "JWT", **headers}, claims)
    ]
    signed = b".".join(parts)
    signature = base64.urlsafe_b64encode(key.sign(signed)).rstrip(b"=")
    return b".".join([signed, signature]).decode()


class Tenants:
    """A tenant store of one tenant that counts its reads."""

    def __init__(self) -> None:
        self.record: TenantRecord | None = TenantRecord(
            TenantId("acme"), {"k1": public(KEY)}, NOW_S
        )
        self.reads = 0

    async def tenant(self, tenant: TenantId) -> TenantRecord | None:
        self.reads += 1
        return self.record if self.record and tenant == self.record.tenant else None

    async def create_tenant(self, record: TenantRecord) -> Outcome[TenantRecord]:
        raise NotImplementedError

    async def put_key(
        self, tenant: TenantId, key_id: str, public_key: bytes
    ) -> Outcome[TenantRecord]:
        raise NotImplementedError

    async def remove_key(self, tenant: TenantId, key_id: str) -> Outcome[TenantRecord]:
        raise NotImplementedError


@pytest.fixture
def tenants() -> Tenants:
    return Tenants()


@pytest.fixture
def runtime() -> ManualRuntime:
    return ManualRuntime()


@pytest.fixture
def auth(tenants: Tenants, runtime: ManualRuntime) -> TokenAuthenticator:
    return TokenAuthenticator(tenants, runtime)


async def refusal(auth: TokenAuthenticator, text: str) -> QimError:
    with pytest.raises(QimError) as caught:
        await auth.verify_access_token(text)
    return caught.value


async def test_a_good_token_proves_its_device_until_its_exp(auth: TokenAuthenticator) -> None:
    identity = await auth.verify_access_token(token())
    assert identity.device == DEVICE
    assert identity.token_id == "token-1"
    assert identity.expires_at_ms == (NOW_S + 3600) * 1000


@pytest.mark.parametrize("claim", ["sub", "tenant", "device", "jti", "iat", "exp"])
async def test_every_claim_is_required(auth: TokenAuthenticator, claim: str) -> None:
    error = await refusal(auth, token(**{claim: ...}))
    assert error.code is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": float(NOW_S + 3600)},
        {"exp": str(NOW_S + 3600)},
        {"exp": True},
        {"exp": None},
        {"exp": -1},
        {"exp": 1 << 63},
        {"iat": "now"},
        {"sub": ""},
        {"sub": 7},
        {"sub": "a\x00b"},
        {"device": "d" * 129},
        {"tenant": ["acme"]},
        {"jti": "x\ny"},
        {"nbf": NOW_S + 60},
        {"nbf": "soon"},
    ],
)
async def test_an_ill_typed_claim_is_refused(
    auth: TokenAuthenticator, changes: dict[str, object]
) -> None:
    error = await refusal(auth, token(**changes))
    assert error.code is ErrorCode.UNAUTHENTICATED


async def test_exp_equal_to_now_is_expired_and_a_second_more_is_not(
    auth: TokenAuthenticator,
) -> None:
    """AUT-03: 'now >= exp' counts as expired; expiry 0 is never 'no expiry'."""
    assert (await refusal(auth, token(exp=NOW_S))).code is ErrorCode.TOKEN_EXPIRED
    assert (await refusal(auth, token(exp=0))).code is ErrorCode.TOKEN_EXPIRED
    assert (await auth.verify_access_token(token(exp=NOW_S + 1))).device == DEVICE


async def test_expiry_follows_the_injected_clock(
    auth: TokenAuthenticator, runtime: ManualRuntime
) -> None:
    text = token(exp=NOW_S + 10)
    await auth.verify_access_token(text)
    runtime.step_wall(9_999)
    await auth.verify_access_token(text)
    runtime.step_wall(1)
    assert (await refusal(auth, text)).code is ErrorCode.TOKEN_EXPIRED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "junk",
        "a.b.c",
        token()[:-1] + "é",
        token()[:-2],
        token().rsplit(".", 1)[0] + ".",
        token(OTHER_KEY),
        token(headers={"kid": "k2"}),
        token(headers={"kid": 7}),
        token(headers={}),
        token(headers={"kid": "k1", "alg": "none"}),
        token(headers={"kid": "k1", "alg": "HS256"}),
        token(headers={"kid": "k1", "crit": ["x"], "x": 1}),
        token(tenant="other"),
        sign(["not", "an", "object"], KEY, {"kid": "k1"}),
        "\udcff" * 8,
        "x" * 5_000,
    ],
)
async def test_every_bad_token_is_refused_with_the_same_words(
    auth: TokenAuthenticator, text: str
) -> None:
    """AUT-07: a non-ASCII or empty signature is UNAUTHENTICATED, with no traceback."""
    error = await refusal(auth, text)
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert error.message == "the access token is not accepted"
    assert error.__cause__ is None


async def test_a_symmetric_token_keyed_with_the_public_key_is_refused(
    auth: TokenAuthenticator,
) -> None:
    forged = jwt.encode(payload(), public(KEY), algorithm="HS256", headers={"kid": "k1"})
    assert (await refusal(auth, forged)).code is ErrorCode.UNAUTHENTICATED


async def test_deeply_nested_json_is_refused_and_not_a_crash(auth: TokenAuthenticator) -> None:
    nested = base64.urlsafe_b64encode(b"[" * 2_900).rstrip(b"=").decode()
    assert (await refusal(auth, f"{nested}.e30.AAAA")).code is ErrorCode.UNAUTHENTICATED
    assert (await refusal(auth, f"e30.{nested}.AAAA")).code is ErrorCode.UNAUTHENTICATED


@given(st.text(max_size=200))
async def test_no_text_is_more_than_a_refusal(text: str) -> None:
    assert (
        await refusal(TokenAuthenticator(Tenants(), ManualRuntime()), text)
    ).code is ErrorCode.UNAUTHENTICATED


async def test_a_removed_key_stops_working_after_the_time_that_keys_are_held(
    auth: TokenAuthenticator, tenants: Tenants, runtime: ManualRuntime
) -> None:
    await auth.verify_access_token(token())
    assert tenants.record is not None
    tenants.record = replace(tenants.record, keys={})
    await runtime.advance(4.9)
    await auth.verify_access_token(token())
    assert tenants.reads == 1
    await runtime.advance(0.1)
    assert (await refusal(auth, token())).code is ErrorCode.UNAUTHENTICATED


async def test_a_new_key_works_at_once(auth: TokenAuthenticator, tenants: Tenants) -> None:
    await auth.verify_access_token(token())
    assert tenants.record is not None
    tenants.record = replace(tenants.record, keys={"k1": public(KEY), "k2": public(OTHER_KEY)})
    identity = await auth.verify_access_token(token(OTHER_KEY, {"kid": "k2"}))
    assert identity.device == DEVICE


async def test_an_unreadable_store_is_unavailable_and_not_a_bad_token(
    runtime: ManualRuntime,
) -> None:
    class Down(Tenants):
        async def tenant(self, tenant: TenantId) -> TenantRecord | None:
            raise QimError(ErrorCode.UNAVAILABLE, "the store does not answer")

    error = await refusal(TokenAuthenticator(Down(), runtime), token())
    assert error.code is ErrorCode.UNAVAILABLE


def test_claims_are_plain_values() -> None:
    claims = read_claims(payload(nbf=NOW_S))
    assert claims == Claims(DEVICE, "token-1", NOW_S, NOW_S + 3600, NOW_S)
    judge_time(claims, WALL_START_MS)
