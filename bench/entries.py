"""`entries_per_s_n…`: durable mailbox entries a second, from SEND to W, by the size of the group.

The path is a whole server, sent to over gRPC: commit, dispatch, log, mailbox, with the session list
at work beside. Raw SQLite inserts the very same (user, seq) rows into a copy of the same filled
database, in their order, in transactions of the sizes that the mailbox's own had on average. The
two take turns.

A burst's seconds are taken as a · records + b · entries. With one chunk size the two grow together,
so each group is measured under two, and solved for a and b: for the path, and for each stage.
"""

import asyncio
import shutil
import sqlite3
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench import machine
from bench.harness import AT_LEAST, AT_MOST, Measure, Pair, Target, demand
from bench.prefill import DATABASE, TABLE, Population, prefill
from bench.rawsqlite import Transaction, connect, insert_entries
from bench.server import DevServer, projected, wait_until
from bench.streams import Device, device
from qimd.client import AdminClient

_BODY: Final = b"see you at the harbour at nine"
_TARGET: Final = Target(AT_LEAST, 0.5)
_STAGES: Final = ("dispatch", "mailbox", "session")
_SUM: Final = "stage_latency_seconds_sum"
_COUNT: Final = "stage_latency_seconds_count"


@dataclass(frozen=True, slots=True)
class Sizes:
    """`members` of each row's groups; groups smaller than `users` are several.

    A burst makes about `burst` entries, but has at least `messages_least` messages to a group, so
    that there is something to share a mailbox's opening, and at most `messages_most` in all, which
    fits the outbox's limit. `chunks` are recipients a record: the first is the row's, the others
    the fit's.
    """

    members: Sequence[int] = (10, 100, 1_000, 10_000, 100_000)
    users: int = 1_000
    prefilled: int = 200
    burst: int = 400_000
    messages_least: int = 20
    messages_most: int = 8_000
    chunks: Sequence[int] = (512, 64)
    fitted_from: int = 1_000
    rounds: int = 5


SMOKE: Final = Sizes(
    members=(10,), users=20, prefilled=8, burst=400, chunks=(512, 2), fitted_from=10, rounds=1
)


@dataclass(frozen=True, slots=True)
class Burst:
    """One burst through the path: what it made, and how long that took."""

    records: int
    entries: int
    seconds: float
    projected_s: float
    cpu_s: float
    batches: int
    stages: Mapping[str, float]
    """Seconds that each stage spent on its batches; stages overlap."""


@dataclass(slots=True)
class Series:
    """The bursts of one group size and chunk size, with the raw engine's seconds beside."""

    members: int
    chunk: int
    bursts: list[Burst] = field(default_factory=list)
    raw_s: list[float] = field(default_factory=list)

    @property
    def rates(self) -> Pair:
        """Entries a second, the path's and the raw engine's."""
        return Pair(
            [burst.entries / burst.seconds for burst in self.bursts],
            [b.entries / raw for b, raw in zip(self.bursts, self.raw_s, strict=True)],
        )

    def median(self, figure: str) -> float:
        """The median of a field of the bursts."""
        figures: list[float] = [getattr(burst, figure) for burst in self.bursts]
        return statistics.median(figures)

    def stage_s(self, stage: str) -> float:
        """The median of a stage's seconds."""
        return statistics.median(burst.stages[stage] for burst in self.bursts)


def run(sizes: Sizes, folder: Path) -> Sequence[Measure]:
    """The rates, then the fitted costs."""
    rows: list[Measure] = []
    budget: list[Measure] = []
    costs: dict[int, tuple[float, float]] = {}
    raw_us: dict[int, float] = {}
    for members in sizes.members:
        several = [
            measure(sizes, members, chunk, folder)
            for chunk in (sizes.chunks if members >= sizes.fitted_from else sizes.chunks[:1])
        ]
        rows.append(_rate(several[0]))
        if len(several) > 1:
            costs[members] = fit(several, [each.median("seconds") for each in several])
            raw_us[members] = 1e6 / several[0].rates.against
            budget += _budget(several)
    return [*rows, *_costs(costs, raw_us), *budget]


def _rate(series: Series) -> Measure:
    rates = series.rates
    cpu = series.median("cpu_s") / series.median("entries") * 1e6
    batch = series.median("records") / series.median("batches")
    behind = series.median("projected_s") / series.median("seconds")
    return Measure(
        f"entries_per_s_n{series.members}",
        rates.value,
        "entries/s",
        "raw SQLite, same rows, depth and transactions",
        rates.against,
        _TARGET if series.members >= 1_000 else None,
        f"{rates.spread}; {batch:.0f} records a transaction; {cpu:.2f} µs of CPU an entry; the "
        f"session list took {behind:.2f} times as long",
    )


