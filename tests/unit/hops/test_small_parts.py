"""Owner names, the directory, the outbox and credentials: what needs no stream."""

import asyncio
from collections.abc import AsyncIterator
from hmac import compare_digest
from itertools import pairwise

import pytest
from tests.support.runtime import ManualRuntime

from qimd.app.hops import credentials
from qimd.app.hops.credentials import SharedSecret, by_certificate
from qimd.app.hops.directory import LOOK_INTERVAL_S, Directory
from qimd.app.hops.failures import Elsewhere, is_elsewhere
from qimd.app.hops.outbox import FRAME_BYTES, FRAME_ITEMS, Outbox
from qimd.app.hops.owner import address_of, owner_name
from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.ports.lease import LeaseView
from qimd.ports.store import ShardKind
from qimd.telemetry.metrics import Metrics

# --- owner names ------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["10.0.0.7:7443", "[::1]:7443", "node#1.example:7443"])
def test_an_owner_says_where_it_is_called(address: str) -> None:
    assert address_of(owner_name(address, "4711-abcd")) == address


def test_a_bare_name_can_not_be_called() -> None:
    assert address_of("4711-abcd") == ""
    assert address_of("") == ""


@pytest.mark.parametrize(("address", "nonce"), [("", "n"), ("a:1", ""), ("a:1", "n#n")])
def test_a_name_that_could_not_be_split_again_is_refused(address: str, nonce: str) -> None:
    with pytest.raises(QimError) as refused:
        owner_name(address, nonce)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


# --- where an owner may be looked for again ---------------------------------------------------


@pytest.mark.parametrize(
    ("error", "elsewhere"),
    [
        (Elsewhere("lost"), True),
        (QimError(ErrorCode.NOT_OWNER, "moved"), True),
        (QimError(ErrorCode.STALE_EPOCH, "moved"), True),
        # What the owner itself says is said to the caller: another owner would say it, too.
        (unavailable("the disk is full"), False),
        (QimError(ErrorCode.NOT_MEMBER, "no"), False),
    ],
)
def test_only_what_speaks_of_the_place_is_tried_elsewhere(error: QimError, elsewhere: bool) -> None:
    assert is_elsewhere(error) is elsewhere


# --- directory --------------------------------------------------------------------------------


class Leases:
    """One lease, held by `holder`."""

    def __init__(self, runtime: ManualRuntime) -> None:
        self._runtime = runtime
        self.holder = "a:1#n"
        self.views_s: list[float] = []
        self.gate: asyncio.Event | None = None
        self.away = False

    async def view(self, kind: ShardKind, shard: int) -> LeaseView:
        self.views_s.append(self._runtime.monotonic_s())
        if self.gate is not None:
            await self.gate.wait()
        if self.away:
            raise unavailable("away")
        return LeaseView(self.holder, released=False)


@pytest.fixture
async def runtime() -> AsyncIterator[ManualRuntime]:
    async with ManualRuntime() as made:
        yield made


@pytest.fixture
def leases(runtime: ManualRuntime) -> Leases:
    return Leases(runtime)


@pytest.fixture
def directory(leases: Leases, runtime: ManualRuntime) -> Directory:
    return Directory(leases, runtime)


WRITER = ShardKind.WRITER


async def test_an_address_is_looked_up_once_and_remembered(
    directory: Directory, leases: Leases
) -> None:
    with pytest.raises(Elsewhere):
        directory.known(WRITER, 0)
    assert await directory.look(WRITER, 0) == "a:1"
    leases.holder = "b:2#n"
    assert directory.known(WRITER, 0) == "a:1"
    assert len(leases.views_s) == 1


