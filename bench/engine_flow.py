"""Groups in a deployment, their senders, and when every mailbox has what they sent."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from bench.deployment import SHARDS, Deployment
from bench.harness import demand
from bench.prefill import Population
from bench.server import TENANT, caught_up, dispatched, projected, wait_until
from bench.streams import Device, device
from qimd.client import AdminClient
from qimd.core.routing import RoutingTable

TABLE: Final = RoutingTable(1, SHARDS, SHARDS)
_BODY: Final = b"see you at the harbour at nine"
_SCRIPTS: Final = 'stage_latency_seconds_count{stage="mailbox"}'


@asynccontextmanager
async def flowing(deployment: Deployment, population: Population) -> AsyncIterator["Flow"]:
    """The population's groups, made, and the streams of their first members."""
    deployment.create_tenant()
    with deployment.admin("connection") as admin:
        for group in range(population.groups):
            name = population.conversation(group)
            admin.create_conversation(TENANT, name, population.names(group))
            wait_until(lambda of=name: dispatched(admin, of), "the members' joins")  # type: ignore[misc]
    tokens = deployment.tokens()
    async with AsyncExitStack() as stack:
        senders = []
        for group in range(population.groups):
            token = tokens.token(population.names(group)[0])
            opened = device(deployment.address, token, pushes=False)
            senders.append(await stack.enter_async_context(opened))
        yield Flow(deployment, population, senders)


def offsets(admin: AdminClient) -> int:
    """Records that mailboxes have done with."""
    return sum(shard.next_offset for shard in admin.mailbox_shards())


class Flow:
    """The senders of a deployment's groups."""

    def __init__(
        self, deployment: Deployment, population: Population, senders: Sequence[Device]
    ) -> None:
        self._deployment = deployment
        self._population = population
        self._senders = senders
        self._ids: list[list[bytes]] = [[] for _ in senders]

    async def send(self, messages: int) -> None:
        """Send so many to every group; returns once the log has them."""
        await self._say_all(messages)
        with self._deployment.admin("connection") as admin:
            for group in range(len(self._senders)):
                name = self._population.conversation(group)
                wait_until(lambda of=name: dispatched(admin, of), "the log having all")  # type: ignore[misc]

    async def burst(self, messages: int) -> tuple[int, float, float]:
        """Have every group sent `messages`: how many records they made, seconds until every
        mailbox had them, and seconds until every list had, if there are lists.
        """
        with self._deployment.admin("mailbox") as admin:
            wait_until(lambda: caught_up(admin), "the mailbox being idle")
            before = offsets(admin)
            records = messages * self._records
            began = time.perf_counter()
            await self._say_all(messages)
            wait_until(lambda: offsets(admin) >= before + records, "the mailbox catching up")
            seconds = time.perf_counter() - began
            demand(offsets(admin) == before + records, "there are more records than expected")
        if "session" in self._deployment.roles:
            with self._deployment.admin("session") as admin:
                wait_until(lambda: projected(admin), "the session list catching up")
        return records, seconds, time.perf_counter() - began

    @property
    def _records(self) -> int:
        """Of a message to every group."""
        chunk = self._deployment.chunk_recipients
        population = self._population
        return sum(len(population.chunks(of, TABLE, chunk)) for of in range(population.groups))

    async def _say_all(self, messages: int) -> None:
        await asyncio.gather(*(self._say(group, messages) for group in range(len(self._senders))))

    async def _say(self, group: int, messages: int) -> None:
        first = len(self._ids[group])
        names = [str(number) for number in range(first, first + messages)]
        conversation = self._population.conversation(group)
        self._ids[group] += await self._senders[group].say(conversation, names, _BODY)

    def scripts(self) -> int:
        """Steps that the mailbox has made: a script each."""
        return int(self._deployment.samples("mailbox").get(_SCRIPTS, 0))

    async def check(self) -> None:
        """The first member of each group finds exactly what was acknowledged, in order."""
        for sender, ids in zip(self._senders, self._ids, strict=True):
            found = [each.event.event_id for each in await sender.mailbox(0)]
            demand(found[-len(ids) :] == ids, "a mailbox is not what was acknowledged, in order")
