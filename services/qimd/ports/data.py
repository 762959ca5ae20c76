"""What an engine adapter offers in all: one bundle, so that `app.wiring` picks a backend in one
line.
"""

from dataclasses import dataclass, field

from qimd.ports.lease import LeasePort
from qimd.ports.log import Log
from qimd.ports.mailbox import MailboxStore
from qimd.ports.projection import ProjectionStore
from qimd.ports.quarantine import QuarantineStore
from qimd.ports.shadow import ShadowOperations
from qimd.ports.store import ConversationStore, EpochStore, TenantStore


@dataclass(frozen=True, slots=True)
class Backends:
    """The adapters of one profile. `shadow` speaks for `mailbox` if that is a pair of stores."""

    tenants: TenantStore
    epochs: EpochStore
    conversations: ConversationStore
    log: Log
    lease: LeasePort
    mailbox: MailboxStore
    projection: ProjectionStore
    quarantine: QuarantineStore
    shadow: ShadowOperations | None = field(default=None, kw_only=True)