async def test_all_who_wait_share_one_look_that_outlives_each_of_them(
    directory: Directory, leases: Leases, runtime: ManualRuntime
) -> None:
    leases.gate = asyncio.Event()
    looks = [asyncio.ensure_future(directory.look(WRITER, 0)) for _ in range(20)]
    await runtime.settle()
    looks[0].cancel()
    leases.gate.set()
    found = await asyncio.gather(*looks, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == ["a:1"] * 19
    assert len(leases.views_s) == 1


async def test_a_wrong_address_costs_one_look_in_200_ms_however_often_it_is_forgotten(
    directory: Directory, leases: Leases, runtime: ManualRuntime
) -> None:
    async def ask_again_and_again() -> None:
        for _ in range(5):
            directory.forget(WRITER, 0, await directory.look(WRITER, 0))

    callers = [asyncio.ensure_future(ask_again_and_again()) for _ in range(3)]
    await runtime.until(lambda: all(caller.done() for caller in callers))
    gaps = [later - sooner for sooner, later in pairwise(leases.views_s)]
    assert gaps
    assert min(gaps) >= LOOK_INTERVAL_S - 1e-9


async def test_only_the_address_that_was_wrong_is_forgotten(
    directory: Directory, leases: Leases, runtime: ManualRuntime
) -> None:
    await directory.look(WRITER, 0)
    directory.forget(WRITER, 0, "older:1")
    assert directory.known(WRITER, 0) == "a:1"
    directory.forget(WRITER, 0, "a:1")
    with pytest.raises(Elsewhere):
        directory.known(WRITER, 0)


@pytest.mark.parametrize("holder", ["", "4711-abcd"])
async def test_an_owner_without_an_address_is_nobody_to_call(
    directory: Directory, leases: Leases, holder: str
) -> None:
    leases.holder = holder
    with pytest.raises(Elsewhere):
        await directory.look(WRITER, 0)


async def test_what_is_remembered_outlives_the_lease_store(
    directory: Directory, leases: Leases, runtime: ManualRuntime
) -> None:
    await directory.look(WRITER, 0)
    leases.away = True
    look = asyncio.ensure_future(directory.look(WRITER, 0))
    await runtime.until(look.done)
    assert look.result() == "a:1"


# --- outbox -----------------------------------------------------------------------------------


async def test_what_waits_leaves_as_one_frame_in_order() -> None:
    metrics = Metrics()
    outbox = Outbox(metrics)
    for item in (b"1", b"2", b"3"):
        outbox.put(item)
    assert outbox.waiting_bytes == 3
    assert await outbox.frame() == [b"1", b"2", b"3"]
    assert outbox.waiting_bytes == 0
    assert metrics.registry.get_sample_value("hop_frames_total") == 1
    assert metrics.registry.get_sample_value("hop_items_total") == 3


async def test_a_frame_is_bounded_in_bytes_and_items_and_a_larger_item_goes_alone() -> None:
    outbox = Outbox(Metrics())
    half, large = bytes(FRAME_BYTES // 2), bytes(2 * FRAME_BYTES)
    for item in (half, half, b"x", large, *[b"y"] * (FRAME_ITEMS + 1)):
        outbox.put(item)
    sizes = [[len(item) for item in await outbox.frame()] for _ in range(5)]
    assert sizes == [[len(half)] * 2, [1], [len(large)], [1] * FRAME_ITEMS, [1]]


async def test_a_closed_outbox_gives_what_waited_and_then_nothing() -> None:
    outbox = Outbox(Metrics())
    outbox.put(b"last")
    outbox.close()
    outbox.put(b"too late")
    assert await outbox.frame() == [b"last"]
    assert await outbox.frame() == []


async def test_who_waits_for_room_goes_on_when_a_frame_was_taken_or_all_is_over(
    runtime: ManualRuntime,
) -> None:
    outbox = Outbox(Metrics())
    outbox.put(bytes(10))
    waits = asyncio.ensure_future(outbox.room(5))
    await runtime.settle()
    assert not waits.done()
    await outbox.frame()
    await waits
    outbox.put(bytes(10))
    waits = asyncio.ensure_future(outbox.room(5))
    await runtime.settle()
    assert not waits.done()
    outbox.abandon()
    await waits
    assert await outbox.frame() == []


# --- credentials ------------------------------------------------------------------------------


class Context:
    """As much of a call's context as an `Authenticate` looks at."""

    def __init__(self, metadata: object = (), certificate: object = None) -> None:
        self._metadata = metadata
        self._certificate = certificate or {}

    def invocation_metadata(self) -> object:
        return self._metadata

    def auth_context(self) -> object:
        return self._certificate


def test_the_shared_secret_lets_its_holders_in() -> None:
    secret = SharedSecret("a-secret-of-the-tests")
    secret.authenticate(Context(SharedSecret("a-secret-of-the-tests").credentials))


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("x-qim-hop", ""),),
        (("x-qim-hop", "a-secret-of-the-tests"),),
        (("x-qim-hop", "\udcff"),),
        (("x-qim-hop", b"\xff"),),
        SharedSecret("another-secret-of-others").credentials,
    ],
)
def test_everybody_else_is_refused_without_a_word_of_why(metadata: object) -> None:
    with pytest.raises(QimError) as refused:
        SharedSecret("a-secret-of-the-tests").authenticate(Context(metadata))
    assert refused.value.code is ErrorCode.UNAUTHENTICATED
    assert refused.value.message == "the peer is no process of this deployment"


def test_the_secret_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def watched(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare_digest(one, other)

    monkeypatch.setattr(credentials, "compare_digest", watched)
    secret = SharedSecret("a-secret-of-the-tests")
    secret.authenticate(Context(secret.credentials))
    assert compared == [(secret.credentials[0][1].encode(),) * 2]


def test_the_secret_itself_is_neither_sent_nor_kept() -> None:
    secret = SharedSecret("a-secret-of-the-tests")
    assert "a-secret-of-the-tests" not in repr(vars(secret)) + repr(secret.credentials)


def test_a_secret_that_is_none_is_refused() -> None:
    with pytest.raises(QimError) as refused:
        SharedSecret("short")
    assert refused.value.field == "hop_secret"


@pytest.mark.parametrize("key", ["x509_subject_alternative_name", "x509_common_name"])
def test_a_certificate_is_let_in_by_its_name(key: str) -> None:
    authenticate = by_certificate(["qim-node"])
    authenticate(Context(certificate={key: [b"other", b"qim-node"]}))
    for certificate in ({}, {key: [b"client"]}, {"transport_security_type": [b"qim-node"]}):
        with pytest.raises(QimError) as refused:
            authenticate(Context(certificate=certificate))
        assert refused.value.code is ErrorCode.UNAUTHENTICATED
