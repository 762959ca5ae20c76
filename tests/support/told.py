"""What tests tell at the end of a run, also if workers ran them: lines by section, each once."""

from typing import Any, Final

import pytest

_TOLD: Final = pytest.StashKey[dict[str, list[str]]]()
_FIELD: Final = "told"


def tell(config: pytest.Config, section: str, line: str) -> None:
    """Have the run's summary show a line."""
    lines = config.stash.setdefault(_TOLD, {}).setdefault(section, [])
    if line not in lines:
        lines.append(line)


def hand_over(config: pytest.Config) -> None:
    """A worker's end: what its tests told goes to the one who shows it."""
    worker_output: dict[str, Any] | None = getattr(config, "workeroutput", None)
    if worker_output is not None:
        worker_output[_FIELD] = config.stash.get(_TOLD, {})


def take_over(config: pytest.Config, worker_output: dict[str, Any]) -> None:
    """What a worker has handed over."""
    for section, lines in worker_output.get(_FIELD, {}).items():
        for line in lines:
            tell(config, section, line)


def show(config: pytest.Config, reporter: pytest.TerminalReporter) -> None:
    """The sections, by name."""
    for section, lines in sorted(config.stash.get(_TOLD, {}).items()):
        reporter.section(section)
        for line in sorted(lines):
            reporter.write_line(line)
