"""`ports.store.TenantStore` and `EpochStore`, sentence by sentence."""

import pytest
from tests.contract.builders import ACME, ODD_IDS, RIVAL, START_MS, refused, value
from tests.contract.engines import Engine

from qimd.core.ids import TenantId
from qimd.core.outcome import Refusal
from qimd.ports.store import ShardKind, TenantRecord

ENGINES = ("memory", "sqlite", "redis", "cassandra")

KEY_1, KEY_2 = bytes(range(32)), bytes(range(32, 64))


def record(tenant: str = ACME, **keys: bytes) -> TenantRecord:
    return TenantRecord(TenantId(tenant), keys or {"k1": KEY_1}, START_MS)


# --- tenants ----------------------------------------------------------------------------------


async def test_a_tenant_is_there_once_created(engine: Engine) -> None:
    tenants = engine.backends.tenants
    assert await tenants.tenant(ACME) is None
    created = value(await tenants.create_tenant(record()))
    assert (created.tenant, dict(created.keys), created.created_at_ms) == (
        ACME,
        {"k1": KEY_1},
        START_MS,
    )
    assert await tenants.tenant(ACME) == created
    assert await tenants.tenant(RIVAL) is None


async def test_creating_it_again_gives_the_stored_one(engine: Engine) -> None:
    tenants = engine.backends.tenants
    first = value(await tenants.create_tenant(record()))
    later = TenantRecord(ACME, {"k1": KEY_1}, START_MS + 5_000)
    assert value(await tenants.create_tenant(later)) == first


async def test_creating_it_with_other_keys_conflicts_and_changes_nothing(engine: Engine) -> None:
    tenants = engine.backends.tenants
    first = value(await tenants.create_tenant(record()))
    for other in (record(k1=KEY_2), record(k2=KEY_1), record(k1=KEY_1, k2=KEY_2)):
        assert refused(await tenants.create_tenant(other)) is Refusal.CONFLICT
    assert await tenants.tenant(ACME) == first


async def test_keys_come_and_go_each_step_idempotent(engine: Engine) -> None:
    tenants = engine.backends.tenants
    await tenants.create_tenant(record())
    for _ in range(2):
        assert dict(value(await tenants.put_key(ACME, "k2", KEY_2)).keys) == {
            "k1": KEY_1,
            "k2": KEY_2,
        }
    for _ in range(2):
        assert dict(value(await tenants.remove_key(ACME, "k1")).keys) == {"k2": KEY_2}
    stored = await tenants.tenant(ACME)
    assert stored is not None
    assert dict(stored.keys) == {"k2": KEY_2}


async def test_a_key_id_never_changes_its_key(engine: Engine) -> None:
    tenants = engine.backends.tenants
    await tenants.create_tenant(record())
    assert refused(await tenants.put_key(ACME, "k1", KEY_2)) is Refusal.CONFLICT
    stored = await tenants.tenant(ACME)
    assert stored is not None
    assert dict(stored.keys) == {"k1": KEY_1}


async def test_keys_of_no_tenant_are_not_found(engine: Engine) -> None:
    tenants = engine.backends.tenants
    assert refused(await tenants.put_key(ACME, "k1", KEY_1)) is Refusal.NOT_FOUND
    assert refused(await tenants.remove_key(ACME, "k1")) is Refusal.NOT_FOUND


async def test_odd_tenant_and_key_ids_never_meet(engine: Engine) -> None:
    tenants = engine.backends.tenants
    for number, name in enumerate(ODD_IDS):
        value(await tenants.create_tenant(record(name, **{name: bytes([number]) * 32})))
    for number, name in enumerate(ODD_IDS):
        stored = await tenants.tenant(TenantId(name))
        assert stored is not None
        assert stored.tenant == name
        assert dict(stored.keys) == {name: bytes([number]) * 32}


# --- epochs -----------------------------------------------------------------------------------

NOW_S = 1_700_000_000


async def test_the_first_epoch_is_the_time_and_later_ones_rise_by_one(engine: Engine) -> None:
    epochs = engine.backends.epochs
    first = value(await epochs.raise_epoch(ShardKind.WRITER, 0, b"n" * 16, NOW_S))
    assert first == NOW_S
    assert value(await epochs.raise_epoch(ShardKind.WRITER, 0, b"m" * 16, NOW_S)) == NOW_S + 1
    assert value(await epochs.raise_epoch(ShardKind.WRITER, 0, b"o" * 16, NOW_S + 9)) == NOW_S + 9


async def test_all_kinds_and_shards_draw_from_one_counter(engine: Engine) -> None:
    epochs = engine.backends.epochs
    drawn = [
        value(await epochs.raise_epoch(kind, shard, bytes([number]) * 16, NOW_S))
        for number, (kind, shard) in enumerate(
            (kind, shard) for kind in ShardKind for shard in (0, 1)
        )
    ]
    assert drawn == list(range(NOW_S, NOW_S + 6))


async def test_a_clock_that_went_back_never_gives_an_old_epoch(engine: Engine) -> None:
    epochs = engine.backends.epochs
    first = value(await epochs.raise_epoch(ShardKind.WRITER, 0, b"a" * 16, NOW_S))
    assert value(await epochs.raise_epoch(ShardKind.MAILBOX, 3, b"b" * 16, 5)) == first + 1


async def test_the_same_nonce_gives_the_same_epoch_while_it_stands(engine: Engine) -> None:
    """An unknown outcome is resolved by asking again: one acquisition draws one epoch."""
    epochs = engine.backends.epochs
    first = value(await epochs.raise_epoch(ShardKind.WRITER, 0, b"a" * 16, NOW_S))
    await epochs.raise_epoch(ShardKind.WRITER, 1, b"b" * 16, NOW_S)
    assert value(await epochs.raise_epoch(ShardKind.WRITER, 0, b"a" * 16, NOW_S + 60)) == first


async def test_a_nonce_is_stale_once_another_owner_has_raised_the_epoch(engine: Engine) -> None:
    epochs = engine.backends.epochs
    await epochs.raise_epoch(ShardKind.WRITER, 0, b"a" * 16, NOW_S)
    second = value(await epochs.raise_epoch(ShardKind.WRITER, 0, b"b" * 16, NOW_S))
    late = await epochs.raise_epoch(ShardKind.WRITER, 0, b"a" * 16, NOW_S)
    assert refused(late) is Refusal.STALE_EPOCH
    assert value(await epochs.raise_epoch(ShardKind.WRITER, 0, b"b" * 16, NOW_S)) == second


@pytest.mark.parametrize("kind", list(ShardKind))
async def test_one_nonce_serves_one_shard(engine: Engine, kind: ShardKind) -> None:
    epochs = engine.backends.epochs
    first = value(await epochs.raise_epoch(kind, 0, b"a" * 16, NOW_S))
    assert value(await epochs.raise_epoch(kind, 1, b"a" * 16, NOW_S)) == first + 1
