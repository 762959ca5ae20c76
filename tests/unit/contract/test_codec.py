"""The strict codec: what it refuses, what it keeps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.contract import samples

from qim.common.v1.error_pb2 import Error
from qim.conversation.v1 import event_pb2
from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch, LaneBlock
from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import ClientFrame, ServerFrame
from qimd.contract import codec, wire
from qimd.contract.violation import ContractViolation, ReaderTooOld, Reason
from qimd.core.errors import ErrorCode, QimError

NEWER = wire.delimited(samples.UNKNOWN_FIELD, b"from a newer release")

BAD = [
    pytest.param(message_type, data, id=f"{message_type.__name__}-{name}")
    for message_type, cases in (
        (GroupDispatch, samples.bad_dispatches()),
        (ClientFrame, samples.bad_client_frames()),
        (ServerFrame, samples.bad_server_frames()),
    )
    for name, data in cases.items()
]
GOOD = [
    pytest.param(samples.dispatch(), id="dispatch"),
    pytest.param(samples.send_frame(), id="send"),
    pytest.param(samples.ping(1), id="ping"),
    pytest.param(samples.pong(1), id="pong"),
]


@pytest.mark.parametrize(("message_type", "data"), BAD)
def test_bytes_that_break_the_contract_are_refused_with_one_typed_error(message_type, data):
    with pytest.raises(ContractViolation) as refused:
        codec.decode(message_type, data)
    assert refused.value.code is ErrorCode.CONTRACT_VIOLATION
    assert refused.value.entry.grpc_status == "INVALID_ARGUMENT"
    assert refused.value.message_name == message_type.DESCRIPTOR.full_name
    assert refused.value.reason in Reason


@pytest.mark.parametrize("message", GOOD)
def test_a_valid_message_comes_back_as_it_was(message):
    data = codec.encode(message)
    assert codec.decode(type(message), data) == message
    assert codec.encode(codec.decode(type(message), data)) == data


@pytest.mark.parametrize("message", GOOD)
def test_every_decode_gives_a_fresh_message(message):
    data = codec.encode(message)
    assert codec.decode(type(message), data) is not codec.decode(type(message), data)


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ({"fencing_epoch": None}, Reason.MISSING, "fencing_epoch"),
        ({"fencing_epoch": 0}, Reason.ZERO, "fencing_epoch"),
        ({"fencing_epoch": 1 << 53}, Reason.DOMAIN, "fencing_epoch"),
        ({"conversation_seq": 0}, Reason.ZERO, "conversation_seq"),
        ({"event_id": b""}, Reason.MISSING, "event_id"),
        ({"event_id": b"x"}, Reason.DOMAIN, "event_id"),
        ({"dispatch_id": b"x" * 17}, Reason.DOMAIN, "dispatch_id"),
        ({"kind": 0}, Reason.MISSING, "kind"),
        ({"sender_user_id": ""}, Reason.MISSING, "sender_user_id"),
        ({"chunk_count": 0}, Reason.DOMAIN, "chunk_index"),
        ({"log_identity": ""}, Reason.MISSING, "log_identity"),
        ({"min_reader_version": 0}, Reason.ZERO, "min_reader_version"),
        ({"min_reader_version": 2}, Reason.DOMAIN, "min_reader_version"),
        ({"blocks": []}, Reason.MISSING, "blocks"),
        ({"blocks": [LaneBlock(lane=64, user_ids=["a"])]}, Reason.DOMAIN, "blocks.lane"),
        ({"blocks": [LaneBlock(lane=1)]}, Reason.MISSING, "blocks.user_ids"),
    ],
)
def test_a_dispatch_that_would_be_refused_is_never_encoded(changes, reason, field):
    with pytest.raises(ContractViolation) as refused:
        codec.encode(samples.dispatch(**changes))
    assert (refused.value.reason, refused.value.field) == (reason, field)


@pytest.mark.parametrize(
    ("frame", "reason", "field"),
    [
        (ClientFrame(), Reason.ZERO, "request_id"),
        (ClientFrame(request_id=1), Reason.MISSING, "frame"),
        (ServerFrame(request_id=1), Reason.MISSING, "frame"),
        (ServerFrame(pong=gateway_pb2.Pong()), Reason.ZERO, "request_id"),
        (
            ServerFrame(request_id=1, going_away=gateway_pb2.GoingAway()),
            Reason.DOMAIN,
            "request_id",
        ),
        (
            ServerFrame(push_events=gateway_pb2.PushEvents(events=[gateway_pb2.DeliveredEvent()])),
            Reason.ZERO,
            "push_events.events[0].mailbox_seq",
        ),
        (ServerFrame(request_id=1, error=Error(code=-1)), Reason.DOMAIN, "error.code"),
    ],
)
def test_a_frame_that_would_be_refused_is_never_encoded(frame, reason, field):
    with pytest.raises(ContractViolation) as refused:
        codec.encode(frame)
    assert (refused.value.reason, refused.value.field) == (reason, field)


def test_a_violation_of_a_frame_that_parsed_names_its_request():
    with pytest.raises(ContractViolation) as refused:
        codec.decode(ClientFrame, samples.bad_client_frames()["doubled_send"])
    assert refused.value.request_id == 4


def test_a_violation_never_quotes_the_bytes():
    frame = samples.plain(samples.send_frame()) + b"\x08\x05"
    with pytest.raises(ContractViolation) as refused:
        codec.decode(ClientFrame, frame.replace(b"hello", b"hush!"))
    assert "hush!" not in f"{refused.value} {refused.value.message}"
    assert refused.value.__cause__ is None


def test_a_message_100_deep_is_read_and_one_101_deep_is_not():
    frame = samples.plain(samples.ping(1))
    assert codec.decode(ClientFrame, frame + samples.groups(99)).request_id == 1
    with pytest.raises(ContractViolation) as refused:
        codec.decode(ClientFrame, frame + samples.groups(101))
    assert refused.value.reason is Reason.MALFORMED


def test_a_message_that_nests_too_deep_for_readers_is_not_encoded():
    """Protobuf serialises it without complaint."""
    page = ServerFrame(request_id=1, history_page=gateway_pb2.HistoryPage(conversation_id="c"))
    event = page.history_page.events.add()
    event.CopyFrom(an_event())
    event.MergeFromString(samples.groups(99))
    assert len(page.SerializeToString()) > 0
    with pytest.raises(ContractViolation) as refused:
        codec.encode(page)
    assert refused.value.reason is Reason.MALFORMED


def an_event(**changes):
    fields = {
        "conversation_id": "c",
        "conversation_seq": 3,
        "event_id": samples.EVENT_ID,
        "kind": event_pb2.EVENT_KIND_MESSAGE,
        "sender_user_id": "ann",
        "client_msg_id": "m",
        "message": event_pb2.Message(body=b"x"),
    }
    fields.update(changes)
    return event_pb2.ConversationEvent(**fields)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"conversation_id": ""}, "conversation_id"),
        ({"event_id": b"short"}, "event_id"),
        ({"sender_user_id": ""}, "sender_user_id"),
        ({"client_msg_id": ""}, "client_msg_id"),
        ({"message": None}, "content"),
        ({"kind": event_pb2.EVENT_KIND_MEMBERSHIP}, "content"),
        ({"kind": -1}, "kind"),
    ],
)
def test_an_event_whose_parts_do_not_agree_is_refused(changes, field):
    with pytest.raises(ContractViolation) as refused:
        codec.encode(an_event(**changes))
    assert refused.value.field == field


def test_only_a_membership_change_may_have_no_sender():
    change = event_pb2.MembershipChange(added_user_ids=["ann"])
    event = an_event(
        kind=event_pb2.EVENT_KIND_MEMBERSHIP,
        membership_change=change,
        message=None,
        sender_user_id="",
        client_msg_id="",
    )
    assert codec.decode(event_pb2.ConversationEvent, codec.encode(event)) == event


def test_an_older_reader_keeps_what_a_newer_writer_adds_at_the_end():
    data = samples.plain(samples.dispatch()) + NEWER
    message = codec.decode(GroupDispatch, data)
    assert codec.encode(message) == data


def test_a_new_field_before_a_known_one_is_not_canonical():
    good = samples.plain(samples.dispatch())
    with pytest.raises(ContractViolation) as refused:
        codec.decode(GroupDispatch, NEWER + good)
    assert refused.value.reason is Reason.NON_CANONICAL


def test_a_newer_frames_unknown_fields_are_kept_wherever_they_stand():
    frame = samples.plain(samples.ping(1))
    for data in (frame + NEWER, NEWER + frame, frame[:2] + NEWER + frame[2:]):
        assert NEWER in codec.encode(codec.decode(ClientFrame, data))


def test_the_order_of_a_frames_fields_is_free():
    frame = samples.plain(samples.ping(1))
    assert codec.decode(ClientFrame, frame[2:] + frame[:2]) == samples.ping(1)


def test_a_frame_kind_of_a_newer_client_is_no_violation():
    frame = codec.decode(ClientFrame, b"\x08\x04" + NEWER)
    assert frame.request_id == 4
    assert frame.WhichOneof("frame") is None


def test_a_record_for_a_newer_reader_halts_before_any_other_check():
    data = samples.plain(samples.dispatch(min_reader_version=2, fencing_epoch=None, event_id=b""))
    with pytest.raises(ReaderTooOld) as refused:
        codec.decode(GroupDispatch, data)
    assert not isinstance(refused.value, ContractViolation)
    assert refused.value.min_reader_version == 2


def test_an_unknown_kind_is_kept_and_re_emitted():
    """COD-01: binary number 9 is kept and re-emitted unchanged."""
    data = samples.plain(samples.dispatch(kind=9))
    message = codec.decode(GroupDispatch, data)
    assert message.kind == 9
    assert codec.encode(message) == data
    event = codec.encode(an_event(kind=9))
    assert codec.encode(codec.decode(event_pb2.ConversationEvent, event)) == event


def test_equal_content_in_another_order_of_construction_has_equal_bytes():
    """COD-02: no maps, so equal content in another order of construction is the same."""
    first, second = ClientFrame(request_id=4), ClientFrame()
    first.send.CopyFrom(samples.send_frame().send)
    second.send.CopyFrom(samples.send_frame().send)
    second.request_id = 4
    assert codec.encode(first) == codec.encode(second)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_lose_nothing(data):
    for message_type in (GroupDispatch, ClientFrame, ServerFrame):
        try:
            message = codec.decode(message_type, data)
        except QimError:
            continue
        assert message.ByteSize() == len(data)


@given(st.data())
def test_a_changed_byte_of_a_dispatch_never_gives_a_record_without_its_epoch(data):
    good = bytearray(samples.plain(samples.dispatch()))
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = codec.decode(GroupDispatch, bytes(good))
    except QimError:
        return
    assert message.fencing_epoch >= 1
    assert codec.encode(message) == bytes(good)
