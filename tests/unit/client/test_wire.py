"""What the contract's messages become in the client's hands."""

from qim.conversation.v1.event_pb2 import ConversationEvent
from qim.gateway.v1 import gateway_pb2
from qimd.client.wire import delivered
from qimd.ctl.commands.user import _event_row


def test_an_event_of_a_newer_kind_loses_nothing_but_what_only_a_newer_client_can_read() -> None:
    """COD-01: kind = 9, with a content that this build does not know: the number is kept and shown,
    and so is every other field, by the SDK and by qimctl."""
    newer_content = b"\xa2\x06\x03new"
    event = ConversationEvent(
        conversation_id="c",
        conversation_seq=7,
        event_id=b"e" * 16,
        kind=9,
        sender_user_id="ann",
        sender_device_id="phone",
        created_at_ms=5,
        client_msg_id="m",
    )
    event.MergeFromString(newer_content)
    page = gateway_pb2.MailboxPage(
        events=[gateway_pb2.DeliveredEvent(mailbox_seq=256, event=event)]
    )
    received = gateway_pb2.MailboxPage.FromString(page.SerializeToString())
    [shown] = delivered(received.events)
    assert (shown.kind, shown.seq, shown.mailbox_seq) == (9, 7, 256)
    assert (shown.conversation, shown.event_id) == ("c", b"e" * 16)
    assert (shown.sender, shown.sender_device, shown.client_msg_id) == ("ann", "phone", "m")
    assert (shown.created_at_ms, shown.body) == (5, b"")
    row = _event_row(shown)
    assert (row["kind"], row["conversation_seq"], row["sender"]) == ("kind 9", 7, "ann")
    assert received.events[0].event.SerializeToString() == event.SerializeToString()
