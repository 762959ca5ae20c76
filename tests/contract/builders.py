"""Values for the suites. Bytes of events are opaque to the ports, so they are short and telling."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from qimd.core.ids import (
    ConversationId,
    DeviceId,
    EventId,
    TenantId,
    UserId,
    content_digest,
    dispatch_id,
    event_id,
)
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal
from qimd.core.records import (
    ConversationKey,
    DeviceKey,
    Event,
    EventKind,
    EventRef,
    LaneBlock,
    UserKey,
)
from qimd.ports.store import CommitStep, IdempotencyKey, NewEvent

ODD_IDS = (
    "a/b",
    "a:b",
    "a",
    "b/a",
    "🦜",
    "👩‍👩‍👧",
    "שלום עולם",
    "é" * 64,
    "x" * 128,
    "'; DROP TABLE events; --",
    "%_\\",
)
"""Ids that a careless join, quotation or comparison would take for others."""

T = TypeVar("T")

ACME = TenantId("acme")
RIVAL = TenantId("rival")
ANNA, BEN, CARL, DORA = (UserId(name) for name in ("anna", "ben", "carl", "dora"))
START_MS = 1_700_000_000_000


def key(conversation: str = "standup", tenant: str = ACME) -> ConversationKey:
    return ConversationKey(TenantId(tenant), ConversationId(conversation))


def user(name: str = ANNA, tenant: str = ACME) -> UserKey:
    return UserKey(TenantId(tenant), UserId(name))


def device(name: str = ANNA, device_id: str = "phone", tenant: str = ACME) -> DeviceKey:
    return DeviceKey(TenantId(tenant), UserId(name), DeviceId(device_id))


def ids(names: Iterable[str]) -> tuple[UserId, ...]:
    return tuple(UserId(name) for name in sorted(names, key=str.encode))


def event(
    seq: int,
    conversation: ConversationKey | None = None,
    *,
    kind: int = EventKind.MESSAGE,
    sender: UserId | None = ANNA,
    added: Iterable[str] = (),
    removed: Iterable[str] = (),
    created_at_ms: int = 0,
    text: str = "hello",
) -> Event:
    of = conversation or key()
    return Event(
        key=of,
        conversation_seq=seq,
        event_id=event_id(of.tenant, of.conversation, seq),
        kind=kind,
        sender=sender,
        sender_device=DeviceId("phone") if sender else None,
        created_at_ms=created_at_ms or START_MS + seq,
        membership_version=1,
        routing_version=1,
        chunk_recipients=512,
        encoded=f"{of.tenant}|{of.conversation}|{seq}|{text}".encode(),
        trace_parent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        added=ids(added),
        removed=ids(removed),
    )


def membership(
    seq: int,
    conversation: ConversationKey | None = None,
    *,
    added: Iterable[str] = (),
    removed: Iterable[str] = (),
    sender: UserId | None = None,
) -> Event:
    return event(
        seq,
        conversation,
        kind=EventKind.MEMBERSHIP,
        sender=sender,
        added=added,
        removed=removed,
    )


def new(of: Event, client_msg_id: str = "") -> NewEvent:
    """The event as its writer commits it; a membership change has no idempotency key."""
    idempotency = None
    if of.kind != EventKind.MEMBERSHIP and of.sender is not None:
        idempotency = IdempotencyKey(of.sender, client_msg_id or f"m{of.conversation_seq}")
    name = "" if idempotency is None else idempotency.client_msg_id
    return NewEvent(of, idempotency, content_digest(of.encoded), name)


def step(
    epoch: int,
    expected_head: int,
    events: Sequence[NewEvent],
    *,
    conversation: ConversationKey | None = None,
    request_id: bytes | None = None,
    writer_shard: int = 0,
) -> CommitStep:
    return CommitStep(
        request_id=request_id or f"request {expected_head:8}".encode(),
        writer_shard=writer_shard,
        epoch=epoch,
        key=conversation or key(),
        expected_head=expected_head,
        events=events,
    )


def ref(of: Event) -> EventRef:
    return EventRef(of.key, of.conversation_seq, of.event_id, of.kind, of.sender, of.created_at_ms)


def block(lane: int, *users: str) -> LaneBlock:
    return LaneBlock(lane, ids(users))


def dispatch_of(event: EventId, shard: int = 0, chunk: int = 0) -> bytes:
    return dispatch_id(event, shard, chunk)


def value(outcome: Outcome[T]) -> T:
    """What an applied step gave."""
    assert isinstance(outcome, Applied), outcome
    return outcome.value


def refused(outcome: Outcome[T]) -> Refusal:
    """Why a step was refused."""
    assert isinstance(outcome, NotApplied), outcome
    return outcome.refusal