def fit(several: Sequence[Series], seconds: Sequence[float]) -> tuple[float, float]:
    """(a, b) in µs: the two costs that give the seconds of the first and the last series."""
    one, other = several[0], several[-1]
    r1, e1, s1 = one.median("records"), one.median("entries"), seconds[0]
    r2, e2, s2 = other.median("records"), other.median("entries"), seconds[-1]
    determinant = r1 * e2 - r2 * e1
    a = (s1 * e2 - s2 * e1) / determinant
    b = (r1 * s2 - r2 * s1) / determinant
    return a * 1e6, b * 1e6


def _budget(several: Sequence[Series]) -> Sequence[Measure]:
    """What a record and an entry cost in each stage behind the commit, beside the whole."""
    whole = fit(several, [each.median("seconds") for each in several])
    rows = []
    for stage in _STAGES:
        costs = fit(several, [each.stage_s(stage) for each in several])
        for index, name in enumerate(("record", "entry")):
            rows.append(
                Measure(
                    f"stage_{stage}_{name}_n{several[0].members}",
                    costs[index],
                    "µs",
                    f"the whole path's cost of {'a record' if index == 0 else 'an entry'}",
                    whole[index],
                )
            )
    return rows


def _costs(
    costs: Mapping[int, tuple[float, float]], raw_us: Mapping[int, float]
) -> Sequence[Measure]:
    """The fitted costs, each beside that of the smallest group; raw SQLite's own is in the note."""
    if not costs:
        return []
    base = costs[min(costs)]
    return [
        Measure(
            f"entries_cost_{name}_n{members}",
            cost[index],
            "µs",
            f"the same at n = {min(costs)}",
            base[index],
            Target(AT_MOST, 1.2),
            f"raw SQLite takes {raw_us[members]:.1f} µs an entry here",
        )
        for index, name in enumerate(("record", "entry"))
        for members, cost in costs.items()
    ]


