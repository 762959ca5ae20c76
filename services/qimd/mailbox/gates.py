"""The start gates: a shard reads only a log that provably is its own and still covers its position.

Each violation is an explicit fault (seed 004, design section 7). A jump to the log's begin or end
would lose messages in silence.
"""

from dataclasses import dataclass

from qimd.core.lease import Term
from qimd.core.outcome import Applied, NotApplied
from qimd.core.records import LogIdentity
from qimd.core.routing import RoutingTable
from qimd.mailbox.logic import Fault, range_fault, retention_fault
from qimd.mailbox.ports import Halted, RoomPorts, settle
from qimd.ports.log import Log, LogFault, LogSettings
from qimd.ports.mailbox import REBUILD_IDENTITY, EpochBoundary, ShardState


@dataclass(frozen=True, slots=True)
class Admitted:
    """A shard that may read. `high` is the log's end as seen at start."""

    identity: LogIdentity
    high: int


async def open_shard(ports: RoomPorts, shard: int, term: Term) -> ShardState:
    """Make the term the shard's. Raises TermOver, Halted, QimError(UNAVAILABLE)."""
    # A new shard begins at offset 0 of the first log, whatever is still there: if its begin is gone
    # already, or that log is, the gates say so, instead of starting behind a gap. The log at hand
    # is looked at before the note: where there is none yet, nothing went to another log before.
    found = await _identity(ports.log)
    noted = await ports.conversations.first_log()
    first = EpochBoundary(1, 0, noted or found.text)
    opened = await settle(
        ports.runtime, term, lambda: ports.store.open_shard(shard, term.epoch, first)
    )
    match opened:
        case Applied(value=state):
            return state
        case NotApplied(refusal=refusal, detail=detail):
            raise Halted(Fault("store_refused", f"open_shard: {refusal.value} {detail}"))


async def admit(ports: RoomPorts, state: ShardState) -> Admitted:
    """Check the gates. Raises Halted, QimError(UNAVAILABLE)."""
    identity = await checked_log(ports)
    boundary = state.boundaries[-1]
    if boundary.log_identity != identity.text:
        raise Halted(
            Fault("identity_changed", f"the log is {identity.text}, not {boundary.log_identity}")
        )
    watermarks = await ports.log.watermarks(state.shard)
    if fault := range_fault(state.next_offset, watermarks.low, watermarks.high):
        raise Halted(fault)
    # The watermarks were those of this log only if it still is the same one.
    await same_log(ports.log, identity)
    return Admitted(identity, watermarks.high)


async def checked_log(ports: RoomPorts) -> LogIdentity:
    """The log's identity, if its shape and retention are as they must be. Raises Halted."""
    identity = await _identity(ports.log)
    if fault := _shape_fault(ports.table, identity, await ports.log.settings(), ports):
        raise Halted(fault)
    return identity


async def same_log(log: Log, identity: LogIdentity) -> None:
    """Raises Halted unless the log still is the one of this identity."""
    now = await _identity(log)
    if now != identity:
        raise Halted(Fault("identity_changed", f"the log is {now.text}, not {identity.text}"))


def being_rebuilt(state: ShardState) -> bool:
    """A rebase was begun and not finished."""
    return state.boundaries[-1].log_identity == REBUILD_IDENTITY


def _shape_fault(
    table: RoutingTable, identity: LogIdentity, settings: LogSettings, ports: RoomPorts
) -> Fault | None:
    if identity.partitions != table.mailbox_shards:
        return Fault(
            "partition_count",
            f"the topic has {identity.partitions} partitions, not {table.mailbox_shards}",
        )
    return retention_fault(settings.retention_ms, ports.recovery_window_ms)


async def _identity(log: Log) -> LogIdentity:
    try:
        return await log.identity()
    except LogFault as fault:
        raise Halted(Fault(fault.kind.value, fault.detail)) from fault
