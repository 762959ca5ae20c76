"""GroupDispatch: made by splicing blocks that are encoded once, read into core terms.

The recipients of a membership version are the same for every message sent under it, so their bytes
are made once (`encode_blocks`) and appended to each record's header. `blocks` has the highest field
number, hence header ‖ blocks is the canonical encoding.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Final, cast

from google.protobuf.message import DecodeError

from qim.conversation.v1 import event_pb2
from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch
from qim.dispatch.v1.group_dispatch_pb2 import LaneBlock as LaneBlockMessage
from qimd.contract import codec
from qimd.contract.checks import Problem, blocks_problem, header_problem
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
from qimd.core.records import ConversationKey, Dispatch, Event, EventRef, LaneBlock

GROUP_DISPATCH_VERSION: Final = 1
"""The min_reader_version of the records that this build writes: no field needs a newer reader."""

BLOCKS_CACHED_MAX: Final = 1_024
"""Chunks whose blocks are kept decoded: five of the largest groups, about 40 MB. The messages of a
membership version repeat the same blocks, and mailbox and session list read each."""

_CONTENT: Final = struct.Struct(">QIQ")


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
        lane_mask=sum(1 << block.lane for block in blocks),
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
    header = GroupDispatch(
        fencing_epoch=fencing_epoch,
        tenant_id=event.key.tenant,
        conversation_id=event.key.conversation,
        conversation_seq=event.conversation_seq,
        event_id=event.event_id,
        dispatch_id=dispatch_id(event.event_id, mailbox_shard, chunk_index),
        kind=cast("event_pb2.EventKind", event.kind),
        sender_user_id=event.sender or "",
        sender_device_id=event.sender_device or "",
        created_at_ms=event.created_at_ms,
        membership_version=event.membership_version,
        routing_version=event.routing_version,
        mailbox_shard=mailbox_shard,
        chunk_index=chunk_index,
        chunk_count=chunk_count,
        log_identity=log_identity,
        min_reader_version=GROUP_DISPATCH_VERSION,
        trace_parent=event.trace_parent,
    )
    problem = header_problem(header)
    if problem is None and not blocks.recipients:
        problem = Problem(Reason.MISSING, "blocks")
    if problem is not None:
        raise codec.violation(header, problem)
    return header.SerializeToString(deterministic=True) + blocks.data


def decode_dispatch(data: bytes) -> Dispatch:
    """A record in core terms.

    Raises ContractViolation for bytes that no version can read (quarantine them), and ReaderTooOld
    for a record that demands a newer reader (halt).

    A canonical record of this version is a header and blocks, each canonical by itself. Most blocks
    were read before, as those of the message before: what is known of them is used again. Whatever
    is not so is judged as a whole, to the same result.
    """
    header = codec.parse(GroupDispatch, data)
    header.ClearField("blocks")
    header.DiscardUnknownFields()
    if header.IsInitialized() and header_problem(header) is None:
        known = header.SerializeToString(deterministic=True)
        if data.startswith(known):
            encoded = data[len(known) :]
            blocks = _blocks(encoded)
            if blocks is not None:
                return _in_core_terms(header, blocks, _content_digest(header, encoded))
    return _decode_whole(data)


@lru_cache(maxsize=BLOCKS_CACHED_MAX)
def _blocks(encoded: bytes) -> tuple[LaneBlock, ...] | None:
    """The blocks that are encoded so; None for anything but good blocks in their one spelling."""
    try:
        message = GroupDispatch.FromString(encoded)
    except DecodeError:
        return None
    message.DiscardUnknownFields()
    if message.SerializePartialToString(deterministic=True) != encoded:
        return None
    lanes, users = _columns(message)
    message.ClearField("blocks")
    if message.ListFields() or blocks_problem(lanes, users):
        return None
    return _lane_blocks(lanes, users)


def _columns(message: GroupDispatch) -> tuple[list[int], list[tuple[str, ...]]]:
    """The blocks' lanes, and their users."""
    # A slice is one call into C, where iterating is one an item.
    parsed = message.blocks[:]
    return [block.lane for block in parsed], [tuple(block.user_ids[:]) for block in parsed]


def _lane_blocks(lanes: Sequence[int], users: Sequence[tuple[str, ...]]) -> tuple[LaneBlock, ...]:
    return tuple(
        map(LaneBlock._make, zip(lanes, cast("Sequence[tuple[UserId, ...]]", users), strict=True))
    )


def _decode_whole(data: bytes) -> Dispatch:
    """As `decode_dispatch`, of any record: with fields of a newer writer, or with a violation."""
    message, has_unknown = codec.read(GroupDispatch, data)
    lanes, users = _columns(message)
    problem = header_problem(message) or blocks_problem(lanes, users)
    if problem is not None:
        raise codec.violation(message, problem)
    known = _known_bytes(message) if has_unknown else data
    message.ClearField("blocks")
    encoded = known[message.ByteSize() :]
    return _in_core_terms(message, _lane_blocks(lanes, users), _content_digest(message, encoded))


def _known_bytes(message: GroupDispatch) -> bytes:
    """The record as if its writer had been of this version."""
    message.DiscardUnknownFields()
    return message.SerializeToString(deterministic=True)


def _content_digest(header: GroupDispatch, blocks: bytes) -> bytes:
    """16 bytes over what the event fixes, equal whoever wrote the record, when, and to which log.

    `blocks` is their encoding, without unknown fields.
    """
    fixed = (
        sized(header.tenant_id)
        + sized(header.conversation_id)
        + sized(header.sender_user_id)
        + _CONTENT.pack(header.conversation_seq, header.kind, header.membership_version)
    )
    return content_digest(fixed, blocks)


def _in_core_terms(
    message: GroupDispatch, blocks: tuple[LaneBlock, ...], digest: bytes
) -> Dispatch:
    sender = message.sender_user_id
    device = message.sender_device_id
    return Dispatch(
        fencing_epoch=message.fencing_epoch,
        ref=EventRef(
            key=ConversationKey(
                TenantId(message.tenant_id), ConversationId(message.conversation_id)
            ),
            conversation_seq=message.conversation_seq,
            event_id=EventId(message.event_id),
            kind=int(message.kind),
            sender=UserId(sender) if sender else None,
            created_at_ms=message.created_at_ms,
        ),
        dispatch_id=DispatchId(message.dispatch_id),
        sender_device=DeviceId(device) if device else None,
        membership_version=message.membership_version,
        routing_version=message.routing_version,
        mailbox_shard=message.mailbox_shard,
        chunk_index=message.chunk_index,
        chunk_count=message.chunk_count,
        log_identity=message.log_identity,
        min_reader_version=message.min_reader_version,
        trace_parent=message.trace_parent,
        blocks=blocks,
        content_digest=digest,
    )
