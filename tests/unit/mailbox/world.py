"""A deployment in memory with one mailbox service, and a writer and a fanout in the test's hand."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.runtime import ManualRuntime

from qimd.adapters.memory.cluster import MemoryCluster
from qimd.contract.cursor import CursorKeys
from qimd.contract.dispatch import encode_blocks, encode_dispatch
from qimd.contract.events import encode_event
from qimd.core.dispatch import plan_chunks
from qimd.core.ids import ConversationId, DeviceId, TenantId, UserId, event_id
from qimd.core.lease import Term
from qimd.core.outcome import Applied
from qimd.core.records import ConversationKey, DeviceKey, Event, EventKind, UserKey
from qimd.core.routing import RoutingTable
from qimd.mailbox.service import MailboxService
from qimd.mailbox.shard import Shard
from qimd.ports.data import Backends
from qimd.ports.log import ProduceRecord
from qimd.ports.mailbox import ShardState, watermark
from qimd.ports.runtime import Task
from qimd.ports.services import Hint, Page
from qimd.ports.store import CommitStep, IdempotencyKey, NewEvent, Progress, ShardKind
from qimd.telemetry.metrics import Metrics

ACME = TenantId("acme")
KEYS = CursorKeys("k1", {"k1": b"k" * 32})
WINDOW_MS = 24 * 3600 * 1000


def user_in_lane(table: RoutingTable, lane: int, shard: int = 0, tenant: TenantId = ACME) -> UserId:
    """A user that the table puts into this lane of this shard."""
    number = 0
    while table.mailbox(tenant, user := UserId(f"user-{number}")) != (shard, lane):
        number += 1
    return user


def device(user: UserId, name: str = "phone") -> DeviceKey:
    return DeviceKey(ACME, user, DeviceId(name))


@dataclass
class Presence:
    """Who is online, and what was pushed to whom."""

    users: list[UserId] = field(default_factory=list)
    hints: list[Hint] = field(default_factory=list)

    def online(self, tenant: TenantId, users: Collection[UserId]) -> Collection[UserId]:
        return [user for user in users if user in self.users]

    def push(self, hints: Sequence[Hint]) -> None:
        self.hints.extend(hints)


class World:
    """One topic, one store, one node with a mailbox service."""

    def __init__(
        self,
        runtime: ManualRuntime,
        *,
        shards: int = 1,
        torn: bool = False,
        backends: Backends | None = None,
        replay_safety_window_ms: int | None = None,
    ) -> None:
        self.runtime = runtime
        self.replay_safety_window_ms = replay_safety_window_ms
        self.cluster = MemoryCluster(runtime, partitions=shards, torn_mailbox=torn)
        self.backends = backends or self.cluster.open(runtime)
        self.table = RoutingTable(version=1, mailbox_shards=shards, writer_shards=1)
        self.presence = Presence()
        self.metrics = Metrics()
        self.failovers: list[int] = []
        self.epoch = 0
        self._terms = 100
        self.service = self.new_service()

    def new_service(self) -> MailboxService:
        return MailboxService(
            table=self.table,
            store=self.backends.mailbox,
            conversations=self.backends.conversations,
            log=self.backends.log,
            quarantine=self.backends.quarantine,
            hints=self.presence,
            cursor_keys=KEYS,
            runtime=self.runtime,
            metrics=self.metrics,
            recovery_window_ms=WINDOW_MS,
            replay_safety_window_ms=self.replay_safety_window_ms,
            on_stall_failover=self.failovers.append,
        )

    # --- the mailbox ---

    def term(self, shard: int = 0) -> Term:
        self._terms += 1
        return Term(shard, self._terms, "node", 1e9, self.runtime.monotonic_s())

    def start(self, shard: int = 0) -> "Serving":
        term = self.term(shard)
        task = self.runtime.spawn(self.service.serve(term), f"mailbox {shard}")
        return Serving(self, term, task)

    @asynccontextmanager
    async def serving(self, shard: int = 0) -> AsyncIterator["Serving"]:
        serving = self.start(shard)
        await self.runtime.settle()
        try:
            yield serving
        finally:
            await serving.stop()

    async def stored(self, shard: int = 0) -> ShardState:
        state = await self.backends.mailbox.shard_state(shard)
        assert state is not None
        return state

    async def pull_all(self, user: UserId, name: str = "phone") -> list[bytes]:
        """Everything that a fresh pull from 0 gives, by pages."""
        owner = device(user, name)
        opened = await self.service.open_device(owner)
        events: list[bytes] = []
        token, after = opened.cursor_token, int(opened.floor)
        while True:
            page = await self.service.pull(owner, token, after, 0)
            assert isinstance(page, Page)
            events.extend(event.encoded for event in page.events)
            after = page.covered_through
            if not page.more:
                return events

    async def seqs_of(self, user: UserId) -> list[int]:
        """The conversation_seqs of a user's entries, in mailbox order, straight from the store."""
        state = await self.stored(self.table.mailbox(ACME, user)[0])
        entries = await self.backends.mailbox.entries(
            UserKey(ACME, user), 0, state.position, 10_000
        )
        return [entry.ref.conversation_seq for entry in entries]

    # --- the writer and the fanout ---

    async def take_over(self) -> int:
        """The next writer's epoch."""
        nonce = self.runtime.random_bytes(16)
        outcome = await self.backends.epochs.raise_epoch(ShardKind.WRITER, 0, nonce, 0)
        assert isinstance(outcome, Applied)
        self.epoch = outcome.value
        return self.epoch

    async def conversation(self, name: str, members: Sequence[UserId]) -> ConversationKey:
        """A conversation whose event 1 adds the members (it is not dispatched)."""
        if not self.epoch:
            await self.take_over()
        key = ConversationKey(ACME, ConversationId(name))
        created = await self.backends.conversations.create_conversation(
            0, self.epoch, key, self.runtime.wall_ms()
        )
        assert isinstance(created, Applied)
        added = tuple(sorted(members, key=str.encode))
        await self._commit(key, EventKind.MEMBERSHIP, None, b"", added)
        return key

    async def send(self, key: ConversationKey, body: str, sender: UserId) -> Event:
        """Commit a message."""
        return await self._commit(key, EventKind.MESSAGE, sender, body.encode(), ())

    async def _commit(
        self,
        key: ConversationKey,
        kind: EventKind,
        sender: UserId | None,
        body: bytes,
        added: tuple[UserId, ...],
    ) -> Event:
        state = await self.backends.conversations.conversation(key)
        assert state is not None
        seq = state.head_version + 1
        own_id = event_id(key.tenant, key.conversation, seq)
        version = seq if kind is EventKind.MEMBERSHIP else state.membership_version
        sent_from = DeviceId("phone") if sender else None
        client_msg_id = f"m{seq}" if sender else ""
        event = Event(
            key=key,
            conversation_seq=seq,
            event_id=own_id,
            kind=kind,
            sender=sender,
            sender_device=sent_from,
            created_at_ms=self.runtime.wall_ms(),
            membership_version=version,
            routing_version=1,
            chunk_recipients=512,
            encoded=encode_event(
                key=key,
                conversation_seq=seq,
                event_id=own_id,
                kind=kind,
                sender=sender,
                sender_device=sent_from,
                created_at_ms=self.runtime.wall_ms(),
                client_msg_id=client_msg_id,
                membership_version=version,
                body=body,
                added=added,
            ),
            added=added,
        )
        idempotency = IdempotencyKey(sender, client_msg_id) if sender else None
        outcome = await self.backends.conversations.commit(
            CommitStep(
                request_id=self.runtime.random_bytes(16),
                writer_shard=0,
                epoch=self.epoch,
                key=key,
                expected_head=state.head_version,
                events=[NewEvent(event, idempotency, b"d" * 16, client_msg_id)],
            )
        )
        assert isinstance(outcome, Applied), outcome
        return event

    async def records(
        self, event: Event, *, epoch: int | None = None, log_identity: str | None = None
    ) -> list[ProduceRecord]:
        """The event's dispatches, as the fanout encodes them."""
        members = await self.backends.conversations.members_at(event.key, event.conversation_seq)
        chunks = plan_chunks(self.table, event.key.tenant, members, event.chunk_recipients)
        identity = log_identity or (await self.backends.log.identity()).text
        return [
            ProduceRecord(
                chunk.mailbox_shard,
                encode_dispatch(
                    event,
                    fencing_epoch=self.epoch if epoch is None else epoch,
                    mailbox_shard=chunk.mailbox_shard,
                    chunk_index=chunk.index,
                    chunk_count=len(chunks),
                    log_identity=identity,
                    blocks=encode_blocks(chunk.blocks),
                ),
            )
            for chunk in chunks
        ]

    async def produce(self, records: Sequence[ProduceRecord]) -> None:
        producer = await self.backends.log.open_producer()
        outcomes = await producer.produce(records)
        assert all(isinstance(outcome, Applied) for outcome in outcomes), outcomes
        await producer.close()

    async def inject(self, event: Event, *, epoch: int) -> None:
        """Append the event's dispatches under any epoch, progress or not."""
        await self.produce(await self.records(event, epoch=epoch))

    async def dispatch(self, *events: Event) -> None:
        """Dispatch as the fanout does: durable in the log first, then the progress."""
        identity = (await self.backends.log.identity()).text
        assert isinstance(await self.backends.conversations.note_first_log(identity), Applied)
        for event in events:
            await self.produce(await self.records(event))
        await self.progress(*events)

    async def progress(self, *events: Event) -> None:
        outcomes = await self.backends.conversations.advance(
            0, self.epoch, [Progress(event.key, event.conversation_seq) for event in events]
        )
        assert all(isinstance(outcome, Applied) for outcome in outcomes), outcomes

    async def chat(
        self, name: str, members: Sequence[UserId], messages: int
    ) -> tuple[ConversationKey, list[Event]]:
        """A conversation with some messages of its first member: all its events but for event 1,
        dispatched.
        """
        key = await self.conversation(name, members)
        [first] = await self.backends.conversations.outbox(key, 0, 1)
        await self.dispatch(first)
        events = [await self.send(key, f"text {n}", members[0]) for n in range(messages)]
        await self.dispatch(*events)
        return key, events

    def zero(self, name: str) -> float:
        """A metric's value."""
        value = self.metrics.registry.get_sample_value(name)
        assert value is not None
        return value

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@dataclass
class Serving:
    """A shard that is served."""

    world: World
    term: Term
    task: Task

    @property
    def shard(self) -> Shard:
        [shard] = [one for one in self.world.service.shards() if one.shard == self.term.shard]
        return shard

    @property
    def state(self) -> ShardState:
        state = self.shard.state
        assert state is not None
        return state

    def w(self, user: UserId) -> int:
        """W of the user's lane."""
        return watermark(self.state, self.world.table.mailbox(ACME, user)[1])

    async def reads(self) -> None:
        """Let the shard read everything that is in the log."""
        high = (await self.world.backends.log.watermarks(self.term.shard)).high
        await self.world.runtime.until(
            lambda: self.shard.fault is not None or self.state.next_offset >= high, 60.0
        )

    async def halts(self) -> str:
        """The reason of the fault that the shard comes to."""
        await self.world.runtime.until(lambda: self.shard.fault is not None, 60.0)
        fault = self.shard.fault
        assert fault is not None
        return fault.reason

    async def stop(self) -> None:
        self.term.end()
        await self.world.runtime.until(self.task.done, 60.0)
