"""Fuzzes what reads untrusted bytes: `python -m tests.fuzz [--seconds N] [TARGET...]`.

Each target runs in a process of its own, as many at a time as there are processors, for its share
of N seconds. New inputs that reach new code are collected in build/fuzz; `--keep` merges them into
tests/fuzz/corpus, the smallest of each kind. What breaks a target is left there as a file, and its
traceback is printed: mend it, then keep the file in the corpus, where it runs as a test.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
CORPUS = TOP / "tests/fuzz/corpus"
WORK = TOP / "build/fuzz"
TARGETS = ("dispatch", "frame", "cursor", "token", "replay", "position")
INPUT_BYTES_MAX = 4096
INPUT_TIMEOUT_S = 10
MEMORY_MAX_MB = 2048


@dataclass(frozen=True)
class Result:
    """One target's run. `output` is what libFuzzer and Python said."""

    target: str
    status: int
    output: str

    @property
    def line(self) -> str:
        """In one line: how much was tried, how much code it reached."""
        runs = re.findall(r"stat::number_of_executed_units:\s*(\d+)", self.output)
        reached = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", self.output)
        verdict = "ok  " if self.status == 0 else "FAIL"
        tried = f"{int(runs[-1]):,} inputs" if runs else "no count"
        if not reached:
            return f"{verdict} {self.target:<10} {tried}"
        edges, features, kept = reached[-1]
        return (
            f"{verdict} {self.target:<10} {tried}, {edges} edges, {features} features, {kept} kept"
        )


def fuzz(target: str, seconds: int) -> Result:
    """Fuzz one target, beginning from the kept corpus."""
    work = WORK / target
    found = work / "corpus"
    found.mkdir(parents=True, exist_ok=True)
    return _child(
        target,
        str(found),
        str(CORPUS / target),
        f"-max_total_time={seconds}",
        f"-artifact_prefix={work}/",
        *_dictionary(target),
    )


def keep(target: str) -> Result:
    """Merge what was found into the kept corpus."""
    return _child(target, "-merge=1", str(CORPUS / target), str(WORK / target / "corpus"))


def _dictionary(target: str) -> list[str]:
    words = TOP / f"tests/fuzz/{target}.dict"
    return [f"-dict={words}"] if words.exists() else []


def _child(target: str, *arguments: str) -> Result:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.fuzz.child",
            target,
            *arguments,
            f"-max_len={INPUT_BYTES_MAX}",
            f"-timeout={INPUT_TIMEOUT_S}",
            f"-rss_limit_mb={MEMORY_MAX_MB}",
            "-print_final_stats=1",
        ],
        cwd=TOP,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return Result(target, done.returncode, done.stdout)


def main() -> int:
    """Run the targets and return the exit status."""
    parser = argparse.ArgumentParser(prog="tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="in all, on all processors")
    parser.add_argument("--keep", action="store_true", help="merge new inputs into the corpus")
    asked = parser.parse_args()
    if unknown := set(asked.targets) - set(TARGETS):
        parser.error(f"there is no target {', '.join(sorted(unknown))}")
    targets = asked.targets or TARGETS

    at_once = min(os.cpu_count() or 1, len(targets))
    share_s = max(1, asked.seconds * at_once // len(targets))
    with ThreadPoolExecutor(at_once) as pool:
        results = list(pool.map(lambda target: fuzz(target, share_s), targets))
    for result in results:
        if result.status != 0:
            print(result.output.rstrip())
    for result in results:
        print(result.line)
    failed = [result.target for result in results if result.status != 0]
    if asked.keep and not failed:
        failed = [target for target in targets if keep(target).status != 0]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
