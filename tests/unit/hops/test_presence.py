"""Presence and hints between processes: what a PULL does not find is hinted, and no wake-up is lost
where a stream is, or a shard moves.
"""

from collections.abc import Collection, Sequence

import pytest
from tests.support.streams import MemoryStream, StreamClient
from tests.unit.hops.fakes import TENANT, conversation, delivered, event, user
from tests.unit.hops.world import Process, World, pushed

from qim.gateway.v1 import gateway_pb2
from qim.hop.v1.hop_service_pb2 import HopAnswer
from qimd.app.hops import asks, presence, registrar
from qimd.app.hops.presence import RemotePresence
from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.core.ids import TenantId, UserId
from qimd.core.seq import SEQ_NONE
from qimd.ports.services import GapReport, Hint
from qimd.ports.store import ShardKind
from qimd.telemetry.metrics import Metrics

PULL = gateway_pb2.PullMailbox(cursor_token=b"cursor")


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that waits for a shard to be found elsewhere waits for no second."""
    monkeypatch.setattr(registrar, "LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(registrar, "CATCH_UP_RETRY_S", 0.01)


async def pull(client: StreamClient) -> int:
    """How many events a PULL brings."""
    client.request(pull_mailbox=PULL)
    frame = await client.next()
    assert frame is not None
    assert frame.WhichOneof("frame") == "mailbox_page"
    return len(frame.mailbox_page.events)


# --- who is online ----------------------------------------------------------------------------


async def test_presence_is_registered_before_the_first_pull_is_served(
    hops: World, near: Process, far: Process
) -> None:
    client = await near.connect("ann/phone")
    far.mailbox.hold("pull")
    client.request(pull_mailbox=PULL)
    await hops.bell.until(lambda: "pull ann" in far.mailbox.calls)
    assert far.presence.here("ann", "bob") == {"ann"}


async def test_a_hint_reaches_every_stream_of_its_users(
    hops: World, near: Process, far: Process
) -> None:
    other = await hops.process("other")
    clients = [
        await near.connect("ann/phone"),
        await near.connect("bob/phone"),
        await other.connect("ann/laptop"),
    ]
    for client in clients:
        await pull(client)
    far.mailbox.materialise(5, "ann", "bob", "nobody")
    for client in clients:
        assert await pushed(client, 1) == [5]


async def test_hints_keep_their_order(hops: World, near: Process, far: Process) -> None:
    client = await near.connect("ann/phone")
    await pull(client)
    for seq in range(1, 200):
        far.mailbox.materialise(seq, "ann")
    assert await pushed(client, 199) == list(range(1, 200))


async def test_a_user_is_gone_with_the_last_of_its_streams(
    hops: World, near: Process, far: Process
) -> None:
    phone, laptop = await near.connect("ann/phone"), await near.connect("ann/laptop")
    await pull(laptop)
    phone.send(None)
    assert await phone.next() is None
    await pull(laptop)
    assert far.presence.here("ann") == {"ann"}
    laptop.send(None)
    await hops.bell.until(lambda: not far.presence.here("ann"))


async def test_a_newer_stream_of_a_device_keeps_the_user_online(
    hops: World, near: Process, far: Process
) -> None:
    older = await near.connect("ann/phone")
    newer = await near.connect("ann/phone")
    while await older.next() is not None:
        pass
    await pull(newer)
    assert far.presence.here("ann") == {"ann"}


async def test_who_wants_no_pushes_is_not_registered(
    hops: World, near: Process, far: Process
) -> None:
    stream = MemoryStream()
    near.runtime.spawn(near.connections.handle(stream), "stream")
    stream.client.request(auth=gateway_pb2.Auth(protocol_version=1, access_token="ann/phone"))
    await stream.client.next()
    await pull(stream.client)
    assert not far.presence.here("ann")


async def test_the_users_of_a_dead_process_are_forgotten_with_its_stream(
    hops: World, near: Process, far: Process
) -> None:
    await pull(await near.connect("ann/phone"))
    assert far.presence.here("ann")
    await near.kill()
    await hops.bell.until(lambda: not far.presence.here("ann"))
    assert not far.presence._online
    assert not far.presence._joined


# --- what came while nobody was registered ----------------------------------------------------


async def test_what_came_while_the_stream_was_lost_is_pushed(
    hops: World, near: Process, far: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At once, and not when shards are looked for the next time.
    monkeypatch.setattr(registrar, "LOOK_INTERVAL_S", 3_600.0)
    near.follow()
    client = await near.connect("ann/phone")
    await pull(client)
    near.peers.at(far.address).close()
    far.mailbox.materialise(6, "ann")
    assert await pushed(client, 1) == [6]
    await hops.bell.until(lambda: far.presence.here("ann") == {"ann"})
    far.mailbox.materialise(7, "ann")
    assert await pushed(client, 1) == [7]


async def test_what_came_while_a_shard_moved_is_pushed_though_nobody_calls(
    hops: World, near: Process, far: Process
) -> None:
    near.follow()
    client = await near.connect("ann/phone")
    await pull(client)
    heir = await hops.process("heir")
    heir.mailbox.boxes = far.mailbox.boxes
    heir.mailbox.materialise(6, "ann")
    hops.leases.give(heir, ShardKind.MAILBOX)
    assert await pushed(client, 1) == [6]
    assert heir.presence.here("ann") == {"ann"}
    # The old owner has no more to do with her.
    await hops.bell.until(lambda: not far.presence.here("ann"))


async def test_a_call_that_finds_the_new_owner_has_everybody_registered_before_it(
    hops: World, near: Process, far: Process
) -> None:
    ann, bob = await near.connect("ann/phone"), await near.connect("bob/phone")
    await pull(ann)
    await pull(bob)
    heir = await hops.process("heir")
    heir.mailbox.boxes = far.mailbox.boxes
    heir.mailbox.materialise(6, "bob")
    hops.leases.give(heir)
    far.mailbox.fails["pull"] = QimError(ErrorCode.NOT_OWNER, "moved")
    heir.mailbox.hold("pull")
    ann.request(pull_mailbox=PULL)
    await hops.bell.until(lambda: "pull ann" in heir.mailbox.calls)
    assert heir.presence.here("ann", "bob") == {"ann", "bob"}
    assert await pushed(bob, 1) == [6]


async def test_only_what_was_neither_pulled_nor_hinted_is_pushed_again(
    hops: World, near: Process, far: Process
) -> None:
    near.follow()
    far.mailbox.materialise(4, "ann", "bob")
    ann, bob = await near.connect("ann/phone"), await near.connect("bob/phone")
    assert [await pull(ann), await pull(bob)] == [1, 1]
    far.mailbox.materialise(5, "ann")
    assert await pushed(ann, 1) == [5]
    near.peers.at(far.address).close()
    far.mailbox.materialise(6, "ann")
    assert await pushed(ann, 1) == [6]
    await hops.bell.until(lambda: f"read bob {event(4).seq}" in far.mailbox.calls)
    assert f"read ann {event(5).seq}" in far.mailbox.calls
    assert not bob.received()


async def test_the_stream_that_has_pulled_least_decides_where_to_look_from(
    hops: World, near: Process, far: Process
) -> None:
    near.follow()
    phone = await near.connect("ann/phone")
    await pull(phone)
    behind = await near.connect("ann/laptop")
    near.peers.at(far.address).close()
    far.mailbox.materialise(6, "ann")
    # The laptop never pulled; what it would have been hinted is looked for from its own position.
    await hops.bell.until(lambda: "read ann 3" in far.mailbox.calls)
    assert await pushed(phone, 1) == [6]
    assert await pushed(behind, 1) == [6]


async def test_more_than_a_page_is_looked_for_to_its_end(
    hops: World, near: Process, far: Process
) -> None:
    near.follow()
    client = await near.connect("ann/phone")
    await pull(client)
    far.mailbox.page_events = 2
    near.peers.at(far.address).close()
    for seq in range(6, 11):
        far.mailbox.materialise(seq, "ann")
    assert await pushed(client, 5) == [6, 7, 8, 9, 10]


async def test_a_mailbox_that_can_not_be_read_yet_is_read_again(
    hops: World, near: Process, far: Process
) -> None:
    near.follow()
    client = await near.connect("ann/phone")
    await pull(client)
    far.mailbox.fails["read"] = unavailable("the lane is catching up")
    near.peers.at(far.address).close()
    far.mailbox.materialise(6, "ann")
    await hops.bell.until(lambda: far.mailbox.calls.count("read ann 3") >= 3)
    assert not client.received()
    del far.mailbox.fails["read"]
    assert await pushed(client, 1) == [6]


async def test_a_look_that_a_move_interrupts_begins_again_where_it_was(
    hops: World, near: Process, far: Process
) -> None:
    near.follow()
    client = await near.connect("ann/phone")
    await pull(client)
    heir, last = await hops.process("heir"), await hops.process("last")
    heir.mailbox.boxes = last.mailbox.boxes = far.mailbox.boxes
    # One event came before she was registered; a later one is hinted, and moves nothing.
    heir.mailbox.boxes[UserId("ann")] = [event(6)]
    first_look, second_look = heir.mailbox.hold("read"), last.mailbox.hold("read")
    hops.leases.give(heir, ShardKind.MAILBOX)
    await hops.bell.until(lambda: "read ann 3" in heir.mailbox.calls)
    heir.mailbox.materialise(7, "ann")
    assert await pushed(client, 1) == [7]
    # The next owner had an event before it knew of her, too, and looks from the same place. What
    # the owner before it had read, and answers only now, says nothing of that.
    hops.leases.give(last, ShardKind.MAILBOX)
    last.mailbox.boxes[UserId("ann")].append(event(8))
    await hops.bell.until(lambda: "read ann 3" in last.mailbox.calls)
    first_look.set()
    behind_it = asks.report(user("ann"), GapReport(1, conversation("c"), 1, 1, SEQ_NONE))
    await near.peers.at(heir.address).begin(behind_it, near.router.deadline_s(behind_it))
    second_look.set()
    assert await pushed(client, 3) == [6, 7, 8]


async def test_a_shard_that_comes_home_is_looked_after_too(
    hops: World, near: Process, far: Process
) -> None:
    near.follow()
    client = await near.connect("ann/phone")
    await pull(client)
    near.mailbox.boxes = far.mailbox.boxes
    near.mailbox.boxes[UserId("ann")] = [event(6)]
    hops.leases.give(near)
    assert await pushed(client, 1) == [6]
    assert "read ann 3" in near.mailbox.calls
    await hops.bell.until(lambda: not far.presence.here("ann"))


async def test_a_peer_that_can_not_be_told_of_a_change_is_given_up_and_told_all(
    hops: World, near: Process, far: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    near.follow()
    await pull(await near.connect("ann/phone"))
    monkeypatch.setattr(near.peers.at(far.address), "tell", lambda _: False)
    await near.connect("bob/phone")
    await hops.bell.until(lambda: far.presence.here("ann", "bob") == {"ann", "bob"})


# --- RemotePresence by itself -----------------------------------------------------------------


class Sink:
    """A stream that takes hints."""

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self.items: list[bytes] = []

    def put(self, item: bytes) -> None:
        self.items.append(item)

    def hints(self) -> list[tuple[list[str], list[bytes]]]:
        read = [HopAnswer.FromString(item).hint for item in self.items]
        return [(list(hint.user_ids), list(hint.delivered)) for hint in read]


class Local:
    """This process's own connection room."""

    def __init__(self, *here: str) -> None:
        self.here = set(here)
        self.told: list[Hint] = []

    def online(self, tenant: TenantId, users: Collection[UserId]) -> Collection[UserId]:
        return [each for each in users if each in self.here]

    def push(self, hints: Sequence[Hint]) -> None:
        self.told += hints


