"""What is etcd's own about leases: its clock, its restarts, and replies that never come."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from aetcd import Client, ClientError
from tests import engines
from tests.contract.builders import refused, value
from tests.engines.etcd import Etcd
from tests.engines.process import Server

from qimd.adapters.etcd import EtcdLease, open_etcd
from qimd.core.errors import ErrorCode, QimError
from qimd.core.outcome import Applied, NotApplied, Refusal, Unknown
from qimd.ports.store import ShardKind

pytestmark = pytest.mark.skipif(
    engines.address("etcd") is None, reason="etcd does not run here (make engines)"
)

W = ShardKind.WRITER
TTL_S = 1.2
"""Rounded up to 2 s, the least that etcd grants."""
GRANTED_S = 2.0
SEED_TTL_S = 15.0
RESTART_BEFORE_END_S = 5.0
LATE_S = 10.0
"""etcd looks for leases that are over twice a second; a busy machine may take longer."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """An etcd of the test's own, to be stopped and frozen."""
    with Etcd(tmp_path / "etcd") as started:
        yield started


@pytest.fixture
async def lease(server: Server) -> AsyncIterator[EtcdLease]:
    opened = open_etcd("127.0.0.1", server.port, f"/qim/{uuid.uuid4().hex}", call_timeout_s=1.0)
    yield opened
    await opened.close()


async def absent(lease: EtcdLease) -> None:
    """Return once the key is absent."""
    async with asyncio.timeout(LATE_S):
        while (await lease.view(W, 0)).holder:  # noqa: ASYNC110  # the clock is not ours
            await asyncio.sleep(0.05)


async def test_a_lease_ends_by_etcds_clock_at_its_ttl_in_whole_seconds(lease: EtcdLease) -> None:
    began_s = time.monotonic()
    value(await lease.acquire(W, 0, "a", TTL_S))
    await absent(lease)
    assert time.monotonic() - began_s >= GRANTED_S
    assert not (await lease.view(W, 0)).released


async def test_a_renewal_of_an_expired_lease_is_lost_and_not_applied(lease: EtcdLease) -> None:
    """F15: etcd answers such a keepalive without an error."""
    value(await lease.acquire(W, 0, "a", TTL_S))
    value(await lease.renew(W, 0, "a", TTL_S))
    await absent(lease)
    assert refused(await lease.renew(W, 0, "a", TTL_S)) is Refusal.NOT_FOUND
    assert (await lease.view(W, 0)).holder == ""


