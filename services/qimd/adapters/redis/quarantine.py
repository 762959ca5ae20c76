"""Quarantine: a stream of records, each once."""

from collections.abc import Sequence
from itertools import chain
from typing import Final

from qimd.adapters.redis.engine import Arg, RedisEngine
from qimd.adapters.redis.scripts import load
from qimd.core.ids import join_key
from qimd.core.outcome import Applied, Outcome
from qimd.ports.quarantine import Quarantined

_KEEP: Final = load("quarantine_keep")


class RedisQuarantineStore:
    """`ports.quarantine.QuarantineStore`."""

    def __init__(self, engine: RedisEngine) -> None:
        self._engine = engine
        self._records = engine.keys.key("quarantine")
        self._places = engine.keys.key("quarantine_places")

    async def quarantine(self, records: Sequence[Quarantined]) -> Outcome[None]:
        outcome = await self._engine.run(
            _KEEP,
            (self._records, self._places),
            list(chain.from_iterable(map(_arguments_of, records))),
        )
        return Applied(None) if isinstance(outcome, Applied) else outcome

    async def quarantined(self, limit: int) -> Sequence[Quarantined]:
        [entries] = await self._engine.fetch(
            [("XREVRANGE", self._records, "+", "-", "COUNT", limit)]
        )
        return [_record(fields[1::2]) for _, fields in entries]


def _arguments_of(record: Quarantined) -> tuple[Arg, ...]:
    return (
        join_key(record.log_identity, str(record.partition), str(record.offset)),
        record.log_identity,
        record.partition,
        record.offset,
        record.source,
        record.reason,
        record.at_ms,
        record.value,
    )


def _record(values: Sequence[bytes]) -> Quarantined:
    log_identity, partition, offset, source, reason, at_ms, value = values
    return Quarantined(
        log_identity.decode(),
        int(partition),
        int(offset),
        source.decode(),
        reason.decode(),
        int(at_ms),
        value,
    )
