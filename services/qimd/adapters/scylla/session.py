"""A session with ScyllaDB or Cassandra behind asyncio: how statements go out, and what errors mean.

The driver answers on threads of its own; an answer is handed to the event loop, where nobody may be
waiting for it any more. A caller that is cancelled takes nothing back.

The driver's default policy sends a statement whose connection broke to the next host, conditional
ones included, though the first may have been applied. Here nothing is ever sent twice: whoever gets
Unknown issues the same step again, under its request id.

Certain refusals are few: no host was asked, the coordinator saw too few replicas before it asked
one, or it refused the statement itself. Everything else, above all a timeout, is Unknown.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from cassandra import (  # type: ignore[import-untyped]
    ConsistencyLevel,
    DriverException,
    InvalidRequest,
    Unavailable,
)
from cassandra.auth import PlainTextAuthProvider  # type: ignore[import-untyped]
from cassandra.cluster import (  # type: ignore[import-untyped]
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoHostAvailable,
)
from cassandra.connection import (  # type: ignore[import-untyped]
    ConnectionBusy,
    ConnectionException,
)
from cassandra.policies import (  # type: ignore[import-untyped]
    ConstantReconnectionPolicy,
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    TokenAwarePolicy,
)
from cassandra.pool import NoConnectionsAvailable  # type: ignore[import-untyped]
from cassandra.protocol import ErrorMessage  # type: ignore[import-untyped]
from cassandra.query import (  # type: ignore[import-untyped]
    BatchStatement,
    BatchType,
    tuple_factory,
)

from qimd.core.errors import QimError, unavailable
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown

P = ParamSpec("P")
T = TypeVar("T")
Row = tuple[Any, ...]

REQUEST_TIMEOUT_S: Final = 5.0
"""Above the engine's own timeouts (2 s for a write): its word on an outcome is better than ours."""

IN_FLIGHT_MAX: Final = 256
"""Statements under way that somebody waits for: far below the streams of one connection, for a free
one of which the driver would block the event loop."""

BULK_IN_FLIGHT_MAX: Final = 128
"""Statements of calls that have hundreds, reads and writes apart: enough to keep an engine busy.
They wait for one another, so that no commit stands behind the thousands of entries of a mailbox's
step. Sending one takes 0.1 ms of the event loop, and all that may go take it at once."""

CONDITIONAL_IN_FLIGHT_MAX: Final = 32
"""Each costs four rounds between replicas: more at a time wait for one another until the engine's
timeouts make their outcomes unknown."""

DECISIONS_MAX: Final = 8
"""Tries of a step whose conditions never hold though nothing seems to stand in the way."""

RECONNECT_S: Final = 1.0
"""By default a host that was away is tried after up to ten minutes, all of which it serves."""

ENGINE_ERRORS: Final = (DriverException, NoHostAvailable, ConnectionException, ErrorMessage)
_NEVER_SENT: Final = (ConnectionException, ConnectionBusy, NoConnectionsAvailable)
_SERIAL: Final = (ConsistencyLevel.SERIAL, ConsistencyLevel.LOCAL_SERIAL)


@dataclass(frozen=True, slots=True)
class ScyllaSettings:
    """Where the engine is, and the keyspace in it."""

    hosts: Sequence[str]
    keyspace: str
    datacenter: str
    replication_factor: int
    port: int = 9042
    username: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    request_timeout_s: float = REQUEST_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Write:
    """A statement of CQL with its values, in order."""

    cql: str
    values: Sequence[object]


