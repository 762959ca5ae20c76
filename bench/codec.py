"""`codec_group_dispatch_200`, `codec_frame_100`, `codec_send_100`: the codec beside protobuf's own.

Decoding is compared with what any reader must do: parse, and read the fields into lists (a record
is serialised again too, since its bytes are compared). A strictly decoded record comes in core
terms, its fields read. A strictly decoded frame is a message whose fields were read to check them,
and whoever uses it reads them again: in `…_read` both sides do. A record comes as most do, with the
recipients of the one before; in `…_first` none was seen before. The members of a group of 200 are
in nearly all 64 lanes; a record of a large group has 200 that are in one or two (`…_few_lanes`).

Encoding is compared with building the same message from the same values and serialising it: the
strict encoders of records and pushes begin with those values, and a SEND is built on both sides. In
`…_encode_serialise` protobuf has its message already, as no writer has. The strict side still makes
the record's header, joins the push's events, or reads the SEND that it gives.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from operator import attrgetter
from typing import Final

from bench.harness import AT_MOST, Measure, Target, demand, each_us, in_turn
from qim.conversation.v1 import event_pb2
from qim.conversation.v1.event_pb2 import ConversationEvent, Message
from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch
from qim.dispatch.v1.group_dispatch_pb2 import LaneBlock as LaneBlockMessage
from qim.gateway.v1.gateway_pb2 import (
    ClientFrame,
    DeliveredEvent,
    OutgoingEvent,
    PushEvents,
    Send,
    ServerFrame,
)
from qimd.contract import codec
from qimd.contract.dispatch import (
    BLOCKS_CACHED_MAX,
    EncodedBlocks,
    decode_dispatch,
    encode_blocks,
    encode_dispatch,
)
from qimd.contract.events import decode_event, encode_delivered, encode_event
from qimd.contract.frames import push_frame
from qimd.core.dispatch import Chunk, plan_chunks
from qimd.core.ids import ConversationId, DeviceId, TenantId, UserId, dispatch_id, event_id
from qimd.core.records import ConversationKey, Event, EventKind, LaneBlock
from qimd.core.routing import RoutingTable
from qimd.core.seq import mailbox_seq

_TENANT: Final = TenantId("acme")
_KEY: Final = ConversationKey(_TENANT, ConversationId("harbour"))
_IDENTITY: Final = "5f0c/8e9d1d2c-0a41-4f2f-b8b1-0d4fd6f5a001"
_RECIPIENTS: Final = 200
_STRANGERS: Final = (BLOCKS_CACHED_MAX + 1) * _RECIPIENTS
"""Users whose records, read in turn, are never found among those that were read before."""
_EVENTS: Final = 100
_HEADER: Final = attrgetter(
    *(field.name for field in GroupDispatch.DESCRIPTOR.fields if field.name != "blocks")
)
"""Its values, in one call."""
_DECODE: Final = Target(AT_MOST, 1.25)
_ENCODE: Final = Target(AT_MOST, 1.5)


@dataclass(frozen=True, slots=True)
class Sizes:
    """`calls` a round."""

    calls: int = 2_000
    rounds: int = 15


SMOKE: Final = Sizes(calls=20, rounds=2)


def run(sizes: Sizes) -> Sequence[Measure]:
    """All rows."""
    return [*_dispatch(sizes), *_frames(sizes)]


# --- GroupDispatch ----------------------------------------------------------------------------


def _dispatch(sizes: Sizes) -> Sequence[Measure]:
    group = [_cut(_users(first, _RECIPIENTS))[0] for first in range(0, _STRANGERS, _RECIPIENTS)]
    large_group = _cut(_users(0, _STRANGERS))
    return [
        *_records("codec_group_dispatch_200", group, sizes),
        *_records("codec_group_dispatch_200_few_lanes", large_group, sizes),
    ]


def _records(name: str, chunks: Sequence[Chunk], sizes: Sizes) -> Sequence[Measure]:
    """Rows of records to the first chunk, and of one to each."""
    event = _event(1)
    blocks = encode_blocks(chunks[0].blocks)
    built = _built(event, chunks[0].blocks)
    records = [_spliced(_event(seq), blocks) for seq in range(1, sizes.calls + 1)]
    strangers = [_spliced(event, encode_blocks(chunk.blocks)) for chunk in chunks]

    demand(
        built.SerializeToString(deterministic=True) == records[0],
        "the spliced record is not the canonical one",
    )
    demand(_parsed(records[0])[1] == records[0], "the bare codec gives other bytes")
    demand(
        decode_dispatch(records[0]).blocks == chunks[0].blocks,
        "the strict codec gives other recipients",
    )
    return [
        _row(
            name,
            "parse, fields into lists, serialise",
            _DECODE,
            _over(decode_dispatch, records),
            _over(_parsed, records),
            sizes,
        ),
        _row(
            f"{name}_first",
            "parse, fields into lists, serialise",
            _DECODE,
            _over(decode_dispatch, strangers),
            _over(_parsed, strangers),
            sizes,
        ),
        _row(
            f"{name}_encode",
            "build, serialise",
            _ENCODE,
            lambda: _spliced(event, blocks),
            lambda: _built(event, chunks[0].blocks).SerializeToString(deterministic=True),
            sizes,
        ),
        _row(
            f"{name}_encode_serialise",
            "serialise",
            _ENCODE,
            lambda: _spliced(event, blocks),
            lambda: built.SerializeToString(deterministic=True),
            sizes,
        ),
    ]


def _parsed(data: bytes) -> tuple[object, bytes]:
    """A record's fields in lists, and its bytes anew, by protobuf alone."""
    message = GroupDispatch.FromString(data)
    lanes = [(block.lane, block.user_ids[:]) for block in message.blocks[:]]
    return (_HEADER(message), lanes), message.SerializeToString(deterministic=True)


