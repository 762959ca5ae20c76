"""The rooms that one process runs, by its roles, over ports.

Rooms know one another through ports alone. What a process does not run it reaches by a hop
(`links`), or does without.
"""

from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.descriptor import ServiceDescriptor

from qim.control.v1 import shadow_service_pb2
from qim.mailbox.v1 import mailbox_service_pb2
from qim.session.v1 import session_service_pb2
from qimd.app.hops.rooms import LocalRooms
from qimd.app.ownership import Role
from qimd.app.roles import MAILBOX, SESSION, WRITER
from qimd.contract.cursor import CursorKeys
from qimd.control.shadow import ShadowHandlers
from qimd.core.routing import RoutingTable
from qimd.fanout.service import FanoutService
from qimd.mailbox.handlers import MailboxHandlers
from qimd.mailbox.service import MailboxService
from qimd.ports.data import Backends
from qimd.ports.runtime import Runtime
from qimd.ports.services import PushHints
from qimd.ports.store import ShardKind
from qimd.session.handlers import SessionHandlers
from qimd.session.service import SessionService
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import Spans
from qimd.writer.handlers import ConversationChanges
from qimd.writer.service import WriterService


@dataclass(frozen=True, slots=True)
class Common:
    """What every room of a process is made with."""

    table: RoutingTable
    backends: Backends
    cursor_keys: CursorKeys
    runtime: Runtime
    metrics: Metrics
    recovery_window_ms: int
    replay_safety_window_ms: int | None
    chunk_recipients: int
    spans: Spans


class OwningRooms:
    """The rooms that own shards here. What the roles do not name is None."""

    def __init__(
        self,
        common: Common,
        roles: frozenset[str],
        hints: PushHints,
        on_stall_failover: Callable[[int], None],
    ) -> None:
        backends = common.backends
        self._table = common.table
        self._backends = backends
        self.sessions: SessionService | None = None
        self.mailbox: MailboxService | None = None
        self.fanout: FanoutService | None = None
        self.writer: WriterService | None = None
        if SESSION in roles:
            self.sessions = SessionService(
                projection=backends.projection,
                conversations=backends.conversations,
                log=backends.log,
                quarantine=backends.quarantine,
                table=common.table,
                runtime=common.runtime,
                metrics=common.metrics,
                recovery_window_ms=common.recovery_window_ms,
                spans=common.spans,
            )
        if MAILBOX in roles:
            self.mailbox = MailboxService(
                table=common.table,
                store=backends.mailbox,
                conversations=backends.conversations,
                log=backends.log,
                quarantine=backends.quarantine,
                hints=hints,
                cursor_keys=common.cursor_keys,
                runtime=common.runtime,
                metrics=common.metrics,
                recovery_window_ms=common.recovery_window_ms,
                replay_safety_window_ms=common.replay_safety_window_ms,
                spans=common.spans,
                on_stall_failover=on_stall_failover,
            )
        if WRITER in roles:
            self.fanout = FanoutService(
                common.table,
                backends.conversations,
                backends.log,
                backends.quarantine,
                common.runtime,
                common.metrics,
                chunk_recipients=common.chunk_recipients,
                spans=common.spans,
            )
            self.writer = WriterService(
                common.table,
                backends.tenants,
                backends.conversations,
                self.fanout,
                common.runtime,
                common.metrics,
                chunk_recipients=common.chunk_recipients,
                spans=common.spans,
            )

    @property
    def changes(self) -> ConversationChanges | None:
        """The administration of the conversations that are owned here."""
        return None if self.writer is None else ConversationChanges(self.writer)

    def local(self) -> LocalRooms:
        """What other processes may call here."""
        return LocalRooms(
            writer=self.writer,
            conversations=self.changes,
            mailbox=self.mailbox,
            mailbox_operations=self.mailbox,
            sessions=self.sessions,
            session_operations=self.sessions,
        )

    def roles(self) -> list[Role]:
        """What is owned here. Downstream first: what a new writer sends on finds its readers."""
        table = self._table
        owned: list[Role] = []
        if self.sessions is not None:
            owned.append(Role(ShardKind.SESSION, table.mailbox_shards, (self.sessions,)))
        if self.mailbox is not None:
            owned.append(Role(ShardKind.MAILBOX, table.mailbox_shards, (self.mailbox,)))
        if self.writer is not None and self.fanout is not None:
            owned.append(Role(ShardKind.WRITER, table.writer_shards, (self.fanout, self.writer)))
        return owned

    def services(self) -> list[tuple[ServiceDescriptor, object]]:
        """The administration services of what is owned here, each with its handlers."""
        served: list[tuple[ServiceDescriptor, object]] = []
        if self.mailbox is not None:
            mailbox = mailbox_service_pb2.DESCRIPTOR.services_by_name["MailboxService"]
            served.append((mailbox, MailboxHandlers(self.mailbox, self._backends.log)))
        if self.sessions is not None:
            session = session_service_pb2.DESCRIPTOR.services_by_name["SessionService"]
            served.append((session, SessionHandlers(self.sessions)))
        shadow = self._backends.shadow
        if self.mailbox is not None and shadow is not None:
            service = shadow_service_pb2.DESCRIPTOR.services_by_name["ShadowService"]
            served.append((service, ShadowHandlers(shadow)))
        return served

    # --- whether they serve ---

    def serving(self, kind: ShardKind, shard: int) -> bool:
        """Whether an owned shard serves or has halted: a halted one is an operator's affair, and
        holds up nobody else's.
        """
        if kind is ShardKind.MAILBOX and self.mailbox is not None:
            shards = [one for one in self.mailbox.shards() if one.shard == shard]
            return any(one.caught_up or one.fault is not None for one in shards)
        if kind is ShardKind.SESSION and self.sessions is not None:
            partitions = [one for one in self.sessions.describe() if one.partition == shard]
            return any(one.ready or one.dirty for one in partitions)
        return True