def measure(sizes: Sizes, members: int, chunk: int, folder: Path) -> Series:
    """All rounds of one group size under one chunk size, on a folder made for it."""
    population = Population(max(1, sizes.users // members), members, sizes.prefilled)
    messages = min(
        max(sizes.burst // population.users, sizes.messages_least),
        sizes.messages_most // population.groups,
    )
    data = folder / f"n{members}-{chunk}"
    prefill(data, population)
    raw = data.with_suffix(".raw")
    shutil.copyfile(data / DATABASE, raw)
    series = Series(members, chunk)
    try:
        asyncio.run(_bursts(sizes, data, raw, population, messages, series))
        sent = messages * (sizes.rounds + 1)
        _check_count(data / DATABASE, population.users * (sizes.prefilled + sent))
    finally:
        shutil.rmtree(data)
        raw.unlink()
    return series


def _check_count(database: Path, expected: int) -> None:
    db = sqlite3.connect(database)
    (found,) = db.execute("SELECT count(*) FROM mailbox_entries").fetchone()
    db.close()
    demand(found == expected, f"there are {found} entries, not {expected}")


# --- the path ---------------------------------------------------------------------------------


async def _bursts(
    sizes: Sizes, data: Path, raw: Path, population: Population, messages: int, series: Series
) -> None:
    engine = RawEngine(population, series.chunk, data / DATABASE, raw)
    with DevServer(data, dispatch_chunk_recipients=series.chunk) as server, server.admin() as admin:
        tokens = server.tokens()
        async with AsyncExitStack() as stack:
            senders = [
                await stack.enter_async_context(
                    device(server.address, tokens.token(population.names(group)[0]), pushes=False)
                )
                for group in range(population.groups)
            ]
            flow = Flow(server, admin, population, senders)
            for number in range(sizes.rounds + 1):
                burst = await flow.burst(number, messages, messages * engine.records)
                raw_s = engine.insert(burst)
                if number:
                    series.bursts.append(burst)
                    series.raw_s.append(raw_s)
            await flow.check_mailboxes(sizes.prefilled)
    engine.close()


class Flow:
    """A server and the senders of its groups."""

    def __init__(
        self,
        server: DevServer,
        admin: AdminClient,
        population: Population,
        senders: Sequence[Device],
    ) -> None:
        self._server = server
        self._admin = admin
        self._population = population
        self._senders = senders
        self._ids: list[list[bytes]] = [[] for _ in senders]

    async def burst(self, number: int, messages: int, records: int) -> Burst:
        """Have every group sent `messages`; returns when mailboxes and session lists have them."""
        high = self._offsets() + records
        before, cpu_s = self._stages(_COUNT), machine.cpu_s(self._server.pid)
        spent = self._stages(_SUM)
        began = time.perf_counter()
        await asyncio.gather(
            *(self._send(group, number, messages) for group in range(len(self._senders)))
        )
        wait_until(lambda: self._offsets() >= high, "the mailbox catching up")
        seconds = time.perf_counter() - began
        wait_until(lambda: projected(self._admin), "the session list catching up")
        projected_s = time.perf_counter() - began
        demand(self._offsets() == high, "there are more records than expected")
        return Burst(
            records=records,
            entries=messages * self._population.users,
            seconds=seconds,
            projected_s=projected_s,
            cpu_s=machine.cpu_s(self._server.pid) - cpu_s,
            batches=round(self._stages(_COUNT)["mailbox"] - before["mailbox"]),
            stages={name: s - spent[name] for name, s in self._stages(_SUM).items()},
        )

    async def _send(self, group: int, number: int, messages: int) -> None:
        names = [f"{number}-{place}" for place in range(messages)]
        conversation = self._population.conversation(group)
        self._ids[group] += await self._senders[group].say(conversation, names, _BODY)

    def _offsets(self) -> int:
        return sum(shard.next_offset for shard in self._admin.mailbox_shards())

    def _stages(self, figure: str) -> Mapping[str, float]:
        samples = self._server.samples()
        return {name: samples.get(f'{figure}{{stage="{name}"}}', 0.0) for name in _STAGES}

    async def check_mailboxes(self, prefilled: int) -> None:
        """The first member of each group finds what was there before, and then exactly what was
        acknowledged, in order.
        """
        for sender, ids in zip(self._senders, self._ids, strict=True):
            found = [each.event.event_id for each in await sender.mailbox(0)]
            demand(len(found) == prefilled + len(ids), "a mailbox has another length")
            demand(found[prefilled:] == ids, "a mailbox is not what was acknowledged, in order")


# --- the raw engine ---------------------------------------------------------------------------


class RawEngine:
    """A copy of the filled database, beside the database that it was copied from."""

    def __init__(self, population: Population, chunk: int, live: Path, copy: Path) -> None:
        self._live = connect(live)
        self._db = connect(copy)
        ids = [
            dict(self._db.execute("SELECT user, id FROM users WHERE partition = ?", (shard,)))
            for shard in range(TABLE.mailbox_shards)
        ]
        self._recipients = {
            (population.conversation(group), part.mailbox_shard, part.index): sorted(
                ids[part.mailbox_shard][user] for block in part.blocks for user in block.users
            )
            for group in range(population.groups)
            for part in population.chunks(group, TABLE, chunk)
        }
        self._lasts = [
            int(last)
            for shard in range(TABLE.mailbox_shards)
            for (last,) in self._db.execute(
                "SELECT coalesce(max(seq), 0) FROM mailbox_records WHERE shard = ?", (shard,)
            )
        ]

    @property
    def records(self) -> int:
        """Records of one message to every group."""
        return len(self._recipients)

    def insert(self, burst: Burst) -> float:
        """Seconds to insert the entries that the burst, the latest one, made."""
        batch = max(1, burst.records // burst.batches)
        transactions: list[Transaction] = []
        for shard in range(TABLE.mailbox_shards):
            records = self._new_records(shard)
            for start in range(0, len(records), batch):
                transactions.append(self._transaction(shard, records[start : start + batch]))
        inserted = sum(len(users) * len(seqs) for part in transactions for users, seqs in part)
        demand(inserted == burst.entries, "the raw engine inserts other rows than the mailbox")
        return insert_entries(self._db, transactions)

    def _new_records(self, shard: int) -> Sequence[tuple[int, str, int]]:
        """(seq, conversation, chunk index) of what the mailbox has written since the last call."""
        records: list[tuple[int, str, int]] = self._live.execute(
            "SELECT seq, conversation, chunk_index FROM mailbox_records_named "
            "WHERE shard = ? AND seq > ? ORDER BY seq",
            (shard, self._lasts[shard]),
        ).fetchall()
        if records:
            self._lasts[shard] = records[-1][0]
        return records

    def _transaction(self, shard: int, records: Sequence[tuple[int, str, int]]) -> Transaction:
        """Records with the same recipients together, as the mailbox writes them."""
        seqs: dict[tuple[str, int, int], list[int]] = {}
        for seq, conversation, index in records:
            seqs.setdefault((conversation, shard, index), []).append(seq)
        return [(self._recipients[place], theirs) for place, theirs in seqs.items()]

    def close(self) -> None:
        """Let go of the files."""
        self._db.close()
        self._live.close()
