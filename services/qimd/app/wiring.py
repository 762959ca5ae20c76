"""A node: rooms over ports, the owners of its shards, and its chores. The one place that knows all.

It has no socket and no file: `server` puts it behind gRPC, a simulator behind its own transport.
Rooms know one another through ports alone, bound here.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from google.protobuf.descriptor import ServiceDescriptor

from qim.control.v1 import control_service_pb2
from qim.conversation.v1 import conversation_service_pb2
from qim.mailbox.v1 import mailbox_service_pb2
from qim.session.v1 import session_service_pb2
from qim.tenant.v1 import tenant_service_pb2
from qim.writer.v1 import writer_service_pb2
from qimd.app.housekeeping import Chore, Housekeeping, expire_idempotency, publish_rates
from qimd.app.ownership import Role, ShardOwner
from qimd.auth.admission import OpenAdmission
from qimd.auth.service import TokenAuthenticator
from qimd.connection.presence import Presence
from qimd.connection.service import ConnectionService
from qimd.contract.cursor import CursorKeys
from qimd.control.auditor import Auditor
from qimd.control.handlers import ControlHandlers
from qimd.control.tenants import TenantHandlers
from qimd.control.trace import Tracer
from qimd.core.parameters import DISPATCH_CHUNK_RECIPIENTS, DRAIN_GRACE_S, LeaseParameters
from qimd.core.routing import RoutingTable
from qimd.fanout.service import FanoutService
from qimd.mailbox.handlers import MailboxHandlers
from qimd.mailbox.service import MailboxService
from qimd.ports.data import Backends
from qimd.ports.runtime import Runtime
from qimd.ports.store import ShardKind
from qimd.session.handlers import SessionHandlers
from qimd.session.service import SessionService
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics
from qimd.writer.handlers import ConversationHandlers, WriterHandlers
from qimd.writer.service import WriterService

_log = logger("node")

READY_LOOK_S: Final = 0.02
"""Between two looks at whether every shard serves."""


class Node:
    """One process's rooms. `start`, then `ready`; `drain` ends it in order.

    `owner` is unique among all processes that ever ran; `sole` says that no other one lives, which
    an exclusive lock on the data proves.
    """

    def __init__(
        self,
        *,
        table: RoutingTable,
        backends: Backends,
        cursor_keys: CursorKeys,
        runtime: Runtime,
        metrics: Metrics,
        recovery_window_ms: int,
        audit_interval_s: float,
        owner: str,
        lease: LeaseParameters | None = None,
        sole: bool = False,
        drain_grace_s: float = DRAIN_GRACE_S,
        chunk_recipients: int = DISPATCH_CHUNK_RECIPIENTS,
        chores: Sequence[Chore] = (),
    ) -> None:
        self._table = table
        self._backends = backends
        self._runtime = runtime
        self._drain_grace_s = drain_grace_s
        presence = Presence(runtime, metrics)
        self.sessions = SessionService(
            projection=backends.projection,
            conversations=backends.conversations,
            log=backends.log,
            quarantine=backends.quarantine,
            table=table,
            runtime=runtime,
            metrics=metrics,
            recovery_window_ms=recovery_window_ms,
        )
        self.mailbox = MailboxService(
            table=table,
            store=backends.mailbox,
            conversations=backends.conversations,
            log=backends.log,
            quarantine=backends.quarantine,
            hints=presence,
            cursor_keys=cursor_keys,
            runtime=runtime,
            metrics=metrics,
            recovery_window_ms=recovery_window_ms,
            on_stall_failover=self._hand_mailbox_over,
        )
        self.fanout = FanoutService(
            table,
            backends.conversations,
            backends.log,
            backends.quarantine,
            runtime,
            metrics,
            chunk_recipients=chunk_recipients,
        )
        self.writer = WriterService(
            table,
            backends.tenants,
            backends.conversations,
            self.fanout,
            runtime,
            metrics,
            chunk_recipients=chunk_recipients,
        )
        self.connections = ConnectionService(
            auth=TokenAuthenticator(backends.tenants, runtime),
            admission=OpenAdmission(),
            writer=self.writer,
            mailbox=self.mailbox,
            sessions=self.sessions,
            conversations=backends.conversations,
            runtime=runtime,
            metrics=metrics,
            presence=presence,
        )
        auditor = Auditor(
            table=table,
            conversations=backends.conversations,
            mailbox=backends.mailbox,
            log=backends.log,
            quarantine=backends.quarantine,
            runtime=runtime,
            metrics=metrics,
        )
        self.owners = [
            ShardOwner(
                kind=role.kind,
                shard=shard,
                rooms=role.rooms,
                lease=backends.lease,
                epochs=backends.epochs,
                runtime=runtime,
                metrics=metrics,
                owner=owner,
                parameters=lease or LeaseParameters(),
                sole=sole,
                settle_s=drain_grace_s,
            )
            for role in self.roles()
            for shard in range(role.shards)
        ]
        self._housekeeping = Housekeeping(
            [
                expire_idempotency(backends.conversations, runtime),
                publish_rates(metrics),
                Chore("audit", audit_interval_s, auditor.run),
                *chores,
            ],
            runtime,
            metrics,
        )
        self._owning = 0
        self._owners_ended = asyncio.Event()
        self.draining = False

    def roles(self) -> tuple[Role, ...]:
        """What this process owns: all of it, in one process."""
        table = self._table
        return (
            # Downstream first: what a new writer sends on finds its readers there.
            Role(ShardKind.SESSION, table.mailbox_shards, (self.sessions,)),
            Role(ShardKind.MAILBOX, table.mailbox_shards, (self.mailbox,)),
            Role(ShardKind.WRITER, table.writer_shards, (self.fanout, self.writer)),
        )

    def services(self) -> list[tuple[ServiceDescriptor, object]]:
        """The administration services, each with its handlers."""
        backends = self._backends
        writer = writer_service_pb2.DESCRIPTOR.services_by_name["WriterService"]
        conversation = conversation_service_pb2.DESCRIPTOR.services_by_name["ConversationService"]
        mailbox = mailbox_service_pb2.DESCRIPTOR.services_by_name["MailboxService"]
        session = session_service_pb2.DESCRIPTOR.services_by_name["SessionService"]
        tenant = tenant_service_pb2.DESCRIPTOR.services_by_name["TenantService"]
        control = control_service_pb2.DESCRIPTOR.services_by_name["ControlService"]
        return [
            (writer, WriterHandlers(self.writer)),
            (conversation, ConversationHandlers(self.writer, backends.conversations)),
            (mailbox, MailboxHandlers(self.mailbox, backends.log)),
            (session, SessionHandlers(self.sessions)),
            (tenant, TenantHandlers(backends.tenants, self._runtime)),
            (control, self._control_handlers()),
        ]

    def _control_handlers(self) -> ControlHandlers:
        backends = self._backends
        tracer = Tracer(
            table=self._table,
            conversations=backends.conversations,
            mailbox=backends.mailbox,
            projection=backends.projection,
            log=backends.log,
            quarantine=backends.quarantine,
        )
        return ControlHandlers(
            table=self._table,
            tracer=tracer,
            quarantine=backends.quarantine,
            mailbox=self.mailbox,
            sessions=self.sessions,
        )

    # --- its life ---

    def start(self) -> None:
        """Begin to own shards."""
        self._owning = len(self.owners)
        for owner in self.owners:
            self._runtime.spawn(self._own(owner), f"owner-{owner.kind.value}:{owner.shard}")
        self._housekeeping.start()

    @property
    def is_ready(self) -> bool:
        """Whether every shard is owned here, and serves or has halted: a halted one is an
        operator's affair, and holds up nobody else's.
        """
        return (
            not self.draining
            and all(owner.owned for owner in self.owners)
            and self._mailbox_open()
            and self._sessions_open()
        )

    async def ready(self) -> None:
        """Return once it is."""
        while not self.is_ready:
            await self._runtime.sleep(READY_LOOK_S)

    async def drain(self) -> None:
        """Send clients away, finish what is under way, release every lease."""
        self.draining = True
        self._housekeeping.stop()
        # Streams first: what they have under way still needs the writer and the mailbox.
        await self.connections.drain(self._drain_grace_s)
        for owner in self.owners:
            owner.drain()
        if self._owning:
            await self._owners_ended.wait()

    async def _own(self, owner: ShardOwner) -> None:
        try:
            await owner.run()
        finally:
            self._owning -= 1
            if not self._owning:
                self._owners_ended.set()

    def _hand_mailbox_over(self, shard: int) -> None:
        for owner in self.owners:
            if owner.kind is ShardKind.MAILBOX and owner.shard == shard:
                _log.warning("a stalled mailbox shard is handed over", mailbox_shard=shard)
                owner.hand_over()

    def _mailbox_open(self) -> bool:
        shards = self.mailbox.shards()
        return len(shards) == self._table.mailbox_shards and all(
            shard.caught_up or shard.fault is not None for shard in shards
        )

    def _sessions_open(self) -> bool:
        partitions = self.sessions.describe()
        return len(partitions) == self._table.mailbox_shards and all(
            partition.ready or partition.dirty for partition in partitions
        )
