"""Which test shows which public case, and which fault of an engine: read from the tests'
docstrings, written to docs/cases.md and docs/faults.md.

python -m tests.support.cases      writes the last column of both tables anew
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

TOP = Path(__file__).parents[2]
_ROW = re.compile(
    r"^\| (?P<head>\[?(?P<name>[A-Z]+-?\d\d)\b\S*) \| (?P<value>.*) \| (?P<tests>.*)\|$"
)


@cache
def tests() -> tuple[tuple[str, str], ...]:
    """(`file::test`, its docstring) of every test that has one."""
    return tuple(_tests())


def _tests() -> Iterator[tuple[str, str]]:
    for path in sorted((TOP / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_test = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_test and node.name.startswith("test_"):
                docstring = ast.get_docstring(node)
                if docstring:
                    yield f"{path.relative_to(TOP / 'tests')}::{node.name}", docstring


@dataclass(frozen=True)
class Page:
    """A table whose rows are named by what tests' docstrings name."""

    path: Path
    name: re.Pattern[str]

    def shown(self) -> dict[str, list[str]]:
        """The tests that name each."""
        found: dict[str, list[str]] = {}
        for test, docstring in tests():
            for name in dict.fromkeys(self.name.findall(docstring)):
                found.setdefault(name, []).append(test)
        return found

    def table(self) -> dict[str, list[str]]:
        """The tests that the page says."""
        rows = (_ROW.match(line) for line in self.path.read_text().splitlines())
        return {row["name"]: re.findall(r"`([^`]+)`", row["tests"]) for row in rows if row}

    def write(self) -> None:
        """Make the last column from the tests."""
        names = self.shown()

        def line(text: str) -> str:
            row = _ROW.match(text)
            if row is None:
                return text
            found = "<br>".join(f"`{test}`" for test in names.get(row["name"], []))
            return f"| {row['head']} | {row['value']} | {found} |"

        lines = map(line, self.path.read_text().splitlines())
        self.path.write_text("\n".join(lines) + "\n")


CASES: Final = Page(
    TOP / "docs" / "cases.md", re.compile(r"\b(?:COD|GW|WR|FAN|MBX|SES|AUT|LIM)-\d\d\b")
)
FAULTS: Final = Page(TOP / "docs" / "faults.md", re.compile(r"\bF\d\d\b(?!')"))
"""With the possessive (F25's store) a docstring names a part, or a kin, and shows it not itself."""

if __name__ == "__main__":
    for page in (CASES, FAULTS):
        page.write()
