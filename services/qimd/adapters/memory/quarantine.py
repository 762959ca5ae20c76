"""Quarantine in memory."""

from collections.abc import Sequence
from itertools import islice

from qimd.adapters.memory.network import Wire
from qimd.core.outcome import Applied, Outcome
from qimd.ports.quarantine import Quarantined

_Key = tuple[str, int, int]


class QuarantineDisk:
    """What survives a process: records by key, the oldest first."""

    def __init__(self) -> None:
        self.records: dict[_Key, Quarantined] = {}


class MemoryQuarantineStore:
    """`ports.quarantine.QuarantineStore`."""

    def __init__(self, disk: QuarantineDisk, wire: Wire) -> None:
        self._records = disk.records
        self._wire = wire

    async def quarantine(self, records: Sequence[Quarantined]) -> Outcome[None]:
        def effect() -> Outcome[None]:
            for record in records:
                key = (record.log_identity, record.partition, record.offset)
                self._records.setdefault(key, record)
            return Applied(None)

        return await self._wire.step("quarantine", None, effect, records)

    async def quarantined(self, limit: int) -> Sequence[Quarantined]:
        return await self._wire.read(
            "quarantined", None, lambda: list(islice(reversed(self._records.values()), limit))
        )
