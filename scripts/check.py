"""Runs the gates of the named groups, all of them even when one fails, and ends with a summary.

    check.py GROUP...        groups: lint, contract, test

The last lines name what setup could not install. In CI that is a failure, so that a gate which
never ran can't pass for one that held.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
BIN = Path(sys.prefix) / "bin"
IMAGES = Path("compat/images")
SCRATCH = Path("build/generated")


@dataclass(frozen=True)
class Gate:
    """One thing that must hold: commands run in order, the first that fails decides."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    hint: str = ""
    # The output of a long gate is shown as it comes; that of a short one only if it fails.
    live: bool = False
    # Runs while the live gate does, which leaves the cores idle for much of its time, and yields
    # to it.
    beside: bool = False


@dataclass(frozen=True)
class Verdict:
    """What became of a gate; its output, if it failed and was not shown as it came."""

    gate: Gate
    holds: bool
    seconds: float
    output: str


def released_version(image: Path) -> tuple[int, ...]:
    """Order images by number, not by text: 0.10.0 is newer than 0.9.0."""
    return tuple(int(digits) for digits in re.findall(r"\d+", image.stem))


def newest_image() -> str:
    """Return the image of the last release, or a path that says what is missing."""
    images = sorted(IMAGES.glob("*.binpb"), key=released_version)
    return str(images[-1] if images else IMAGES / "NO_RELEASED_IMAGE.binpb")


def lint_gates() -> list[Gate]:
    """Return the gates on hand-written Python."""
    return [
        Gate("format", (("ruff", "format", "--quiet", "--check", "."),), "make fmt"),
        # Its cache holds the answers of a tree that has since got other packages.
        Gate("style", (("ruff", "check", "--quiet", "--no-cache", "."),)),
        Gate("types", (("mypy",),)),
        Gate("imports", (("lint-imports", "--no-logo"),)),
    ]


def contract_gates() -> list[Gate]:
    """Return the gates on proto/, gen/ and compat/; the tests of compat/ are pytest's."""
    python, es = str(SCRATCH / "python"), str(SCRATCH / "es")
    differs = ("diff", "--recursive", "--brief", "--exclude=__pycache__")
    return [
        Gate("proto format", (("buf", "format", "--diff", "--exit-code", "proto"),), "make fmt"),
        Gate("buf lint", (("buf", "lint", "proto"),)),
        Gate("buf breaking", (("buf", "breaking", "proto", "--against", newest_image()),)),
        Gate(
            "generated code",
            (
                ("scripts/generate.sh", python, es),
                (*differs, python, "gen"),
                (*differs, es, "compat/drivers/es/gen"),
            ),
            "make gen",
        ),
        Gate("goldens", (("python", "-m", "compat"),)),
    ]


def test_gate(groups: Sequence[str]) -> Gate:
    """Return one pytest run for all groups, so that a run has one closing line."""
    suites = {
        "contract": ("tests/compat",),
        "test": tuple(
            f"tests/{suite}"
            for suite in ("unit", "contract", "e2e", "sim", "models", "property", "fuzz")
        ),
    }
    paths = tuple(
        path for group in ("test", "contract") if group in groups for path in suites[group]
    )
    # Two at a time: much of a test on engines is waiting. A file's tests stay together, since they
    # share what takes long to start.
    return Gate("tests", (("pytest", "-n", "2", "--dist", "loadfile", *paths),), live=True)


def simulator_gates() -> list[Gate]:
    """Return the runs of the simulator: worlds that must hold, and mutants that must not."""
    simulate = ("python", "-m", "tests.sim", "--seeds", "2000")
    return [
        Gate("worlds", (simulate,), "make sim SEED=k", beside=True),
        Gate("mutants", ((*simulate, "--mutants"),), beside=True),
    ]


