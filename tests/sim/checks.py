"""What must hold at every instant: looked at as each effect lands, with the engines' state in view.

Some broken rules heal by themselves before a run ends (a stale owner's commit is dispatched by its
successor like any other), and would be found only by luck at the end. Fences are therefore held to
their word here: no effect of an old epoch lands on a head that a newer one has claimed, none of an
old term on a shard, no outbox progress runs ahead of the log, no push ahead of W.
"""

from collections.abc import Callable

from tests.sim.network import SimNetwork

from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch
from qim.gateway.v1.gateway_pb2 import ServerFrame
from qimd.adapters.memory import Call, MemoryCluster
from qimd.core.ids import UserId
from qimd.core.outcome import Applied
from qimd.core.parameters import LANES
from qimd.core.records import ConversationKey, Event, EventKind, UserKey
from qimd.core.routing import RoutingTable
from qimd.core.seq import SEQ_NONE, MailboxSeq, epoch_of, offset_of
from qimd.ports.log import ProduceRecord
from qimd.ports.mailbox import ApplyStep
from qimd.ports.store import CommitStep, ConversationState, Progress, ShardKind


class Checks:
    """`landed` after each effect. `violate` is told what is broken, in words."""

    def __init__(
        self, cluster: MemoryCluster, table: RoutingTable, violate: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._table = table
        self._violate = violate
        self._claimed: dict[ConversationKey, int] = {}
        self._epochs: dict[tuple[ShardKind, int], int] = {}
        """The largest epoch of each shard that was ever given."""
        self._committed: dict[bytes, None] = {}
        self._opened: dict[int, int] = {}
        self._applied: dict[bytes, None] = {}
        self._advanced: dict[ConversationKey, int] = {}
        self._reached: dict[tuple[int, int], MailboxSeq] = {}
        """The largest W of each lane that was ever taken back."""
        self._in_log: dict[bytes, tuple[int, dict[tuple[int, int], None]]] = {}

    def landed(self, caller: SimNetwork, call: Call, reply: object) -> None:
        """An effect ran, and this is its outcome."""
        if not isinstance(reply, Applied):
            return
        value = reply.value
        match call.op:
            case "claim" | "create_conversation" if isinstance(value, ConversationState):
                self._claimed[value.key] = max(value.fencing_epoch, self._claimed.get(value.key, 0))
            case "commit" if isinstance(call.content, CommitStep):
                self._commit(call.content)
            case "advance" if isinstance(call.content, Progress):
                self._advance(caller, call.content)
            case "raise_epoch" if isinstance(value, int) and isinstance(call.key, tuple):
                self._granted(caller, call.key, value)
            case "produce" if isinstance(call.content, ProduceRecord):
                self._produce(caller, call.content)
            case "open_shard" if isinstance(call.key, int):
                self._opened[call.key] = self._cluster.mailbox.shards[call.key].term
            case "apply" | "apply_watermark" if isinstance(call.content, ApplyStep):
                self._apply(call.content)
            case _:
                pass

    def tail_is_lost(self) -> None:
        """The mailbox is about to be as it was at its last sync: terms that were opened since are
        unknown to it, and W goes back. Who was told of an event keeps its number all the same.
        """
        self._opened.clear()
        for number, shard in self._cluster.mailbox.shards.items():
            for lane in range(LANES):
                reached = self._reached.get((number, lane), SEQ_NONE)
                self._reached[number, lane] = max(reached, shard.watermark(lane))

    def tail_was_lost(self) -> None:
        """The store is as it was: claims and progress behind its last commit are unknown to it."""
        for key, stored in self._cluster.conversations.conversations.items():
            self._claimed[key] = stored.state.fencing_epoch
            self._advanced[key] = stored.state.dispatched_through

    # --- the writer ---

    def _granted(self, caller: SimNetwork, shard: tuple[ShardKind, int], epoch: int) -> None:
        known = caller.granted.setdefault(shard, [])
        largest = self._epochs.get(shard, 0)
        if epoch <= largest and epoch not in known:
            self._violate(
                f"{caller.name} was given epoch {epoch} of {shard[0].value} shard {shard[1]}, "
                f"where {largest} was given before"
            )
        self._epochs[shard] = max(largest, epoch)
        known.append(epoch)

    def _commit(self, step: CommitStep) -> None:
        if step.request_id in self._committed:
            return
        self._committed[step.request_id] = None
        claimed = self._claimed.get(step.key, 0)
        if step.epoch < claimed:
            self._violate(
                f"checkpoint 1: a commit of epoch {step.epoch} landed on a head of epoch {claimed}"
            )

    def _advance(self, caller: SimNetwork, progress: Progress) -> None:
        key = progress.key
        before = self._advanced.get(key, 0)
        shard = (ShardKind.WRITER, self._table.writer_shard(key.tenant, key.conversation))
        newest = max(caller.granted.get(shard, [0]))
        if newest < self._claimed.get(key, 0):
            self._violate(
                f"outbox progress of {caller.name}, whose epochs end at {newest}, was taken on a "
                f"head of epoch {self._claimed[key]}"
            )
        self._advanced[key] = max(before, progress.through)
        stored = self._cluster.conversations.conversations[key]
        for event, _ in stored.events[before : progress.through]:
            self._dispatched(event)

    def _dispatched(self, event: Event) -> None:
        count, places = self._in_log.get(event.event_id, (-1, {}))
        if count == len(places):
            return
        if not places and not self._for_somebody(event):
            return
        self._violate(
            f"outbox progress covers seq {event.conversation_seq} of "
            f"{event.key.conversation}, of which the log has {len(places)} of {count} dispatches"
        )

    def _for_somebody(self, event: Event) -> bool:
        stored = self._cluster.conversations.conversations[event.key]
        members: set[UserId] = set()
        for past, _ in stored.events[: event.conversation_seq]:
            if past.kind == EventKind.MEMBERSHIP:
                members = (members | set(past.added)) - set(past.removed)
        return bool(members or event.removed)

    def _produce(self, caller: SimNetwork, record: ProduceRecord) -> None:
        message = GroupDispatch.FromString(record.value)
        _, places = self._in_log.setdefault(message.event_id, (message.chunk_count, {}))
        places[record.partition, message.chunk_index] = None
        shard = self._table.writer_shard(message.tenant_id, message.conversation_id)  # type: ignore[arg-type]
        granted = caller.granted.get((ShardKind.WRITER, shard), [])
        if message.fencing_epoch not in granted:
            self._violate(
                f"a dispatch is stamped with epoch {message.fencing_epoch}; {caller.name} was "
                f"given {granted}"
            )

    # --- the mailbox ---

    def _apply(self, step: ApplyStep) -> None:
        if step.request_id in self._applied:
            return
        self._applied[step.request_id] = None
        opened = self._opened.get(step.shard, 0)
        if step.term < opened:
            self._violate(
                f"a mailbox commit of term {step.term} landed in shard {step.shard}, which "
                f"term {opened} has opened"
            )
        self._of_its_log(step)

    def _of_its_log(self, step: ApplyStep) -> None:
        """What is read from a log that was made anew was produced to it, and not to the old one by
        a producer that noticed nothing.
        """
        topic, shard = self._cluster.topic, self._cluster.mailbox.shards[step.shard]
        boundary = shard.boundaries[-1]
        if not topic.generation or boundary.log_identity != topic.identity().text:
            return
        partition = topic.partition(step.shard)
        for record in step.records:
            if epoch_of(record.seq) == boundary.shard_epoch:
                stored = partition.records[offset_of(record.seq) - partition.low]
                message = GroupDispatch.FromString(stored.value)
                if message.log_identity != boundary.log_identity:
                    self._violate(
                        f"shard {step.shard} has taken a record of log {message.log_identity} for "
                        f"one of its own, {boundary.log_identity}"
                    )

    def pushed(self, user: UserKey, frame: ServerFrame) -> None:
        """A frame leaves a server: a push may only speak of what W covers durably."""
        if frame.WhichOneof("frame") != "push_events":
            return
        shard, lane = self._table.mailbox(user.tenant, user.user)
        stored = self._cluster.mailbox.shards.get(shard)
        through = SEQ_NONE if stored is None else stored.watermark(lane)
        through = max(through, self._reached.get((shard, lane), SEQ_NONE))
        for delivered in frame.push_events.events:
            if delivered.mailbox_seq > through:
                event = delivered.event
                self._violate(
                    f"{user.user} was pushed seq {event.conversation_seq} of "
                    f"{event.conversation_id} before W covered it"
                )
