"""Runs seeds on all cores, and tells what failed as a story.

    python -m tests.sim [--seeds N] [--from K] [--within S] [--mutants] [--seed K]

Prints seeds a second and the coverage of faults and crash points. The exit status is 0 only if
every seed held, a run of two thousand seeds or more saw every fault and crash point, and it took no
longer than `--within` seconds, if that is asked.
`--mutants` runs the broken builds instead: each must fail within N seeds, and the seed is printed.
`--seed K` runs one, and prints its timeline.
"""

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tests.sim import coverage
from tests.sim.drawing import draw
from tests.sim.mutants import MUTANTS
from tests.sim.plan import Plan
from tests.sim.shrink import Shrinker, described, kind_of
from tests.sim.tokens import read_tokens_once
from tests.sim.trace import Detail
from tests.sim.world import run

BATCH: Final = 20
"""Seeds that a worker takes at a time."""

SEEDS_DEFAULT: Final = 2_000
STORIES_MAX: Final = 3
"""Failures that are shrunk and told: more have the same cause, as a rule."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What came of some seeds."""

    seeds: int
    steps: int
    failures: tuple[tuple[int, str], ...]
    seen: Counter[str]


def run_batch(seeds: range) -> Batch:
    """Run seeds one after the other, in a worker."""
    failures: list[tuple[int, str]] = []
    seen: Counter[str] = Counter()
    steps = 0
    for seed in seeds:
        result = run(draw(seed), Detail.OUTCOME)
        seen.update(result.seen)
        steps += result.steps
        if result.failure:
            failures.append((seed, result.failure))
        # Between worlds and never in one: what a collector unwinds must not depend on what ran
        # before. After each, so that the next one finds its memory in the caches.
        gc.collect()
    return Batch(len(seeds), steps, tuple(failures), seen)


def hunt(mutant: int, seeds: range) -> tuple[int, int, str]:
    """(mutant, the first seed that sees it or -1, what it saw)."""
    for seed in seeds:
        with MUTANTS[mutant].applied():
            failure = run(draw(seed), Detail.OUTCOME).failure
        if failure:
            return mutant, seed, failure
        gc.collect()
    return mutant, -1, ""


def prepare() -> None:
    """A worker's start: no logs, no collector inside of a world, each token read once."""
    read_tokens_once()
    logging.getLogger("qimd").setLevel(logging.CRITICAL + 1)
    gc.disable()
    gc.freeze()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def run_seeds(first: int, count: int, within_s: float) -> int:
    """Run seeds on all cores; the exit status."""
    batches = [
        range(start, min(start + BATCH, first + count))
        for start in range(first, first + count, BATCH)
    ]
    began_s = time.monotonic()
    steps = 0
    failures: list[tuple[int, str]] = []
    seen: Counter[str] = Counter()
    with multiprocessing.Pool(cores(), prepare) as pool:
        for batch in pool.imap_unordered(run_batch, batches):
            steps += batch.steps
            seen.update(batch.seen)
            failures.extend(batch.failures)
            for seed, failure in batch.failures:
                print(f"seed {seed}: {failure}", flush=True)
    seconds = time.monotonic() - began_s
    say(coverage.table(seen))
    print(
        f"{count} seeds from {first} on in {seconds:.0f} s: {count / seconds:.1f} seeds/s on "
        f"{cores()} cores, {steps / count:.0f} steps a seed, {len(failures)} failed"
    )
    for seed, failure in sorted(failures)[:STORIES_MAX]:
        tell(draw(seed), failure)
    unseen = coverage.missing(seen) if count >= coverage.GATE_SEEDS else []
    for what in unseen:
        print(f"never seen: {what}")
    late = 0 < within_s < seconds
    if late:
        print(f"too slow: it is to take {within_s:.0f} s at most")
    return 1 if failures or unseen or late else 0


def run_mutants(first: int, count: int) -> int:
    """Hunt every mutant on all cores; the exit status."""
    jobs = [(number, range(first, first + count)) for number in range(len(MUTANTS))]
    alive = 0
    with multiprocessing.Pool(cores(), prepare, maxtasksperchild=1) as pool:
        for number, seed, failure in pool.starmap(hunt, jobs, chunksize=1):
            name = MUTANTS[number].name
            if seed < 0:
                alive += 1
                print(f"ALIVE   {name}: not seen in {count} seeds")
            else:
                print(f"caught  {name}: seed {seed}: {failure}")
    print(f"{len(MUTANTS) - alive} of {len(MUTANTS)} mutants caught within {count} seeds")
    return 1 if alive else 0


def tell(plan: Plan, failure: str) -> None:
    """The shortest reproduction that can be found, as a timeline."""
    shrinker = Shrinker(lambda smaller: run(smaller, Detail.OUTCOME).failure, kind_of(failure))
    smallest = shrinker.smallest(plan)
    result = run(smallest, Detail.TIMELINE)
    print(f"\nseed {plan.seed}, shrunk in {shrinker.runs} runs: {result.failure or failure}")
    say(described(smallest))
    say(result.timeline)


def say(lines: Iterable[str]) -> None:
    """Print lines."""
    for line in lines:
        print(line)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Run the simulator.")
    parser.add_argument("--seeds", type=int, default=SEEDS_DEFAULT)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--within", type=float, default=0.0)
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--seed", type=int)
    return parser.parse_args()


def main() -> int:
    """Run what the command line says."""
    asked = arguments()
    prepare()
    if asked.seed is not None:
        plan = draw(asked.seed)
        result = run(plan, Detail.TIMELINE)
        say(described(plan))
        say(result.timeline)
        print(f"seed {asked.seed}: {result.failure or 'all held'}; trace {result.digest}")
        return 1 if result.failure else 0
    if asked.mutants:
        return run_mutants(asked.first, asked.seeds)
    return run_seeds(asked.first, asked.seeds, asked.within)


if __name__ == "__main__":
    sys.exit(main())
