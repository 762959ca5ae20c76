"""What all parts of the session room share: its ports and parameters."""

from dataclasses import dataclass

from qimd.core.routing import RoutingTable
from qimd.ports.log import Log
from qimd.ports.projection import ProjectionStore
from qimd.ports.quarantine import QuarantineStore
from qimd.ports.runtime import Runtime
from qimd.ports.store import ConversationStore
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import Spans


@dataclass(frozen=True, slots=True)
class RoomPorts:
    """The room's ports. `recovery_window_ms` is QIM_DISPATCH_RECOVERY_WINDOW_MS: the log must keep
    at least as much.
    """

    table: RoutingTable
    projection: ProjectionStore
    conversations: ConversationStore
    log: Log
    quarantine: QuarantineStore
    runtime: Runtime
    metrics: Metrics
    recovery_window_ms: int
    spans: Spans
