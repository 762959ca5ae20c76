"""Receiving over real streams: pushes lost, doubled and reordered, gaps, rebases, restarts."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.unit.client.gateway import (
    FAST,
    STEADY,
    USER,
    ClientFrame,
    Gateway,
    Peer,
    client_of,
    event,
)

from qim.gateway.v1 import gateway_pb2
from qimd.client import (
    Client,
    ErrorCode,
    Event,
    MemoryPositions,
    QimError,
    Rebased,
    ReportKind,
)
from qimd.client.inbox import Events

JOIN = event(1, 10, added=(USER,))


async def take(events: Events, count: int) -> list[int]:
    """The seqs of the next events."""
    async with asyncio.timeout(10):
        taken = []
        for _ in range(count):
            item = await anext(events)
            assert isinstance(item, Event)
            taken.append(item.seq)
        return taken


async def all_seqs(client: Client) -> list[int]:
    return [
        item.seq async for item in client.events(until_caught_up=True) if isinstance(item, Event)
    ]


@pytest.fixture
async def caught_up(gateway: Gateway) -> AsyncIterator[tuple[Gateway, Client, Events]]:
    """A client that has read the join and two messages, and pulls only what it must."""
    gateway.deliver(JOIN, event(2, 20), event(3, 30))
    async with client_of(gateway, STEADY) as client:
        events = client.events()
        assert await take(events, 3) == [1, 2, 3]
        waiting = asyncio.create_task(take(events, 1))
        # The acknowledgement shows that the page's end was reached, and so that it is in step.
        await gateway.until(lambda: gateway.stored == 30)
        gateway.deliver(event(4, 40))
        gateway.peer.push(event(4, 40))
        assert await waiting == [4]
        yield gateway, client, events


async def test_events_come_with_what_was_sent(gateway: Gateway) -> None:
    gateway.deliver(JOIN, event(2, 20))
    async with client_of(gateway) as client:
        items = [item async for item in client.events(until_caught_up=True)]
    join, message = items
    assert isinstance(join, Event)
    assert isinstance(message, Event)
    assert join.added == (USER,)
    assert (message.body, message.sender, message.mailbox_seq) == (b"c 2", "other", 20)


async def test_a_mailbox_of_many_pages_is_read_to_its_end(gateway: Gateway) -> None:
    gateway.page_size = 7
    gateway.deliver(JOIN, *(event(n, n * 10) for n in range(2, 101)))
    async with client_of(gateway) as client:
        assert await all_seqs(client) == list(range(1, 101))
        assert not client.reports
    assert gateway.stored == 1000


async def test_a_pushed_event_is_shown_without_a_pull(
    caught_up: tuple[Gateway, Client, Events],
) -> None:
    gateway, _, events = caught_up
    pulls = len(gateway.seen("pull_mailbox"))
    gateway.deliver(event(5, 50), event(6, 60))
    gateway.peer.push(event(5, 50), event(6, 60))
    assert await take(events, 2) == [5, 6]
    assert len(gateway.seen("pull_mailbox")) == pulls
    assert gateway.stored == 30, "a push moves no position"


@pytest.mark.parametrize(
    "pushes",
    [
        pytest.param([[6]], id="lost"),
        pytest.param([[5, 5, 6], [5, 6]], id="doubled"),
        pytest.param([[6], [5]], id="reordered"),
        pytest.param([[6, 5]], id="reordered-in-one-frame"),
    ],
)
async def test_events_come_once_and_in_order_whatever_the_pushes_do(
    caught_up: tuple[Gateway, Client, Events], pushes: list[list[int]]
) -> None:
    gateway, client, events = caught_up
    known = {5: event(5, 50), 6: event(6, 60), 7: event(7, 70)}
    gateway.deliver(*known.values())
    for push in pushes:
        gateway.peer.push(*(known[seq] for seq in push))
    gateway.peer.push(known[7])
    assert await take(events, 3) == [5, 6, 7]
    assert not client.reports


async def test_pushed_events_are_confirmed_by_one_page_after_a_while(gateway: Gateway) -> None:
    gateway.deliver(JOIN)
    async with client_of(gateway, replace(STEADY, idle_pull_events=50)) as client:
        events = client.events()
        assert await take(events, 1) == [1]
        waiting = asyncio.create_task(take(events, 50))
        await gateway.until(lambda: gateway.stored == 10)
        pulls = len(gateway.seen("pull_mailbox"))
        more = [event(n, n * 10) for n in range(2, 52)]
        gateway.deliver(*more)
        for one in more:
            gateway.peer.push(one)
        assert await waiting == list(range(2, 52))
        again = asyncio.create_task(take(events, 1))
        await gateway.until(lambda: gateway.stored == 510)
        assert len(gateway.seen("pull_mailbox")) == pulls + 1
        again.cancel()


async def test_a_lost_push_with_nothing_behind_it_is_found_by_the_poll(gateway: Gateway) -> None:
    gateway.deliver(JOIN)
    async with client_of(gateway, replace(FAST, poll_s=0.01)) as client:
        events = client.events()
        assert await take(events, 1) == [1]
        waiting = asyncio.create_task(take(events, 1))
        await gateway.until(lambda: gateway.stored == 10)
        gateway.deliver(event(2, 20))
        assert await waiting == [2]


async def test_a_reconnect_shows_nothing_twice_and_leaves_nothing_out(
    caught_up: tuple[Gateway, Client, Events],
) -> None:
    gateway, client, events = caught_up
    gateway.deliver(event(5, 50))
    gateway.peer.drop()
    assert await take(events, 1) == [5]
    assert client.connects == 2


async def test_a_gap_below_covered_through_is_reported_by_itself(gateway: Gateway) -> None:
    gateway.deliver(JOIN, event(4, 40))
    async with client_of(gateway) as client:
        events = client.events()
        assert await take(events, 2) == [1, 4]
        await gateway.until(lambda: bool(gateway.seen("report")))
        await client.ping()
        (report,) = client.reports
    sent = gateway.seen("report")[0].report
    assert (sent.kind, sent.conversation_id) == (gateway_pb2.REPORT_KIND_GAP, "c")
    assert (sent.from_conversation_seq, sent.through_conversation_seq) == (2, 3)
    assert sent.covered_through_seq == 40
    assert (report.kind, report.from_seq, report.confirmed) == (ReportKind.GAP, 2, True)


async def test_a_doubled_event_in_pages_is_reported_and_shown_once(gateway: Gateway) -> None:
    gateway.deliver(JOIN, event(2, 20), event(2, 30))
    async with client_of(gateway) as client:
        assert await all_seqs(client) == [1, 2]
        assert [report.kind for report in client.reports] == [ReportKind.DOUBLE]


async def test_a_rebase_is_shown_and_reading_goes_on(gateway: Gateway) -> None:
    """MBX-08: the range that can't be served is named before any event."""
    gateway.deliver(event(7, 103), event(8, 107))

    async def rebase(peer: Peer, frame: ClientFrame) -> bool:
        if frame.pull_mailbox.last_applied_mailbox_seq >= 102:
            assert frame.pull_mailbox.cursor_token == b"new cursor"
            return False
        rebased = gateway_pb2.CursorRebased(
            lost_from_seq=101,
            lost_through_seq=102,
            cursor_token=b"new cursor",
            last_applied_mailbox_seq=102,
        )
        peer.send(request_id=frame.request_id, cursor_rebased=rebased)
        return True

    gateway.answers["pull_mailbox"] = rebase
    gateway.stored = 100
    async with client_of(gateway) as client:
        items = [item async for item in client.events(until_caught_up=True)]
        assert not client.reports
    assert items[0] == Rebased(101, 102)
    assert [item.seq for item in items[1:] if isinstance(item, Event)] == [7, 8]


