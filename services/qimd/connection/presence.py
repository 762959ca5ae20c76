"""Who is online here, and hints to them (`ports.services.PushHints`).

Hints are collected per stream and leave once per turn of the event loop, as frames of up to 100
events. Streams that were told the same get the same frame, which is joined once.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from qimd.connection.link import Link
from qimd.connection.logic import cut_pushes
from qimd.contract.frames import EncodedFrame, push_frame
from qimd.core.ids import DeviceId, TenantId, UserId
from qimd.ports.runtime import Runtime
from qimd.ports.services import Hint
from qimd.telemetry.metrics import Metrics

_NOBODY: Final[Mapping[DeviceId, Link]] = {}


class Presence:
    """The authenticated streams of this process, by tenant, user and device."""

    def __init__(self, runtime: Runtime, metrics: Metrics) -> None:
        self._runtime = runtime
        self._metrics = metrics
        self._tenants: dict[TenantId, dict[UserId, dict[DeviceId, Link]]] = {}
        self._hinted: list[Link] = []
        self._flush_spawned = False

    def register(self, link: Link) -> Link | None:
        """Make the stream its device's; the older one that it replaces, if there is one."""
        if link.identity is None:
            raise ValueError("a stream is registered after its AUTH")
        device = link.identity.device
        devices = self._tenants.setdefault(device.tenant, {}).setdefault(device.user, {})
        older = devices.get(device.device)
        devices[device.device] = link
        if older is None:
            self._metrics.connections.inc()
        return older

    def remove(self, link: Link) -> None:
        """The stream has ended. A newer one of its device stays."""
        if link.identity is None:
            return
        device = link.identity.device
        users = self._tenants.get(device.tenant, {})
        devices = users.get(device.user, {})
        if devices.get(device.device) is not link:
            return
        del devices[device.device]
        if not devices:
            del users[device.user]
        if not users:
            del self._tenants[device.tenant]
        self._metrics.connections.dec()

    def online(self, tenant: TenantId, users: Collection[UserId]) -> Collection[UserId]:
        """Those of the users with a live stream here, in the order given."""
        here = self._tenants.get(tenant)
        return [] if here is None else list(filter(here.__contains__, users))

    def push(self, hints: Sequence[Hint]) -> None:
        """Queue hints, in order, for the users' streams. Never blocks."""
        for hint in hints:
            users = self._tenants.get(hint.tenant)
            if users is None:
                continue
            for user in hint.users:
                for link in users.get(user, _NOBODY).values():
                    if not link.hints:
                        self._hinted.append(link)
                    link.hints.append(hint.delivered)
        if self._hinted and not self._flush_spawned:
            self._flush_spawned = True
            self._runtime.spawn(self._flush(), "push-flush")

    async def _flush(self) -> None:
        started_s = self._runtime.monotonic_s()
        self._flush_spawned = False
        hinted, self._hinted = self._hinted, []
        entries = 0
        # Keyed by the identities of the shared bytes, which `told` keeps alive for as long.
        made: dict[tuple[int, ...], tuple[list[bytes], list[EncodedFrame]]] = {}
        for link in hinted:
            told, link.hints = link.hints, []
            if link.ending or not told:
                continue
            same = tuple(map(id, told))
            if same not in made:
                made[same] = (told, [push_frame(part) for part in cut_pushes(told)])
            for frame in made[same][1]:
                link.send(frame)
            entries += len(told)
        self._metrics.stage_entries_total.labels("push").inc(entries)
        self._metrics.stage_latency_seconds.labels("push").observe(
            self._runtime.monotonic_s() - started_s
        )
