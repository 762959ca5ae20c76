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
from qimd.adapters.memory.torn import TornMailboxStore
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

    `faults` is the network of every process that is opened without one of its own. `torn_mailbox`
    gives the mailbox an engine whose step is several effects; with `produces_by_id` a producer
    appends to the topic that it was opened for alone, and else to the one that has the name.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        partitions: int = 2,
        retention_ms: int | None = RETENTION_MS,
        max_record_bytes: int | None = MAX_RECORD_BYTES,
        torn_mailbox: bool = False,
        produces_by_id: bool = False,
    ) -> None:
        self.faults = FaultPlan(runtime)
        self.leases = LeaseDisk(runtime)
        self.topic = Topic(
            runtime, partitions, retention_ms, max_record_bytes, produces_by_id=produces_by_id
        )
        self.projection = ProjectionDisk()
        self._graveyard = Graveyard()
        self.tenants = TenantDisk()
        self._epochs = EpochDisk()
        self.conversations = ConversationDisk()
        self.mailbox = MailboxDisk()
        self._torn_mailbox = torn_mailbox
        self.sync()
        self.sync_store()
        self._quarantine = QuarantineDisk()

    def sync(self) -> None:
        """Mailbox and projection reach their disks: `lose_tail` can take nothing of this back.

        They may write behind their acknowledgements (design section 13): what they lose is read
        again from the log, which never does.
        """
        self._synced = (self.mailbox.copied(), self.projection.copied())

    def sync_store(self) -> None:
        """Epochs, heads and events reach their disk.

        A world that is to keep its messages and epochs does so behind each: then `lose_store_tail`
        takes back claims of heads, outbox progress and audits alone.
        """
        self._synced_store = (self.conversations.copied(), self._epochs.copied())

    def lose_tail(self) -> None:
        """As a power failure does: what mailbox and projection did since the last sync is gone."""
        self.mailbox.take_back(self._synced[0])
        self.projection.take_back(self._synced[1])

    def lose_store_tail(self) -> None:
        """Likewise, of the store."""
        self.conversations.take_back(self._synced_store[0])
        self._epochs.take_back(self._synced_store[1])

    def open(self, runtime: Runtime, network: Network | None = None) -> MemoryBackends:
        """A process's handles; `runtime` is the process's, for its own waiting."""
        wire = Wire(self.faults if network is None else network, self._graveyard)
        mailbox = TornMailboxStore if self._torn_mailbox else MemoryMailboxStore
        return MemoryBackends(
            tenants=MemoryTenantStore(self.tenants, wire),
            epochs=MemoryEpochStore(self._epochs, wire),
            conversations=MemoryConversationStore(self.conversations, self._epochs, wire),
            log=MemoryLog(self.topic, wire, runtime),
            lease=MemoryLease(self.leases, wire),
            mailbox=mailbox(self.mailbox, wire),
            projection=MemoryProjectionStore(self.projection, wire),
            quarantine=MemoryQuarantineStore(self._quarantine, wire),
            wire=wire,
        )
