"""Views: the same bytes under other schemas say the same."""

from tests.unit.contract import samples

from qim.conversation.v1.event_pb2 import ConversationEvent
from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch
from qim.gateway.v1.gateway_pb2 import DeliveredEvent, PushEvents, ServerFrame
from qimd.contract.views import frame_columns, record_header


def test_a_record_without_its_blocks_is_its_header():
    message = samples.dispatch()
    header = record_header(samples.plain(message))
    header.DiscardUnknownFields()
    message.ClearField("blocks")
    assert header.SerializeToString() == samples.plain(message)
    known = {field.name for field in header.DESCRIPTOR.fields}
    assert known == {field.name for field in GroupDispatch.DESCRIPTOR.fields} - {"blocks"}


def test_each_field_of_the_events_of_a_frame_is_one_list():
    events = [
        ConversationEvent(conversation_id="a", conversation_seq=1, sender_user_id="ann"),
        ConversationEvent(conversation_id="b", conversation_seq=2),
        ConversationEvent(conversation_id="c", conversation_seq=3, sender_user_id="eve"),
    ]
    deliveries = [DeliveredEvent(mailbox_seq=7, event=event) for event in events]
    frame = ServerFrame(push_events=PushEvents(events=deliveries))
    delivered = frame_columns(frame.SerializeToString()).push_events.events
    assert delivered.mailbox_seq == [7, 7, 7]
    assert delivered.event.conversation_id == ["a", "b", "c"]
    assert delivered.event.conversation_seq == [1, 2, 3]
    assert delivered.event.sender_user_id == ["ann", "eve"]
    assert delivered.event.kind == []


def test_a_view_is_not_found_among_the_messages_of_the_contract():
    assert record_header(b"").DESCRIPTOR.file.pool is not GroupDispatch.DESCRIPTOR.file.pool
