"""Which test shows which public case: read from the tests' docstrings, written to docs/cases.md.

python -m tests.support.cases      writes the last column of the table anew
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).parents[2]
PAGE = TOP / "docs" / "cases.md"
_CASE = re.compile(r"\b(?:COD|GW|WR|FAN|MBX|SES|AUT|LIM)-\d\d\b")
_ROW = re.compile(
    r"^\| (?P<link>\[(?P<case>[A-Z]+-\d\d)\]\S+) \| (?P<value>.*) \| (?P<tests>[^|]*)\|$"
)


def tests() -> Iterator[tuple[str, str]]:
    """(`file::test`, its docstring) of every test that has one."""
    for path in sorted((TOP / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_test = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_test and node.name.startswith("test_"):
                docstring = ast.get_docstring(node)
                if docstring:
                    yield f"{path.relative_to(TOP / 'tests')}::{node.name}", docstring


def shown() -> dict[str, list[str]]:
    """The tests that name each case."""
    found: dict[str, list[str]] = {}
    for name, docstring in tests():
        for case in dict.fromkeys(_CASE.findall(docstring)):
            found.setdefault(case, []).append(name)
    return found


def table() -> dict[str, list[str]]:
    """What docs/cases.md says."""
    rows = (_ROW.match(line) for line in PAGE.read_text().splitlines())
    return {row["case"]: re.findall(r"`([^`]+)`", row["tests"]) for row in rows if row}


def written() -> str:
    """The page, with its last column made from the tests."""
    names = shown()

    def line(text: str) -> str:
        row = _ROW.match(text)
        if row is None:
            return text
        found = "<br>".join(f"`{name}`" for name in names.get(row["case"], []))
        return f"| {row['link']} | {row['value']} | {found} |"

    return "\n".join(map(line, PAGE.read_text().splitlines())) + "\n"


if __name__ == "__main__":
    PAGE.write_text(written())
