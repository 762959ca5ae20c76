"""`online_deliveries_per_s`: a message to 200 members who are all connected, until each has it.

The members live in client processes; each must be pushed exactly the acknowledged events, in their
order. Beside it a group of the same size and depth on the same server, with nobody connected, until
its entries are durable: what being online costs on top. The two groups take turns.

A push comes after its durable W: at the end the server is killed amid a burst, and whatever any
member was pushed until then is in the mailbox when it is back.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness import AT_LEAST, Measure, Pair, Target, demand
from bench.members import Members, digest
from bench.prefill import TABLE, Population, prefill
from bench.server import TENANT, DevServer, projected, wait_until
from bench.streams import Device, device
from qimd.client import AdminClient
from qimd.core.ids import TenantId

_BODY: Final = b"see you at the harbour at nine"
_ONLINE: Final = 0
_OFFLINE: Final = 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """`members` of each of the two groups, spread over `processes`."""

    members: int = 200
    processes: int = 2
    prefilled: int = 200
    messages: int = 2_000
    rounds: int = 5


SMOKE: Final = Sizes(members=6, processes=2, prefilled=4, messages=120, rounds=1)


def run(sizes: Sizes, folder: Path) -> Sequence[Measure]:
    """One row."""
    data = folder / "data"
    population = Population(2, sizes.members, sizes.prefilled)
    prefill(data, population)
    with DevServer(data) as server, server.admin() as admin:
        online, offline = asyncio.run(_rounds(sizes, server, admin, population))
    asyncio.run(_kill_amid(sizes, data, population))
    pair = Pair(online, offline)
    return [
        Measure(
            "online_deliveries_per_s",
            pair.value,
            "deliveries/s",
            "entries/s of the same group, nobody connected",
            pair.against,
            Target(AT_LEAST, 0.6),
            f"{pair.spread}; {sizes.members} members in {sizes.processes} client processes",
        )
    ]


async def _rounds(
    sizes: Sizes, server: DevServer, admin: AdminClient, population: Population
) -> tuple[list[float], list[float]]:
    rates: tuple[list[float], list[float]] = ([], [])
    async with AsyncExitStack() as stack:
        senders = [await _sender(stack, server, population, group) for group in range(2)]
        processes = _connect(stack, sizes, server, population)
        for number in range(sizes.rounds + 1):
            online_s = await _online(sizes, senders[_ONLINE], processes, population, number)
            wait_until(lambda: projected(admin), "the session list catching up")
            offline_s = await _offline(sizes, senders[_OFFLINE], admin, population, number)
            wait_until(lambda: projected(admin), "the session list catching up")
            if number:
                for group, seconds in enumerate((online_s, offline_s)):
                    rates[group].append(sizes.members * sizes.messages / seconds)
    return rates


async def _sender(
    stack: AsyncExitStack, server: DevServer, population: Population, group: int
) -> Device:
    """A member's second device, which wants no pushes: it is none of those that are counted."""
    token = server.tokens().token(population.names(group)[0], "sender")
    return await stack.enter_async_context(device(server.address, token, pushes=False))


def _connect(
    stack: AsyncExitStack, sizes: Sizes, server: DevServer, population: Population
) -> list[Members]:
    tokens = [server.tokens().token(name) for name in population.names(_ONLINE)]
    return [
        stack.enter_context(Members(server.address, tokens[part :: sizes.processes]))
        for part in range(sizes.processes)
    ]


async def _online(
    sizes: Sizes,
    sender: Device,
    processes: Sequence[Members],
    population: Population,
    number: int,
) -> float:
    for process in processes:
        process.expect(sizes.messages)
    began_s = time.monotonic()
    ids = await _send(sender, population.conversation(_ONLINE), number, sizes.messages)
    received = [process.received() for process in processes]
    for each in received:
        demand(set(each.digests) == {digest(ids)}, "a member was not pushed exactly what was sent")
    demand(sum(len(each.counts) for each in received) == sizes.members, "a member is missing")
    return max(each.at_s for each in received) - began_s


async def _offline(
    sizes: Sizes, sender: Device, admin: AdminClient, population: Population, number: int
) -> float:
    def entries() -> int:
        return sum(shard.next_offset for shard in admin.mailbox_shards())

    high = entries() + sizes.messages * _records_a_message(population)
    began_s = time.monotonic()
    await _send(sender, population.conversation(_OFFLINE), number, sizes.messages)
    wait_until(lambda: entries() >= high, "the mailbox catching up")
    return time.monotonic() - began_s


async def _send(sender: Device, conversation: str, number: int, messages: int) -> Sequence[bytes]:
    names = [f"{number}-{place}" for place in range(messages)]
    return await sender.say(conversation, names, _BODY)


def _records_a_message(population: Population) -> int:
    return len(population.chunks(_OFFLINE, TABLE))


async def _kill_amid(sizes: Sizes, data: Path, population: Population) -> None:
    """Kill the server while it pushes; what was pushed must be in the mailboxes afterwards."""
    server = DevServer(data).start()
    try:
        with server.admin() as admin:
            begun = {each.mailbox_shard_id: each.position_seq for each in admin.mailbox_shards()}
        async with AsyncExitStack() as stack:
            sender = await _sender(stack, server, population, _ONLINE)
            processes = _connect(stack, sizes, server, population)
            for process in processes:
                process.expect(sizes.messages)
            # Some of the burst is on its way to the members by now, the rest of it not even sent.
            await _send(sender, population.conversation(_ONLINE), -1, sizes.messages // 2)
            server.kill()
            received = [process.received() for process in processes]
        server.start()
        for part, pushed in enumerate(received):
            names = population.names(_ONLINE)[part :: sizes.processes]
            for name, count, told in zip(names, pushed.counts, pushed.digests, strict=True):
                kept = await _since(server, name, begun[TABLE.mailbox(TenantId(TENANT), name)[0]])
                demand(digest(kept[:count]) == told, "a member was pushed what is in no mailbox")
    finally:
        server.stop()


async def _since(server: DevServer, name: str, begun: int) -> list[bytes]:
    """The event_ids of a member's mailbox behind a position."""
    async with device(server.address, server.tokens().token(name), pushes=False) as stream:
        return [each.event.event_id for each in await stream.mailbox(begun)]
