"""`p1_entries_per_s_n…`, `p1_vs_nats_n1000`, `p4_replay`: durable mailbox entries a second through
Kafka and Redis, a process a role, from SEND to W.

Beside it raw Redis appends the same number of entries, to as many mailboxes and in batches of the
size that the mailbox's own had, and NATS JetStream takes a message a mailbox in atomic batches of
1,000. They take turns. A burst's seconds are taken as a · records + b · entries, as `bench.entries`
does, with two chunk sizes.
"""

import asyncio
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.deployment import ALWAYS, EVERYSEC, ROLES, SHARDS, Deployment, Engines, engines
from bench.engine_flow import TABLE, flowing
from bench.harness import AT_LEAST, AT_MOST, Measure, Pair, Target, demand, seconds
from bench.nats import BATCH_MAX, nats
from bench.prefill import Population
from bench.rawredis import Batch, RawRedis
from bench.server import caught_up, wait_until

_WITHOUT_LIST: Final = tuple(role for role in ROLES if role != "session")


@dataclass(frozen=True, slots=True)
class Sizes:
    """`members` of each row's groups; groups smaller than `users` are several. A mailbox has
    `prefilled` entries before the first burst of about `burst` entries. `fitted` are the groups
    whose cost is taken apart, in bursts of `fit_messages` at least, `chunks` the recipients a
    record: the first is the rows', the others the fit's. `replayed` entries are read from the log
    into empty mailboxes.
    """

    members: Sequence[int] = (100, 1_000, 10_000)
    policies: Sequence[str] = (EVERYSEC, ALWAYS)
    users: int = 1_000
    prefilled: int = 200
    burst: int = 200_000
    rounds: int = 5
    fitted: Sequence[int] = (1_000, 10_000, 100_000)
    chunks: Sequence[int] = (512, 64)
    fit_rounds: int = 3
    fit_messages: int = 10
    replayed: int = 1_000_000


SMOKE: Final = Sizes(
    members=(10,),
    policies=(ALWAYS,),
    users=20,
    prefilled=4,
    burst=100,
    rounds=1,
    fitted=(10,),
    chunks=(512, 2),
    fit_rounds=1,
    fit_messages=1,
    replayed=200,
)


@dataclass(slots=True)
class Series:
    """Bursts of one group size, chunk size, Redis policy, with or without a session list."""

    population: Population
    chunk: int
    roles: Sequence[str]
    records: int = 0
    """A burst's."""
    entries: int = 0
    """A burst's."""
    path_s: list[float] = field(default_factory=list)
    projected_s: list[float] = field(default_factory=list)
    each_s: list[float] = field(default_factory=list)
    together_s: list[float] = field(default_factory=list)
    nats_s: list[float] = field(default_factory=list)
    nats_entries: int = 0
    batches: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def rate(self, seconds: Sequence[float], entries: int = 0) -> list[float]:
        """Entries a second of each round."""
        return [(entries or self.entries) / one for one in seconds]


def run(sizes: Sizes, folder: Path) -> Sequence[Measure]:
    """The rates, the peer, the replay, the fitted costs."""
    rows: list[Measure] = []
    p1 = 0.0
    with engines(folder) as up:
        bench = _Bench(sizes, folder, up)
        for members in sizes.members:
            for policy in sizes.policies:
                peer = policy == ALWAYS and members == sizes.members[min(1, len(sizes.members) - 1)]
                for roles in (ROLES, _WITHOUT_LIST):
                    series = bench.series(
                        members, sizes.chunks[0], policy, roles, sizes.rounds, peer=peer
                    )
                    rows += _rates(series, policy)
                    if peer:
                        rows.append(_beside_nats(series))
                    if peer and roles == _WITHOUT_LIST:
                        p1 = statistics.median(series.rate(series.path_s))
        rows.append(bench.replay(p1))
        rows += _costs(
            [
                [
                    bench.series(
                        *(members, chunk, EVERYSEC, _WITHOUT_LIST, sizes.fit_rounds),
                        messages_min=sizes.fit_messages,
                    )
                    for chunk in sizes.chunks
                ]
                for members in sizes.fitted
            ]
        )
    return rows


def _name(series: Series, policy: str) -> str:
    without = "" if "session" in series.roles else "_without_list"
    return f"p1_entries_per_s_n{series.population.members}_{policy}{without}"


