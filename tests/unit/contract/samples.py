"""Valid messages, and the ways to break them that every side of the contract must refuse."""

import random

from qim.conversation.v1 import event_pb2
from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch, LaneBlock
from qim.gateway.v1.gateway_pb2 import ClientFrame, OutgoingEvent, Ping, Pong, Send, ServerFrame
from qimd.contract import wire
from qimd.core.ids import ConversationId, DeviceId, TenantId, UserId, event_id
from qimd.core.records import ConversationKey

KEY = ConversationKey(TenantId("acme"), ConversationId("room/1:😀"))
SENDER = UserId("ann")
DEVICE = DeviceId("phone")
EVENT_ID = event_id(KEY.tenant, KEY.conversation, 3)

UNKNOWN_FIELD = 1000


def dispatch(**changes: object) -> GroupDispatch:
    fields: dict[str, object] = {
        "fencing_epoch": 7,
        "tenant_id": KEY.tenant,
        "conversation_id": KEY.conversation,
        "conversation_seq": 3,
        "event_id": EVENT_ID,
        "dispatch_id": b"d" * 16,
        "kind": event_pb2.EVENT_KIND_MESSAGE,
        "sender_user_id": SENDER,
        "sender_device_id": DEVICE,
        "created_at_ms": 1_700_000_000_000,
        "membership_version": 1,
        "routing_version": 1,
        "mailbox_shard": 1,
        "chunk_index": 0,
        "chunk_count": 1,
        "log_identity": "cluster/topic",
        "min_reader_version": 1,
        "blocks": [LaneBlock(lane=2, user_ids=["ann", "bob"]), LaneBlock(lane=5, user_ids=["eve"])],
    }
    fields.update(changes)
    return GroupDispatch(**{name: value for name, value in fields.items() if value is not None})


def plain(message: GroupDispatch | ClientFrame | ServerFrame) -> bytes:
    """What protobuf alone writes, whatever is missing."""
    return message.SerializePartialToString(deterministic=True)


def send_frame(request_id: int = 4) -> ClientFrame:
    events = [
        OutgoingEvent(client_msg_id="m1", message=event_pb2.Message(body=b"hello")),
        OutgoingEvent(client_msg_id="m2", reaction=event_pb2.Reaction(target_seq=1, reaction="👍")),
    ]
    return ClientFrame(request_id=request_id, send=Send(conversation_id="room", events=events))


def ping(request_id: int) -> ClientFrame:
    return ClientFrame(request_id=request_id, ping=Ping())


def pong(request_id: int) -> ServerFrame:
    return ServerFrame(request_id=request_id, pong=Pong(server_time_ms=9))


def groups(depth: int) -> bytes:
    """An unknown field of groups inside one another, `depth` of them."""
    start, end = wire.varint(UNKNOWN_FIELD << 3 | 3), wire.varint(UNKNOWN_FIELD << 3 | 4)
    return start * depth + end * depth


