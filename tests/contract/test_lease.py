"""`ports.lease.LeasePort`, sentence by sentence."""

import pytest
from tests.contract.builders import ODD_IDS, refused, value
from tests.contract.engines import Engine

from qimd.core.outcome import Refusal
from qimd.ports.store import ShardKind

ENGINES = ("memory", "sqlite", "etcd")

W = ShardKind.WRITER


async def test_a_key_that_nobody_holds_is_absent(engine: Engine) -> None:
    assert (await engine.backends.lease.view(W, 0)).holder == ""


async def test_an_absent_key_is_taken_and_only_one_owner_holds_it(engine: Engine) -> None:
    lease = engine.backends.lease
    value(await lease.acquire(W, 0, "a", 15))
    view = await lease.view(W, 0)
    assert (view.holder, view.released) == ("a", False)
    assert refused(await lease.acquire(W, 0, "b", 15)) is Refusal.CONFLICT
    assert (await lease.view(W, 0)).holder == "a"


async def test_the_same_owner_may_acquire_again(engine: Engine) -> None:
    """An acquire whose reply was lost is issued again."""
    lease = engine.backends.lease
    value(await lease.acquire(W, 0, "a", 15))
    value(await lease.acquire(W, 0, "a", 15))


async def test_a_lease_ends_at_its_ttl_and_not_before(engine: Engine) -> None:
    lease = engine.backends.lease
    value(await lease.acquire(W, 0, "a", 15))
    await engine.pass_time(14.5)
    assert (await lease.view(W, 0)).holder == "a"
    assert refused(await lease.acquire(W, 0, "b", 15)) is Refusal.CONFLICT
    await engine.pass_time(0.5)
    view = await lease.view(W, 0)
    assert (view.holder, view.released) == ("", False)
    value(await lease.acquire(W, 0, "b", 15))


async def test_renewing_prolongs_from_now(engine: Engine) -> None:
    lease = engine.backends.lease
    value(await lease.acquire(W, 0, "a", 15))
    await engine.pass_time(10)
    value(await lease.renew(W, 0, "a", 15))
    await engine.pass_time(14)
    assert (await lease.view(W, 0)).holder == "a"
    await engine.pass_time(1)
    assert (await lease.view(W, 0)).holder == ""


async def test_renewing_never_takes_a_lost_lease_again(engine: Engine) -> None:
    lease = engine.backends.lease
    assert refused(await lease.renew(W, 0, "a", 15)) is Refusal.NOT_FOUND
    value(await lease.acquire(W, 0, "a", 15))
    await engine.pass_time(15)
    assert refused(await lease.renew(W, 0, "a", 15)) is Refusal.NOT_FOUND
    assert (await lease.view(W, 0)).holder == ""
    value(await lease.acquire(W, 0, "b", 15))
    assert refused(await lease.renew(W, 0, "a", 15)) is Refusal.CONFLICT
    assert (await lease.view(W, 0)).holder == "b"


async def test_a_release_is_durable_and_says_so_to_the_successor(engine: Engine) -> None:
    lease = engine.backends.lease
    value(await lease.acquire(W, 0, "a", 15))
    value(await lease.release(W, 0, "a"))
    view = await lease.view(W, 0)
    assert (view.holder, view.released) == ("", True)
    assert refused(await lease.renew(W, 0, "a", 15)) in {Refusal.NOT_FOUND, Refusal.CONFLICT}
    value(await lease.acquire(W, 0, "b", 15))
    view = await lease.view(W, 0)
    assert (view.holder, view.released) == ("b", False)


async def test_a_release_by_another_changes_nothing(engine: Engine) -> None:
    lease = engine.backends.lease
    value(await lease.acquire(W, 0, "a", 15))
    assert refused(await lease.release(W, 0, "b")) in {Refusal.NOT_FOUND, Refusal.CONFLICT}
    view = await lease.view(W, 0)
    assert (view.holder, view.released) == ("a", False)


async def test_a_lease_that_expired_after_a_release_of_an_older_one_is_not_released(
    engine: Engine,
) -> None:
    """Only the *last* owner's release spares the successor its wait."""
    lease = engine.backends.lease
    value(await lease.acquire(W, 0, "a", 15))
    value(await lease.release(W, 0, "a"))
    value(await lease.acquire(W, 0, "b", 15))
    await engine.pass_time(15)
    view = await lease.view(W, 0)
    assert (view.holder, view.released) == ("", False)


@pytest.mark.parametrize("step_ms", [-8 * 3_600_000, 8 * 3_600_000])
async def test_the_wall_clock_ends_no_lease(engine: Engine, step_ms: int) -> None:
    lease = engine.backends.lease
    value(await lease.acquire(W, 0, "a", 15))
    engine.runtime.step_wall(step_ms)
    await engine.pass_time(14)
    assert (await lease.view(W, 0)).holder == "a"
    await engine.pass_time(1)
    assert (await lease.view(W, 0)).holder == ""


async def test_kinds_and_shards_have_keys_of_their_own(engine: Engine) -> None:
    lease = engine.backends.lease
    keys = [(kind, shard) for kind in ShardKind for shard in (0, 1)]
    for owner, (kind, shard) in zip(ODD_IDS, keys, strict=False):
        value(await lease.acquire(kind, shard, owner, 15))
    for owner, (kind, shard) in zip(ODD_IDS, keys, strict=False):
        assert (await lease.view(kind, shard)).holder == owner