async def test_a_keepalive_that_comes_as_the_lease_ends_is_lost(
    lease: EtcdLease, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F15: the key was there when it was looked at, and its lease is gone at the keepalive."""
    value(await lease.acquire(W, 0, "a", 15))
    async with Client("127.0.0.1", server.port, timeout=5) as client:
        keep = lease._client.refresh_lease

        async def late(lease_id: int) -> object:
            await client.revoke_lease(lease_id)
            return await keep(lease_id)

        monkeypatch.setattr(lease._client, "refresh_lease", late)
        assert refused(await lease.renew(W, 0, "a", 15)) is Refusal.NOT_FOUND


async def test_a_restart_of_etcd_never_ends_a_lease_early(lease: EtcdLease, server: Server) -> None:
    """F12: 5 s before its end. The TTL may start over: a successor, which asks all along and gets
    the key by the very transaction that finds it absent, waits longer, never less.
    """
    began_s = time.monotonic()
    value(await lease.acquire(W, 0, "a", SEED_TTL_S))
    await asyncio.sleep(SEED_TTL_S - RESTART_BEFORE_END_S)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    await asyncio.to_thread(server.wait)
    refusals = set()
    async with asyncio.timeout(2 * SEED_TTL_S + LATE_S):
        while not isinstance(outcome := await lease.acquire(W, 0, "b", SEED_TTL_S), Applied):
            if isinstance(outcome, NotApplied):
                refusals.add(outcome.refusal)
            await asyncio.sleep(0.1)
    assert time.monotonic() - began_s >= SEED_TTL_S
    assert Refusal.CONFLICT in refusals
    assert refused(await lease.renew(W, 0, "a", SEED_TTL_S)) is Refusal.CONFLICT


async def answered(lease: EtcdLease) -> str:
    """The holder, as soon as the channel is back."""
    async with asyncio.timeout(LATE_S):
        while True:
            try:
                return (await lease.view(W, 0)).holder
            except QimError:
                await asyncio.sleep(0.05)


async def test_a_release_is_still_there_after_a_restart(lease: EtcdLease, server: Server) -> None:
    value(await lease.acquire(W, 0, "a", 15))
    value(await lease.release(W, 0, "a"))
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    await asyncio.to_thread(server.wait)
    assert await answered(lease) == ""
    assert (await lease.view(W, 0)).released


async def test_an_etcd_that_is_away_refuses_what_it_never_saw(
    lease: EtcdLease, server: Server
) -> None:
    value(await lease.acquire(W, 0, "a", 15))
    await asyncio.to_thread(server.kill)
    for outcome in (
        await lease.acquire(W, 0, "b", 15),
        await lease.renew(W, 0, "a", 15),
        await lease.release(W, 0, "a"),
    ):
        assert refused(outcome) is Refusal.UNREACHABLE
    with pytest.raises(QimError) as raised:
        await lease.view(W, 0)
    assert raised.value.code is ErrorCode.UNAVAILABLE
    await asyncio.to_thread(server.start)


async def test_an_etcd_that_is_frozen_answers_in_time_and_is_asked_again(
    lease: EtcdLease, server: Server
) -> None:
    value(await lease.acquire(W, 0, "a", 15))
    server.pause()
    try:
        began_s = time.monotonic()
        assert isinstance(await lease.renew(W, 0, "a", 15), NotApplied | Unknown)
        assert time.monotonic() - began_s < LATE_S
    finally:
        server.resume()
    assert await answered(lease) == "a"
    value(await lease.renew(W, 0, "a", 15))


async def test_a_call_that_is_cancelled_leaves_the_client_usable(
    lease: EtcdLease, server: Server
) -> None:
    value(await lease.acquire(W, 0, "a", 15))
    value(await lease.acquire(W, 1, "b", 15))
    server.pause()
    calls = [asyncio.ensure_future(lease.view(W, shard)) for shard in (0, 1) * 10]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    server.resume()
    await asyncio.gather(*calls, return_exceptions=True)
    assert (await lease.view(W, 1)).holder == "b"
    assert (await lease.view(W, 0)).holder == "a"


async def test_a_release_that_comes_late_gives_up_no_later_acquire(
    lease: EtcdLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release whose reply was lost may land after its owner has taken the key again."""
    value(await lease.acquire(W, 0, "a", 15))
    send = lease._client.transaction

    async def held_back(compare: list[object], *changes: list[object]) -> object:
        if compare:
            monkeypatch.setattr(lease._client, "transaction", send)
            value(await lease.acquire(W, 0, "a", 15))
        return await send(compare, *changes)

    monkeypatch.setattr(lease._client, "transaction", held_back)
    assert refused(await lease.release(W, 0, "a")) is Refusal.NOT_FOUND
    view = await lease.view(W, 0)
    assert (view.holder, view.released) == ("a", False)


class SmallEtcd(Etcd):
    """One whose database may hold next to nothing."""

    def command(self) -> Sequence[str]:
        return (*super().command(), "--quota-backend-bytes=1048576")


async def test_an_etcd_that_is_full_says_so_and_still_lets_an_owner_renew(tmp_path: Path) -> None:
    with SmallEtcd(tmp_path / "etcd") as server:
        lease = open_etcd("127.0.0.1", server.port, "/qim")
        value(await lease.acquire(W, 0, "a", 15))
        async with Client("127.0.0.1", server.port, timeout=5) as client:
            with pytest.raises(ClientError, match="space exceeded"):
                await fill(client)
        assert refused(await lease.acquire(W, 1, "a", 15)) is Refusal.NO_SPACE
        assert refused(await lease.release(W, 0, "a")) is Refusal.NO_SPACE
        value(await lease.renew(W, 0, "a", 15))
        assert (await lease.view(W, 0)).holder == "a"
        await lease.close()


async def fill(client: Client) -> None:
    for number in range(100):
        await client.put(b"/others/%d" % number, bytes(100_000))


async def test_a_name_is_claimed_once_for_all_deployments(server: Server) -> None:
    one = open_etcd("127.0.0.1", server.port, "one/leases")
    other = open_etcd("127.0.0.1", server.port, "other/leases")
    assert await one.claim("logs/a", "one") == "one"
    assert await other.claim("logs/a", "other") == "one"
    assert await one.claim("logs/a", "one") == "one"
    assert await other.claim("logs/b", "other") == "other"
    server.kill()
    with pytest.raises(QimError) as away:
        await one.claim("logs/c", "one")
    assert away.value.code is ErrorCode.UNAVAILABLE
    await one.close()
    await other.close()