def _random(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def bad_dispatches() -> dict[str, bytes]:
    good = plain(dispatch())
    epoch = good[:2]
    assert epoch == b"\x08\x07"
    rest = good[2:]
    return {
        "empty": b"",
        "missing_epoch": plain(dispatch(fencing_epoch=None)),
        "zero_epoch": plain(dispatch(fencing_epoch=0)),
        "epoch_above_2^53": plain(dispatch(fencing_epoch=1 << 53)),
        "epoch_as_bytes": b"\x0a\x01\x07" + rest,
        "epoch_as_fixed64": b"\x09" + (7).to_bytes(8, "little") + rest,
        "epoch_as_fixed32": b"\x0d" + (7).to_bytes(4, "little") + rest,
        "epoch_also_as_bytes": good + b"\x0a\x01\x07",
        "doubled_epoch": epoch + epoch + rest,
        "doubled_epoch_of_another_owner": epoch + b"\x08\x09" + rest,
        "concatenated": good + good,
        "padded_varint": b"\x08\x87\x00" + rest,
        "epoch_last": rest + epoch,
        "spelled_default": good.replace(b"\x78\x01", b"\x70\x00\x78\x01"),
        "no_blocks": plain(dispatch(blocks=[])),
        "block_without_users": plain(dispatch(blocks=[LaneBlock(lane=2)])),
        "block_with_an_empty_user": plain(dispatch(blocks=[LaneBlock(lane=2, user_ids=[""])])),
        "lanes_out_of_order": plain(
            dispatch(blocks=[LaneBlock(lane=5, user_ids=["a"]), LaneBlock(lane=2, user_ids=["b"])])
        ),
        "lane_twice": plain(dispatch(blocks=[LaneBlock(lane=2, user_ids=["a"])] * 2)),
        "lane_64": plain(dispatch(blocks=[LaneBlock(lane=64, user_ids=["a"])])),
        "lane_as_bytes": plain(dispatch(blocks=[])) + b"\x9a\x01\x06\x12\x01a\x0a\x01\x02",
        "short_event_id": plain(dispatch(event_id=b"e" * 15)),
        "long_dispatch_id": plain(dispatch(dispatch_id=b"d" * 17)),
        "no_event_id": plain(dispatch(event_id=b"")),
        "seq_zero": plain(dispatch(conversation_seq=0)),
        "seq_above_2^53": plain(dispatch(conversation_seq=1 << 53)),
        "kind_unspecified": plain(dispatch(kind=0)),
        "kind_negative": plain(dispatch(kind=-1)),
        "no_tenant": plain(dispatch(tenant_id="")),
        "no_conversation": plain(dispatch(conversation_id="")),
        "no_sender_of_a_message": plain(dispatch(sender_user_id="")),
        "chunk_beyond_count": plain(dispatch(chunk_index=1)),
        "no_log_identity": plain(dispatch(log_identity="")),
        "reader_version_zero": plain(dispatch(min_reader_version=0)),
        "not_utf8": good.replace(b"acme", b"ac\xff\xfe"),
        "cut_short": good[:-1],
        "101_deep": good + groups(101),
        "random": _random(1, 200),
        "random_short": _random(2, 9),
    }


def bad_client_frames() -> dict[str, bytes]:
    good = plain(send_frame())
    return {
        "empty": b"",
        "no_request_id": plain(ClientFrame(ping=Ping())),
        "request_id_as_bytes": b"\x0a\x01\x04" + plain(ClientFrame(ping=Ping())),
        "no_kind": b"\x08\x04",
        "doubled_request_id": b"\x08\x03" + good,
        "doubled_send": good + good[2:],
        "concatenated": good + good,
        "two_arms": good + plain(ping(4))[2:],
        "send_as_varint": b"\x08\x04\x20\x01",
        "padded_varint": b"\x08\x84\x00" + good[2:],
        "client_msg_id_as_varint": b"\x08\x04\x22\x08\x0a\x02ab\x12\x02\x08\x01",
        "field_number_0_in_a_ping": b"\x08\x04\x5a\x02\x00\x01",
        "report_without_kind": b"\x08\x04\x52\x00",
        "cut_short": good[:-1],
        "101_deep": good + groups(101),
        "random": _random(3, 200),
    }


def bad_server_frames() -> dict[str, bytes]:
    good = plain(pong(4))
    return {
        "empty": b"",
        "answer_without_request_id": plain(ServerFrame(pong=Pong(server_time_ms=1))),
        "push_with_request_id": b"\x08\x04\x32\x00",
        "no_kind": b"\x08\x04",
        "concatenated": good + good,
        "two_arms": good + b"\x4a\x00",
        "delivered_without_event": b"\x32\x04\x0a\x02\x08\x01",
        "send_result_without_outcome": b"\x08\x04\x22\x06\x12\x04\x0a\x02m1",
        "error_without_code": b"\x08\x04\x82\x01\x02\x18\x01",
        "rate_limited_without_delay": b"\x08\x04\x82\x01\x02\x08\x09",
        "kicked_without_reason": b"\x6a\x00",
        "cut_short": good[:-1],
        "101_deep": good + groups(101),
        "random": _random(5, 200),
    }
