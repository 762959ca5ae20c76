"""The way to the log: one producer at a time, to the one log that this process began with.

A topic that was deleted and made again has the same name and other records: what is produced to it
is out of the reach of every stored position. So the topic's identity is asked for with each new
producer, and every `log_identity_check_interval`; a change is final until somebody restarts the
process with open eyes.
"""

from collections.abc import Sequence
from typing import Final

from qimd.core.errors import ErrorCode, QimError, unavailable
from qimd.core.outcome import Applied, Outcome
from qimd.core.parameters import LOG_IDENTITY_CHECK_INTERVAL_S
from qimd.core.records import LogIdentity
from qimd.fanout.logic import largest_record_bytes
from qimd.ports.log import Log, LogFault, Producer, ProduceRecord
from qimd.ports.runtime import Runtime
from qimd.ports.store import ConversationStore

_NEVER: Final = float("-inf")


class HaltedError(QimError):
    """The shard may produce nothing until a restart: UNAVAILABLE, with why."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, reason)
        self.reason = reason


class LogUnfitError(QimError):
    """The log's settings can't hold what this deployment produces: INVALID_ARGUMENT."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(ErrorCode.INVALID_ARGUMENT, message, field=field)


class KnownLog:
    """The log, and the identity that it has for the life of this process. Shared by all shards."""

    def __init__(
        self, log: Log, conversations: ConversationStore, partitions: int, chunk_recipients: int
    ) -> None:
        self._log = log
        self._conversations = conversations
        self._partitions = partitions
        self._chunk_recipients = chunk_recipients
        self._identity: LogIdentity | None = None

    async def check_start(self) -> LogIdentity:
        """The log's identity, if it can hold what this deployment produces.

        Raises LogUnfitError for a record limit that a largest record reaches, or for a partition
        count that is not the routing table's; HaltedError for another log than before;
        QimError(UNAVAILABLE) without an answer.
        """
        identity = await self.check()
        needed = largest_record_bytes(self._chunk_recipients)
        limit = (await self._log.settings()).max_record_bytes
        if limit is not None and limit <= needed:
            raise LogUnfitError(
                f"the log takes records of {limit} bytes; a dispatch may have {needed}",
                "max_record_bytes",
            )
        return identity

    async def check(self) -> LogIdentity:
        """The log's identity, the same as ever. Raises as `check_start`."""
        try:
            identity = await self._log.identity()
        except LogFault as fault:
            # It may be back in a moment, with the same identity or with another one.
            raise unavailable(f"the dispatch log: {fault.detail}") from fault
        if self._identity is None and identity.partitions != self._partitions:
            raise LogUnfitError(
                f"the log has {identity.partitions} partitions, the routing table "
                f"{self._partitions} mailbox shards",
                "mailbox_shards",
            )
        if self._identity is None:
            # Durable before the first record, which a later log may not hold any more.
            noted = await self._conversations.note_first_log(identity.text)
            if not isinstance(noted, Applied):
                raise unavailable("the store can't note which log dispatches go to")
            self._identity = identity
        elif identity != self._identity:
            raise HaltedError("the dispatch log is another one than at the start")
        return identity

    async def open_producer(self) -> Producer:
        """A new producer. Raises QimError(UNAVAILABLE)."""
        return await self._log.open_producer()


class LogLine:
    """One shard's producer. Spent by any failure; the next use opens another."""

    def __init__(self, known: KnownLog, runtime: Runtime) -> None:
        self._known = known
        self._runtime = runtime
        self._producer: Producer | None = None
        self._identity: LogIdentity | None = None
        self._checked_s = _NEVER

    async def ready(self) -> LogIdentity:
        """The identity that records carry now, with a producer that is open.

        Raises HaltedError, LogUnfitError, QimError(UNAVAILABLE).
        """
        if self._producer is None:
            self._producer = await self._known.open_producer()
            self._identity = None
        now_s = self._runtime.monotonic_s()
        if self._identity is None or now_s - self._checked_s >= LOG_IDENTITY_CHECK_INTERVAL_S:
            self._identity = await self._known.check()
            self._checked_s = now_s
        return self._identity

    async def produce(self, records: Sequence[ProduceRecord]) -> Sequence[Outcome[None]]:
        """Append a batch; every delivery is settled when this returns. `ready` comes first."""
        if self._producer is None:
            raise unavailable("the producer is spent")
        return await self._producer.produce(records)

    async def close(self) -> None:
        """Give the producer up."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()
