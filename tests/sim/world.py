"""One world from its plan to its verdict: a storm, then healing, then rest, then a finale.

    storm    deeds and blows, in the weather of the seed
    healing  every process runs, every wall is down; what was asked for stubbornly is still asked
    rest     within the deadline: outboxes empty, W and the projection at the log's end
    finale   every device connects while something more is said; from here on no device looks by
             itself, so that what reaches them came by their first pull or by a push; it ends once
             the audit, too, has come to the end
    verdict  `verdict`, on the engines' state

The first violation ends the run. The engines' state is read directly: checkers are outside of the
world, and believe no room.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tests.sim import verdict
from tests.sim.checks import Checks
from tests.sim.device import Device
from tests.sim.ledger import Ledger
from tests.sim.loop import Process, SimLoop, Stuck
from tests.sim.model import Model
from tests.sim.nemesis import Nemesis
from tests.sim.network import SimNetwork
from tests.sim.people import People
from tests.sim.plan import STORM_S, Blow, Fate, Plan
from tests.sim.runtime import Clock, SimRuntime, stream
from tests.sim.servers import Server
from tests.sim.tokens import KEY_ID, TENANT_KEY
from tests.sim.trace import Detail, Trace

from qimd.adapters.memory import Call, MemoryCluster
from qimd.app.wiring import Node
from qimd.core.errors import QimError
from qimd.core.ids import ConversationId, TenantId, UserId
from qimd.core.records import ConversationKey, DeviceKey, UserKey
from qimd.core.routing import RoutingTable
from qimd.ports.mailbox import finished
from qimd.ports.projection import SessionRow
from qimd.ports.store import ShardKind, TenantRecord

DEADLINE_S: Final = 75.0
"""Within so much virtual time after healing everything is at rest: above the fanout's rescan and
the longest back-off of a shard's owner."""

LOOK_S: Final = 0.25
FINALE_S: Final = 40.0
OPERATOR_S: Final = 1.0
OPERATION_S: Final = 20.0

_QUIET: Final = frozenset(
    {"view", "fetch", "watermarks", "identity", "settings", "checkpoint", "renew", "pending",
     "shard_state", "records_after", "events", "audit_ranges", "quarantined", "tenant",
     "epoch_marks", "entries", "open_reader", "open_producer", "members_at", "current_members",
     "project_fence", "expire_buckets", "set_audited", "outbox", "apply_fence",
     "drop_kept", "kept_records", "event_ids", "dispatch_counts", "intervals", "prior_results",
     "conversation", "ack", "count_unread", "row", "rows", "expire_idempotency", "open_device",
     "project_rows", "find_event", "history", "records_of", "entry_seqs", "open_partition"}
)  # fmt: skip
"""Calls that a timeline is easier to read without."""

_NEVER_LOST: Final = frozenset({"create_conversation", "commit", "raise_epoch"})
"""Behind each of these the store syncs: a promise stands on what it wrote (docs/engines.md)."""


@dataclass(slots=True)
class Result:
    """What came of a run. `failure` is empty if all held; what was not asked for is empty too."""

    seed: int
    failure: str
    digest: str
    steps: int
    seen: Counter[str] = field(default_factory=Counter)
    timeline: list[str] = field(default_factory=list)


def run(plan: Plan, detail: Detail = Detail.DIGEST) -> Result:
    """Run a plan, and write down as much of it as is asked for."""
    world = World(plan, detail)
    try:
        world.loop.run_until(world.over)
    except Stuck as stuck:
        world.failures.append(f"stuck: {stuck}")
    except Exception as error:
        # An engine or the simulator itself: a failure of this seed, and not of the whole run.
        world.failures.append(f"an effect raised {type(error).__name__}: {error}")
    digest = world.trace.digest(world.loop.steps)
    failure = world.failures[0] if world.failures else ""
    steps = world.loop.steps
    world.loop.close()
    return Result(plan.seed, failure, digest, steps, world.seen, world.trace.lines)


