"""The engines that the suites share: installed, started together, found by their addresses.

Three files under build/engines tell the rest of the project: `addresses.json` (read by
`tests.engines.address`), `processes.json`, and `missing`, a line for each engine that can't be had
here (read by scripts/check.py).
"""

import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.engines import ADDRESSES, debian
from tests.engines.cassandra import Cassandra
from tests.engines.debian import NotInstalled
from tests.engines.etcd import Etcd
from tests.engines.kafka import Kafka
from tests.engines.process import NotUp, Process, Server
from tests.engines.redis import Redis

SERVERS: Final[Mapping[str, type[Server]]] = {
    server.name: server for server in (Redis, Etcd, Kafka, Cassandra)
}


class Fleet:
    """The shared engines of one checkout, as its folder tells."""

    def __init__(self, folder: Path = ADDRESSES.parent) -> None:
        self._folder = folder

    # --- what is done with it ---

    def install(self, names: Sequence[str]) -> dict[str, str]:
        """Install what the engines need; why not, for those that can't be."""
        with self._alone():
            return self._install(names)

    def up(self, names: Sequence[str]) -> dict[str, str]:
        """Install and start those that do not run; the addresses of all that do now."""
        with self._alone():
            running = self._running()
            wanted = [name for name in names if name not in running and not elsewhere(name)]
            failed = self._install(wanted)
            servers = [
                SERVERS[name](Path(tempfile.mkdtemp(prefix=f"qim-{name}-")))
                for name in wanted
                if name not in failed
            ]
            with ThreadPoolExecutor(len(SERVERS)) as threads:
                outcomes = list(threads.map(_start, servers))
            for server, not_up in zip(servers, outcomes, strict=True):
                if not_up is None:
                    running[server.name] = (server.running(), server.address)
                else:
                    failed[server.name] = not_up.why
                    shutil.rmtree(server.folder)
                    print(f"{server.name}: {not_up}", file=sys.stderr)
            self._record(running)
            self._tell_missing(names, failed)
            return {name: address for name, (_, address) in running.items()}

    def down(self, names: Sequence[str]) -> list[str]:
        """Stop those that run, and remove their data; which these were."""
        with self._alone():
            running = self._running()
            ended = [name for name in names if name in running]
            with ThreadPoolExecutor(len(SERVERS)) as threads:
                list(threads.map(_end, (running.pop(name)[0] for name in ended)))
            self._record(running)
            return ended

    def addresses(self) -> dict[str, str]:
        """The addresses of those that run."""
        return {name: address for name, (_, address) in self._running().items()}

    def missing(self) -> dict[str, str]:
        """Why engines could not be installed or started, when that was last tried."""
        if not self._missing.exists():
            return {}
        lines = self._missing.read_text().splitlines()
        return {name: why for name, _, why in (line.partition(": ") for line in lines)}

    # --- what it keeps ---

    @property
    def _missing(self) -> Path:
        return self._folder / "missing"

    @property
    def _processes(self) -> Path:
        return self._folder / "processes.json"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold off others that start or stop engines of this checkout."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _running(self) -> dict[str, tuple[Process, str]]:
        if not self._processes.exists():
            return {}
        kept = json.loads(self._processes.read_text())
        found = {
            name: (Process(each["pid"], each["folder"]), each["address"])
            for name, each in kept.items()
        }
        return {name: each for name, each in found.items() if each[0].alive()}

    def _record(self, running: Mapping[str, tuple[Process, str]]) -> None:
        processes = {
            name: {"pid": process.pid, "folder": process.folder, "address": address}
            for name, (process, address) in running.items()
        }
        _write(self._processes, json.dumps(processes, indent=2))
        addresses = {name: address for name, (_, address) in running.items()}
        _write(self._folder / ADDRESSES.name, json.dumps(addresses, indent=2))

    def _tell_missing(self, tried: Sequence[str], failed: Mapping[str, str]) -> None:
        others = {name: why for name, why in self.missing().items() if name not in tried}
        told = {**others, **failed}
        _write(self._missing, "".join(f"{name}: {told[name]}\n" for name in sorted(told)))

    def _install(self, names: Sequence[str]) -> dict[str, str]:
        why = debian.install(tool for name in names for tool in SERVERS[name].tools)
        failed: dict[str, str] = {}
        for name in names:
            try:
                SERVERS[name].install()
            except NotInstalled as error:
                failed[name] = why or str(error)
        self._tell_missing(names, failed)
        return failed


def elsewhere(name: str) -> bool:
    """Whether the machine offers the engine itself (see `tests.engines.address`)."""
    return bool(os.environ.get(f"QIM_TEST_{name.upper()}"))


def _start(server: Server) -> NotUp | None:
    try:
        server.start()
        server.wait()
    except NotUp as error:
        return error
    return None


def _end(process: Process) -> None:
    process.end()
    shutil.rmtree(process.folder)


def _write(path: Path, text: str) -> None:
    """Replace a file whole: readers never see half of it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)
