"""Each request's answer: SEND with its results, history, the session list, marks, reports."""

import pytest
from tests.unit.connection.test_streams import one, refusal, send_frame
from tests.unit.connection.world import TENANT, world

from qim.conversation.v1.event_pb2 import Message, Reaction
from qim.gateway.v1 import gateway_pb2
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import EventId, UserId
from qimd.core.parameters import BODY_BYTES_MAX, PAGE_BYTES_MAX, SEND_EVENTS_MAX
from qimd.core.records import EventSummary, SessionItem, UserKey
from qimd.core.seq import mailbox_seq
from qimd.ports.services import Rebased
from qimd.ports.store import key_of


def outgoing(name: str, body: bytes = b"hi") -> gateway_pb2.OutgoingEvent:
    return gateway_pb2.OutgoingEvent(client_msg_id=name, message=Message(body=body))


async def test_a_send_commits_its_valid_events_together_and_refuses_the_others() -> None:
    async with world() as place:
        client = await place.login("u1/phone")
        events = [
            outgoing("good"),
            outgoing("large", bytes(BODY_BYTES_MAX + 1)),
            outgoing("nul\x00"),
            gateway_pb2.OutgoingEvent(client_msg_id="empty"),
            gateway_pb2.OutgoingEvent(
                client_msg_id="like", reaction=Reaction(target_seq=1, reaction="👍")
            ),
        ]
        send = gateway_pb2.Send(conversation_id="c/1", events=events)
        request_id = client.request(send=send)
        frame = await one(place, client)
        assert (frame.request_id, frame.send_ack.conversation_id) == (request_id, "c/1")
        results = frame.send_ack.results
        assert [result.client_msg_id for result in results] == [e.client_msg_id for e in events]
        outcomes = [result.WhichOneof("outcome") for result in results]
        assert outcomes == ["accepted", "error", "error", "error", "accepted"]
        assert results[1].error.field == "send.events[1].message.body"
        assert [results[0].accepted.conversation_seq, results[4].accepted.conversation_seq] == [
            1,
            2,
        ]
        (command,) = place.writer.commits
        assert command.key == key_of("acme", "c/1")
        assert (command.sender, command.sender_device) == ("u1", "phone")
        assert [draft.client_msg_id for draft in command.drafts] == ["good", "like"]
        assert command.trace_parent.startswith("00-")
        assert place.value("send_ack_latency_count") == 1


@pytest.mark.parametrize("count", [0, SEND_EVENTS_MAX + 1])
async def test_a_send_outside_1_to_100_events_is_refused_by_name(count: int) -> None:
    async with world() as place:
        client = await place.login()
        error = await refusal(place, client, client.request(send=send_frame(count=count)))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "send.events")
        assert not place.writer.commits


async def test_a_send_of_100_events_is_taken() -> None:
    async with world() as place:
        client = await place.login()
        client.request(send=send_frame(count=SEND_EVENTS_MAX))
        frame = await one(place, client)
        assert len(frame.send_ack.results) == SEND_EVENTS_MAX


@pytest.mark.parametrize("conversation", ["", "x\x00y", "c" * 129])
async def test_a_bad_conversation_id_names_its_field_and_the_stream_stays_open(
    conversation: str,
) -> None:
    """COD-03: NUL and over-long ids are INVALID_ARGUMENT naming the field, before a seq is
    allocated; the stream stays open."""
    async with world() as place:
        client = await place.login()
        error = await refusal(place, client, client.request(send=send_frame(conversation)))
        assert (error.code, error.field) == (
            ErrorCode.INVALID_ARGUMENT,
            "send.conversation_id",
        )
        client.request(send=send_frame("c"))
        assert (await one(place, client)).send_ack.results[0].accepted.conversation_seq == 1


async def test_a_send_that_can_t_be_done_at_all_is_one_error() -> None:
    async with world() as place:
        client = await place.login()
        place.writer.raises = QimError(ErrorCode.NOT_MEMBER, "not a member")
        error = await refusal(place, client, client.request(send=send_frame()))
        assert error.code == ErrorCode.NOT_MEMBER
        assert place.value("errors_total", {"code": "NOT_MEMBER"}) == 1


async def test_a_rebased_position_is_the_pull_s_only_answer() -> None:
    async with world() as place:
        client = await place.login()
        floor = mailbox_seq(2, 5)
        place.mailbox.pages = [Rebased(mailbox_seq(1, 1), floor, b"new", floor)]
        request_id = client.request(pull_mailbox=gateway_pb2.PullMailbox(cursor_token=b"old"))
        frame = await one(place, client)
        assert frame.request_id == request_id
        rebased = frame.cursor_rebased
        assert (rebased.lost_through_seq, rebased.cursor_token) == (floor, b"new")
        client.request(ack_mailbox=gateway_pb2.AckMailbox(last_applied_mailbox_seq=floor))
        assert (await one(place, client)).ack_ok.last_applied_mailbox_seq == floor


