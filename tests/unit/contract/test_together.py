"""The events of a page or push are checked together: with the walk's verdict, whatever they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.contract import samples

from qim.conversation.v1 import event_pb2
from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import DeliveredEvent, HistoryPage, MailboxPage, ServerFrame
from qimd.contract import checks, codec, wire
from qimd.contract.violation import ContractViolation, Reason

MESSAGE = event_pb2.EVENT_KIND_MESSAGE
REACTION = event_pb2.EVENT_KIND_REACTION
MEMBERSHIP = event_pb2.EVENT_KIND_MEMBERSHIP


def event(**changes):
    fields = {
        "conversation_id": "c",
        "conversation_seq": 3,
        "event_id": samples.EVENT_ID,
        "kind": MESSAGE,
        "sender_user_id": "ann",
        "client_msg_id": "m",
        "message": event_pb2.Message(body=b"hi"),
    }
    return event_pb2.ConversationEvent(**{**fields, **changes})


def reacted(**changes):
    reaction = event_pb2.Reaction(target_seq=1, reaction="👍")
    return event(**{"kind": REACTION, "message": None, "reaction": reaction, **changes})


def joined(**changes):
    change = event_pb2.MembershipChange(added_user_ids=["ann"])
    plain = {"sender_user_id": "", "client_msg_id": "", "message": None}
    return event(**{**plain, "kind": MEMBERSHIP, "membership_change": change, **changes})


GOOD = [event(), event(message=event_pb2.Message()), reacted(), joined()]
NEWER = event(kind=900, message=None)
BAD = [
    event(conversation_id=""),
    event(conversation_seq=0),
    event(conversation_seq=1 << 53),
    event(event_id=b""),
    event(event_id=b"short"),
    event(kind=0),
    event(kind=-1),
    event(sender_user_id=""),
    event(client_msg_id=""),
    event(message=None),
    event(kind=REACTION),
    reacted(kind=MESSAGE),
    joined(membership_change=None),
]


def push(deliveries):
    return ServerFrame(push_events=gateway_pb2.PushEvents(events=deliveries))


def page(deliveries):
    return ServerFrame(request_id=1, mailbox_page=MailboxPage(events=deliveries))


def history(events):
    return ServerFrame(request_id=1, history_page=HistoryPage(events=events))


def read(frame):
    """The frame as the codec reads it, not checked yet, and its bytes."""
    data = frame.SerializeToString()
    return codec.decode_structure(ServerFrame, data), data


def numbered(events):
    """Deliveries of those events, at places that increase."""
    return [DeliveredEvent(mailbox_seq=place, event=each) for place, each in enumerate(events, 1)]


def in_order(events):
    """Those events, as a conversation numbers them."""
    ordered = [event_pb2.ConversationEvent.FromString(e.SerializeToString()) for e in events]
    for seq, each in enumerate(ordered, 1):
        each.conversation_seq = seq
    return ordered


events = st.lists(st.sampled_from([*GOOD, NEWER, *BAD]), max_size=5)
deliveries = st.lists(
    st.builds(
        DeliveredEvent,
        mailbox_seq=st.integers(0, 4),
        event=st.sampled_from([None, *GOOD, NEWER, *BAD]),
    ),
    max_size=5,
)
frames = st.one_of(
    deliveries.map(push),
    deliveries.map(page),
    events.map(numbered).map(page),
    events.map(history),
)


@given(frame=frames)
def test_together_events_are_judged_as_one_by_one(frame):
    message, data = read(frame)
    assert checks.problem_of(message, data) == checks.problem_of(message)


def walked(data):
    """As `codec.decode`, with each event looked at by itself."""
    message = codec.decode_structure(ServerFrame, data)
    problem = checks.problem_of(message)
    if problem is not None:
        raise codec.violation(message, problem)
    return message


def outcome(decode, data):
    """What decoding gives: the frame, or how it is refused."""
    try:
        return decode(data)
    except ContractViolation as violation:
        return violation.reason, violation.field


@given(events=st.lists(st.sampled_from(GOOD), min_size=1, max_size=3), data=st.data())
def test_no_bytes_get_past_the_walk_together(events, data):
    whole = push(numbered(events)).SerializeToString()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 8)))
    changed = whole[:start] + data.draw(st.binary(max_size=8)) + whole[end:]
    got = outcome(lambda frame: codec.decode(ServerFrame, frame), changed)
    assert got == outcome(walked, changed)


def pushed(*encoded_events):
    deliveries = [wire.number(1, 9) + wire.delimited(2, each) for each in encoded_events]
    return wire.delimited(ServerFrame.PUSH_EVENTS_FIELD_NUMBER, wire.repeated(1, deliveries))


def test_a_number_packed_into_a_list_is_no_number():
    """To a reader of lists it would be one."""
    seqless = event(conversation_seq=0).SerializeToString()
    packed = seqless + wire.delimited(2, b"\x03")
    with pytest.raises(ContractViolation) as refused:
        codec.decode(ServerFrame, pushed(packed))
    assert refused.value.reason is Reason.WRONG_TYPE


def test_a_kind_below_0_does_not_make_up_for_a_doubled_field():
    """Written anew, such a kind takes five bytes more, as many as the name that is lost."""
    kindless = event(kind=0, client_msg_id="one").SerializeToString()
    doubled = kindless + b"\x20\xff\xff\xff\xff\x0f" + wire.delimited(8, b"two")
    assert codec.decode_structure(ServerFrame, pushed(doubled))
    with pytest.raises(ContractViolation) as refused:
        codec.decode(ServerFrame, pushed(doubled))
    assert refused.value.field == "push_events.events[0].event.kind"


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(make(events), id=f"{make.__name__}-{name}")
        for name, group in {
            "none": [],
            "messages": [event(), event(message=event_pb2.Message())],
            "reactions": [reacted(), reacted()],
            "changes": [joined(), joined()],
            "messages-and-reactions": [event(), reacted(), event()],
        }.items()
        for make, events in (
            (push, numbered(group)),
            (page, numbered(group)),
            (history, in_order(group)),
        )
    ],
)
def test_good_lists_need_no_walk(frame):
    assert checks._good_list(*read(frame))


@pytest.mark.parametrize("bad", BAD, ids=map(str, range(len(BAD))))
def test_the_bad_one_of_a_push_is_found_and_named(bad):
    message, data = read(push(numbered([event(), event(), event(), bad, event()])))
    alone = checks.problem_of(bad)
    assert alone is not None
    problem = checks.problem_of(message, data)
    assert problem == alone.inside("event").inside("events[3]").inside("push_events")


def test_what_is_not_looked_at_together_has_nothing_to_check():
    plans = [
        checks._plan(each.DESCRIPTOR)
        for each in (
            gateway_pb2.PushEvents,
            MailboxPage,
            HistoryPage,
            DeliveredEvent,
            event_pb2.ConversationEvent,
        )
    ]
    looked_at = [
        (plan.enums, [n for n, _ in plan.repeated], [n for n, _ in plan.singular], plan.oneofs)
        for plan in plans
    ]
    assert looked_at == [
        ((), ["events"], [], ()),
        ((), ["events"], [], ()),
        ((), ["events"], [], ()),
        ((), [], ["event"], ()),
        (("kind",), [], [], ()),
    ]
