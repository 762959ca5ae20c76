"""A session room on the memory deployment, with a chat that feeds its log."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.support.chat import Chat
from tests.support.runtime import ManualRuntime

from qimd.adapters.memory.cluster import MemoryBackends, MemoryCluster
from qimd.core.errors import QimError
from qimd.core.ids import TenantId, UserId
from qimd.core.lease import Term
from qimd.core.records import SessionItem, UserKey
from qimd.core.routing import RoutingTable
from qimd.ports.runtime import Task
from qimd.session.service import SessionService
from qimd.telemetry.metrics import Metrics

WINDOW_MS = 3_600_000
TERM_S = 1e9


def user(name: str) -> UserKey:
    return UserKey(TenantId("acme"), UserId(name))


@dataclass
class World:
    """One process's session room; `restart` gives the next process on the same disks."""

    runtime: ManualRuntime
    cluster: MemoryCluster
    backends: MemoryBackends
    table: RoutingTable
    chat: Chat
    metrics: Metrics
    service: SessionService
    terms: dict[int, Term]
    tasks: list[Task]
    epoch: int = 1

    def serve(self, *partitions: int) -> None:
        """Own these partitions, or all."""
        for partition in partitions or range(self.table.mailbox_shards):
            term = Term(partition, self.epoch, "node", TERM_S, self.runtime.monotonic_s())
            self.terms[partition] = term
            self.tasks.append(self.runtime.spawn(self.service.serve(term), f"serve-{partition}"))

    async def settle(self) -> None:
        """Let everything that is in the log be projected."""
        await self.runtime.settle()

    async def restart(self, *, serve: bool = True) -> None:
        """End this process, and begin another one on the same disks under a newer term."""
        await self.stop()
        self.epoch += 1
        self.metrics = Metrics()
        self.service = make_service(self.backends, self.table, self.runtime, self.metrics)
        if serve:
            self.serve()
            await self.settle()

    async def stop(self) -> None:
        """End every term, and see the room notice."""
        for term in self.terms.values():
            term.end()
        await self.runtime.until(lambda: all(task.done() for task in self.tasks))
        self.terms.clear()
        self.tasks.clear()

    async def list_all(self, name: str, limit: int = 0) -> list[SessionItem]:
        """A user's whole list, page by page."""
        items: list[SessionItem] = []
        token = b""
        while True:
            page, token = await self.service.list(user(name), token, limit)
            items += page
            if not token:
                return items

    async def unread(self, name: str) -> dict[str, int]:
        """Unread by conversation."""
        return {item.key.conversation: item.unread for item in await self.list_all(name)}

    async def refusal(self, name: str = "u") -> QimError:
        """What the list is refused with."""
        try:
            await self.service.list(user(name), b"", 0)
        except QimError as error:
            return error
        raise AssertionError("the list was served")

    def dirty(self) -> str:
        """Why the projection is dirty; empty if it is not."""
        return "; ".join(status.dirty for status in self.service.describe() if status.dirty)

    def value(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        """A metric's value, 0 if it was never touched."""
        return self.metrics.registry.get_sample_value(name, dict(labels or {})) or 0.0


def make_service(
    backends: MemoryBackends, table: RoutingTable, runtime: ManualRuntime, metrics: Metrics
) -> SessionService:
    return SessionService(
        projection=backends.projection,
        conversations=backends.conversations,
        log=backends.log,
        quarantine=backends.quarantine,
        table=table,
        runtime=runtime,
        metrics=metrics,
        recovery_window_ms=WINDOW_MS,
    )


@asynccontextmanager
async def world(partitions: int = 2, *, serve: bool = True) -> AsyncIterator[World]:
    """A world that serves all partitions, caught up."""
    async with ManualRuntime() as runtime:
        cluster = MemoryCluster(runtime, partitions=partitions)
        backends = cluster.open(runtime)
        table = RoutingTable(version=1, mailbox_shards=partitions, writer_shards=1)
        chat = Chat(cluster, backends, table, runtime)
        await chat.start()
        metrics = Metrics()
        service = make_service(backends, table, runtime, metrics)
        place = World(runtime, cluster, backends, table, chat, metrics, service, terms={}, tasks=[])
        if serve:
            place.serve()
            await place.settle()
        yield place