def fuzz_gates() -> list[Gate]:
    """Return a short run of the fuzzers, where the machine has one."""
    if importlib.util.find_spec("atheris") is None:
        return []
    command = ("python", "-m", "tests.fuzz", "--seconds", "30")
    return [Gate("fuzz", (command,), "make fuzz", beside=True)]


def not_installed() -> list[str]:
    """Return what could not be installed here, and so did not run."""
    # What scripts/setup.sh and `python -m tests.engines` wrote down.
    records = (Path(sys.prefix) / "missing", TOP / "build/engines/missing")
    missing = [
        line
        for record in records
        if record.exists()
        for line in record.read_text(encoding="utf-8").splitlines()
    ]
    if importlib.util.find_spec("atheris") is None:
        missing.append("atheris: the fuzzers can't run (wheels exist for Linux alone)")
    if not mounts_a_disk():
        missing.append("a small disk: mounting one takes root, so tests of full disks did not run")
    return missing


def mounts_a_disk() -> bool:
    """Return whether tests can have a disk that they may fill (tests/support/disk.py)."""
    with tempfile.TemporaryDirectory() as folder:
        mount = ("mount", "-t", "tmpfs", "tmpfs", folder)
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            return False
        subprocess.run(("umount", folder), check=True)
    return True


def run(gate: Gate) -> Verdict:
    """Run a gate's commands."""
    started = time.monotonic()
    failed: subprocess.CompletedProcess[str] | None = None
    for command in gate.commands:
        done = subprocess.run(
            ("nice", "-n", "19", *command) if gate.beside else command,
            cwd=TOP,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=None if gate.live else subprocess.PIPE,
            stderr=None if gate.live else subprocess.STDOUT,
        )
        if done.returncode != 0:
            failed = done
            break
    output = failed.stdout if failed is not None and failed.stdout else ""
    return Verdict(gate, failed is None, time.monotonic() - started, output)


def tell(verdict: Verdict) -> None:
    """Print one line for a gate, preceded by its output if it failed."""
    if verdict.output:
        print(verdict.output.rstrip())
    hint = f"  (try: {verdict.gate.hint})" if not verdict.holds and verdict.gate.hint else ""
    word = "ok  " if verdict.holds else "FAIL"
    print(f"{word}  {verdict.gate.name:<16}{verdict.seconds:6.1f} s{hint}", flush=True)


def run_all(gates: Sequence[Gate]) -> list[Verdict]:
    """Run gates in order, and those that run beside the live one in the order of their own."""
    verdicts: list[Verdict] = []
    beside = [gate for gate in gates if gate.beside]
    with ThreadPoolExecutor(1) as pool:
        running: Iterable[Verdict] = ()
        for gate in gates:
            if gate.live:
                running = pool.map(run, beside)
            if not gate.beside:
                verdicts.append(run(gate))
                tell(verdicts[-1])
        for verdict in running:
            verdicts.append(verdict)
            tell(verdict)
    return verdicts


def main(groups: Sequence[str]) -> int:
    """Run the groups and return the exit status."""
    unknown = set(groups) - {"lint", "contract", "test"}
    if unknown or not groups:
        print(__doc__)
        return 2
    # Servers are killed on purpose in the tests: gRPC's own notices of it are no findings.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"

    gates: list[Gate] = []
    if "lint" in groups:
        gates += lint_gates()
    if "contract" in groups:
        gates += contract_gates()
    if "contract" in groups or "test" in groups:
        gates.append(test_gate(groups))
    if "test" in groups:
        gates += simulator_gates() + fuzz_gates()
    failed = [verdict.gate.name for verdict in run_all(gates) if not verdict.holds]

    print()
    print(f"{len(gates) - len(failed)} of {len(gates)} gates hold")
    if failed:
        print(f"failed: {', '.join(failed)}")
    missing = not_installed()
    for piece in missing:
        print(f"not installed: {piece}")
    in_ci = os.environ.get("CI") == "true"
    return 1 if failed or (missing and in_ci) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
