"""Events of a page or push are checked a field after the other: with the walk's verdict on each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.contract import samples

from qim.conversation.v1 import event_pb2
from qim.gateway.v1 import gateway_pb2
from qim.gateway.v1.gateway_pb2 import DeliveredEvent, PushEvents, ServerFrame
from qimd.contract import checks

MESSAGE = event_pb2.EVENT_KIND_MESSAGE
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


def joined(**changes):
    change = event_pb2.MembershipChange(added_user_ids=["ann"])
    plain = {"sender_user_id": "", "client_msg_id": "", "message": None}
    return event(**{**plain, "kind": MEMBERSHIP, "membership_change": change, **changes})


GOOD = [event(), joined(), event(kind=900, message=None)]
BAD = [
    event(conversation_id=""),
    event(conversation_seq=0),
    event(conversation_seq=1 << 53),
    event(event_id=b"short"),
    event(kind=0),
    event(kind=-1),
    event(sender_user_id=""),
    event(client_msg_id=""),
    event(message=None),
    event(kind=event_pb2.EVENT_KIND_REACTION),
    joined(membership_change=None),
]


@given(events=st.lists(st.sampled_from(GOOD + BAD), min_size=1, max_size=6))
def test_together_nothing_passes_that_the_walk_refuses_alone(events):
    if checks._good_events(events):
        assert not any(checks.problem_of(each) for each in events)


@pytest.mark.parametrize("events", [[event()] * 3, [joined()] * 3], ids=["sent", "joined"])
def test_events_of_one_kind_need_no_walk(events):
    assert checks._good_events(events)


@pytest.mark.parametrize("bad", BAD, ids=map(str, range(len(BAD))))
def test_the_bad_one_of_a_push_is_found_and_named(bad):
    push = [DeliveredEvent(mailbox_seq=1 + place, event=event()) for place in range(5)]
    push[3].event.CopyFrom(bad)
    problem = checks.problem_of(ServerFrame(push_events=PushEvents(events=push)))
    alone = checks.problem_of(bad)
    assert alone is not None
    assert problem == alone.inside("event").inside("events[3]").inside("push_events")


def test_a_delivery_without_event_or_seq_is_found():
    for empty, field in (
        (DeliveredEvent(mailbox_seq=9), "event"),
        (DeliveredEvent(event=event()), "mailbox_seq"),
    ):
        page = gateway_pb2.MailboxPage(events=[empty])
        problem = checks.problem_of(ServerFrame(request_id=1, mailbox_page=page))
        assert problem is not None
        assert problem.field == f"mailbox_page.events[0].{field}"
