"""GroupDispatch: made by splicing blocks that are encoded once, read into core terms.

The recipients of a membership version are the same for every message sent under it, so their bytes
are made once (`encode_blocks`) and appended to each record's header. `blocks` has the highest field
number, hence header ‖ blocks is the canonical encoding.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, repeat
from operator import attrgetter
from typing import Final, cast

from google.protobuf.message import DecodeError

from qim.conversation.v1 import event_pb2
from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch
from qim.dispatch.v1.group_dispatch_pb2 import LaneBlock as LaneBlockMessage
from qimd.contract import codec, wire
from qimd.contract.checks import blocks_problem, header_problem, header_values_problem
from qimd.contract.problems import Problem
from qimd.contract.views import record_header
from qimd.contract.violation import Reason
from qimd.core.ids import (
    ConversationId,
    DeviceId,
    DispatchId,
    EventId,
    TenantId,
    UserId,
    content_digest,
    dispatch_id,
    sized,
)
from qimd.core.parameters import READER_VERSION
from qimd.core.records import ConversationKey, Dispatch, Event, EventRef, LaneBlock, lane_mask

GROUP_DISPATCH_VERSION: Final = 1
"""The min_reader_version of the records that this build writes: no field needs a newer reader."""

BLOCKS_CACHED_MAX: Final = 1_024
"""Chunks whose blocks are kept decoded: five of the largest groups, about 40 MB. The messages of a
membership version repeat the same blocks, and mailbox and session list read each."""

_BLOCKS_TAG: Final = wire.tag(GroupDispatch.BLOCKS_FIELD_NUMBER, wire.LENGTH_DELIMITED)
_CONTENT: Final = struct.Struct(">QIQ")
_ids_of: Final = cast(
    "Callable[[GroupDispatch], "
    "tuple[TenantId, ConversationId, EventId, DispatchId, UserId, DeviceId]]",
    attrgetter(
        "tenant_id",
        "conversation_id",
        "event_id",
        "dispatch_id",
        "sender_user_id",
        "sender_device_id",
    ),
)
"""A header's ids, in core's types without a call for each."""


@dataclass(frozen=True, slots=True)
class EncodedBlocks:
    """A chunk's recipients, encoded and checked: what every record to them has in common."""

    data: bytes = field(repr=False)
    lane_mask: int
    """Bit i for lane i."""
    recipients: int


def encode_blocks(blocks: Sequence[LaneBlock]) -> EncodedBlocks:
    """Encode the recipients of a chunk, once for a membership version.

    Raises ContractViolation unless lanes and, within a lane, users increase strictly. Comparing
    texts is comparing their UTF-8 bytes: both follow the code points.
    """
    message = GroupDispatch(
        blocks=[LaneBlockMessage(lane=block.lane, user_ids=block.users) for block in blocks]
    )
    problem = blocks_problem([b.lane for b in blocks], [b.users for b in blocks])
    if problem is None and not all(
        before < after for block in blocks for before, after in pairwise(block.users)
    ):
        problem = Problem(Reason.DOMAIN, "blocks.user_ids")
    if problem is not None:
        raise codec.violation(message, problem)
    return EncodedBlocks(
        data=message.SerializePartialToString(deterministic=True),
        lane_mask=lane_mask(blocks),
        recipients=sum(len(block.users) for block in blocks),
    )


def encode_dispatch(
    event: Event,
    *,
    fencing_epoch: int,
    mailbox_shard: int,
    chunk_index: int,
    chunk_count: int,
    log_identity: str,
    blocks: EncodedBlocks,
) -> bytes:
    """One record of the dispatch log. Raises ContractViolation, as `codec.encode` would."""
    key = event.key
    identity = dispatch_id(event.event_id, mailbox_shard, chunk_index)
    sender = event.sender or ""
    problem = header_values_problem(
        fencing_epoch=fencing_epoch,
        tenant_id=key.tenant,
        conversation_id=key.conversation,
        conversation_seq=event.conversation_seq,
        event_id=event.event_id,
        dispatch_id=identity,
        kind=event.kind,
        sender_user_id=sender,
        chunk_index=chunk_index,
        chunk_count=chunk_count,
        log_identity=log_identity,
        min_reader_version=GROUP_DISPATCH_VERSION,
    )
    if problem is None and not blocks.recipients:
        problem = Problem(Reason.MISSING, "blocks")
    if problem is not None:
        raise codec.violation(GroupDispatch(), problem)
    # Set one by one: as arguments of the constructor they take half as long again.
    header = GroupDispatch()
    header.fencing_epoch = fencing_epoch
    header.tenant_id = key.tenant
    header.conversation_id = key.conversation
    header.conversation_seq = event.conversation_seq
    header.event_id = event.event_id
    header.dispatch_id = identity
    header.kind = cast("event_pb2.EventKind", event.kind)
    header.sender_user_id = sender
    header.sender_device_id = event.sender_device or ""
    header.created_at_ms = event.created_at_ms
    header.membership_version = event.membership_version
    header.routing_version = event.routing_version
    header.mailbox_shard = mailbox_shard
    header.chunk_index = chunk_index
    header.chunk_count = chunk_count
    header.log_identity = log_identity
    header.min_reader_version = GROUP_DISPATCH_VERSION
    header.trace_parent = event.trace_parent
    return header.SerializeToString(deterministic=True) + blocks.data


