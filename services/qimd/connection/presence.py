"""Who is online here, and hints to them (`ports.services.PushHints`).

Hints are collected per stream and leave once per turn of the event loop, as frames of up to 500
events. Streams that were told the same get the same frame, which is joined once.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from qimd.connection.link import Link
from qimd.connection.logic import cut_pushes
from qimd.connection.traced import traced
from qimd.contract.frames import EncodedFrame, push_frame
from qimd.core.ids import DeviceId, TenantId, UserId
from qimd.core.records import DeviceKey
from qimd.ports.runtime import Runtime
from qimd.ports.services import Hint
from qimd.telemetry.metrics import Metrics
from qimd.telemetry.tracing import NO_SPANS, PUSHED, Spans

_Links = dict[TenantId, dict[UserId, dict[DeviceId, Link]]]
_NOBODY: Final[Mapping[DeviceId, Link]] = {}


class Presence:
    """The authenticated streams of this process, by tenant, user and device."""

    def __init__(self, runtime: Runtime, metrics: Metrics, spans: Spans = NO_SPANS) -> None:
        self._runtime = runtime
        self._metrics = metrics
        self._spans = spans
        self._tenants: _Links = {}
        self._listening: _Links = {}
        """Of those, the streams that want PUSH_EVENTS."""
        self._hinted: list[Link] = []
        self._recorded: list[Hint] = []
        """Of what those were told, the hints whose traces are recorded."""
        self._hinted_at_s = 0.0
        """When the first of what waits came."""
        self._flush_spawned = False

    def register(self, link: Link) -> Link | None:
        """Make the stream its device's; the older one that it replaces, if there is one."""
        if link.identity is None:
            raise ValueError("a stream is registered after its AUTH")
        older = _put(self._tenants, link.identity.device, link)
        if older is None:
            self._metrics.connections.inc()
        else:
            _take(self._listening, link.identity.device, older)
        if link.wants_pushes:
            _put(self._listening, link.identity.device, link)
        return older

    def remove(self, link: Link) -> None:
        """The stream has ended. A newer one of its device stays."""
        if link.identity is None:
            return
        _take(self._listening, link.identity.device, link)
        if _take(self._tenants, link.identity.device, link):
            self._metrics.connections.dec()

    def online(self, tenant: TenantId, users: Collection[UserId]) -> Collection[UserId]:
        """Those of the users with a live stream here that wants pushes, in the order given."""
        here = self._listening.get(tenant)
        return [] if here is None else list(filter(here.__contains__, users))

    def push(self, hints: Sequence[Hint]) -> None:
        """Queue hints, in order, for the users' streams. Never blocks."""
        # The hints of a batch mostly repeat their users: those are gone through once for all.
        for (tenant, users), same in groupby(hints, attrgetter("tenant", "users")):
            listening = self._listening.get(tenant)
            if listening is None:
                continue
            alike = list(same)
            told = [hint.delivered for hint in alike]
            here = False
            for user in users:
                for link in listening.get(user, _NOBODY).values():
                    here = True
                    if not link.hints:
                        self._hinted.append(link)
                    link.hints += told
            if here:
                self._recorded += [hint for hint in alike if hint.trace_parent]
        if self._hinted and not self._flush_spawned:
            self._flush_spawned = True
            self._hinted_at_s = self._runtime.monotonic_s()
            self._runtime.spawn(self._flush(), "push-flush")

    async def _flush(self) -> None:
        started_s = self._runtime.monotonic_s()
        self._flush_spawned = False
        hinted, self._hinted = self._hinted, []
        recorded, self._recorded = self._recorded, []
        entries = streams = 0
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
            streams += 1
        self._metrics.stage_entries_total.labels("push").inc(entries)
        self._metrics.stage_latency_seconds.labels("push").observe(
            self._runtime.monotonic_s() - started_s
        )
        if recorded and streams:
            self._spans.stage(PUSHED, self._hinted_at_s, traced(recorded), streams=streams)


def _put(links: _Links, device: DeviceKey, link: Link) -> Link | None:
    """Make the stream its device's; the one that was."""
    devices = links.setdefault(device.tenant, {}).setdefault(device.user, {})
    older = devices.get(device.device)
    devices[device.device] = link
    return older


def _take(links: _Links, device: DeviceKey, link: Link) -> bool:
    """Remove the stream, with what it leaves empty; False if it is not its device's."""
    users = links.get(device.tenant, {})
    devices = users.get(device.user, {})
    if devices.get(device.device) is not link:
        return False
    del devices[device.device]
    if not devices:
        del users[device.user]
    if not users:
        del links[device.tenant]
    return True
