"""A deployment in memory: engines whose state survives the processes that use it."""

from dataclasses import dataclass
from typing import Final

from qimd.adapters.memory.control import (
    EpochDisk,
    MemoryEpochStore,
    MemoryTenantStore,
    TenantDisk,
)
from qimd.adapters.memory.conversations import ConversationDisk, MemoryConversationStore
from qimd.adapters.memory.lease import LeaseDisk, MemoryLease
from qimd.adapters.memory.log import MemoryLog, Topic
from qimd.adapters.memory.mailbox import MailboxDisk, MemoryMailboxStore
from qimd.adapters.memory.network import FaultPlan, Graveyard, Network, Wire
from qimd.adapters.memory.projection import MemoryProjectionStore, ProjectionDisk
from qimd.adapters.memory.quarantine import MemoryQuarantineStore, QuarantineDisk
from qimd.core.parameters import GROUP_DISPATCH_BYTES_MAX
from qimd.ports.data import Backends
from qimd.ports.runtime import Runtime

RETENTION_MS: Final = 7 * 24 * 3600 * 1000
"""A week, as a production topic has it: well above any recovery window."""

MAX_RECORD_BYTES: Final = 1024 * 1024
"""Kafka's default of max.message.bytes."""

if MAX_RECORD_BYTES <= GROUP_DISPATCH_BYTES_MAX:
    raise AssertionError("the log in memory holds no largest GroupDispatch")


@dataclass(frozen=True, slots=True)
class MemoryBackends(Backends):
    """One process's handles on the deployment."""

    wire: Wire

    def kill(self) -> None:
        """As SIGKILL does: no call of this process returns from now on; what is under way may still
        land.
        """
        self.wire.kill()


class MemoryCluster:
    """The engines. `runtime` is theirs: lease ends, append times, and when late calls land.

    `faults` is the network of every process that is opened without one of its own.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        partitions: int = 2,
        retention_ms: int | None = RETENTION_MS,
        max_record_bytes: int | None = MAX_RECORD_BYTES,
    ) -> None:
        self.faults = FaultPlan(runtime)
        self.leases = LeaseDisk(runtime)
        self.topic = Topic(runtime, partitions, retention_ms, max_record_bytes)
        self.projection = ProjectionDisk()
        self._graveyard = Graveyard()
        self._tenants = TenantDisk()
        self._epochs = EpochDisk()
        self._conversations = ConversationDisk()
        self._mailbox = MailboxDisk()
        self._quarantine = QuarantineDisk()

    def open(self, runtime: Runtime, network: Network | None = None) -> MemoryBackends:
        """A process's handles; `runtime` is the process's, for its own waiting."""
        wire = Wire(self.faults if network is None else network, self._graveyard)
        return MemoryBackends(
            tenants=MemoryTenantStore(self._tenants, wire),
            epochs=MemoryEpochStore(self._epochs, wire),
            conversations=MemoryConversationStore(self._conversations, self._epochs, wire),
            log=MemoryLog(self.topic, wire, runtime),
            lease=MemoryLease(self.leases, wire),
            mailbox=MemoryMailboxStore(self._mailbox, wire),
            projection=MemoryProjectionStore(self.projection, wire),
            quarantine=MemoryQuarantineStore(self._quarantine, wire),
            wire=wire,
        )
