"""Events and frames: encoded once, spliced, never parsed on the way; and drafts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.contract import samples

from qim.conversation.v1 import event_pb2
from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import DeliveredEvent, HistoryPage, OutgoingEvent, ServerFrame
from qimd.contract import codec, frames, wire
from qimd.contract.errors import error_message, error_of
from qimd.contract.events import (
    decode_event,
    draft_digest,
    draft_of,
    encode_delivered,
    encode_event,
    summarise,
)
from qimd.contract.violation import ContractViolation
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import UserId
from qimd.core.parameters import (
    BODY_BYTES_MAX,
    MEMBERSHIP_CHANGE_USERS_MAX,
    PAGE_ENTRY_OVERHEAD_BYTES,
    REACTION_BYTES_MAX,
    SESSION_PREVIEW_BYTES,
)
from qimd.core.records import Accepted, Draft, EventKind, EventSummary, SessionItem


def event(kind=EventKind.MESSAGE, seq=3, **changes):
    fields = {
        "key": samples.KEY,
        "conversation_seq": seq,
        "event_id": samples.EVENT_ID,
        "kind": kind,
        "sender": samples.SENDER,
        "sender_device": samples.DEVICE,
        "created_at_ms": 5,
        "client_msg_id": "m1",
        "membership_version": 1,
    }
    return encode_event(**{**fields, **changes})


def delivered(count, body=b"hello"):
    return [encode_delivered(100 + seq, event(seq=seq, body=body)) for seq in range(1, count + 1)]


# --- events -------------------------------------------------------------------------------------


def test_a_message_keeps_every_byte_of_its_body():
    """COD-03: NUL in a body is content like any other."""
    read = decode_event(event(body=b"a\x00b\xff"))
    assert read.message.body == b"a\x00b\xff"
    assert read.conversation_id == samples.KEY.conversation


def test_each_kind_of_event_carries_its_content():
    reaction = decode_event(event(EventKind.REACTION, body="👍".encode(), target_seq=2))
    assert (reaction.reaction.reaction, reaction.reaction.target_seq) == ("👍", 2)
    change = decode_event(
        event(
            EventKind.MEMBERSHIP,
            sender=None,
            sender_device=None,
            client_msg_id="",
            added=[UserId("a"), UserId("b")],
            removed=[UserId("c")],
        )
    )
    assert change.membership_change.added_user_ids == ["a", "b"]
    assert change.membership_change.removed_user_ids == ["c"]


@pytest.mark.parametrize(
    "changes",
    [
        {"seq": 0},
        {"seq": 1 << 53},
        {"kind": 9},
        {"sender": None},
        {"client_msg_id": ""},
        {"event_id": b"short"},
        {"kind": EventKind.REACTION, "body": b"\xff"},
    ],
)
def test_what_is_no_event_is_never_made(changes):
    with pytest.raises(ContractViolation):
        event(**changes)


def test_a_summary_shows_the_start_of_a_body_or_the_reaction():
    long = summarise(event(body=b"x" * 1000))
    assert long == EventSummary(
        3, samples.EVENT_ID, EventKind.MESSAGE, samples.SENDER, 5, b"x" * SESSION_PREVIEW_BYTES
    )
    assert summarise(event(EventKind.REACTION, body="👍".encode(), target_seq=1)).preview == (
        "👍".encode()
    )
    change = summarise(event(EventKind.MEMBERSHIP, sender=None, client_msg_id="", added=["a"]))
    assert (change.sender, change.preview) == (None, b"")


def test_the_largest_membership_event_fits_what_a_page_may_hold():
    users = [f"{index:04d}".rjust(128, "x") for index in range(MEMBERSHIP_CHANGE_USERS_MAX)]
    assert len(event(EventKind.MEMBERSHIP, added=users)) < 140 * 1024


# --- splicing -----------------------------------------------------------------------------------


@given(st.integers(1, (1 << 63) - 1), st.binary(max_size=300))
def test_a_spliced_delivered_event_is_protobufs_encoding(seq, body):
    encoded = event(body=body)
    spliced = encode_delivered(seq, encoded)
    assert spliced == codec.encode(DeliveredEvent(mailbox_seq=seq, event=decode_event(encoded)))
    assert len(spliced) - len(encoded) <= PAGE_ENTRY_OVERHEAD_BYTES


def test_no_event_is_delivered_at_seq_0():
    with pytest.raises(ContractViolation):
        encode_delivered(0, event())


@pytest.mark.parametrize("count", [0, 1, 2, 500])
@pytest.mark.parametrize(("covered", "token", "more"), [(0, b"", False), (1 << 52, b"t", True)])
def test_a_spliced_page_is_protobufs_encoding(count, covered, token, more):
    spliced = frames.page_frame(9, delivered(count), covered, token, more)
    frame = codec.decode(ServerFrame, spliced.data)
    assert (frame.request_id, spliced.kind) == (9, "mailbox_page")
    page = frame.mailbox_page
    assert (page.covered_through_seq, page.cursor_token, page.more) == (covered, token, more)
    assert [entry.mailbox_seq for entry in page.events] == list(range(101, 101 + count))
    assert frames.server_frame(frame) == spliced


def test_a_spliced_push_is_protobufs_encoding():
    spliced = frames.push_frame(delivered(100))
    frame = codec.decode(ServerFrame, spliced.data)
    assert len(frame.push_events.events) == 100
    assert frames.server_frame(frame) == spliced
    assert spliced.kind == "push_events"


@pytest.mark.parametrize("more", [True, False])
def test_a_spliced_history_is_protobufs_encoding(more):
    events = [event(seq=seq) for seq in (1, 2, 7)]
    spliced = frames.history_frame(2, samples.KEY.conversation, events, more)
    expected = HistoryPage(
        conversation_id=samples.KEY.conversation, events=map(decode_event, events), more=more
    )
    assert codec.decode(ServerFrame, spliced.data).history_page == expected
    assert spliced == frames.server_frame(ServerFrame(request_id=2, history_page=expected))


def test_what_a_newer_writer_put_into_an_event_passes_through_a_page():
    newer = event() + wire.delimited(samples.UNKNOWN_FIELD, b"newer")
    page = frames.page_frame(1, [encode_delivered(1, newer)], 1, b"", False)
    read = codec.decode(ServerFrame, page.data).mailbox_page.events[0].event
    assert codec.encode(read) == newer


@pytest.mark.parametrize("request_id", [0, -1])
def test_an_answer_always_names_its_request(request_id):
    with pytest.raises(ContractViolation):
        frames.page_frame(request_id, [], 0, b"", False)
    with pytest.raises(ContractViolation):
        frames.history_frame(request_id, "c", [], False)


def test_a_page_out_of_order_is_refused_by_its_reader():
    page = frames.page_frame(1, list(reversed(delivered(2))), 200, b"", False)
    with pytest.raises(ContractViolation):
        codec.decode(ServerFrame, page.data)


def test_a_frame_without_a_kind_is_never_sent():
    with pytest.raises(ContractViolation):
        frames.server_frame(ServerFrame(request_id=1))


@given(st.integers(0, (1 << 64) - 1))
def test_varints_are_those_of_protobuf(value):
    frame = ServerFrame(request_id=value)
    assert wire.number(1, value) == frame.SerializeToString()


# --- other frames -------------------------------------------------------------------------------


def test_an_error_frame_says_what_the_table_says():
    error = QimError(ErrorCode.RATE_LIMITED, "slow down", field="send", retry_after_ms=0)
    frame = codec.decode(ServerFrame, frames.error_frame(3, error).data)
    assert frame.request_id == 3
    assert (frame.error.code, frame.error.retryable) == (ErrorCode.RATE_LIMITED, True)
    assert frame.error.retry_after_ms >= 1
    assert codec.decode(ServerFrame, frames.error_frame(0, error).data).request_id == 0


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_comes_back_as_it_was(code):
    error = error_of(error_message(QimError(code, "what", field="where", retry_after_ms=7)))
    assert (error.code, error.message, error.field, error.retry_after_ms) == (
        code,
        "what",
        "where",
        7,
    )


@pytest.mark.parametrize(
    ("retryable", "code"), [(True, ErrorCode.UNAVAILABLE), (False, ErrorCode.INTERNAL)]
)
def test_a_code_of_a_newer_server_keeps_whether_to_try_again(retryable, code):
    message = error_message(QimError(ErrorCode.INTERNAL, "what"))
    message.code, message.retryable = 77, retryable
    assert error_of(message).code is code


def test_a_result_says_what_became_of_each_event():
    accepted = frames.send_result("m1", Accepted(samples.EVENT_ID, 3, 5, True))
    assert (accepted.accepted.conversation_seq, accepted.accepted.duplicate) == (3, True)
    refused = frames.send_result("", QimError(ErrorCode.INVALID_ARGUMENT, "no id", field="f"))
    assert refused.error.field == "f"
    ack = gateway_pb2.SendAck(conversation_id="c", results=[accepted, refused])
    assert frames.server_frame(ServerFrame(request_id=1, send_ack=ack)).kind == "send_ack"


def test_a_session_shows_its_last_event():
    item = SessionItem(samples.KEY, summarise(event(body=b"hi")), 5, 2, 1)
    session = frames.session_message(item)
    assert (session.unread_count, session.read_through_seq, session.activity_at_ms) == (2, 1, 5)
    assert session.last_event.preview == b"hi"
    empty = frames.session_message(SessionItem(samples.KEY, None, 0, 0, 0))
    assert not empty.HasField("last_event")


# --- drafts -------------------------------------------------------------------------------------


def outgoing(client_msg_id="m1", body=b"hello"):
    return OutgoingEvent(client_msg_id=client_msg_id, message=event_pb2.Message(body=body))


def reacting(target_seq=1, reaction="👍"):
    content = event_pb2.Reaction(target_seq=target_seq, reaction=reaction)
    return OutgoingEvent(client_msg_id="m1", reaction=content)


def test_a_draft_is_what_was_sent():
    assert draft_of(outgoing(body=b""), "f") == Draft("m1", EventKind.MESSAGE, b"")
    assert draft_of(reacting(2), "f") == Draft("m1", EventKind.REACTION, "👍".encode(), 2)
    largest = outgoing("i" * 128, b"x" * BODY_BYTES_MAX)
    assert len(draft_of(largest, "f").body) == BODY_BYTES_MAX
    assert draft_of(reacting(reaction="r" * REACTION_BYTES_MAX), "f").kind == EventKind.REACTION


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        pytest.param(outgoing(""), "client_msg_id", id="an empty id"),
        pytest.param(outgoing("x" * 129), "client_msg_id", id="an id of 129 bytes"),
        pytest.param(outgoing("x\0y"), "client_msg_id", id="an id with NUL"),
        pytest.param(outgoing("x" * 5000), "client_msg_id", id="an id of 5 KB"),
        pytest.param(
            outgoing(body=b"x" * (BODY_BYTES_MAX + 1)), "message.body", id="a body too long"
        ),
        pytest.param(reacting(0), "reaction.target_seq", id="target 0"),
        pytest.param(reacting(1 << 53), "reaction.target_seq", id="target 2^53"),
        pytest.param(reacting(reaction=""), "reaction.reaction", id="no reaction"),
        pytest.param(
            reacting(reaction="r" * (REACTION_BYTES_MAX + 1)),
            "reaction.reaction",
            id="a reaction too long",
        ),
        pytest.param(OutgoingEvent(client_msg_id="m"), "content", id="no content"),
    ],
)
def test_a_value_outside_its_limits_is_named(sent, field):
    """COD-03: INVALID_ARGUMENT naming the field; the frame itself is valid, the others commit."""
    frame = samples.send_frame()
    frame.send.events.append(sent)
    assert codec.encode(frame)
    with pytest.raises(QimError) as refused:
        draft_of(sent, "send.events[2]")
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    assert refused.value.field == f"send.events[2].{field}"
    assert len(refused.value.message) < 200


def test_a_content_of_a_newer_client_is_unimplemented():
    sent = OutgoingEvent(client_msg_id="m")
    sent.MergeFromString(wire.delimited(samples.UNKNOWN_FIELD, b"newer"))
    with pytest.raises(QimError) as refused:
        draft_of(sent, "send.events[0]")
    assert refused.value.code is ErrorCode.UNIMPLEMENTED


def test_a_drafts_digest_is_of_its_content_alone():
    """COD-02: identity comes from an explicit field tuple, not from serialised bytes."""
    drafts = [
        Draft("m", EventKind.MESSAGE, b"a"),
        Draft("m", EventKind.MESSAGE, b"b"),
        Draft("m", EventKind.REACTION, b"a", 1),
        Draft("m", EventKind.REACTION, b"a", 2),
    ]
    assert len({draft_digest(draft) for draft in drafts}) == len(drafts)
    assert draft_digest(Draft("other", EventKind.MESSAGE, b"a")) == draft_digest(drafts[0])
    assert len(draft_digest(drafts[0])) == 16