def names(*users: str) -> list[UserId]:
    return [UserId(each) for each in users]


def test_hints_for_the_same_users_are_one_item_a_process() -> None:
    known = RemotePresence(Metrics())
    one, two = Sink(), Sink()
    known.change(known.join(one), TENANT, names("ann", "bob"), ())
    known.change(known.join(two), TENANT, names("cid"), ())
    users = names("ann", "bob", "cid")
    known.push([Hint(TENANT, users, delivered(seq)) for seq in (1, 2, 3)])
    told = [delivered(seq) for seq in (1, 2, 3)]
    assert one.hints() == [(["ann", "bob"], told)]
    assert two.hints() == [(["cid"], told)]


def test_a_hint_is_for_users_of_its_own_tenant() -> None:
    known = RemotePresence(Metrics())
    sink = Sink()
    known.change(known.join(sink), TenantId("other"), names("ann"), ())
    assert known.online(TENANT, names("ann")) == []
    known.push([Hint(TENANT, names("ann"), delivered(1))])
    assert not sink.items


def test_users_are_given_in_the_order_asked_wherever_they_are() -> None:
    known = RemotePresence(Metrics(), Local("bob", "dan"))
    known.change(known.join(Sink()), TENANT, names("cid", "ann"), ())
    assert known.online(TENANT, names("dan", "cid", "eve", "bob", "ann")) == names(
        "dan", "cid", "bob", "ann"
    )