def _rates(series: Series, policy: str) -> Sequence[Measure]:
    """The row that is judged, and the one beside what no path can reach."""
    ours, each = series.rate(series.path_s), series.rate(series.each_s)
    together = series.rate(series.together_s)
    messages = series.entries // series.population.users
    behind = (
        f"; the session list took {_ratio(series.projected_s, series.path_s):.2f} times as long"
        if "session" in series.roles
        else ""
    )
    note = (
        f"{Pair(ours, each).spread}; {SHARDS} shards, {series.entries / series.records:.0f} "
        f"recipients a record, {messages} messages to {series.population.groups} group(s), "
        f"{series.records / statistics.median(series.batches):.0f} records a script; "
        f"{statistics.median(series.cpu_s) / series.entries * 1e6:.2f} µs of CPU an entry "
        f"in qimd's processes{behind}"
    )
    name = _name(series, policy)
    judged = series.population.members == 1_000
    return [
        Measure(
            name,
            statistics.median(ours),
            "entries/s",
            "raw Redis, one APPEND an entry",
            statistics.median(each),
            Target(AT_LEAST, 0.6) if judged else None,
            note,
        ),
        Measure(
            f"{name}_together",
            statistics.median(ours),
            "entries/s",
            "raw Redis, one APPEND a mailbox and script",
            statistics.median(together),
            None,
            Pair(ours, together).spread,
        ),
    ]


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(ours) / statistics.median(theirs)


def _beside_nats(series: Series) -> Measure:
    ours = series.rate(series.path_s)
    theirs = series.rate(series.nats_s, series.nats_entries)
    without = "" if "session" in series.roles else "_without_list"
    return Measure(
        f"p1_vs_nats_n{series.population.members}{without}",
        statistics.median(ours),
        "entries/s",
        "NATS JetStream, a message a mailbox, sync always",
        statistics.median(theirs),
        Target(AT_LEAST, 3.0),
        f"{Pair(ours, theirs).spread}; atomic batches of {BATCH_MAX:,}, 64 B a message, one after "
        "the other; Redis with appendfsync always",
    )


def _costs(several: Sequence[Sequence[Series]]) -> Sequence[Measure]:
    """A and b of each group size, in µs, beside those of the smallest; b beside raw Redis, too."""
    costs = {one[0].population.members: _fit(*one) for one in several}
    base = costs[min(costs)]
    flat = [
        Measure(
            f"p1_cost_{name}_n{members}",
            cost[index],
            "µs",
            f"the same at n = {min(costs)}",
            base[index],
            Target(AT_MOST, 1.2),
            "without the session list, everysec",
        )
        for index, name in enumerate(("record", "entry"))
        for members, cost in costs.items()
    ]
    return [*flat, *(_beside_raw(one[0], costs[one[0].population.members][1]) for one in several)]


def _beside_raw(series: Series, entry_us: float) -> Measure:
    """What the engine itself takes for an entry, of as many in a script."""
    members = series.population.members
    return Measure(
        f"p1_cost_entry_n{members}_together",
        entry_us,
        "µs",
        "raw Redis, one APPEND a mailbox and script",
        statistics.median(series.together_s) / series.entries * 1e6,
        None,
        f"an APPEND an entry: {statistics.median(series.each_s) / series.entries * 1e6:.2f} µs; "
        f"{series.records / statistics.median(series.batches):.0f} records a script",
    )


def _fit(one: Series, other: Series) -> tuple[float, float]:
    s1, s2 = statistics.median(one.path_s), statistics.median(other.path_s)
    determinant = one.records * other.entries - other.records * one.entries
    a = (s1 * other.entries - s2 * one.entries) / determinant
    b = (one.records * s2 - other.records * s1) / determinant
    return a * 1e6, b * 1e6


