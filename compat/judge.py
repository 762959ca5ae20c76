"""Runs fixtures against implementations and judges the answers."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from compat.fixtures import Fixture
from compat.messages import TOP
from compat.protocol import Answer, Implementation


@dataclass(frozen=True)
class Difference:
    """One case that came out otherwise than the contract says."""

    implementation: str
    message: str
    case: str
    detail: str


@dataclass(frozen=True)
class Report:
    """What one implementation did with all fixtures."""

    name: str
    level: str
    cases: dict[str, int] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()

    def result(self, message: str) -> str:
        """`equal`, `differs` or `not run`."""
        if any(difference.message == message for difference in self.differences):
            return "differs"
        return "equal" if self.cases.get(message) else "not run"


KNOWN = TOP / "compat" / "known_differences.json"


def known_differences(path: Path = KNOWN) -> set[tuple[str, str, str]]:
    """(implementation, message, case) of each difference that is argued in the file."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    for row in rows:
        if not row.get("argument"):
            raise ValueError(f"known difference without an argument: {row}")
    return {(row["implementation"], row["message"], row["case"]) for row in rows}


def own_implementations() -> dict[str, list[str]]:
    """The implementations that the suite itself drives, by name."""
    drivers = TOP / "compat" / "drivers"
    node = shutil.which("node") or "node"
    return {
        "upb": [sys.executable, "-m", "compat.drivers.upb"],
        "buf-go": [sys.executable, "-m", "compat.drivers.buf_go"],
        "protobuf-es": [node, str(drivers / "es" / "driver.mjs")],
    }


def applicable(fixture: Fixture, level: str) -> bool:
    """Whether an implementation of this level must get the fixture right."""
    return fixture.kind != "reject" or fixture.level == "wire" or level == "strict"


def _operations(fixture: Fixture) -> tuple[str, ...]:
    return ("reencode", "decode") if fixture.kind == "golden" else ("reencode",)


def _verdict(fixture: Fixture, operation: str, answer: Answer) -> str:
    """What is wrong with the answer; empty if nothing."""
    if fixture.after is None:
        return "" if answer.verdict == "refused" else f"accepted; to refuse: {fixture.reason}"
    if answer.verdict != "ok":
        return f"{operation}: {answer.verdict} {answer.text}"
    if operation == "reencode":
        if answer.data == fixture.after:
            return ""
        return f"re-encoded to {answer.data.hex()[:80]}, not {fixture.after.hex()[:80]}"
    try:
        same = json.loads(answer.data) == json.loads(fixture.json)
    except ValueError:
        return "decode: not JSON"
    return "" if same else f"decode: JSON differs: {answer.data.decode(errors='replace')[:120]}"


def run(command: Sequence[str], fixtures: Sequence[Fixture], name: str = "") -> Report:
    """Drive one implementation through the fixtures. Raises ProtocolError."""
    implementation = Implementation(command)
    try:
        name = name or implementation.name
        asked = [
            (fixture, operation)
            for fixture in fixtures
            if applicable(fixture, implementation.level)
            for operation in _operations(fixture)
        ]
        answers = implementation.ask(
            [(operation, fixture.message, fixture.data) for fixture, operation in asked]
        )
    finally:
        implementation.close()
    cases: dict[str, int] = {}
    differences = []
    for (fixture, operation), answer in zip(asked, answers, strict=True):
        cases[fixture.message] = cases.get(fixture.message, 0) + 1
        detail = _verdict(fixture, operation, answer)
        if detail:
            differences.append(Difference(name, fixture.message, fixture.case, detail))
    return Report(name, implementation.level, cases, tuple(differences))


def run_own(fixtures: Sequence[Fixture]) -> list[Report]:
    """Drive the suite's own implementations, side by side."""
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        runs = {
            name: pool.submit(run, command, fixtures, name)
            for name, command in own_implementations().items()
        }
        return [done.result() for done in runs.values()]