def decode_dispatch(data: bytes) -> Dispatch:
    """A record in core terms.

    Raises ContractViolation for bytes that no version can read (quarantine them), and ReaderTooOld
    for a record that demands a newer reader (halt).

    A canonical record of this version is a header and blocks, each canonical by itself. Most blocks
    were read before, as those of the message before: what is known of them is used again. Whatever
    is not so is judged as a whole, to the same result.
    """
    return _decode_parts(data) or _decode_whole(data)


def _decode_parts(data: bytes) -> Dispatch | None:
    """None for all but a good record that a writer of this version made."""
    try:
        header = record_header(data)
    except DecodeError:
        return None
    header.DiscardUnknownFields()
    canonical = header.SerializeToString(deterministic=True)
    if (
        header.min_reader_version > READER_VERSION
        or not data.startswith(canonical)
        or header_problem(header) is not None
    ):
        return None
    encoded = data[len(canonical) :]
    blocks = _blocks(encoded)
    return None if blocks is None else _in_core_terms(header, blocks, encoded)


@lru_cache(maxsize=BLOCKS_CACHED_MAX)
def _blocks(encoded: bytes) -> tuple[LaneBlock, ...] | None:
    """The blocks that are encoded so; None for anything but good blocks in their one spelling."""
    if not encoded.startswith(_BLOCKS_TAG):
        return None
    try:
        message = GroupDispatch.FromString(encoded)
    except DecodeError:
        return None
    message.DiscardUnknownFields()
    if message.SerializePartialToString(deterministic=True) != encoded:
        return None
    lanes, users = _columns(message)
    return None if blocks_problem(lanes, users) else _lane_blocks(lanes, users)


def _columns(message: GroupDispatch) -> tuple[list[int], list[tuple[str, ...]]]:
    """The blocks' lanes, and their users."""
    # A slice is one call into C, where iterating is one an item.
    parsed = message.blocks[:]
    return [block.lane for block in parsed], [tuple(block.user_ids[:]) for block in parsed]


def _lane_blocks(lanes: Sequence[int], users: Sequence[tuple[str, ...]]) -> tuple[LaneBlock, ...]:
    pairs = zip(lanes, users, strict=True)
    # What LaneBlock._make does, without its step in Python for each.
    return tuple(map(tuple.__new__, repeat(LaneBlock), pairs))


def _decode_whole(data: bytes) -> Dispatch:
    """As `decode_dispatch`, of any record: with fields of a newer writer, or with a violation."""
    message, has_unknown = codec.read(GroupDispatch, data)
    lanes, users = _columns(message)
    problem = header_problem(message) or blocks_problem(lanes, users)
    if problem is not None:
        raise codec.violation(message, problem)
    known = _known_bytes(message) if has_unknown else data
    message.ClearField("blocks")
    return _in_core_terms(message, _lane_blocks(lanes, users), known[message.ByteSize() :])


def _known_bytes(message: GroupDispatch) -> bytes:
    """The record as if its writer had been of this version."""
    message.DiscardUnknownFields()
    return message.SerializeToString(deterministic=True)


def _in_core_terms(
    header: GroupDispatch, blocks: tuple[LaneBlock, ...], encoded: bytes
) -> Dispatch:
    """The record of a header and blocks. `encoded` are these, without unknown fields."""
    tenant, conversation, event, dispatch, sender, device = _ids_of(header)
    seq, kind = header.conversation_seq, header.kind
    membership_version = header.membership_version
    fixed = (
        sized(tenant)
        + sized(conversation)
        + sized(sender)
        + _CONTENT.pack(seq, kind, membership_version)
    )
    return Dispatch(
        fencing_epoch=header.fencing_epoch,
        ref=EventRef(
            key=ConversationKey(tenant, conversation),
            conversation_seq=seq,
            event_id=event,
            kind=int(kind),
            sender=sender or None,
            created_at_ms=header.created_at_ms,
        ),
        dispatch_id=dispatch,
        sender_device=device or None,
        membership_version=membership_version,
        routing_version=header.routing_version,
        mailbox_shard=header.mailbox_shard,
        chunk_index=header.chunk_index,
        chunk_count=header.chunk_count,
        log_identity=header.log_identity,
        min_reader_version=header.min_reader_version,
        trace_parent=header.trace_parent,
        blocks=blocks,
        content_digest=content_digest(fixed, encoded),
    )