def _event(seq: int) -> Event:
    identity = event_id(_TENANT, _KEY.conversation, seq)
    encoded = encode_event(
        key=_KEY,
        conversation_seq=seq,
        event_id=identity,
        kind=EventKind.MESSAGE,
        sender=UserId("user-000007"),
        sender_device=DeviceId("phone"),
        created_at_ms=1_790_000_000_000 + seq,
        client_msg_id=f"m-{seq}",
        membership_version=1,
        body=b"see you at the harbour at nine",
    )
    return Event(
        key=_KEY,
        conversation_seq=seq,
        event_id=identity,
        kind=EventKind.MESSAGE,
        sender=UserId("user-000007"),
        sender_device=DeviceId("phone"),
        created_at_ms=1_790_000_000_000 + seq,
        membership_version=1,
        routing_version=1,
        chunk_recipients=_RECIPIENTS,
        encoded=encoded,
    )


def _users(first: int, count: int) -> list[UserId]:
    return [UserId(f"user-{number:06}") for number in range(first, first + count)]


def _cut(users: Sequence[UserId]) -> Sequence[Chunk]:
    """The records' recipients, of a group with those members."""
    table = RoutingTable(version=1, mailbox_shards=1, writer_shards=1)
    return plan_chunks(table, _TENANT, users, _RECIPIENTS)


def _spliced(event: Event, blocks: EncodedBlocks) -> bytes:
    return encode_dispatch(
        event,
        fencing_epoch=1_790_000_000,
        mailbox_shard=0,
        chunk_index=0,
        chunk_count=1,
        log_identity=_IDENTITY,
        blocks=blocks,
    )


def _built(event: Event, blocks: Sequence[LaneBlock]) -> GroupDispatch:
    return GroupDispatch(
        fencing_epoch=1_790_000_000,
        tenant_id=event.key.tenant,
        conversation_id=event.key.conversation,
        conversation_seq=event.conversation_seq,
        event_id=event.event_id,
        dispatch_id=dispatch_id(event.event_id, 0, 0),
        kind=event_pb2.EVENT_KIND_MESSAGE,
        sender_user_id=event.sender or "",
        sender_device_id=event.sender_device or "",
        created_at_ms=event.created_at_ms,
        membership_version=event.membership_version,
        routing_version=event.routing_version,
        mailbox_shard=0,
        chunk_index=0,
        chunk_count=1,
        log_identity=_IDENTITY,
        min_reader_version=1,
        blocks=[LaneBlockMessage(lane=block.lane, user_ids=block.users) for block in blocks],
    )


# --- frames -----------------------------------------------------------------------------------