class Session:
    """Statements to one keyspace, at LOCAL_QUORUM and LOCAL_SERIAL."""

    def __init__(self, cluster: Any, driver: Any) -> None:
        """From what `connect` got of the driver."""
        self._cluster = cluster
        self._driver = driver
        self._prepared: dict[str, Any] = {}
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._bulk_read_slots = asyncio.Semaphore(BULK_IN_FLIGHT_MAX)
        self._bulk_write_slots = asyncio.Semaphore(BULK_IN_FLIGHT_MAX)
        self._conditional_slots = asyncio.Semaphore(CONDITIONAL_IN_FLIGHT_MAX)

    async def close(self) -> None:
        """Close the connections; what is under way stays unknown."""
        await asyncio.to_thread(self._cluster.shutdown)

    # --- reading ---

    async def rows(self, cql: str, *values: object) -> Sequence[Row]:
        """All rows that a SELECT gives. Raises QimError(UNAVAILABLE)."""
        async with self._slots:
            return await self._read(cql, values, ConsistencyLevel.LOCAL_QUORUM)

    async def rows_decided(self, cql: str, *values: object) -> Sequence[Row]:
        """The same after every conditional write of the partition that was begun is decided."""
        async with self._conditional_slots:
            return await self._read(cql, values, ConsistencyLevel.LOCAL_SERIAL)

    async def rows_of_each(
        self, cql: str, values: Iterable[Sequence[object]]
    ) -> Sequence[Sequence[Row]]:
        """The rows for each of many sets of values, side by side."""

        async def rows(some: Sequence[object]) -> Sequence[Row]:
            async with self._bulk_read_slots:
                return await self._read(cql, some, ConsistencyLevel.LOCAL_QUORUM)

        return await asyncio.gather(*map(rows, values))

    async def _read(self, cql: str, values: Sequence[object], consistency: int) -> Sequence[Row]:
        try:
            bound = (await self._statement(cql)).bind(values)
            bound.consistency_level = consistency
            return await self._send(bound)
        except ENGINE_ERRORS as error:
            raise unavailable(f"the store can't be read now ({type(error).__name__})") from error

    # --- writing ---

    async def write(self, writes: Sequence[Write]) -> Outcome[None]:
        """Writes to one partition without a condition: together, and the same whoever repeats."""
        if not writes:
            return Applied(None)
        async with self._slots:
            outcome = await self._write(writes, conditional=False)
        return Applied(None) if isinstance(outcome, Applied) else outcome

    async def write_all(self, partitions: Sequence[Sequence[Write]]) -> Outcome[None]:
        """The same for many partitions side by side: Applied if all of them are."""

        async def write(writes: Sequence[Write]) -> Outcome[Sequence[Row]]:
            async with self._bulk_write_slots:
                return await self._write(writes, conditional=False)

        return worst(await asyncio.gather(*map(write, partitions)))

    async def decide(self, writes: Sequence[Write]) -> Outcome[bool]:
        """Writes to one partition, one or more with conditions: whether these held, and so all of
        the writes were made, or none. What stood in the way is not told: engines differ in it.
        """
        async with self._conditional_slots:
            outcome = await self._write(writes, conditional=True)
        return Applied(bool(outcome.value[0][0])) if isinstance(outcome, Applied) else outcome

    async def _write(self, writes: Sequence[Write], *, conditional: bool) -> Outcome[Sequence[Row]]:
        try:
            statement = await self._together(writes)
        except ENGINE_ERRORS as error:
            return NotApplied(Refusal.UNREACHABLE, type(error).__name__)
        try:
            return Applied(await self._send(statement))
        except ENGINE_ERRORS as error:
            return failure(error, conditional=conditional)

    # --- the driver ---

    async def _statement(self, cql: str) -> Any:
        """Prepared at its first use. Raises ENGINE_ERRORS: nothing was executed then."""
        prepared = self._prepared.get(cql)
        if prepared is None:
            prepared = await asyncio.to_thread(self._driver.prepare, cql)
            self._prepared[cql] = prepared
        return prepared

    async def _together(self, writes: Sequence[Write]) -> Any:
        if len(writes) == 1:
            return (await self._statement(writes[0].cql)).bind(writes[0].values)
        batch = BatchStatement(batch_type=BatchType.UNLOGGED)
        for write in writes:
            batch.add(await self._statement(write.cql), write.values)
        return batch

    async def _send(self, statement: Any) -> Sequence[Row]:
        """The rows of all pages. Raises ENGINE_ERRORS."""
        answer = _Answer(asyncio.get_running_loop())
        answer.await_of(self._driver.execute_async(statement))
        return await answer.future


