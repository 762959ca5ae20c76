"""Tenants and their keys."""

from collections.abc import Awaitable, Callable

import pytest
from tests.support.runtime import ManualRuntime

from qim.tenant.v1.tenant_service_pb2 import (
    AddTenantKeyRequest,
    CreateTenantRequest,
    GetTenantRequest,
    RemoveTenantKeyRequest,
    TenantKey,
)
from qimd.adapters.memory.cluster import MemoryCluster
from qimd.control.tenants import KEYS_MAX, TenantHandlers
from qimd.core.errors import ErrorCode, QimError
from qimd.core.outcome import Refusal

KEY = TenantKey(key_id="k1", public_key=b"p" * 32)


def handlers(runtime: ManualRuntime) -> tuple[TenantHandlers, MemoryCluster]:
    cluster = MemoryCluster(runtime)
    return TenantHandlers(cluster.open(runtime).tenants, runtime), cluster


async def fails(call: Callable[[], Awaitable[object]]) -> QimError:
    with pytest.raises(QimError) as error:
        await call()
    return error.value


async def test_creating_twice_is_the_same_and_with_other_keys_is_a_conflict() -> None:
    async with ManualRuntime() as runtime:
        tenants, _ = handlers(runtime)
        request = CreateTenantRequest(tenant_id="acme/eu:1", keys=[KEY])
        first = await tenants.CreateTenant(request)
        await runtime.advance(5)
        assert await tenants.CreateTenant(request) == first
        assert first.tenant.created_at_ms > 0
        other = CreateTenantRequest(
            tenant_id="acme/eu:1", keys=[TenantKey(key_id="k1", public_key=b"q" * 32)]
        )
        error = await fails(lambda: tenants.CreateTenant(other))
        assert error.code is ErrorCode.ALREADY_EXISTS
        got = await tenants.GetTenant(GetTenantRequest(tenant_id="acme/eu:1"))
        assert got.tenant == first.tenant


async def test_keys_are_added_beside_the_others_and_removed_for_good() -> None:
    async with ManualRuntime() as runtime:
        tenants, _ = handlers(runtime)
        await tenants.CreateTenant(CreateTenantRequest(tenant_id="acme", keys=[KEY]))
        second = TenantKey(key_id="k2", public_key=b"q" * 32)
        added = await tenants.AddTenantKey(AddTenantKeyRequest(tenant_id="acme", key=second))
        assert list(added.tenant.keys) == [KEY, second]
        again = await tenants.AddTenantKey(AddTenantKeyRequest(tenant_id="acme", key=second))
        assert again == added
        clash = TenantKey(key_id="k2", public_key=b"r" * 32)
        error = await fails(
            lambda: tenants.AddTenantKey(AddTenantKeyRequest(tenant_id="acme", key=clash))
        )
        assert error.code is ErrorCode.ALREADY_EXISTS
        for _ in range(2):
            removed = await tenants.RemoveTenantKey(
                RemoveTenantKeyRequest(tenant_id="acme", key_id="k1")
            )
            assert list(removed.tenant.keys) == [second]


async def test_a_tenant_that_is_not_there_is_not_found() -> None:
    async with ManualRuntime() as runtime:
        tenants, _ = handlers(runtime)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: tenants.GetTenant(GetTenantRequest(tenant_id="nobody")),
            lambda: tenants.AddTenantKey(AddTenantKeyRequest(tenant_id="nobody", key=KEY)),
            lambda: tenants.RemoveTenantKey(
                RemoveTenantKeyRequest(tenant_id="nobody", key_id="k1")
            ),
        ]
        for call in calls:
            assert (await fails(call)).code is ErrorCode.NOT_FOUND


def key(key_id: str = "k", size: int = 32) -> TenantKey:
    return TenantKey(key_id=key_id, public_key=b"p" * size)


def named(tenant: str, *keys: TenantKey) -> CreateTenantRequest:
    return CreateTenantRequest(tenant_id=tenant, keys=keys)


OUTSIDE = {
    "no id": (named(""), "tenant_id"),
    "129 bytes": (named("x" * 129), "tenant_id"),
    "a control character": (named("a\x00b"), "tenant_id"),
    "no key id": (named("a", key("")), "keys[0].key_id"),
    "31 bytes": (named("a", key(size=31)), "keys[0].public_key"),
    "33 bytes": (named("a", key(size=33)), "keys[0].public_key"),
    "a key of zeros": (
        named("a", TenantKey(key_id="k", public_key=bytes(32))),
        "keys[0].public_key",
    ),
    "a key id twice": (named("a", key(), key()), "keys[1].key_id"),
    "too many": (named("a", *(key(f"k{n}") for n in range(KEYS_MAX + 1))), "keys"),
}


@pytest.mark.parametrize(("request_", "field"), OUTSIDE.values(), ids=OUTSIDE.keys())
async def test_what_is_outside_its_limits_is_refused_by_name(
    request_: CreateTenantRequest, field: str
) -> None:
    async with ManualRuntime() as runtime:
        tenants, _ = handlers(runtime)
        error = await fails(lambda: tenants.CreateTenant(request_))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, field)
        assert "pppp" not in str(error)


async def test_a_lost_reply_is_resolved_and_a_full_store_is_unavailable() -> None:
    async with ManualRuntime() as runtime:
        tenants, cluster = handlers(runtime)
        request = CreateTenantRequest(tenant_id="acme", keys=[KEY])
        cluster.faults.lose_reply("create_tenant", times=2)
        answers: list[object] = []

        async def create() -> None:
            answers.append(await tenants.CreateTenant(request))

        runtime.spawn(create(), "create")
        await runtime.until(lambda: bool(answers))
        assert answers == [await tenants.CreateTenant(request)]
        cluster.faults.refuse("put_key", refusal=Refusal.NO_SPACE)
        error = await fails(
            lambda: tenants.AddTenantKey(AddTenantKeyRequest(tenant_id="acme", key=KEY))
        )
        assert error.code is ErrorCode.UNAVAILABLE
