"""A node: rooms over ports, the owners of its shards, and its chores. The one place that knows all.

It has no socket and no file: `server` and `run` put it behind gRPC, a simulator behind its own
transport. Rooms know one another through ports alone, bound here: in process where a room is here,
by a hop where it is not.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, TypeVar

from google.protobuf.descriptor import ServiceDescriptor

from qim.control.v1 import control_service_pb2
from qim.conversation.v1 import conversation_service_pb2
from qim.tenant.v1 import tenant_service_pb2
from qim.writer.v1 import writer_service_pb2
from qimd.app.housekeeping import Chore, Housekeeping, expire_idempotency, publish_rates
from qimd.app.links import HopSite, Links
from qimd.app.ownership import ShardOwner
from qimd.app.roles import ALL, CONNECTION, WRITER
from qimd.app.rooms import Common, OwningRooms
from qimd.auth.admission import OpenAdmission
from qimd.auth.service import TokenAuthenticator
from qimd.connection.presence import Presence
from qimd.connection.service import ConnectionService
from qimd.contract.cursor import CursorKeys
from qimd.control.auditor import Auditor
from qimd.control.handlers import ControlHandlers
from qimd.control.tenants import TenantHandlers
from qimd.control.trace import Tracer
from qimd.core.errors import ErrorCode, QimError
from qimd.core.parameters import DISPATCH_CHUNK_RECIPIENTS, DRAIN_GRACE_S, LeaseParameters
from qimd.core.routing import RoutingTable
from qimd.mailbox.service import MailboxService
from qimd.ports.data import Backends
from qimd.ports.runtime import Runtime
from qimd.ports.services import (
    Mailbox,
    MailboxOperations,
    SessionOperations,
    Sessions,
    Writer,
)
from qimd.ports.store import ShardKind
from qimd.session.service import SessionService
from qimd.telemetry.logs import logger
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import NO_SPANS, Spans
from qimd.writer.handlers import (
    Changes,
    ConversationChanges,
    ConversationHandlers,
    WriterHandlers,
)
from qimd.writer.service import WriterService

_log = logger("node")
R = TypeVar("R")

READY_LOOK_S: Final = 0.02
"""Between two looks at whether every shard serves."""


class Node:
    """One process's rooms. `start`, then `ready`; `drain` ends it in order.

    `owner` is unique among all processes that ever ran; `sole` says that no other one lives, which
    an exclusive lock on the data proves. Without a `site` the process is alone, and runs all roles.
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
        replay_safety_window_ms: int | None = None,
        audit_interval_s: float,
        owner: str,
        lease: LeaseParameters | None = None,
        sole: bool = False,
        drain_grace_s: float = DRAIN_GRACE_S,
        chunk_recipients: int = DISPATCH_CHUNK_RECIPIENTS,
        chores: Sequence[Chore] = (),
        roles: frozenset[str] = ALL,
        site: HopSite | None = None,
        spans: Spans = NO_SPANS,
    ) -> None:
        self._common = common = Common(
            table=table,
            backends=backends,
            cursor_keys=cursor_keys,
            runtime=runtime,
            metrics=metrics,
            recovery_window_ms=recovery_window_ms,
            replay_safety_window_ms=replay_safety_window_ms,
            chunk_recipients=chunk_recipients,
            spans=spans,
        )
        self._runtime = runtime
        self._drain_grace_s = drain_grace_s
        self.links = None if site is None else Links(site, common, roles)
        here = Presence(runtime, metrics, spans) if self.links is None else self.links.here
        hints = self.links.presence if self.links is not None else here
        assert hints is not None, "a process alone has its own presence"
        self.rooms = OwningRooms(common, roles, hints, self._hand_mailbox_over)
        if self.links is not None:
            self.links.connect(self.rooms)
        self.connections: ConnectionService | None = None
        if CONNECTION in roles and here is not None:
            self.connections = ConnectionService(
                auth=TokenAuthenticator(backends.tenants, runtime),
                admission=OpenAdmission(),
                writer=self._to_writer(),
                mailbox=self._to_mailbox(),
                sessions=self._to_sessions(),
                conversations=backends.conversations,
                runtime=runtime,
                metrics=metrics,
                presence=here,
                spans=spans,
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
            for role in self.rooms.roles()
            for shard in range(role.shards)
        ]
        self._housekeeping = Housekeeping(
            [publish_rates(metrics), *self._chores(roles, audit_interval_s), *chores],
            runtime,
            metrics,
        )
        self._owning = 0
        self._owners_ended = asyncio.Event()
        self.draining = False

    # --- rooms, here or elsewhere ---

    @property
    def writer(self) -> WriterService:
        """The writer room of this process. Raises QimError(NOT_OWNER) if it has none."""
        return _here(self.rooms.writer)

    @property
    def mailbox(self) -> MailboxService:
        """The mailbox room of this process. Raises QimError(NOT_OWNER) if it has none."""
        return _here(self.rooms.mailbox)

    @property
    def sessions(self) -> SessionService:
        """The session room of this process. Raises QimError(NOT_OWNER) if it has none."""
        return _here(self.rooms.sessions)

    def _to_writer(self) -> Writer:
        return self.writer if self.links is None else self.links.writer

    def _to_changes(self) -> Changes:
        return ConversationChanges(self.writer) if self.links is None else self.links.changes

    def _to_mailbox(self) -> Mailbox:
        return self.mailbox if self.links is None else self.links.mailbox

    def _to_sessions(self) -> Sessions:
        return self.sessions if self.links is None else self.links.sessions

    def _mailbox_operations(self) -> MailboxOperations:
        return self.mailbox if self.links is None else self.links.mailbox

    def _session_operations(self) -> SessionOperations:
        return self.sessions if self.links is None else self.links.sessions

    def services(self) -> list[tuple[ServiceDescriptor, object]]:
        """The administration services, each with its handlers."""
        backends = self._common.backends
        served = self.rooms.services()
        if self.connections is not None or self.rooms.writer is not None:
            writer = writer_service_pb2.DESCRIPTOR.services_by_name["WriterService"]
            conversation = conversation_service_pb2.DESCRIPTOR.services_by_name[
                "ConversationService"
            ]
            administration = ConversationHandlers(self._to_changes(), backends.conversations)
            served += [(writer, WriterHandlers(self._to_writer())), (conversation, administration)]
        if self.connections is not None:
            tenant = tenant_service_pb2.DESCRIPTOR.services_by_name["TenantService"]
            control = control_service_pb2.DESCRIPTOR.services_by_name["ControlService"]
            tenants = TenantHandlers(backends.tenants, self._runtime)
            served += [(tenant, tenants), (control, self._control_handlers())]
        return served

    def _control_handlers(self) -> ControlHandlers:
        backends, table = self._common.backends, self._common.table
        tracer = Tracer(
            table=table,
            conversations=backends.conversations,
            mailbox=backends.mailbox,
            projection=backends.projection,
            log=backends.log,
            quarantine=backends.quarantine,
        )
        return ControlHandlers(
            table=table,
            tracer=tracer,
            quarantine=backends.quarantine,
            mailbox=self._mailbox_operations(),
            sessions=self._session_operations(),
        )

    def _chores(self, roles: frozenset[str], audit_interval_s: float) -> list[Chore]:
        """What the writer's processes do for everybody."""
        if WRITER not in roles:
            return []
        backends = self._common.backends
        auditor = Auditor(
            table=self._common.table,
            conversations=backends.conversations,
            mailbox=backends.mailbox,
            log=backends.log,
            quarantine=backends.quarantine,
            runtime=self._runtime,
            metrics=self._common.metrics,
        )
        return [
            expire_idempotency(backends.conversations, self._runtime),
            Chore("audit", audit_interval_s, auditor.run),
        ]

    # --- its life ---

    def start(self) -> None:
        """Begin to own shards."""
        self._owning = len(self.owners)
        if self.links is not None:
            self.links.start()
        for owner in self.owners:
            self._runtime.spawn(self._own(owner), f"owner-{owner.kind.value}:{owner.shard}")
        self._housekeeping.start()

    @property
    def is_ready(self) -> bool:
        """Whether it may be sent clients: every shard of its roles serves here or has halted, or
        is another process's.
        """
        return not self.draining and all(self._is_settled(owner) for owner in self.owners)

    def _is_settled(self, owner: ShardOwner) -> bool:
        if owner.owned:
            return self.rooms.serving(owner.kind, owner.shard)
        # Without links nobody else's shard can be reached from here.
        return self.links is not None and owner.held_elsewhere

    async def ready(self) -> None:
        """Return once it is."""
        while not self.is_ready:
            await self._runtime.sleep(READY_LOOK_S)

    async def drain(self) -> None:
        """Send clients away, finish what is under way, release every lease."""
        self.draining = True
        self._housekeeping.stop()
        # Streams first: what they have under way still needs the writer and the mailbox.
        if self.connections is not None:
            await self.connections.drain(self._drain_grace_s)
        if self.links is not None:
            await self.links.drain(self._drain_grace_s)
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


def _here(room: R | None) -> R:
    if room is None:
        raise QimError(ErrorCode.NOT_OWNER, "the room does not run in this process")
    return room
