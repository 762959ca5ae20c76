"""What a Redis must be before anything rests on it (design section 13).

Acknowledged means durable: so the append-only file is on and healthy, each write is synced before
it is answered, and nothing is evicted. Numbers are drawn in one place: so it is the one master,
standalone. Each refusal names the setting, what it is and what it has to be.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from qimd.adapters.redis.engine import RedisEngine

VERSION_MIN: Final = (7, 0, 0)
"""The first whose scripts can say in their first line that they write (`scripts`)."""

_WANTED: Final = (
    ("redis_mode", "standalone", "scripts touch keys that a cluster would keep apart"),
    ("cluster_enabled", "0", "scripts touch keys that a cluster would keep apart"),
    ("role", "master", "a replica takes no writes, and lags behind those that were acknowledged"),
    ("aof_enabled", "1", "set `appendonly yes`: snapshots alone lose minutes"),
    ("aof_last_write_status", "ok", "the append-only file can't be written: see to its disk"),
    ("maxmemory_policy", "noeviction", "an evicted key is a message that was acknowledged"),
)
"""(field of INFO, what it must be, why)."""

_WANTED_TO_LOSE_NOTHING: Final = (
    ("appendfsync", "always", "a dead disk would take back what was acknowledged"),
    ("no-appendfsync-on-rewrite", "no", "a rewrite of the file would put off each write's sync"),
)
"""The same of CONFIG; not looked at where `may_lose_acknowledged_writes`."""


class GateRefused(Exception):
    """This Redis can't hold what was acknowledged. `setting` is what must change."""

    def __init__(self, setting: str, found: str, wanted: str, why: str) -> None:
        super().__init__(f"Redis has {setting} {found or 'unset'}, and needs {wanted}: {why}")
        self.setting = setting
        self.found = found
        self.wanted = wanted


async def gate(engine: RedisEngine, *, may_lose_acknowledged_writes: bool = False) -> str:
    """Look at the server; its run_id, which is another one after each start of it.

    `may_lose_acknowledged_writes` lets it sync less often than at each write: a machine that dies
    then takes back what was acknowledged, and its numbers are used twice.

    Raises GateRefused, QimError(UNAVAILABLE) if the server can't be asked.
    """
    settings = [name for name, _, _ in _WANTED_TO_LOSE_NOTHING]
    info, config = await engine.fetch([("INFO",), ("CONFIG GET", *settings)])
    found = {**_fields(info), **_pairs(config)}
    version = found.get("redis_version", "")
    if _version(version) < VERSION_MIN:
        at_least = ".".join(map(str, VERSION_MIN))
        raise GateRefused(
            "redis_version",
            version,
            f"{at_least} or above",
            "older scripts can't say that they write",
        )
    lossless = () if may_lose_acknowledged_writes else _WANTED_TO_LOSE_NOTHING
    for setting, wanted, why in (*_WANTED, *lossless):
        if found.get(setting) != wanted:
            raise GateRefused(setting, found.get(setting, ""), wanted, why)
    return found["run_id"]


def _fields(info: bytes) -> Mapping[str, str]:
    """INFO's lines by their names."""
    lines = (line.partition(":") for line in info.decode().splitlines())
    return {name: value for name, colon, value in lines if colon}


def _pairs(config: Sequence[bytes]) -> Mapping[str, str]:
    """CONFIG GET's names and values, which come by turns."""
    texts = [text.decode() for text in config]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _version(text: str) -> tuple[int, ...]:
    """A version's numbers; none of what is no version, which is below all."""
    parts = text.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()
