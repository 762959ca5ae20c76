"""The range of protobuf runtimes that the metadata allows is the range that works."""

import importlib
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from google.protobuf import runtime_version
from packaging.requirements import Requirement
from packaging.version import Version

TOP = Path(__file__).parents[2]
LOWEST = TOP / ".venv" / "lowest"
"""Made by scripts/setup.sh from scripts/lowest.lock."""


def requirement(name: str) -> Requirement:
    """What an installer holds the distribution `qim` to."""
    wanted = [Requirement(text) for text in metadata.requires("qim") or ()]
    (found,) = [each for each in wanted if each.name == name and each.marker is None]
    return found


def floor(name: str) -> Version:
    """The lowest version that is allowed."""
    (lowest,) = [each.version for each in requirement(name).specifier if each.operator == ">="]
    return Version(lowest)


def generated(pattern: str, files: str) -> set[Version]:
    """The versions that generated files say they need."""
    found = {
        Version(match[1])
        for path in (TOP / "gen").rglob(files)
        for match in re.finditer(pattern, path.read_text(), re.MULTILINE)
    }
    assert found
    return found


def test_an_installer_refuses_every_runtime_that_the_generated_code_refuses() -> None:
    """COD-05: dependency metadata makes the install fail, so that a release that can't import never
    reaches an image."""
    protobuf = generated(r"^# Protobuf Python Version: (\S+)$", "*_pb2.py")
    assert protobuf == {floor("protobuf")}
    grpc = generated(r"^GRPC_GENERATED_VERSION = '(\S+)'$", "*_pb2_grpc.py")
    assert max(grpc) <= floor("grpcio")
    allowed = requirement("protobuf").specifier
    assert metadata.version("protobuf") in allowed
    for refused in ("5.29.0", "6.31.1", "7.34.9", "7.35.0", "8.0.0"):
        assert refused not in allowed


def test_a_runtime_below_the_floor_is_refused_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """COD-05: gencode on an older runtime does not import; hence the floor."""
    module = importlib.import_module("qim.common.v1.error_pb2")
    below = floor("protobuf")
    monkeypatch.setattr(runtime_version, "MAJOR", below.major)
    monkeypatch.setattr(runtime_version, "MINOR", below.minor - 1)
    with pytest.raises(runtime_version.VersionError, match="older"):
        importlib.reload(module)


def test_the_goldens_hold_on_the_lowest_runtime() -> None:
    """COD-05: the golden suite runs on the lowest allowed runtime; the highest is the lock's, on
    which `python -m compat` runs it."""
    driver = ["env", f"PYTHONPATH={LOWEST}", sys.executable]
    asked = (
        "import google.protobuf as p; from google.protobuf.internal import api_implementation as a"
    )
    told = subprocess.run(
        [*driver, "-c", f"{asked}; print(p.__version__, a.Type())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == [str(floor("protobuf")), "upb"], "make setup installs it"
    done = subprocess.run(
        [sys.executable, "-m", "compat", "run", "--", *driver, "-m", "compat.drivers.upb"],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
