"""What a first start says: its commands are pasted, so they must be commands."""

import sys
from pathlib import Path

import pytest

from qimd.app.banner import qimctl_program


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment in a project's folder, which is the current one; not on the PATH."""
    programs = tmp_path / "project" / ".venv" / "bin"
    programs.mkdir(parents=True)
    make_program(programs / "qimctl")
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path / "project")
    return programs


def make_program(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def test_a_program_that_no_shell_would_find_is_named_by_its_path(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert qimctl_program() == ".venv/bin/qimctl"
    monkeypatch.chdir(tmp_path)
    assert qimctl_program() == "project/.venv/bin/qimctl"
    monkeypatch.chdir("/")
    assert Path(qimctl_program()).resolve() == (environment / "qimctl").resolve()


def test_a_program_on_the_path_is_named_alone(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(environment))
    assert qimctl_program() == "qimctl"


def test_another_program_of_that_name_is_not_taken_for_ours(
    environment: Path, tmp_path: Path
) -> None:
    make_program(tmp_path / "elsewhere" / "qimctl")
    assert qimctl_program() == ".venv/bin/qimctl"
