"""One etcd, a cluster of itself."""

import json
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.engines.debian import Tool, on_path
from tests.engines.process import HOST, Server, free_port

_ETCD = on_path("etcd", "etcd-server")


class Etcd(Server):
    """One etcd. `flags` come last, so they may contradict the suites' settings."""

    name: ClassVar[str] = "etcd"
    tools: ClassVar[Sequence[Tool]] = (_ETCD,)

    def __init__(self, folder: Path, *flags: str) -> None:
        super().__init__(folder)
        self._flags = flags
        self._peers = f"http://{HOST}:{free_port()}"

    def prepare(self) -> None:
        """Nothing: its settings are on its command line."""

    def command(self) -> Sequence[str]:
        clients = f"http://{self.address}"
        return (
            _ETCD.path(),
            f"--data-dir={self.folder / 'data'}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={self._peers}",
            f"--initial-advertise-peer-urls={self._peers}",
            f"--initial-cluster=default={self._peers}",
            *self._flags,
        )

    def environment(self) -> Mapping[str, str]:
        # It refuses a flag that an ETCD_ variable of the machine gives as well.
        return {k: v for k, v in super().environment().items() if not k.startswith("ETCD_")}

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/health", timeout=1) as reply:
                return bool(json.load(reply)["health"] == "true")
        except OSError:
            return False
