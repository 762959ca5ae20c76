"""TenantService of the contract: tenants and the keys that sign their users' tokens."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, assert_never

from qim.tenant.v1.tenant_service_pb2 import (
    AddTenantKeyRequest,
    AddTenantKeyResponse,
    CreateTenantRequest,
    CreateTenantResponse,
    GetTenantRequest,
    GetTenantResponse,
    RemoveTenantKeyRequest,
    RemoveTenantKeyResponse,
    Tenant,
    TenantKey,
)
from qimd.control.keys import key_problem
from qimd.core.errors import ErrorCode, QimError, invalid, unavailable
from qimd.core.ids import TenantId, check_id
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.ports.runtime import Runtime
from qimd.ports.store import TenantRecord, TenantStore

KEYS_MAX: Final = 16
"""Keys of a tenant at its creation: several generations and issuers, and a bounded row."""

ATTEMPTS_MAX: Final = 5
RETRY_S: Final = 0.2


class TenantHandlers:
    """One method for each RPC. Raises QimError. The admin token is checked before."""

    def __init__(self, tenants: TenantStore, runtime: Runtime) -> None:
        self._tenants = tenants
        self._runtime = runtime

    async def CreateTenant(self, request: CreateTenantRequest) -> CreateTenantResponse:
        """Create a tenant; the same again is the same."""
        keys = _checked_keys(request.keys)
        record = TenantRecord(_tenant(request.tenant_id), keys, self._runtime.wall_ms())
        stored = await self._settled(lambda: self._tenants.create_tenant(record))
        return CreateTenantResponse(tenant=_message(stored))

    async def GetTenant(self, request: GetTenantRequest) -> GetTenantResponse:
        """The tenant and its keys."""
        record = await self._tenants.tenant(_tenant(request.tenant_id))
        if record is None:
            raise _not_found()
        return GetTenantResponse(tenant=_message(record))

    async def AddTenantKey(self, request: AddTenantKeyRequest) -> AddTenantKeyResponse:
        """Add a key beside the others."""
        tenant = _tenant(request.tenant_id)
        key_id, public_key = _checked_key(request.key, "key")
        stored = await self._settled(lambda: self._tenants.put_key(tenant, key_id, public_key))
        return AddTenantKeyResponse(tenant=_message(stored))

    async def RemoveTenantKey(self, request: RemoveTenantKeyRequest) -> RemoveTenantKeyResponse:
        """Refuse tokens of a key from here on."""
        tenant = _tenant(request.tenant_id)
        key_id = check_id(request.key_id, "key_id")
        stored = await self._settled(lambda: self._tenants.remove_key(tenant, key_id))
        return RemoveTenantKeyResponse(tenant=_message(stored))

    async def _settled(self, issue: Callable[[], Awaitable[Outcome[TenantRecord]]]) -> TenantRecord:
        """A step, tried again while its outcome is unknown: it is idempotent by its content."""
        for _ in range(ATTEMPTS_MAX):
            outcome = await issue()
            match outcome:
                case Applied(value=record):
                    return record
                case NotApplied(refusal=Refusal.NOT_FOUND):
                    raise _not_found()
                case NotApplied(refusal=Refusal.CONFLICT):
                    raise QimError(ErrorCode.ALREADY_EXISTS, "it exists with another key")
                case NotApplied(refusal=refusal):
                    raise unavailable(f"it was not stored: {refusal.words}")
                case Unknown():
                    await self._runtime.sleep(RETRY_S)
                case _:
                    assert_never(outcome)
        raise unavailable("it is not known whether it was stored")


def _tenant(text: str) -> TenantId:
    return TenantId(check_id(text, "tenant_id"))


def _checked_keys(keys: Sequence[TenantKey]) -> dict[str, bytes]:
    if len(keys) > KEYS_MAX:
        raise invalid(f"a tenant begins with {KEYS_MAX} keys at most", "keys")
    checked: dict[str, bytes] = {}
    for index, key in enumerate(keys):
        key_id, public_key = _checked_key(key, f"keys[{index}]")
        if key_id in checked:
            raise invalid("two keys have the same key_id", f"keys[{index}].key_id")
        checked[key_id] = public_key
    return checked


def _checked_key(key: TenantKey, field: str) -> tuple[str, bytes]:
    key_id = check_id(key.key_id, f"{field}.key_id")
    problem = key_problem(key.public_key)
    if problem:
        raise invalid(problem, f"{field}.public_key")
    return key_id, key.public_key


def _message(record: TenantRecord) -> Tenant:
    return Tenant(
        tenant_id=record.tenant,
        keys=[
            TenantKey(key_id=key_id, public_key=record.keys[key_id])
            for key_id in sorted(record.keys)
        ],
        created_at_ms=record.created_at_ms,
    )


def _not_found() -> QimError:
    return QimError(ErrorCode.NOT_FOUND, "there is no such tenant")
