"""Presence that says who comes and goes, for those who must know in other processes."""

from typing import Protocol

from qimd.connection.link import Link
from qimd.connection.presence import Presence
from qimd.core.records import UserKey
from qimd.core.seq import MailboxSeq
from qimd.ports.runtime import Runtime
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import NO_SPANS, Spans


class PresenceListener(Protocol):
    """Told of users with a stream here that wants pushes. Both may repeat what is known."""

    def online(self, user: UserKey) -> None:
        """The user has such a stream."""

    def offline(self, user: UserKey) -> None:
        """The user has none."""


class AnnouncedPresence(Presence):
    """`connection.presence.Presence`, and a listener."""

    def __init__(self, runtime: Runtime, metrics: Metrics, spans: Spans = NO_SPANS) -> None:
        super().__init__(runtime, metrics, spans)
        self.listener: PresenceListener | None = None

    def register(self, link: Link) -> Link | None:
        """See `Presence`."""
        older = super().register(link)
        self._announce(link)
        return older

    def remove(self, link: Link) -> None:
        """See `Presence`."""
        super().remove(link)
        self._announce(link)

    def pulled_through(self, user: UserKey) -> MailboxSeq:
        """What each stream of the user that wants pushes has pulled at least.

        Raises ValueError if there is none.
        """
        devices = self._listening.get(user.tenant, {}).get(user.user, {})
        return min(link.handed for link in devices.values())

    def _announce(self, link: Link) -> None:
        """Say how it is with the stream's user now."""
        if self.listener is None or link.identity is None:
            return
        user = link.identity.device.owner
        if self.online(user.tenant, (user.user,)):
            self.listener.online(user)
        else:
            self.listener.offline(user)
