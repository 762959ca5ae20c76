"""`cold_start`: `qimd dev` on a folder with a million entries, and the first pages from it.

From the start of the process until it says that it is ready, with the database's pages dropped from
the kernel's cache; beside the same on an empty folder. Then the first PULL of devices that were
never here, one after another, beside SQLite reading the same rows from a copy that is as cold.
"""

import asyncio
import shutil
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness import AT_MOST, Measure, Pair, Target, demand, percentile
from bench.prefill import DATABASE, Population, prefill
from bench.rawsqlite import connect
from bench.server import TENANT, DevServer, drop_from_cache
from bench.streams import device

READY_S: Final = 3.0
"""What a start may take."""

_PAGE: Final = """
SELECT e.seq, v.encoded
FROM users AS u
CROSS JOIN mailbox_entries AS e ON e.user_id = u.id
CROSS JOIN mailbox_records AS r ON r.shard = u.partition AND r.seq = e.seq
CROSS JOIN events AS v ON v.event_id = r.event_id
WHERE u.tenant = ? AND u.user = ? ORDER BY e.seq LIMIT 500
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A million entries; `pulls` devices of different users."""

    groups: int = 5
    members: int = 1_000
    entries: int = 200
    starts: int = 5
    pulls: int = 200


SMOKE: Final = Sizes(groups=1, members=20, entries=10, starts=1, pulls=3)


def run(sizes: Sizes, folder: Path) -> Sequence[Measure]:
    """Three rows."""
    population = Population(sizes.groups, sizes.members, sizes.entries)
    full, empty, raw = folder / "full", folder / "empty", folder / "raw.sqlite3"
    prefill(full, population)
    shutil.copyfile(full / DATABASE, raw)
    with DevServer(empty):
        pass
    starts = Pair(
        *zip(*((_start_s(full), _start_s(empty)) for _ in range(sizes.starts)), strict=True)
    )
    every = max(1, population.users // sizes.pulls)
    names = [name for group in range(population.groups) for name in population.names(group)]
    asked = names[::every][: sizes.pulls]
    drop_from_cache(full / DATABASE)
    with DevServer(full) as server:
        pulls = asyncio.run(_pulls_s(server, asked, sizes.entries))
    drop_from_cache(raw)
    reads = _reads_s(raw, asked, sizes.entries)
    total = population.users * population.entries
    note = f"{total} entries; ready within {READY_S:g} s: {max(starts.ours) < READY_S}"
    return [
        Measure(
            "cold_start", starts.value, "s", "an empty folder", starts.against, None,
            f"{note}; {starts.spread}",
        ),
        Measure(
            "cold_start_bound", max(starts.ours), "s", "the bound", READY_S,
            Target(AT_MOST, 1.0), note,
        ),
        Measure(
            "cold_start_first_pull_p99", percentile(pulls, 0.99) * 1e3, "ms",
            "SQLite reads the same rows, as cold", percentile(reads, 0.99) * 1e3, None,
            f"{len(pulls)} users; p50 {percentile(pulls, 0.5) * 1e3:.2f} ms beside "
            f"{percentile(reads, 0.5) * 1e3:.2f} ms",
        ),
    ]  # fmt: skip


def _start_s(data: Path) -> float:
    drop_from_cache(data / DATABASE)
    began_s = time.monotonic()
    with DevServer(data):
        return time.monotonic() - began_s


async def _pulls_s(server: DevServer, names: Sequence[str], entries: int) -> list[float]:
    tokens = server.tokens()
    times: list[float] = []
    for name in names:
        async with device(server.address, tokens.token(name), pushes=False) as stream:
            began_s = time.perf_counter()
            page = await stream.page(0)
            times.append(time.perf_counter() - began_s)
        demand(len(page.events) == entries, "a first page is not the mailbox")
    return times


def _reads_s(database: Path, names: Sequence[str], entries: int) -> list[float]:
    db = connect(database)
    times: list[float] = []
    for name in names:
        began_s = time.perf_counter()
        rows: list[sqlite3.Row] = db.execute(_PAGE, (TENANT, name)).fetchall()
        times.append(time.perf_counter() - began_s)
        demand(len(rows) == entries, "the rows of a mailbox are missing")
    db.close()
    return times