def _frames(sizes: Sizes) -> Sequence[Measure]:
    encoded = [_event(seq).encoded for seq in range(1, _EVENTS + 1)]
    seqs = [mailbox_seq(1, offset) for offset in range(_EVENTS)]
    delivered = [encode_delivered(seq, event) for seq, event in zip(seqs, encoded, strict=True)]
    push = push_frame(delivered).data
    events = [decode_event(event) for event in encoded]

    def build_push() -> ServerFrame:
        return ServerFrame(
            push_events=PushEvents(
                events=[
                    DeliveredEvent(mailbox_seq=seq, event=event)
                    for seq, event in zip(seqs, events, strict=True)
                ]
            )
        )

    pushed = build_push()
    demand(pushed.SerializeToString(deterministic=True) == push, "the joined push differs")
    send = _send_frame()
    sent = codec.encode(send)
    few = Sizes(max(1, sizes.calls // 10), sizes.rounds)
    return [
        _row(
            "codec_frame_100",
            "parse, fields into lists",
            _DECODE,
            lambda: codec.decode(ServerFrame, push),
            lambda: _fields_of_push(ServerFrame.FromString(push)),
            few,
        ),
        _row(
            "codec_frame_100_read",
            "parse, fields into lists",
            None,
            lambda: _fields_of_push(codec.decode(ServerFrame, push)),
            lambda: _fields_of_push(ServerFrame.FromString(push)),
            few,
        ),
        _row(
            "codec_frame_100_encode",
            "build, serialise",
            _ENCODE,
            lambda: push_frame(delivered),
            lambda: build_push().SerializeToString(deterministic=True),
            few,
        ),
        _row(
            "codec_frame_100_encode_serialise",
            "serialise",
            _ENCODE,
            lambda: push_frame(delivered),
            lambda: pushed.SerializeToString(deterministic=True),
            few,
        ),
        _row(
            "codec_send_100",
            "parse, fields into lists",
            _DECODE,
            lambda: codec.decode(ClientFrame, sent),
            lambda: _fields_of_send(ClientFrame.FromString(sent)),
            few,
        ),
        _row(
            "codec_send_100_read",
            "parse, fields into lists",
            None,
            lambda: _fields_of_send(codec.decode(ClientFrame, sent)),
            lambda: _fields_of_send(ClientFrame.FromString(sent)),
            few,
        ),
        _row(
            "codec_send_100_encode",
            "build, serialise",
            _ENCODE,
            lambda: codec.encode(_send_frame()),
            lambda: _send_frame().SerializeToString(deterministic=True),
            few,
        ),
        _row(
            "codec_send_100_encode_serialise",
            "serialise",
            _ENCODE,
            lambda: codec.encode(send),
            lambda: send.SerializeToString(deterministic=True),
            few,
        ),
    ]


def _send_frame() -> ClientFrame:
    return ClientFrame(
        request_id=1,
        send=Send(
            conversation_id=_KEY.conversation,
            events=[
                OutgoingEvent(
                    client_msg_id=f"m-{number}",
                    message=Message(body=b"see you at the harbour at nine"),
                )
                for number in range(_EVENTS)
            ],
        ),
    )


def _fields_of_push(frame: ServerFrame) -> list[tuple[object, ...]]:
    return [
        (each.mailbox_seq, *_fields_of_event(each.event)) for each in frame.push_events.events[:]
    ]


def _fields_of_event(event: ConversationEvent) -> tuple[object, ...]:
    return (
        event.conversation_id,
        event.conversation_seq,
        event.event_id,
        event.kind,
        event.sender_user_id,
        event.created_at_ms,
        event.message.body,
    )


def _fields_of_send(frame: ClientFrame) -> list[tuple[object, ...]]:
    return [(each.client_msg_id, each.message.body) for each in frame.send.events[:]]


# --- rows -------------------------------------------------------------------------------------


def _over(read: Callable[[bytes], object], records: Sequence[bytes]) -> Callable[[], object]:
    """A call that reads the next record each time."""
    following = cycle(records)
    return lambda: read(next(following))


def _row(
    name: str,
    against: str,
    target: Target | None,
    strict: Callable[[], object],
    bare: Callable[[], object],
    sizes: Sizes,
) -> Measure:
    pair = in_turn(each_us(strict, sizes.calls), each_us(bare, sizes.calls), sizes.rounds)
    return Measure(name, pair.value, "µs", against, pair.against, target, pair.spread)
