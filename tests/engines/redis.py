"""Redis as the suites want it: no acknowledged write is lost, and none is evicted."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import redis
from tests.engines.debian import Tool, on_path
from tests.engines.process import HOST, Server

_REDIS = on_path("redis-server", "redis-server")


class Redis(Server):
    """One Redis. `flags` come last, so they may contradict the suites' settings."""

    name: ClassVar[str] = "redis"
    tools: ClassVar[Sequence[Tool]] = (_REDIS,)

    def __init__(self, folder: Path, *flags: str) -> None:
        super().__init__(folder)
        self._flags = flags

    def prepare(self) -> None:
        """Nothing: its settings are on its command line."""

    def command(self) -> Sequence[str]:
        settings = {
            "bind": HOST,
            "port": str(self.port),
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "save": "",
            # Else the command line that names the folder goes.
            "set-proc-title": "no",
        }
        flags = (part for name, value in settings.items() for part in (f"--{name}", value))
        return (_REDIS.path(), *flags, *self._flags)

    def answers(self) -> bool:
        client = redis.Redis(HOST, self.port, socket_timeout=1, socket_connect_timeout=1)
        try:
            # It answers PING with an error while it loads its file.
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()
