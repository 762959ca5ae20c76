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
import time
from collections.abc import Sequence
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
    return Gate("tests", (("pytest", *paths),), live=True)


def simulator_gates() -> list[Gate]:
    """Return the runs of the simulator: worlds that must hold, and mutants that must not."""
    simulate = ("python", "-m", "tests.sim", "--seeds", "2000")
    return [
        Gate("worlds", (simulate,), "make sim SEED=k", live=True),
        Gate("mutants", ((*simulate, "--mutants"),), live=True),
    ]


def fuzz_gates() -> list[Gate]:
    """Return a short run of the fuzzers, where the machine has one."""
    if importlib.util.find_spec("atheris") is None:
        return []
    return [Gate("fuzz", (("python", "-m", "tests.fuzz", "--seconds", "30"),), "make fuzz")]


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
    return missing


def run(gate: Gate) -> bool:
    """Run one gate and print one line for it, preceded by its output if it failed."""
    started = time.monotonic()
    failed: subprocess.CompletedProcess[str] | None = None
    for command in gate.commands:
        done = subprocess.run(
            command,
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
    if failed is not None and failed.stdout:
        print(failed.stdout.rstrip())
    hint = f"  (try: {gate.hint})" if failed is not None and gate.hint else ""
    verdict = "ok  " if failed is None else "FAIL"
    print(f"{verdict}  {gate.name:<16}{time.monotonic() - started:6.1f} s{hint}", flush=True)
    return failed is None


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
    failed = [gate.name for gate in gates if not run(gate)]

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