def test_the_own_connection_room_is_told_as_well() -> None:
    local = Local("ann")
    known = RemotePresence(Metrics(), local)
    hint = Hint(TENANT, names("ann"), delivered(1))
    known.push([hint])
    assert local.told == [hint]


def test_a_user_at_two_processes_is_online_until_both_are_left() -> None:
    known = RemotePresence(Metrics())
    one, two = known.join(Sink()), known.join(Sink())
    known.change(one, TENANT, names("ann"), ())
    known.change(one, TENANT, names("ann"), ())
    known.change(two, TENANT, names("ann"), ())
    known.change(one, TENANT, (), names("ann", "never-here"))
    assert known.online(TENANT, names("ann"))
    known.leave(two)
    assert not known.online(TENANT, names("ann"))


def test_hints_beyond_the_bound_are_dropped_and_counted_and_others_still_go() -> None:
    metrics = Metrics()
    known = RemotePresence(metrics)
    stuck, free = Sink(), Sink()
    stuck.waiting_bytes = presence.HINT_BYTES_MAX
    for sink in (stuck, free):
        known.change(known.join(sink), TENANT, names("ann"), ())
    known.push([Hint(TENANT, names("ann"), delivered(seq)) for seq in (1, 2)])
    assert not stuck.items
    assert len(free.hints()[0][1]) == 2
    assert metrics.registry.get_sample_value("hints_dropped_total") == 2


def test_large_hints_are_cut() -> None:
    known = RemotePresence(Metrics())
    sink = Sink()
    known.change(known.join(sink), TENANT, names("ann"), ())
    known.push([Hint(TENANT, names("ann"), bytes(600_000)) for _ in range(3)])
    assert [len(told) for _, told in sink.hints()] == [1, 1, 1]


def test_each_event_keeps_its_own_trace_where_hints_are_cut() -> None:
    known = RemotePresence(Metrics())
    sink = Sink()
    known.change(known.join(sink), TENANT, names("ann"), ())
    parents = ["", "00-a", "", "00-b"]
    sizes = [10, 10, 600_000, 600_000]
    known.push(
        [
            Hint(TENANT, names("ann"), bytes(size), parent)
            for size, parent in zip(sizes, parents, strict=True)
        ]
    )
    hints = [HopAnswer.FromString(item).hint for item in sink.items]
    assert [len(hint.delivered) for hint in hints] == [3, 1]
    assert [[(t.index, t.trace_parent) for t in hint.traced] for hint in hints] == [
        [(1, "00-a")],
        [(0, "00-b")],
    ]
