"""A writer and fanout in miniature: commits events to a memory deployment and dispatches them.

For tests of what stands behind the log. It uses the ports as the real ones do, without their care.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from qimd.adapters.memory.cluster import MemoryCluster
from qimd.contract.dispatch import encode_blocks, encode_dispatch
from qimd.contract.events import encode_event
from qimd.core.dispatch import plan_chunks
from qimd.core.ids import DeviceId, UserId, event_id
from qimd.core.outcome import Applied, Outcome
from qimd.core.parameters import DISPATCH_CHUNK_RECIPIENTS
from qimd.core.records import ConversationKey, Event, EventKind
from qimd.core.routing import RoutingTable
from qimd.ports.data import Backends
from qimd.ports.log import ProduceRecord
from qimd.ports.runtime import Runtime
from qimd.ports.store import CommitStep, NewEvent, ShardKind, key_of


def applied(outcome: Outcome[object]) -> object:
    """The step's value; fails the test if it was not applied."""
    assert isinstance(outcome, Applied), outcome
    return outcome.value


@dataclass
class Chat:
    """Conversations of one tenant, all of writer shard 0, under one fencing epoch."""

    cluster: MemoryCluster
    backends: Backends
    table: RoutingTable
    runtime: Runtime
    tenant: str = "acme"
    epoch: int = 0
    chunk_recipients: int = DISPATCH_CHUNK_RECIPIENTS
    members: dict[ConversationKey, list[UserId]] = field(default_factory=dict)
    events: dict[ConversationKey, list[Event]] = field(default_factory=dict)

    async def start(self) -> None:
        """Take writer shard 0 over, under a new epoch."""
        epoch = await self.backends.epochs.raise_epoch(
            ShardKind.WRITER, 0, self.runtime.random_bytes(16), self.runtime.wall_ms() // 1000
        )
        self.epoch = int(str(applied(epoch)))
        for key in self.events:
            applied(await self.backends.conversations.claim(0, self.epoch, key))

    async def create(self, conversation: str, *users: str) -> ConversationKey:
        """A conversation with its first members, who are told of it."""
        key = key_of(self.tenant, conversation)
        applied(
            await self.backends.conversations.create_conversation(
                0, self.epoch, key, self.runtime.wall_ms()
            )
        )
        applied(await self.backends.conversations.claim(0, self.epoch, key))
        self.members[key], self.events[key] = [], []
        await self.change(key, added=users)
        return key

    async def change(
        self, key: ConversationKey, *, added: Sequence[str] = (), removed: Sequence[str] = ()
    ) -> Event:
        """Commit and dispatch a membership change."""
        before = self.members[key]
        left = {*before, *map(UserId, added)} - {*map(UserId, removed)}
        self.members[key] = sorted(left, key=str.encode)
        return await self._commit(
            key,
            EventKind.MEMBERSHIP,
            None,
            recipients=sorted({*before, *self.members[key]}),
            added=tuple(sorted(map(UserId, added))),
            removed=tuple(sorted(map(UserId, removed))),
        )

    async def say(self, key: ConversationKey, sender: str, body: bytes = b"hi") -> Event:
        """Commit and dispatch a message."""
        return await self._commit(key, EventKind.MESSAGE, UserId(sender), body=body)

    async def react(self, key: ConversationKey, sender: str, target_seq: int) -> Event:
        """Commit and dispatch a reaction."""
        return await self._commit(
            key, EventKind.REACTION, UserId(sender), body=b"+1", target_seq=target_seq
        )

    def records(
        self, event: Event, recipients: Sequence[UserId], *, fencing_epoch: int = 0
    ) -> list[ProduceRecord]:
        """The event's dispatches, under this epoch or another."""
        chunks = plan_chunks(self.table, event.key.tenant, recipients, self.chunk_recipients)
        return [
            ProduceRecord(
                chunk.mailbox_shard,
                encode_dispatch(
                    event,
                    fencing_epoch=fencing_epoch or self.epoch,
                    mailbox_shard=chunk.mailbox_shard,
                    chunk_index=chunk.index,
                    chunk_count=len(chunks),
                    log_identity=self.cluster.topic.identity().text,
                    blocks=encode_blocks(chunk.blocks),
                ),
            )
            for chunk in chunks
        ]

    async def produce(self, *records: ProduceRecord) -> None:
        """Append records to the log."""
        producer = await self.backends.log.open_producer()
        for outcome in await producer.produce(records):
            applied(outcome)
        await producer.close()

    async def _commit(
        self,
        key: ConversationKey,
        kind: EventKind,
        sender: UserId | None,
        *,
        recipients: Sequence[UserId] = (),
        body: bytes = b"",
        target_seq: int = 0,
        added: tuple[UserId, ...] = (),
        removed: tuple[UserId, ...] = (),
    ) -> Event:
        event = self._event(key, kind, sender, body, target_seq, added, removed)
        step = CommitStep(
            request_id=self.runtime.random_bytes(16),
            writer_shard=0,
            epoch=self.epoch,
            key=key,
            expected_head=event.conversation_seq - 1,
            events=[NewEvent(event, None, bytes(16))],
        )
        applied(await self.backends.conversations.commit(step))
        self.events[key].append(event)
        await self.produce(*self.records(event, recipients or self.members[key]))
        return event

    def _event(
        self,
        key: ConversationKey,
        kind: EventKind,
        sender: UserId | None,
        body: bytes,
        target_seq: int,
        added: tuple[UserId, ...],
        removed: tuple[UserId, ...],
    ) -> Event:
        seq = len(self.events[key]) + 1
        version = max(
            [seq if kind is EventKind.MEMBERSHIP else 0]
            + [past.membership_version for past in self.events[key][-1:]]
        )
        identity = event_id(key.tenant, key.conversation, seq)
        device = None if sender is None else DeviceId("phone")
        now_ms = self.runtime.wall_ms()
        encoded = encode_event(
            key=key,
            conversation_seq=seq,
            event_id=identity,
            kind=kind,
            sender=sender,
            sender_device=device,
            created_at_ms=now_ms,
            client_msg_id="" if sender is None else f"m{seq}",
            membership_version=version,
            body=body,
            target_seq=target_seq,
            added=added,
            removed=removed,
        )
        return Event(
            key=key,
            conversation_seq=seq,
            event_id=identity,
            kind=kind,
            sender=sender,
            sender_device=device,
            created_at_ms=now_ms,
            membership_version=version,
            routing_version=self.table.version,
            chunk_recipients=self.chunk_recipients,
            encoded=encoded,
            added=added,
            removed=removed,
        )
