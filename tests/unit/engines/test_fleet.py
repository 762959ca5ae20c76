"""What the shared engines tell the rest of the project, and whose processes they are."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import engines
from tests.engines.fleet import Fleet
from tests.engines.process import Process

WAITS = "import sys; print(flush=True); sys.stdin.read()"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """A process that names a folder of its own on its command line, and waits."""
    folder = tmp_path / "data"
    folder.mkdir()
    command = (sys.executable, "-c", WAITS, str(folder))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as running:
        assert running.stdout is not None
        running.stdout.readline()
        yield Process(running.pid, str(folder))


def note(folder: Path, process: Process) -> None:
    noted = {"pid": process.pid, "folder": process.folder, "address": "127.0.0.1:1"}
    (folder / "processes.json").write_text(json.dumps({"redis": noted}))


def test_an_engine_that_runs_is_found_by_its_address(tmp_path: Path, process: Process) -> None:
    note(tmp_path, process)
    assert Fleet(tmp_path).addresses() == {"redis": "127.0.0.1:1"}


def test_a_pid_that_went_to_somebody_else_is_no_engine(tmp_path: Path) -> None:
    ours = Process(os.getpid(), str(tmp_path / "a-folder-that-no-command-line-names"))
    note(tmp_path, ours)
    assert Fleet(tmp_path).addresses() == {}
    ours.signal(signal.SIGTERM)  # or this test is the last that ran


def test_an_engine_that_ended_is_not_alive(process: Process) -> None:
    assert process.alive()
    process.kill()
    assert not process.alive()


def test_a_paused_engine_can_be_ended(process: Process) -> None:
    process.signal(signal.SIGSTOP)
    process.end()
    assert not process.alive()


def test_down_stops_what_runs_and_forgets_its_address(tmp_path: Path, process: Process) -> None:
    note(tmp_path, process)
    assert Fleet(tmp_path).down(["redis", "etcd"]) == ["redis"]
    assert not process.alive()
    assert json.loads((tmp_path / "addresses.json").read_text()) == {}


def test_the_machine_may_name_an_engine_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = tmp_path / "addresses.json"
    monkeypatch.setattr(engines, "ADDRESSES", addresses)
    monkeypatch.delenv("QIM_TEST_ETCD", raising=False)
    assert engines.address("etcd") is None
    addresses.write_text('{"etcd": "127.0.0.1:2"}')
    assert engines.address("etcd") == "127.0.0.1:2"
    monkeypatch.setenv("QIM_TEST_ETCD", "127.0.0.1:3")
    assert engines.address("etcd") == "127.0.0.1:3"
