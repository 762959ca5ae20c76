"""Records of a dispatch log and what a mailbox makes of them, by the mailbox's own logic."""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from qimd.core.ids import UserId, content_digest, dispatch_id, event_id
from qimd.core.records import Dispatch, Event, EventKind, EventRef, LaneBlock
from qimd.core.seq import SEQ_NONE, MailboxSeq, before_offset, mailbox_seq
from qimd.mailbox import logic
from qimd.mailbox.logic import Arrived
from qimd.ports.mailbox import EpochBoundary, EpochMark, ShardState
from qimd.ports.store import key_of

KEY: Final = key_of("acme", "standup")
LOG_IDENTITY: Final = "cluster/topic"
BOUNDARY: Final = EpochBoundary(1, 0, LOG_IDENTITY)
AT_MS: Final = 1_700_000_000_000


class Record(NamedTuple):
    """A GroupDispatch: an event stamped with an epoch, and which owner produced it (1, 2 …)."""

    seq: int
    message: int
    epoch: int
    producer: int


class Entry(NamedTuple):
    """What a member finds in the mailbox."""

    seq: int
    message: int


class View(NamedTuple):
    """The mailbox after a log. `overtaken` tells of a producer that had a successor by then."""

    entries: tuple[Entry, ...] = ()
    marks: tuple[EpochMark, ...] = ()
    newest_producer: int = 0
    overtaken: str = ""


@cache
def event_of(seq: int) -> Event:
    """A committed event as the fanout holds it."""
    return Event(
        key=KEY,
        conversation_seq=seq,
        event_id=event_id(KEY.tenant, KEY.conversation, seq),
        kind=EventKind.MESSAGE,
        sender=UserId("anna"),
        sender_device=None,
        created_at_ms=AT_MS,
        membership_version=1,
        routing_version=1,
        chunk_recipients=512,
        encoded=b"",
    )


@cache
def dispatch_of(seq: int, epoch: int, lanes: tuple[int, ...]) -> Dispatch:
    """An event's one record: a user in each of the lanes."""
    event = event_of(seq)
    return Dispatch(
        fencing_epoch=epoch,
        ref=EventRef(KEY, seq, event.event_id, event.kind, event.sender, event.created_at_ms),
        dispatch_id=dispatch_id(event.event_id, 0, 0),
        sender_device=None,
        membership_version=1,
        routing_version=1,
        mailbox_shard=0,
        chunk_index=0,
        chunk_count=1,
        log_identity=LOG_IDENTITY,
        min_reader_version=1,
        trace_parent="",
        blocks=tuple(LaneBlock(lane, (UserId(f"user {lane}"),)) for lane in lanes),
        content_digest=content_digest(event.event_id),
    )


def shard_state(
    position: MailboxSeq,
    next_offset: int,
    lagging: tuple[tuple[int, MailboxSeq], ...] = (),
    lane_last: tuple[MailboxSeq, ...] = (SEQ_NONE,) * 64,
) -> ShardState:
    """A shard as its owner holds it."""
    return ShardState(
        shard=0,
        term=1,
        next_offset=next_offset,
        position=position,
        lagging=dict(lagging),
        floor=SEQ_NONE,
        lane_last=lane_last,
        boundaries=(BOUNDARY,),
        buckets=(),
    )


_FRESH: Final = shard_state(before_offset(1, 0), 0)


def extend(view: View, offset: int, record: Record) -> View:
    """The mailbox after one more record: the epoch filter and plan of the room, the dedupe by
    dispatch_id that the store promises.
    """
    dispatch = dispatch_of(record.seq, record.epoch, (3,))
    arrived = Arrived(mailbox_seq(1, offset), dispatch, AT_MS)
    plan = logic.plan(_FRESH, {KEY: view.marks}, [arrived])
    entries, overtaken = view.entries, view.overtaken
    if plan.records and all(entry.seq != record.seq for entry in entries):
        entries = (*entries, Entry(record.seq, record.message))
        if record.producer < view.newest_producer:
            overtaken = f"{record.seq} came from owner {record.producer}, which had a successor"
    marks = (*view.marks, *(mark for _, mark in plan.marks))
    return View(entries, marks, max(view.newest_producer, record.producer), overtaken)