class _Answer:
    """A statement's answer on its way from the driver's thread to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Sequence[Row]] = loop.create_future()
        self._loop = loop
        self._rows: list[Row] = []

    def await_of(self, response: Any) -> None:
        """Have the driver call back for each page."""
        response.add_callbacks(self._page, self._failed, callback_args=(response,))

    def _page(self, rows: Sequence[Row] | None, response: Any) -> None:
        self._rows.extend(rows or ())
        if not response.has_more_pages:
            self._hand_over(lambda: self.future.set_result(self._rows))
            return
        try:
            response.start_fetching_next_page()
        except ENGINE_ERRORS as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._hand_over(lambda: self.future.set_exception(error))

    def _hand_over(self, settle: Callable[[], None]) -> None:
        # The loop may be closed by now: nobody is left to be told.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, settle)

    def _settle(self, settle: Callable[[], None]) -> None:
        if not self.future.done():  # its caller was cancelled meanwhile
            settle()


def connect(settings: ScyllaSettings) -> tuple[Any, Any]:
    """The driver's cluster and session, without a keyspace. Blocks. Raises ENGINE_ERRORS."""
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(settings.datacenter)),
        retry_policy=FallthroughRetryPolicy(),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL,
        request_timeout=settings.request_timeout_s,
        row_factory=tuple_factory,
    )
    auth = PlainTextAuthProvider(settings.username, settings.password)
    cluster = Cluster(
        settings.hosts,
        port=settings.port,
        auth_provider=auth if settings.username else None,
        ssl_context=settings.tls,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ConstantReconnectionPolicy(RECONNECT_S, max_attempts=None),
    )
    try:
        return cluster, cluster.connect()
    except BaseException:
        cluster.shutdown()
        raise


def step(
    call: Callable[P, Awaitable[Outcome[T]]],
) -> Callable[P, Coroutine[Any, Any, Outcome[T]]]:
    """A mutating call that reads before it writes: a read that fails ends it, with nothing done."""

    @wraps(call)
    async def run(*args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
        try:
            return await call(*args, **kwargs)
        except QimError as error:
            return NotApplied(Refusal.UNREACHABLE, error.message)

    return run


def begun(
    call: Callable[P, Awaitable[Outcome[T]]],
) -> Callable[P, Coroutine[Any, Any, Outcome[T]]]:
    """The rest of a call that has done something: where it fails, the whole is unknown."""

    @wraps(call)
    async def run(*args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
        try:
            outcome = await call(*args, **kwargs)
        except QimError as error:
            return Unknown(error.message)
        return Unknown(outcome.detail) if isinstance(outcome, NotApplied) else outcome

    return run


def contended() -> NotApplied:
    """Others were faster at each of the tries."""
    return NotApplied(Refusal.UNREACHABLE, "others write at the same time")


def worst(outcomes: Sequence[Outcome[Any]]) -> Outcome[None]:
    """Of writes that belong together: Applied if all are, and Unknown before a certain refusal."""
    refused: Outcome[None] = Applied(None)
    for outcome in outcomes:
        if isinstance(outcome, Unknown):
            return outcome
        if isinstance(outcome, NotApplied):
            refused = outcome
    return refused


def failure(error: Exception, *, conditional: bool) -> NotApplied | Unknown:
    """What an error says of a write."""
    name = type(error).__name__
    match error:
        case InvalidRequest():
            return NotApplied(Refusal.REJECTED, name)
        case NoHostAvailable() if all(isinstance(e, _NEVER_SENT) for e in error.errors.values()):
            return NotApplied(Refusal.UNREACHABLE, name)
        # A conditional write that was decided may lack replicas to tell it to: that one names the
        # consistency of the write, not of the decision.
        case Unavailable() if not conditional or error.consistency in _SERIAL:
            return NotApplied(Refusal.UNREACHABLE, name)
        case _:
            return Unknown(name)