class _Bench:
    """Series on engines that are up."""

    def __init__(self, sizes: Sizes, folder: Path, up: Engines) -> None:
        self._sizes = sizes
        self._folder = folder
        self._up = up
        self._count = 0

    def _deployment(self, policy: str, chunk: int) -> Deployment:
        self._count += 1
        at = self._folder / f"deployment-{self._count}"
        return Deployment(at, self._up, policy, chunk)

    def _population(self, members: int) -> Population:
        return Population(max(1, self._sizes.users // members), members, self._sizes.prefilled)

    def series(
        self,
        members: int,
        chunk: int,
        policy: str,
        roles: Sequence[str],
        rounds: int,
        *,
        peer: bool = False,
        messages_min: int = 1,
    ) -> Series:
        """All rounds, in a deployment of their own."""
        series = Series(self._population(members), chunk, roles)
        with self._deployment(policy, chunk) as deployment:
            deployment.start(*roles)
            messages = max(messages_min, self._sizes.burst // series.population.users)
            asyncio.run(self._rounds(deployment, series, policy, messages, rounds, peer=peer))
        return series

    async def _rounds(
        self,
        deployment: Deployment,
        series: Series,
        policy: str,
        messages: int,
        rounds: int,
        *,
        peer: bool,
    ) -> None:
        population = series.population
        async with AsyncExitStack() as stack:
            flow = await stack.enter_async_context(flowing(deployment, population))
            raw = RawRedis(self._up.raw[policy])
            stack.callback(raw.close)
            bus = stack.enter_context(nats(deployment.folder / "nats")) if peer else None
            prefilled = min(population.entries, 10 * max(1, self._sizes.burst // population.users))
            await flow.burst(prefilled)
            raw.together_s(_batches(population, series.chunk, prefilled, 1))
            await flow.burst(messages)
            for _ in range(rounds):
                before, cpu_s = flow.scripts(), deployment.cpu_s()
                series.records, seconds, projected_s = await flow.burst(messages)
                series.entries = messages * population.users
                series.path_s.append(seconds)
                series.projected_s.append(projected_s)
                series.cpu_s.append(deployment.cpu_s() - cpu_s)
                series.batches.append(flow.scripts() - before)
                batches = _batches(population, series.chunk, messages, series.batches[-1])
                series.each_s.append(raw.each_s(batches))
                series.together_s.append(raw.together_s(batches))
                if bus is not None:
                    names = population.names(0)
                    parts = [names[at : at + BATCH_MAX] for at in range(0, len(names), BATCH_MAX)]
                    series.nats_entries = len(names) * min(messages, 50)
                    series.nats_s.append(bus.publish_s(parts * min(messages, 50)))
            await flow.check()

    def replay(self, p1: float) -> Measure:
        """Entries a second from the log into mailboxes that hold nothing."""
        sizes = self._sizes
        population = Population(1, sizes.members[min(1, len(sizes.members) - 1)], 0)
        messages = sizes.replayed // population.users
        with self._deployment(ALWAYS, sizes.chunks[0]) as deployment:
            deployment.start(*_WITHOUT_LIST)
            rate = asyncio.run(_replayed(deployment, population, messages))
        return Measure(
            "p4_replay",
            rate,
            "entries/s",
            "P1 of n = 1,000, always, without the session list",
            p1,
            Target(AT_LEAST, 0.8),
            f"{messages * population.users:,} entries; once",
        )


async def _replayed(deployment: Deployment, population: Population, messages: int) -> float:
    """A process is ready once it has read all that was there: its start, less one that finds
    nothing to read.
    """
    async with flowing(deployment, population) as flow:
        with deployment.admin("mailbox") as admin:
            wait_until(lambda: caught_up(admin), "the mailbox being idle")
        deployment.stop("mailbox")
        idle_s = seconds(lambda: deployment.start("mailbox"))
        deployment.stop("mailbox")
        await flow.send(messages)
    loaded_s = seconds(lambda: deployment.start("mailbox"))
    with deployment.admin("mailbox") as admin:
        demand(caught_up(admin), "the mailbox is ready before it has read all")
    return population.users * messages / max(loaded_s - idle_s, 1e-3)


def _batches(population: Population, chunk: int, messages: int, scripts: int) -> Sequence[Batch]:
    """The entries of a burst, in as many scripts as the mailbox needed for them, a shard's each."""
    audiences: dict[int, list[Sequence[str]]] = {}
    for group in range(population.groups):
        for part in population.chunks(group, TABLE, chunk):
            users = [user for block in part.blocks for user in block.users]
            audiences.setdefault(part.mailbox_shard, []).append(users)
    each = max(1, scripts // len(audiences))
    return [batch for shard in audiences.values() for batch in _cut(shard, messages, each)]


def _cut(audiences: Sequence[Sequence[str]], messages: int, scripts: int) -> Sequence[Batch]:
    """A shard's entries, in so many scripts."""
    scripts = min(scripts, messages * len(audiences))
    if scripts <= messages:
        # Each script has every audience, some messages of each.
        shares = [len(range(place, messages, scripts)) for place in range(scripts)]
        return [[(users, share) for users in audiences] for share in shares]
    # More scripts than messages: each has a part of the audiences of one message.
    several = max(1, scripts // messages)
    parts = [audiences[place::several] for place in range(min(several, len(audiences)))]
    return [[(users, 1) for users in part] for _ in range(messages) for part in parts]