async def test_a_session_list_carries_its_rows_and_the_next_token() -> None:
    async with world() as place:
        client = await place.login("u1")
        summary = EventSummary(7, EventId(bytes(16)), 1, UserId("u2"), 1_000, b"hello")
        place.sessions.items = [SessionItem(key_of("acme", "c"), summary, 1_000, 3, 4)]
        client.request(pull_session_list=gateway_pb2.PullSessionList())
        page = (await one(place, client)).session_list
        assert page.next_page_token == b"next"
        (session,) = page.sessions
        assert (session.conversation_id, session.unread_count, session.read_through_seq) == (
            "c", 3, 4,
        )  # fmt: skip
        assert (session.last_event.sender_user_id, session.last_event.preview) == ("u2", b"hello")


async def test_a_dirty_projection_is_told_as_such() -> None:
    async with world() as place:
        client = await place.login()
        place.sessions.raises = QimError(ErrorCode.SESSION_PROJECTION_DIRTY, "dirty")
        request_id = client.request(pull_session_list=gateway_pb2.PullSessionList())
        error = await refusal(place, client, request_id)
        assert error.code == ErrorCode.SESSION_PROJECTION_DIRTY


async def test_marking_read_is_for_the_stream_s_own_user() -> None:
    async with world() as place:
        client = await place.login("u1")
        mark = gateway_pb2.MarkRead(conversation_id="c", read_through_seq=2**64 - 1)
        client.request(mark_read=mark)
        ok = (await one(place, client)).read_ok
        assert (ok.conversation_id, ok.read_through_seq, ok.unread_count) == ("c", 5, 2)
        assert place.sessions.marked == [
            (UserKey(TENANT, UserId("u1")), key_of("acme", "c"), 2**64 - 1)
        ]


async def test_history_is_refused_to_who_was_never_a_member() -> None:
    async with world() as place:
        client = await place.login()
        request_id = client.request(pull_history=gateway_pb2.PullHistory(conversation_id="c"))
        error = await refusal(place, client, request_id)
        assert error.code == ErrorCode.NOT_MEMBER


async def test_history_is_what_lies_inside_the_user_s_memberships_newest_first_taken() -> None:
    async with world() as place:
        key = await place.chat.create("c", "u1", "v")
        await place.chat.say(key, "v", b"one")
        await place.chat.change(key, removed=["u1"])
        await place.chat.say(key, "v", b"not for u1")
        await place.chat.change(key, added=["u1"])
        await place.chat.say(key, "v", b"two")
        client = await place.login("u1")

        async def page(**asked: int) -> tuple[list[int], bool]:
            client.request(pull_history=gateway_pb2.PullHistory(conversation_id="c", **asked))
            history = (await one(place, client)).history_page
            assert history.conversation_id == "c"
            return [event.conversation_seq for event in history.events], history.more

        assert await page() == ([1, 2, 3, 5, 6], False)
        assert await page(limit=2) == ([5, 6], True)
        assert await page(limit=2, before_seq=5) == ([2, 3], True)
        assert await page(limit=2, before_seq=2) == ([1], False)
        assert await page(before_seq=2**64 - 1, limit=5) == ([1, 2, 3, 5, 6], False)


async def test_who_is_removed_while_a_page_is_read_sees_nothing_from_behind_it() -> None:
    async with world() as place:
        key = await place.chat.create("c", "u1", "v")
        await place.chat.say(key, "v", b"one")
        client = await place.login("u1")
        place.cluster.faults.delay(1.0, "history")
        client.request(pull_history=gateway_pb2.PullHistory(conversation_id="c"))
        await place.runtime.settle()
        await place.chat.change(key, removed=["u1"])
        await place.chat.say(key, "v", b"not for u1")
        await place.runtime.advance(2)
        history = (await one(place, client)).history_page
        assert [event.conversation_seq for event in history.events] == [1, 2]


async def test_a_history_page_stays_under_1_mib() -> None:
    async with world() as place:
        key = await place.chat.create("c", "u1", "v")
        for _ in range(20):
            await place.chat.say(key, "v", bytes(BODY_BYTES_MAX))
        client = await place.login("u1")
        client.request(pull_history=gateway_pb2.PullHistory(conversation_id="c"))
        history = (await one(place, client)).history_page
        assert history.more
        assert [event.conversation_seq for event in history.events] == list(range(7, 22))
        assert history.ByteSize() <= PAGE_BYTES_MAX


async def test_a_report_is_judged_by_the_mailbox() -> None:
    async with world() as place:
        client = await place.login()
        report = gateway_pb2.Report(
            kind=gateway_pb2.REPORT_KIND_GAP,
            conversation_id="c",
            from_conversation_seq=3,
            through_conversation_seq=4,
            covered_through_seq=mailbox_seq(1, 9),
        )
        client.request(report=report)
        assert (await one(place, client)).report_ok.confirmed
        assert place.mailbox.reports[0].key == key_of("acme", "c")
        report.from_conversation_seq = 5
        error = await refusal(place, client, client.request(report=report))
        assert error.field == "report.from_conversation_seq"
        report.kind = 9  # type: ignore[assignment]
        error = await refusal(place, client, client.request(report=report))
        assert error.field == "report.kind"
        assert len(place.mailbox.reports) == 1