class World:
    """Everything of one run. Parts of it find one another here."""

    def __init__(self, plan: Plan, detail: Detail) -> None:
        shape = plan.shape
        self.plan = plan
        self.loop = SimLoop(plan.seed)  # type: ignore[abstract]
        self.engine = Process(self.loop, "engine")
        self.trace = Trace(detail)
        self.seen: Counter[str] = Counter()
        self.failures: list[str] = []
        self.over: asyncio.Future[None] = self.loop.create_future()
        self.healed = False
        self.finale = False
        self.outages = 0
        """How often engines have lost their tail."""
        self.log_lost = False
        self.on_their_way = 0
        """Calls that may still land, although nobody waits for them."""
        self.table = RoutingTable(
            version=1, mailbox_shards=shape.mailbox_shards, writer_shards=shape.writer_shards
        )
        engine_runtime = SimRuntime(
            self.engine, Clock(self.loop, 0.0), stream(plan.seed, "engine"), self.defect
        )
        self.cluster = MemoryCluster(
            engine_runtime,
            partitions=shape.mailbox_shards,
            torn_mailbox=shape.torn,
            produces_by_id=shape.by_id,
        )
        self.ledger = Ledger()
        self.model = Model(self.cluster)
        self.checks = Checks(self.cluster, self.table, self.violate)
        self.nemesis = Nemesis(self, plan.strikes)
        self.servers = [Server(self, index, size) for index, size in enumerate(shape.chunks)]
        self.tokens: dict[DeviceKey, bytes] = {}
        self._frames = stream(plan.seed, "frames")
        self._slow = self._frames.choice((0.0, 0.0, 0.1))
        self._users = [
            [UserKey(TenantId(f"t{tenant}"), UserId(name)) for name in _names(tenant, shape.users)]
            for tenant in range(shape.tenants)
        ]
        self.conversations = {
            ConversationKey(TenantId(f"t{tenant}"), ConversationId(f"c{number}")): [
                self.user(tenant, member).user for member in members
            ]
            for tenant in range(shape.tenants)
            for number, members in enumerate(plan.members)
        }
        self._devices: dict[tuple[UserKey, int], Device] = {}
        self.people = People(self)
        self.loop.world.spawn(self._guarded(), "run")

    # --- who is who ---

    def user(self, tenant: int, number: int) -> UserKey:
        """A user by number."""
        return self._users[tenant][number]

    def conversation(self, tenant: int, number: int) -> ConversationKey:
        """A conversation by number."""
        return ConversationKey(TenantId(f"t{tenant}"), ConversationId(f"c{number}"))

    def device(self, user: UserKey, number: int) -> Device:
        """A user's device, made at its first use."""
        found = self._devices.get((user, number))
        if found is None:
            chance = stream(self.plan.seed, "device", user.tenant, user.user, number)
            found = self._devices[user, number] = Device(self, user, number, chance)
        return found

    def devices_of(self, user: UserKey) -> list[Device]:
        """The devices that a user has used."""
        return [device for (owner, _), device in self._devices.items() if owner == user]

    def all_devices(self) -> list[Device]:
        """Every device that was used."""
        return list(self._devices.values())

    def _shards(self) -> Sequence[tuple[ShardKind, int]]:
        return (
            (ShardKind.WRITER, self.table.writer_shards),
            (ShardKind.MAILBOX, self.table.mailbox_shards),
            (ShardKind.SESSION, self.table.mailbox_shards),
        )

    def lane_of_user(self, number: int) -> tuple[int, int]:
        """(mailbox shard, lane) of a user of the first tenant."""
        user = self.user(0, number)
        return self.table.mailbox(user.tenant, user.user)

    def session_rows(self, user: UserKey) -> Sequence[SessionRow]:
        """A user's rows as they are stored."""
        return [
            row
            for partition in self.cluster.projection.partitions.values()
            for row in partition.rows.get(user, {}).values()
        ]

    def lose_tail(self) -> None:
        """All engines but leases and log start anew, as they were at their last sync."""
        self.checks.tail_is_lost()
        self.cluster.lose_tail()
        self.cluster.lose_store_tail()
        self.checks.tail_was_lost()
        self.outages += 1

    def lose_log(self) -> None:
        """The log is made anew, with nothing in it."""
        self.log_lost = True
        self.cluster.topic.recreate()

    # --- what parts report ---

    def note(self, actor: str, what: str) -> None:
        """Into the trace."""
        self.trace.note(self.loop.now_s, actor, what)

    def saw(self, what: Fate | Blow) -> None:
        """A fault took place."""
        self.seen[what.value] += 1

    def saw_text(self, what: str) -> None:
        """A fault or a crash point that only its place tells."""
        self.seen[what] += 1

    def landed(self, caller: SimNetwork, server: Server, call: Call, reply: object) -> None:
        """An effect ran on an engine."""
        shown = call.op not in _QUIET
        self.trace.call(self.loop.now_s, caller.name, call, reply, shown=shown)
        self.checks.landed(caller, call, reply)
        self.nemesis.landed(server, call.op)
        if self.nemesis.loses_tails and call.op in _NEVER_LOST:
            self.cluster.sync_store()

    def violate(self, what: str) -> None:
        """A promise is broken: the run is over."""
        self.note("checker", f"VIOLATION: {what}")
        self.failures.append(what)
        if not self.over.done():
            self.over.set_result(None)

    def defect(self, task: str, error: BaseException) -> None:
        """An exception escaped a task."""
        self.violate(f"{type(error).__name__} escaped {task}: {error}")

    def frame_delay_s(self) -> float:
        """How long a client's frame is on its way."""
        if not self._slow or self.healed:
            return 0.0
        return self._frames.random() * self._slow

    # --- a run ---

    async def _guarded(self) -> None:
        try:
            await self._run()
        except Exception as error:
            self.violate(f"the simulator failed: {type(error).__name__}: {error}")
        if not self.over.done():
            self.over.set_result(None)

    async def _run(self) -> None:
        for tenant in range(self.plan.shape.tenants):
            name = TenantId(f"t{tenant}")
            record = TenantRecord(name, {KEY_ID: TENANT_KEY.public_key().public_bytes_raw()}, 0)
            self.cluster.tenants.tenants[name] = record
        if not self.plan.shape.cold:
            self._hand_over()
        for server in self.servers:
            server.start()
        self.people.set_up()
        self.loop.world.spawn(self.nemesis.run(), "nemesis")
        for deed in self.plan.deeds:
            await asyncio.sleep(max(0.0, deed.at_s - self.loop.now_s))
            self.people.do(deed)
        await asyncio.sleep(max(0.0, STORM_S - self.loop.now_s))
        self._heal()
        if not await self._within(DEADLINE_S, self._unrest):
            return
        await self._finale()
        for broken in verdict.all_broken(self):
            self.violate(broken)

    def _hand_over(self) -> None:
        """Have every shard's key released, as by servers that were drained before these came."""
        for kind, count in self._shards():
            for shard in range(count):
                self.cluster.leases.acquire((kind, shard), "before", ttl_s=1.0)
                self.cluster.leases.release((kind, shard), "before")

    def _heal(self) -> None:
        self.note("world", "everything is healed")
        self.healed = True
        self.nemesis.heal()
        for server in self.servers:
            if self.log_lost:
                # Another log than at the start is refused until somebody restarts the process.
                server.kill()
            if server.down:
                server.start()
        if self.log_lost:
            self.loop.world.spawn(self._operate(), "operator")

    async def _operate(self) -> None:
        """As an operator after the loss of the log: rebase mailboxes, rebuild session lists."""
        while not self.finale:
            await asyncio.sleep(OPERATOR_S)
            for server in self.servers:
                for shard in server.node.mailbox.shards():
                    if shard.fault is not None:
                        call = partial(_rebase, shard=shard.shard)
                        await self._attempted(server, call)
                for partition in server.node.sessions.describe():
                    if partition.dirty:
                        await self._attempted(server, partial(_rebuild, shard=partition.partition))

    async def _attempted(self, server: Server, call: Callable[[Node], Any]) -> None:
        try:
            await server.ask(call, OPERATION_S)
        except (QimError, TimeoutError) as error:
            self.note("operator", f"{server.name}: {error}")

    async def _finale(self) -> None:
        self.finale = True
        chance = stream(self.plan.seed, "finale")
        self.note("world", "the finale: every device connects, and something more is said")
        for user in itertools.chain(*self._users):
            if not self.devices_of(user):
                self.device(user, 0)
        for device in self.all_devices():
            device.disconnect()
        await asyncio.sleep(1.0)
        acts: list[tuple[float, Callable[[], None]]] = [
            (chance.random(), device.connect) for device in self.all_devices()
        ]
        for key in self.conversations:
            speaker = self._users[int(key.tenant[1:])][0]
            for _ in range(3):
                acts.append((chance.random(), partial(self.people.send, speaker, key, 1, chance)))
        began_s = self.loop.now_s
        for at_s, act in sorted(acts, key=lambda one: one[0]):
            await asyncio.sleep(began_s + at_s - self.loop.now_s)
            act()
        if await self._within(FINALE_S, self._unrest):
            await self._within(
                FINALE_S, lambda: self._unrest() or self._uninformed() or self._unaudited()
            )

    # --- what is awaited ---

    async def _within(self, deadline_s: float, trouble: Callable[[], str]) -> bool:
        """Wait until there is no trouble; a violation at the deadline."""
        end_s = self.loop.now_s + deadline_s
        while what := trouble():
            if self.loop.now_s >= end_s:
                self.violate(f"after {deadline_s:.0f} s of peace: {what}")
                return False
            await asyncio.sleep(LOOK_S)
        return True

    def _unrest(self) -> str:
        """Why the world is not at rest; empty if it is."""
        for kind, count in self._shards():
            for shard in range(count):
                if not any(server.owns(kind, shard) for server in self.servers):
                    return f"nobody owns {kind.value} shard {shard}"
        if self.on_their_way:
            return f"{self.on_their_way} calls are still on their way"
        if self.people.busy:
            return f"{self.people.busy} people have no answer"
        for key, stored in self.cluster.conversations.conversations.items():
            state = stored.state
            if state.dispatched_through < state.head_version:
                return f"the outbox of {key.conversation} is not empty"
        for shard in range(self.table.mailbox_shards):
            high = self.cluster.topic.partition(shard).high
            log = self.cluster.topic.identity()
            mailbox = self.cluster.mailbox.shards.get(shard)
            if mailbox is None or mailbox.boundaries[-1].log_identity != log.text:
                return f"mailbox shard {shard} does not read the log"
            if not finished(mailbox.state(shard), high):
                return f"mailbox shard {shard} has not finished the log"
            projection = self.cluster.projection.partitions.get(shard)
            if projection is None or projection.checkpoint.meta.topic_id != log.topic_id:
                return f"partition {shard} does not project the log"
            if projection.checkpoint.next_offset < high:
                return f"partition {shard} is not projected"
        return ""

    def _unaudited(self) -> str:
        """Which conversation's audit is not at its end."""
        for key, stored in self.cluster.conversations.conversations.items():
            if stored.audited_through < stored.state.dispatched_through:
                return f"{key.conversation} is not audited"
        return ""

    def _uninformed(self) -> str:
        """Who has not got everything, by a first pull and by pushes."""
        for device in self.all_devices():
            link = device.link
            if link is None or not link.ready:
                return f"{device.name} does not get online"
            entries = self.cluster.mailbox.entries.get(device.key.owner, [])
            lacking = [entry.ref for entry in entries if int(entry.seq) not in device.seen]
            if lacking:
                return (
                    f"{device.name} is online, and was told nothing of seq "
                    f"{lacking[0].conversation_seq} of {lacking[0].key.conversation}"
                )
        return ""


async def _rebase(node: Node, *, shard: int) -> object:
    return await node.mailbox.rebase(shard, dry_run=False)


async def _rebuild(node: Node, *, shard: int) -> object:
    return await node.sessions.rebuild(shard, dry_run=False)


def _names(tenant: int, count: int) -> list[str]:
    """User ids of which the first two share a shard and a lane in every table."""
    return list(_TWINS[tenant]) + [f"u{number}" for number in range(2, count)]


def _twins(tenant: int) -> tuple[str, str]:
    table = RoutingTable(version=1, mailbox_shards=2, writer_shards=1)
    first = table.mailbox(TenantId(f"t{tenant}"), UserId("u0"))
    number = 100
    while table.mailbox(TenantId(f"t{tenant}"), UserId(f"u{number}")) != first:
        number += 1
    return "u0", f"u{number}"


_TWINS: Final = [_twins(tenant) for tenant in range(2)]
