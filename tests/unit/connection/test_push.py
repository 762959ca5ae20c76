"""PUSH_EVENTS: hints batch, share their bytes, and a slow reader harms nobody but itself."""

import pytest
from tests.unit.connection.world import TENANT, delivered, encoded, world

from qim.gateway.v1 import gateway_pb2
from qimd.connection import presence
from qimd.contract.frames import EncodedFrame
from qimd.core.errors import ErrorCode
from qimd.core.ids import UserId
from qimd.core.parameters import (
    CONNECTION_QUEUE_BYTES_MAX,
    PUSH_FRAME_EVENTS_MAX,
    REQUEST_TIMEOUT_S,
)
from qimd.core.records import DeliveredEvent
from qimd.core.seq import mailbox_seq
from qimd.ports.services import Page
from qimd.ports.store import key_of

PULL = gateway_pb2.PullMailbox(cursor_token=b"cursor")


async def test_hints_of_one_turn_leave_as_one_frame_in_order() -> None:
    async with world() as place:
        client = await place.login("u")
        place.push(["u"], delivered(1))
        place.push(["u"], delivered(2), delivered(3))
        await place.runtime.settle()
        (frame,) = client.received()
        assert frame.request_id == 0
        seqs = [event.event.conversation_seq for event in frame.push_events.events]
        assert seqs == [1, 2, 3]
        assert place.value("stage_entries_total", {"stage": "push"}) == 3


async def test_a_frame_holds_at_most_the_most_events() -> None:
    async with world() as place:
        client = await place.login("u")
        place.push(["u"], *(delivered(seq) for seq in range(1, PUSH_FRAME_EVENTS_MAX + 2)))
        await place.runtime.settle()
        sizes = [len(frame.push_events.events) for frame in client.received()]
        assert sizes == [PUSH_FRAME_EVENTS_MAX, 1]


async def test_streams_that_are_told_the_same_share_one_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[EncodedFrame] = []
    join = presence.push_frame

    def counting(events: list[bytes]) -> EncodedFrame:
        made.append(join(events))
        return made[-1]

    monkeypatch.setattr(presence, "push_frame", counting)
    async with world() as place:
        clients = [await place.login(f"u{index}") for index in range(4)]
        place.push([f"u{index}" for index in range(4)], delivered(1), delivered(2))
        place.push(["u3"], delivered(3))
        await place.runtime.settle()
        counts = [len(frame.push_events.events) for client in clients
                  for frame in client.received()]  # fmt: skip
        assert counts == [2, 2, 2, 3]
        assert len(made) == 2


async def test_only_the_users_of_the_tenant_that_are_here_are_online() -> None:
    async with world() as place:
        await place.login("b")
        await place.login("a")
        users = [UserId(name) for name in ("a", "x", "b")]
        assert list(place.service.online(TENANT, users)) == ["a", "b"]
        other = key_of("other", "c").tenant
        assert list(place.service.online(other, users)) == []


async def test_a_device_that_does_not_ask_for_pushes_is_sent_none() -> None:
    async with world() as place:
        quiet = await place.connect()
        quiet.request(auth=gateway_pb2.Auth(protocol_version=1, access_token="u"))
        await place.runtime.settle()
        assert [frame.WhichOneof("frame") for frame in quiet.received()] == ["auth_ok"]
        assert list(place.service.online(TENANT, [UserId("u")])) == []
        place.push(["u"], delivered(1))
        await place.runtime.settle()
        assert quiet.received() == []
        # It is its device's stream all the same: a newer one replaces it, and may listen.
        listening = await place.login("u")
        place.push(["u"], delivered(2))
        await place.runtime.settle()
        assert [f.WhichOneof("frame") for f in quiet.received()] == ["kicked"]
        assert [f.WhichOneof("frame") for f in listening.received()] == ["push_events"]


async def test_nobody_is_online_before_auth_or_after_the_end() -> None:
    async with world() as place:
        client = await place.connect()
        assert list(place.service.online(TENANT, [UserId("u")])) == []
        client.auth("u")
        await place.runtime.settle()
        assert list(place.service.online(TENANT, [UserId("u")])) == ["u"]
        client.send(None)
        await place.runtime.settle()
        assert list(place.service.online(TENANT, [UserId("u")])) == []
        place.push(["u"], delivered(1))


async def test_a_client_that_does_not_read_is_a_slow_consumer_and_others_are_served() -> None:
    """GW-05: at the bound in bytes the stream ends with SLOW_CONSUMER; others are unaffected."""
    async with world() as place:
        slow, other = await place.login("slow"), await place.login("other")
        slow.stop_reading()
        body = bytes(1024)
        for seq in range(1, CONNECTION_QUEUE_BYTES_MAX // 1024 + 200):
            place.push(["slow", "other"], delivered(seq, body))
            await place.runtime.settle()
        stream = place.stream_of(slow)
        assert stream.closed.is_set()
        assert stream.error is not None
        assert stream.error.code is ErrorCode.SLOW_CONSUMER
        assert not slow.received()
        assert place.value("errors_total", {"code": "SLOW_CONSUMER"}) == 1
        got = [event.event.conversation_seq for frame in other.received()
               for event in frame.push_events.events]  # fmt: skip
        assert got == list(range(1, CONNECTION_QUEUE_BYTES_MAX // 1024 + 200))
        assert list(place.service.online(TENANT, [UserId("slow")])) == []


async def test_pipelined_pulls_wait_for_room_instead_of_ending_the_stream() -> None:
    async with world() as place:
        client = await place.login("u")
        client.stop_reading()
        events = [
            DeliveredEvent(mailbox_seq(1, seq), encoded(seq, bytes(60_000))) for seq in range(1, 17)
        ]
        place.mailbox.pages = [Page(events, events[-1].seq, more=True) for _ in range(20)]
        for _ in range(20):
            client.request(pull_mailbox=PULL)
        await place.runtime.settle()
        assert 3 <= 20 - len(place.mailbox.pages) <= 4
        client.read_on()
        await place.runtime.settle()
        assert len(client.received()) == 20
        assert not place.stream_of(client).closed.is_set()


async def test_a_client_that_asks_and_never_reads_is_a_slow_consumer_too() -> None:
    async with world() as place:
        client = await place.login("u")
        client.stop_reading()
        events = [
            DeliveredEvent(mailbox_seq(1, seq), encoded(seq, bytes(60_000))) for seq in range(1, 17)
        ]
        place.mailbox.pages = [Page(events, events[-1].seq, more=True) for _ in range(20)]
        for _ in range(20):
            client.request(pull_mailbox=PULL)
        await place.runtime.advance(REQUEST_TIMEOUT_S)
        stream = place.stream_of(client)
        assert stream.error is not None
        assert stream.error.code is ErrorCode.SLOW_CONSUMER