async def test_only_what_the_application_took_is_acknowledged(gateway: Gateway) -> None:
    gateway.deliver(JOIN, event(2, 20), event(3, 30))
    positions = MemoryPositions()
    async with client_of(gateway, positions=positions) as client:
        events = client.events()
        # Two were asked for; that the second was dealt with is not known.
        assert await take(events, 2) == [1, 2]
    assert gateway.stored == 10
    assert positions.position is not None
    assert positions.position.applied_seq == 10
    async with client_of(gateway, positions=positions) as client:
        assert await all_seqs(client) == [2, 3]
    assert gateway.stored == 30


async def test_with_explicit_acks_nothing_is_acknowledged_before(gateway: Gateway) -> None:
    gateway.page_size = 2
    gateway.deliver(JOIN, event(2, 20), event(3, 30), event(4, 40))
    async with client_of(gateway, replace(FAST, auto_ack=False)) as client:
        assert await all_seqs(client) == [1, 2, 3, 4]
        assert not gateway.seen("ack_mailbox")
        await client.ack()
        assert gateway.stored == 40


async def test_an_event_taken_by_push_is_not_shown_again_after_a_restart(gateway: Gateway) -> None:
    gateway.deliver(JOIN)
    positions = MemoryPositions()
    async with client_of(gateway, STEADY, positions) as client:
        events = client.events()
        assert await take(events, 1) == [1]
        waiting = asyncio.create_task(take(events, 1))
        await gateway.until(lambda: gateway.stored == 10)
        gateway.deliver(event(2, 20))
        gateway.peer.push(event(2, 20))
        assert await waiting == [2]
        await client.ack()
        assert gateway.stored == 10
    gateway.deliver(event(3, 30))
    async with client_of(gateway, positions=positions) as client:
        assert await all_seqs(client) == [3]


