"""Servers and the streams to them: a machine that keeps its clock, and processes that come and go.

Each start makes a new process with rooms, metrics and a network of its own over the same engines
(`app.wiring.Node`, the very wiring that production runs). `kill` stops the process where it stands;
clients learn of it when their stream breaks, a moment later.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tests.sim.loop import Process
from tests.sim.network import SimNetwork
from tests.sim.runtime import Clock, SimRuntime, stream

from qim.gateway.v1.gateway_pb2 import ClientFrame, ServerFrame
from qimd.adapters.memory import MemoryBackends
from qimd.app.wiring import Node
from qimd.contract.codec import decode
from qimd.contract.cursor import CursorKeys
from qimd.contract.frames import EncodedFrame
from qimd.core.errors import QimError, unavailable
from qimd.core.parameters import LeaseParameters
from qimd.core.records import UserKey
from qimd.ports.store import ShardKind
from qimd.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from tests.sim.world import World

T = TypeVar("T")

LEASE: Final = LeaseParameters(
    shard_lease_ttl_s=1.5,
    lease_renew_interval_s=0.5,
    lease_renew_retry_s=0.1,
    writer_self_fence_deadline_s=1.2,
    writer_failover_wait_s=2.5,
)
"""The production inequality at a tenth of its size: takeovers are what worlds are for."""

CURSOR_KEYS: Final = CursorKeys("1", {"1": b"simulated cursor key, 32 bytes ok"})
RECOVERY_WINDOW_MS: Final = 3_600_000
AUDIT_INTERVAL_S: Final = 4.0
DRAIN_GRACE_S: Final = 1.0


class SimStream:
    """`ports.transport.FrameStream` on the server's side; `tell`, `hang_up`, `frames` on the
    client's. Frames cross as bytes of the strict codec, in order, sometimes late.
    """

    def __init__(self, world: "World", user: UserKey) -> None:
        self._world = world
        self._user = user
        self._inbox: asyncio.Queue[ClientFrame | None] = asyncio.Queue()
        self.frames: asyncio.Queue[ServerFrame | None] = asyncio.Queue()
        self._busy_until_s = [0.0, 0.0]
        self.closed = False

    @property
    def peer(self) -> str:
        return "sim"

    async def receive(self) -> ClientFrame | QimError | None:
        return await self._inbox.get()

    def offer(self, frame: EncodedFrame) -> bool:
        message = decode(ServerFrame, frame.data)
        self._world.checks.pushed(self._user, message)
        self._carry(1, self.frames, message)
        return True

    async def send(self, frame: EncodedFrame) -> None:
        self.offer(frame)

    async def close(self, error: QimError | None) -> None:
        if not self.closed:
            self.closed = True
            self._carry(1, self.frames, None)

    def tell(self, frame: ClientFrame) -> None:
        """The client sends."""
        self._carry(0, self._inbox, frame)

    def hang_up(self) -> None:
        """The client goes, or the network between the two: neither hears of the other again."""
        if not self.closed:
            self.closed = True
            self._carry(0, self._inbox, None)
            self._carry(1, self.frames, None)

    def _carry(self, way: int, queue: "asyncio.Queue[Any]", item: object) -> None:
        loop = self._world.loop
        at_s = max(self._busy_until_s[way], loop.now_s + self._world.frame_delay_s())
        self._busy_until_s[way] = at_s
        if at_s <= loop.now_s:
            queue.put_nowait(item)
        else:
            loop.call_at(at_s, queue.put_nowait, item, context=loop.world.context)


class Server:
    """One machine."""

    def __init__(self, world: "World", index: int, chunk_recipients: int) -> None:
        self._world = world
        self.index = index
        self.name = f"n{index}"
        self.clock = Clock(world.loop, origin_s=1_000.0 * (index + 1))
        self.down = True
        self.frozen = False
        self.metrics: list[Metrics] = []
        self._chunk_recipients = chunk_recipients
        self._incarnation = 0
        self._streams: list[SimStream] = []
        self.node: Node
        self.process: Process
        self.backends: MemoryBackends
        self._runtime: SimRuntime

    # --- its life ---

    def start(self) -> None:
        """A new process on the machine."""
        world = self._world
        self._incarnation += 1
        self.name = f"n{self.index}.{self._incarnation}"
        self.process = Process(world.loop, self.name)
        seed = world.plan.seed
        self._runtime = SimRuntime(
            self.process, self.clock, stream(seed, "runtime", self.name), world.defect
        )
        network = SimNetwork(world, self, world.plan.weather, LEASE, stream(seed, "net", self.name))
        self.backends = world.cluster.open(self._runtime, network)
        self.metrics.append(Metrics())
        self.node = Node(
            table=world.table,
            backends=self.backends,
            cursor_keys=CURSOR_KEYS,
            runtime=self._runtime,
            metrics=self.metrics[-1],
            recovery_window_ms=RECOVERY_WINDOW_MS,
            audit_interval_s=AUDIT_INTERVAL_S,
            owner=self.name,
            lease=LEASE,
            drain_grace_s=DRAIN_GRACE_S,
            chunk_recipients=self._chunk_recipients,
        )
        self.down = self.frozen = False
        world.note(self.name, "starts")
        self.node.start()

    def kill(self) -> None:
        """As SIGKILL."""
        if self.down:
            return
        self.down = True
        self._world.note(self.name, "is dead")
        self.process.kill()
        self.backends.kill()
        self.cut_streams()

    def freeze(self) -> None:
        """As SIGSTOP."""
        if not self.down:
            self.frozen = True
            self.process.stop()

    def resume(self) -> None:
        """As SIGCONT."""
        self.frozen = False
        self.process.resume()

    async def drain(self) -> None:
        """An orderly end, or a kill if it takes too long."""
        if self.down or self.frozen:
            return
        process = self.process
        drained = process.spawn(self.node.drain(), "drain")
        for _ in range(40):
            if drained.done() or self.down or self.process is not process:
                break
            await asyncio.sleep(0.1)
        # Healing may have ended it, and started another one, that nobody wants to drain.
        if self.process is process:
            self.kill()

    def cut_streams(self) -> None:
        """Every client's stream breaks."""
        streams, self._streams = self._streams, []
        for one in streams:
            one.hang_up()

    # --- what clients reach ---

    def connect(self, user: UserKey) -> SimStream:
        """A stream to the connection room. Raises UNAVAILABLE if nobody listens."""
        if self.down:
            raise unavailable("nobody listens")
        one = SimStream(self._world, user)
        self._streams = [known for known in self._streams if not known.closed]
        self._streams.append(one)
        self._runtime.spawn(self.node.connections.handle(one), "handle")
        return one

    async def ask(self, call: Callable[[Node], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """A unary call to a room. Raises what it raises, or TimeoutError if nothing is heard.

        The deadline travels with the call, as in gRPC: the server lets go of it by itself.
        """
        if self.down:
            raise unavailable("nobody listens")
        answer: asyncio.Future[T | QimError] = self._world.loop.create_future()
        node = self.node

        async def serve() -> None:
            outcome: T | QimError
            try:
                outcome = await self._runtime.wait_for(call(node), timeout_s)
            except QimError as error:
                outcome = error
            except TimeoutError:
                return
            if not answer.done():
                answer.set_result(outcome)

        self._runtime.spawn(serve(), "unary")
        async with asyncio.timeout(timeout_s):
            outcome = await answer
        if isinstance(outcome, QimError):
            raise outcome
        return outcome

    def owns(self, kind: ShardKind, shard: int) -> bool:
        """Whether its process serves a term of the shard."""
        return not self.down and any(
            owner.kind is kind and owner.shard == shard and owner.owned
            for owner in self.node.owners
        )
