"""One process's links to the others of its deployment: whom it calls, and who may call it."""

from collections.abc import Callable
from dataclasses import dataclass

from grpc import GenericRpcHandler, aio

from qimd.app.hops.announced import AnnouncedPresence
from qimd.app.hops.credentials import Authenticate
from qimd.app.hops.directory import Directory
from qimd.app.hops.peers import Peers
from qimd.app.hops.presence import RemotePresence
from qimd.app.hops.registrar import Registrar
from qimd.app.hops.remote import (
    RemoteConversations,
    RemoteMailbox,
    RemoteSessions,
    RemoteWriter,
)
from qimd.app.hops.router import Router
from qimd.app.hops.server import HopHandlers
from qimd.app.roles import CONNECTION, MAILBOX
from qimd.app.rooms import Common, OwningRooms


@dataclass(frozen=True, slots=True)
class HopSite:
    """How hops go out and come in. `address` is host:port as other processes dial it; `credentials`
    is metadata that each call to a peer carries.
    """

    address: str
    channel: Callable[[str], aio.Channel]
    credentials: tuple[tuple[str, str], ...]
    authenticate: Authenticate


class Links:
    """See the module. `presence` is made first, since the rooms need it; `connect` comes last."""

    def __init__(self, site: HopSite, common: Common, roles: frozenset[str]) -> None:
        self._site = site
        self._common = common
        runtime, metrics = common.runtime, common.metrics
        self.here = (
            AnnouncedPresence(runtime, metrics, common.spans) if CONNECTION in roles else None
        )
        self.presence = RemotePresence(metrics, self.here)
        self._told = self.presence if MAILBOX in roles else None
        directory = Directory(common.backends.lease, runtime)
        self._peers = Peers(
            directory=directory,
            channel_factory=site.channel,
            credentials=site.credentials,
            runtime=runtime,
            metrics=metrics,
        )
        self._router = Router(
            address=site.address, directory=directory, peers=self._peers, runtime=runtime
        )
        self._registrar: Registrar | None = None

    def connect(self, rooms: OwningRooms) -> None:
        """Make the ports to rooms elsewhere, and let others call those that are here."""
        common = self._common
        table = common.table
        self.writer = RemoteWriter(self._router, table, rooms.writer)
        self.changes = RemoteConversations(self._router, table, rooms.changes)
        self.mailbox = RemoteMailbox(self._router, table, rooms.mailbox, rooms.mailbox)
        self.sessions = RemoteSessions(self._router, table, rooms.sessions, rooms.sessions)
        self._handlers = HopHandlers(
            rooms=rooms.local(),
            presence=self._told,
            authenticate=self._site.authenticate,
            runtime=common.runtime,
            metrics=common.metrics,
        )
        if self.here is not None:
            self._registrar = Registrar(
                table=table,
                presence=self.here,
                router=self._router,
                mailbox=self.mailbox,
                runtime=common.runtime,
                spans=common.spans,
            )
            self._peers.listener = self._registrar

    def service(self) -> GenericRpcHandler:
        """What a server of hops serves."""
        return self._handlers.service()

    def start(self) -> None:
        """Begin to tell the mailboxes' owners who is online here."""
        if self._registrar is not None:
            self._common.runtime.spawn(self._registrar.run(), "hop-registrar")

    async def drain(self, grace_s: float) -> None:
        """Refuse new calls, and answer those under way."""
        await self._handlers.drain(grace_s)

    def close(self) -> None:
        """Call nobody any more."""
        self._peers.close()
