"""What an engine adapter offers in all: one bundle, so that `app.wiring` picks a backend in one
line.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from qimd.ports.health import Dependency
from qimd.ports.lease import LeasePort
from qimd.ports.log import Log
from qimd.ports.mailbox import MailboxStore
from qimd.ports.projection import ProjectionStore
from qimd.ports.quarantine import QuarantineStore
from qimd.ports.shadow import ShadowOperations
from qimd.ports.store import ConversationStore, EpochStore, TenantStore


@dataclass(frozen=True, slots=True)
class Backends:
    """The adapters of one profile. `shadow` speaks for `mailbox` if that is a pair of stores;
    `dependencies` are the engines that may be away while the process runs.
    """

    tenants: TenantStore
    epochs: EpochStore
    conversations: ConversationStore
    log: Log
    lease: LeasePort
    mailbox: MailboxStore
    projection: ProjectionStore
    quarantine: QuarantineStore
    shadow: ShadowOperations | None = field(default=None, kw_only=True)
    dependencies: Sequence[Dependency] = field(default=(), kw_only=True)
