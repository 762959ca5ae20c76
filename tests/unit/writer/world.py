"""A deployment in memory with nodes that write and dispatch, for the tests of both rooms."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.runtime import ManualRuntime

from qimd.adapters.memory import FaultPlan, MemoryBackends, MemoryCluster
from qimd.contract.dispatch import decode_dispatch
from qimd.core.errors import QimError
from qimd.core.ids import ConversationId, DeviceId, TenantId, UserId
from qimd.core.lease import Term
from qimd.core.outcome import Applied
from qimd.core.records import Accepted, ConversationKey, Dispatch, Draft, Event, EventKind
from qimd.core.routing import RoutingTable
from qimd.fanout.service import FanoutService
from qimd.ports.services import Commit
from qimd.ports.store import ConversationState, ShardKind, TenantRecord
from qimd.telemetry.metrics import Metrics
from qimd.writer.service import WriterService

TENANT = TenantId("acme")
ROOM = ConversationId("room")
KEY = ConversationKey(TENANT, ROOM)
ANN, BOB, CID = UserId("ann"), UserId("bob"), UserId("cid")
PHONE = DeviceId("phone")
TABLE = RoutingTable(version=1, mailbox_shards=2, writer_shards=1)
SELF_FENCE_S = 12.0


@dataclass
class Silent:
    """A fanout that only counts: for tests that are about the writer alone."""

    told: list[Event] = field(default_factory=list)
    waiting: int = 0

    def committed(self, term: Term, events: Sequence[Event]) -> None:
        del term
        self.told.extend(events)

    def backlog(self, shard: int) -> int:
        del shard
        return self.waiting


class Node:
    """One process: its handles, its term, its rooms."""

    def __init__(
        self,
        runtime: ManualRuntime,
        backends: MemoryBackends,
        term: Term,
        *,
        fanout: Silent | None = None,
        table: RoutingTable = TABLE,
        chunk_recipients: int = 512,
    ) -> None:
        self.runtime = runtime
        self.backends = backends
        self.term = term
        self.metrics = Metrics()
        self.fanout = FanoutService(
            table,
            backends.conversations,
            backends.log,
            backends.quarantine,
            runtime,
            self.metrics,
            chunk_recipients=chunk_recipients,
        )
        self.silent = fanout
        self.writer = WriterService(
            table,
            backends.tenants,
            backends.conversations,
            fanout or self.fanout,
            runtime,
            self.metrics,
            chunk_recipients=chunk_recipients,
        )

    async def serve(self, *, dispatching: bool = True) -> None:
        self.runtime.spawn(self.writer.serve(self.term), "writer")
        if dispatching and self.silent is None:
            self.runtime.spawn(self.fanout.serve(self.term), "fanout")
        await self.runtime.settle()

    async def dispatch(self) -> None:
        self.runtime.spawn(self.fanout.serve(self.term), "fanout")
        await self.runtime.settle()

    def renew(self) -> None:
        self.term.renewed(self.runtime.monotonic_s())

    async def send(self, *drafts: Draft, sender: UserId = ANN) -> Sequence[Accepted | QimError]:
        return await self.writer.commit(Commit(KEY, sender, PHONE, drafts))

    async def state(self) -> ConversationState:
        state = await self.backends.conversations.conversation(KEY)
        assert state is not None
        return state

    async def until_dispatched(self) -> None:
        """Until the store says that nothing waits; the term is renewed meanwhile."""
        for _ in range(200):
            await self.runtime.advance(0.5)
            self.renew()
            if not await self.backends.conversations.pending(0):
                return
        raise TimeoutError("the outbox is not dispatched")


class World:
    """The engines, and the processes on them."""

    def __init__(self, runtime: ManualRuntime, **topic: int | None) -> None:
        self.runtime = runtime
        self.cluster = MemoryCluster(runtime, **topic)  # type: ignore[arg-type]
        self._opened = 0

    @property
    def faults(self) -> FaultPlan:
        return self.cluster.faults

    async def node(
        self,
        *,
        faults: FaultPlan | None = None,
        fanout: Silent | None = None,
        table: RoutingTable = TABLE,
        chunk_recipients: int = 512,
    ) -> Node:
        """A process that has just become the owner of writer shard 0."""
        backends = self.cluster.open(self.runtime, faults)
        return Node(
            self.runtime,
            backends,
            await self.term(backends),
            fanout=fanout,
            table=table,
            chunk_recipients=chunk_recipients,
        )

    async def term(self, backends: MemoryBackends) -> Term:
        """A new term of writer shard 0, which ends what others believe to have."""
        self._opened += 1
        nonce = self.runtime.random_bytes(16)
        now_s = self.runtime.wall_ms() // 1000
        raised = await backends.epochs.raise_epoch(ShardKind.WRITER, 0, nonce, now_s)
        assert isinstance(raised, Applied)
        owner = f"owner-{self._opened}"
        return Term(0, raised.value, owner, SELF_FENCE_S, self.runtime.monotonic_s())

    async def tenant(self, node: Node) -> None:
        await node.backends.tenants.create_tenant(TenantRecord(TENANT, {}, 1))

    async def room(self, node: Node, *members: UserId) -> None:
        """Conversation KEY with members; its first event is seq 1."""
        await self.tenant(node)
        await node.writer.create_conversation(TENANT, ROOM, members or (ANN, BOB))

    async def records(self) -> list[Dispatch]:
        """Every record of the log, strictly decoded, by partition and offset."""
        return [decode_dispatch(value) for value in await self.values()]

    async def values(self) -> list[bytes]:
        log = self.cluster.open(self.runtime, FaultPlan(self.runtime)).log
        found: list[bytes] = []
        for partition in range((await log.identity()).partitions):
            reader = await log.open_reader(partition, 0)
            while records := await reader.fetch(1000, 0):
                found.extend(record.value for record in records)
        return found

    async def delivered(self, user: UserId) -> list[int]:
        """The conversation_seqs that a mailbox would hold for the user: records in log order,
        stale epochs dropped, each dispatch once. The rules are the mailbox's, written out plainly.
        """
        seen: set[bytes] = set()
        largest: dict[tuple[int, ConversationKey], int] = {}
        seqs: list[int] = []
        for record in await self.records():
            place = (record.mailbox_shard, record.ref.key)
            if record.fencing_epoch < largest.get(place, 0):
                continue
            largest[place] = record.fencing_epoch
            if record.dispatch_id in seen:
                continue
            seen.add(record.dispatch_id)
            if any(user in block.users for block in record.blocks):
                seqs.append(record.ref.conversation_seq)
        return seqs


def text(client_msg_id: str, body: str = "hello") -> Draft:
    return Draft(client_msg_id, EventKind.MESSAGE, body.encode())


def reaction(client_msg_id: str, target_seq: int, mark: str = "+1") -> Draft:
    return Draft(client_msg_id, EventKind.REACTION, mark.encode(), target_seq)


def seqs(results: Sequence[Accepted | QimError]) -> list[int]:
    accepted = [result for result in results if isinstance(result, Accepted)]
    assert len(accepted) == len(results), results
    return [result.conversation_seq for result in accepted]