async def test_a_client_that_never_asks_for_events_pulls_none(gateway: Gateway) -> None:
    gateway.deliver(JOIN)
    async with client_of(gateway) as client:
        gateway.peer.push(event(2, 20))
        await client.ping()
        assert not gateway.seen("pull_mailbox")


async def test_a_reader_that_lags_is_served_by_pages_in_the_end(gateway: Gateway) -> None:
    gateway.deliver(JOIN)
    config = replace(STEADY, page_events=5, queue_events_max=5)
    async with client_of(gateway, config) as client:
        events = client.events()
        assert await take(events, 1) == [1]
        waiting = asyncio.create_task(take(events, 1))
        await gateway.until(lambda: gateway.stored == 10)
        more = [event(n, n * 10) for n in range(2, 42)]
        gateway.deliver(*more)
        gateway.peer.push(*more)
        assert await waiting == [2]
        assert await take(events, 39) == list(range(3, 42))
        assert not client.reports


async def test_a_cursor_that_is_refused_is_renewed_once_by_a_new_stream(gateway: Gateway) -> None:
    gateway.deliver(JOIN)

    async def refuse_first(peer: Peer, frame: ClientFrame) -> bool:
        if len(gateway.seen("pull_mailbox")) > 1:
            return False
        peer.error(frame.request_id, ErrorCode.CURSOR_INVALID)
        return True

    gateway.answers["pull_mailbox"] = refuse_first
    async with client_of(gateway) as client:
        assert await all_seqs(client) == [1]
        assert client.connects == 2


async def test_a_position_that_stays_refused_stops_the_client_aloud(gateway: Gateway) -> None:
    async def refuse(peer: Peer, frame: ClientFrame) -> bool:
        peer.error(frame.request_id, ErrorCode.CURSOR_INVALID)
        return True

    gateway.answers["pull_mailbox"] = refuse
    async with client_of(gateway) as client:
        with pytest.raises(QimError) as caught:
            await take(client.events(), 1)
    assert caught.value.code is ErrorCode.CURSOR_INVALID


async def test_an_ack_that_stays_refused_stops_the_client_aloud(gateway: Gateway) -> None:
    gateway.deliver(JOIN)

    async def refuse(peer: Peer, frame: ClientFrame) -> bool:
        gateway.deliver(event(len(gateway.mailbox) + 1, 10 * len(gateway.mailbox) + 10))
        peer.error(frame.request_id, ErrorCode.CURSOR_INVALID)
        return True

    gateway.answers["ack_mailbox"] = refuse
    async with client_of(gateway) as client:
        with pytest.raises(QimError) as caught:
            await take(client.events(), 100)
        assert client.connects == 2
    assert caught.value.code is ErrorCode.CURSOR_INVALID


async def test_a_mailbox_that_is_not_ready_is_asked_again(gateway: Gateway) -> None:
    gateway.deliver(JOIN)

    async def restoring(peer: Peer, frame: ClientFrame) -> bool:
        if len(gateway.seen("pull_mailbox")) > 3:
            return False
        peer.error(frame.request_id, ErrorCode.UNAVAILABLE)
        return True

    gateway.answers["pull_mailbox"] = restoring
    async with client_of(gateway) as client:
        assert await all_seqs(client) == [1]
        assert client.connects == 1


async def test_sessions_history_and_read_marks_come_as_values(gateway: Gateway) -> None:
    gateway.deliver(JOIN, event(2, 20), event(3, 30))
    async with client_of(gateway) as client:
        assert [(s.conversation, s.unread) async for s in client.sessions()] == [
            ("c0", 0),
            ("c1", 1),
            ("c2", 2),
        ]
        page = await client.history("c", before_seq=3, limit=1)
        assert ([e.seq for e in page.events], page.more) == ([2], True)
        mark = await client.mark_read("c", 3)
        assert (mark.read_through_seq, mark.unread) == (3, 2)
