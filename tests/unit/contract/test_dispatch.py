"""GroupDispatch by splicing: the same bytes as protobuf's own, and core terms back."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.contract import samples

from qim.conversation.v1 import event_pb2
from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch
from qim.dispatch.v1.group_dispatch_pb2 import LaneBlock as LaneBlockMessage
from qimd.contract import codec, dispatch, wire
from qimd.contract.dispatch import decode_dispatch, encode_blocks, encode_dispatch
from qimd.contract.violation import ContractViolation, ReaderTooOld, Reason
from qimd.core.ids import ConversationId, TenantId, UserId, dispatch_id
from qimd.core.parameters import (
    DISPATCH_CHUNK_RECIPIENTS,
    GROUP_DISPATCH_BYTES_MAX,
    ID_BYTES_MAX,
    LANES,
)
from qimd.core.records import ConversationKey, Event, EventKind, LaneBlock

BLOCKS = (LaneBlock(2, (UserId("ann"), UserId("bob"))), LaneBlock(5, (UserId("eve"),)))
EVENT = Event(
    key=samples.KEY,
    conversation_seq=3,
    event_id=samples.EVENT_ID,
    kind=EventKind.MESSAGE,
    sender=samples.SENDER,
    sender_device=samples.DEVICE,
    created_at_ms=1_700_000_000_000,
    membership_version=1,
    routing_version=1,
    chunk_recipients=512,
    encoded=b"",
    trace_parent="00-trace",
)


def record(event=EVENT, blocks=BLOCKS, **changes):
    fields = {
        "fencing_epoch": 7,
        "mailbox_shard": 1,
        "chunk_index": 1,
        "chunk_count": 2,
        "log_identity": "cluster/topic",
        "blocks": encode_blocks(blocks),
    }
    return encode_dispatch(event, **{**fields, **changes})


def test_header_and_blocks_joined_are_the_plain_encoding():
    plain = samples.dispatch(
        dispatch_id=dispatch_id(samples.EVENT_ID, 1, 1),
        chunk_index=1,
        chunk_count=2,
        trace_parent="00-trace",
    )
    assert record() == codec.encode(plain)


user_ids = st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text)
lane_blocks = st.dictionaries(
    st.integers(0, LANES - 1), st.sets(user_ids, min_size=1, max_size=4), min_size=1, max_size=5
).map(
    lambda by_lane: tuple(
        LaneBlock(lane, tuple(UserId(user) for user in sorted(users, key=str.encode)))
        for lane, users in sorted(by_lane.items())
    )
)


@given(lane_blocks, st.integers(1, (1 << 53) - 1), st.integers(0, 200), user_ids)
def test_splicing_equals_protobufs_encoding_and_comes_back(blocks, epoch, chunk, sender):
    event = replace(EVENT, sender=UserId(sender))
    data = record(event, blocks, fencing_epoch=epoch, chunk_index=chunk, chunk_count=chunk + 1)
    assert codec.encode(codec.decode(GroupDispatch, data)) == data
    read = decode_dispatch(data)
    assert read.blocks == blocks
    assert (read.fencing_epoch, read.chunk_index, read.ref.sender) == (epoch, chunk, sender)


def test_a_record_comes_back_in_core_terms():
    read = decode_dispatch(record())
    assert read.ref.key == EVENT.key
    assert read.ref.conversation_seq == 3
    assert read.ref.event_id == EVENT.event_id
    assert read.ref.kind == EventKind.MESSAGE
    assert read.ref.created_at_ms == EVENT.created_at_ms
    assert read.dispatch_id == dispatch_id(EVENT.event_id, 1, 1)
    assert (read.sender_device, read.membership_version, read.routing_version) == ("phone", 1, 1)
    assert (read.mailbox_shard, read.chunk_count, read.min_reader_version) == (1, 2, 1)
    assert (read.log_identity, read.trace_parent) == ("cluster/topic", "00-trace")
    assert read.lane_mask == encode_blocks(BLOCKS).lane_mask == 1 << 2 | 1 << 5
    assert read.recipients == encode_blocks(BLOCKS).recipients == 3


def test_an_administrators_membership_change_has_no_sender():
    event = replace(EVENT, kind=EventKind.MEMBERSHIP, sender=None, sender_device=None)
    read = decode_dispatch(record(event))
    assert read.ref.sender is None
    assert read.sender_device is None


def test_the_digest_is_of_what_the_event_fixes_alone():
    digest = decode_dispatch(record()).content_digest
    assert len(digest) == 16
    later = replace(EVENT, created_at_ms=1, routing_version=9, trace_parent="")
    same = [
        record(fencing_epoch=8),
        record(log_identity="other/topic"),
        record(later),
        record() + wire.delimited(samples.UNKNOWN_FIELD, b"newer"),
    ]
    assert {decode_dispatch(data).content_digest for data in same} == {digest}


@pytest.mark.parametrize(
    "event",
    [
        replace(EVENT, key=ConversationKey(TenantId("other"), EVENT.key.conversation)),
        replace(EVENT, key=ConversationKey(EVENT.key.tenant, ConversationId("other"))),
        replace(EVENT, conversation_seq=4),
        replace(EVENT, kind=EventKind.REACTION),
        replace(EVENT, sender=UserId("bob")),
        replace(EVENT, membership_version=2),
    ],
)
def test_the_digest_changes_with_each_part_of_the_content(event):
    assert decode_dispatch(record(event)).content_digest != decode_dispatch(record()).content_digest


def test_the_digest_changes_with_the_recipients():
    others = (BLOCKS[0], LaneBlock(6, BLOCKS[1].users)), (BLOCKS[0],)
    digests = {decode_dispatch(record(blocks=blocks)).content_digest for blocks in others}
    assert len(digests | {decode_dispatch(record()).content_digest}) == 3


def test_the_digest_ignores_what_a_newer_writer_adds_inside_a_block():
    message = codec.decode(GroupDispatch, record())
    block = message.blocks[1]
    block.MergeFromString(wire.delimited(samples.UNKNOWN_FIELD, b"newer"))
    data = codec.encode(message)
    assert data != record()
    assert decode_dispatch(data).content_digest == decode_dispatch(record()).content_digest


@pytest.mark.parametrize(
    "data", [pytest.param(data, id=name) for name, data in samples.bad_dispatches().items()]
)
def test_a_broken_record_is_refused(data):
    with pytest.raises(ContractViolation):
        decode_dispatch(data)


def test_a_record_for_a_newer_reader_is_not_taken_for_a_broken_one():
    data = samples.plain(samples.dispatch(min_reader_version=2, blocks=[]))
    with pytest.raises(ReaderTooOld):
        decode_dispatch(data)


def test_a_kind_of_a_newer_release_is_carried():
    """COD-01: binary number 9 is kept and re-emitted unchanged."""
    assert decode_dispatch(record(replace(EVENT, kind=9))).ref.kind == 9


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ({"fencing_epoch": 0}, Reason.ZERO, "fencing_epoch"),
        ({"fencing_epoch": 1 << 53}, Reason.DOMAIN, "fencing_epoch"),
        ({"chunk_index": 2}, Reason.DOMAIN, "chunk_index"),
        ({"log_identity": ""}, Reason.MISSING, "log_identity"),
        ({"event": replace(EVENT, sender=None)}, Reason.MISSING, "sender_user_id"),
        ({"event": replace(EVENT, conversation_seq=0)}, Reason.ZERO, "conversation_seq"),
    ],
)
def test_a_record_that_would_be_refused_is_never_made(changes, reason, field):
    with pytest.raises(ContractViolation) as refused:
        record(**changes)
    assert (refused.value.reason, refused.value.field) == (reason, field)


@pytest.mark.parametrize(
    "blocks",
    [
        (),
        (LaneBlock(2, ()),),
        (LaneBlock(2, (UserId(""),)),),
        (LaneBlock(64, (UserId("a"),)),),
        (LaneBlock(2, (UserId("a"),)), LaneBlock(2, (UserId("b"),))),
        (LaneBlock(3, (UserId("a"),)), LaneBlock(2, (UserId("b"),))),
        (LaneBlock(2, (UserId("b"), UserId("a"))),),
        (LaneBlock(2, (UserId("a"), UserId("a"))),),
    ],
)
def test_blocks_out_of_order_or_empty_are_never_made(blocks):
    with pytest.raises(ContractViolation):
        encode_blocks(blocks)


def test_the_order_of_users_is_that_of_their_bytes():
    users = tuple(sorted(("z", "é", "\uffee", "😀"), key=str.encode))
    assert users == tuple(sorted(users))
    assert encode_blocks((LaneBlock(0, tuple(map(UserId, users))),)).recipients == 4


def test_the_largest_record_stays_within_the_published_bound():
    users = sorted(f"{index:03d}".rjust(ID_BYTES_MAX, "x") for index in range(512))
    assert len(users) == DISPATCH_CHUNK_RECIPIENTS
    blocks = tuple(
        LaneBlock(lane, tuple(map(UserId, users[lane * 8 : lane * 8 + 8]))) for lane in range(LANES)
    )
    longest = "x" * ID_BYTES_MAX
    event = replace(
        EVENT,
        key=ConversationKey(TenantId(longest), ConversationId(longest)),
        sender=UserId(longest),
        conversation_seq=(1 << 53) - 1,
        trace_parent="t" * 55,
    )
    data = record(event, blocks, fencing_epoch=(1 << 53) - 1, log_identity="l" * 300)
    assert len(data) <= GROUP_DISPATCH_BYTES_MAX


def test_blocks_is_the_highest_field_and_the_message_is_never_nested():
    """Splicing stands on the first; the second keeps a missing epoch from spoiling a parent."""
    assert max(GroupDispatch.DESCRIPTOR.fields_by_number) == GroupDispatch.BLOCKS_FIELD_NUMBER
    assert LaneBlockMessage.DESCRIPTOR.fields_by_name["lane"].number == 1
    assert event_pb2.EVENT_KIND_MESSAGE == EventKind.MESSAGE


def outcome(read, data):
    """What reading gives: the record, or how it is refused."""
    try:
        return read(data)
    except ContractViolation as violation:
        return violation.reason, violation.field
    except ReaderTooOld:
        return ReaderTooOld


@given(data=st.data())
def test_blocks_that_were_read_before_are_judged_no_other_way(data):
    whole = record()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 8)))
    new = data.draw(st.binary(max_size=8) | st.sampled_from([b"\x92\x01\x00", whole, whole[-16:]]))
    changed = whole[:start] + new + whole[end:]
    known = outcome(dispatch._decode_whole, changed)
    assert outcome(decode_dispatch, changed) == known
    assert outcome(decode_dispatch, changed) == known


def test_what_stands_between_header_and_blocks_spoils_a_record():
    whole, blocks = record(), encode_blocks(BLOCKS).data
    header = whole.removesuffix(blocks)
    for between in (wire.delimited(18, b"00-trace"), wire.delimited(900, b"newer")):
        assert outcome(decode_dispatch, header + between + blocks) == (Reason.NON_CANONICAL, "")


def test_messages_to_the_same_recipients_share_their_blocks():
    later = replace(EVENT, conversation_seq=4)
    assert decode_dispatch(record()).blocks is decode_dispatch(record(later)).blocks
