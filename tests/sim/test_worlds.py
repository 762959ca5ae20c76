"""Worlds replay, failures shrink, and what a run must have seen is demanded."""

import os
import subprocess
import sys
from collections import Counter

import pytest
from tests.sim import coverage
from tests.sim.drawing import draw
from tests.sim.mutants import MUTANTS, Mutant
from tests.sim.shrink import Shrinker, kind_of
from tests.sim.trace import Detail
from tests.sim.world import run

SEEDS = range(100, 106)


def mutant(name: str) -> Mutant:
    return next(one for one in MUTANTS if one.name == name)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_replays_to_the_same_trace_also_after_other_seeds(seed: int) -> None:
    first = run(draw(seed))
    for other in (seed + 1, seed + 50):
        run(draw(other))
    again = run(draw(seed))
    assert (first.digest, first.failure) == (again.digest, "")


def test_different_seeds_are_different_worlds() -> None:
    assert len({run(draw(seed)).digest for seed in SEEDS}) == len(SEEDS)


def test_what_is_written_down_does_not_change_the_run() -> None:
    bare, hashed, told = (run(draw(101), detail) for detail in Detail)
    assert told.digest == hashed.digest
    assert bare.digest == ""
    assert (bare.steps, bare.seen) == (hashed.steps, hashed.seen)


def test_hash_randomisation_does_not_change_the_run() -> None:
    script = "from tests.sim.drawing import draw; from tests.sim.world import run; " \
             "print(run(draw(102)).digest)"  # fmt: skip
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2", "random")
    ]
    digests = {each.communicate()[0] for each in runs}
    assert digests == {f"{run(draw(102)).digest}\n"}


def test_a_failure_shrinks_to_a_smaller_plan_that_fails_in_the_same_way() -> None:
    broken = mutant("member removed one event late")

    def fails(plan: object) -> str:
        with broken.applied():
            return run(plan, Detail.OUTCOME).failure  # type: ignore[arg-type]

    plan, failure = next(
        (plan, failure) for plan in map(draw, range(200)) if (failure := fails(plan))
    )
    shrinker = Shrinker(fails, kind_of(failure))
    smallest = shrinker.smallest(plan)
    assert kind_of(fails(smallest)) == kind_of(failure)
    assert not smallest.strikes
    assert len(smallest.deeds) <= 3
    assert run(smallest).failure == ""


def test_a_timeline_tells_of_the_violation() -> None:
    with mutant("push before W").applied():
        result = run(draw(0), Detail.TIMELINE)
    assert result.failure
    assert any("VIOLATION" in line for line in result.timeline)


def test_a_fault_that_was_never_seen_is_named() -> None:
    seen = Counter(dict.fromkeys((*coverage.FAULTS, *coverage.CRASH_POINTS), 1))
    assert coverage.missing(seen) == []
    del seen["crash after commit"]
    assert coverage.missing(seen) == ["crash after commit"]


def test_every_mutant_is_gone_after_its_world() -> None:
    digest = run(draw(103)).digest
    for one in MUTANTS:
        with one.applied():
            pass
    assert run(draw(103)).digest == digest
