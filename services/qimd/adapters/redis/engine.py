"""Calls to one Redis: scripts as steps, scripts and commands as reads.

A step is sent once. Whatever keeps its reply away (a timeout, a lost connection, a cancelled
caller) leaves it Unknown, and only its caller may send it again, under the same request id: so the
client library's own retries are off (its default would run a script up to ten times more).

A connection whose reply was not read to its end is closed, never given to the next caller, who
would read somebody else's reply. redis-py does that for whatever ends a read early, a cancellation
too; a test cancels a thousand calls to hold it to that.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection, Connection, ConnectionPool
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)

from qimd.adapters.redis.keys import Keyspace
from qimd.adapters.redis.scripts import Script
from qimd.core.errors import QimError, unavailable
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown

CONNECTIONS_MAX: Final = 32
"""Calls under way together. Redis runs one at a time, and shares one sync among those that wait."""

CONNECT_TIMEOUT_S: Final = 2.0
CONNECTION_WAIT_S: Final = 2.0
"""How long a call waits for others to give a connection back."""

REPLY_TIMEOUT_S: Final = 3.0
"""Well above a slow sync of a busy disk, and a fraction of what a client waits for an answer."""

_RUN_ID: Final = re.compile(rb"^run_id:(\w+)", re.MULTILINE)

Arg = bytes | str | int
Command = Sequence[Arg]

_NO_SPACE: Final = frozenset({"OOM", "MISCONF"})
"""No memory (`maxmemory`), or the last write to disk failed. Refused before a script began."""

_NOT_NOW: Final = frozenset(
    {
        "ASK",
        "BUSY",
        "CLUSTERDOWN",
        "CROSSSLOT",
        "LOADING",
        "MASTERDOWN",
        "MOVED",
        "NOAUTH",
        "NOPERM",
        "NOREPLICAS",
        "READONLY",
        "TRYAGAIN",
        "WRONGPASS",
    }
)
"""The server starts, is busy, became a replica or lets us in no more. Refused before it began."""


class ScriptFailed(Exception):
    """A script or a command is wrong: a defect of this adapter, which nothing can retry."""


class _NotSent(Exception):
    """The call never left: certainly not applied."""


class _ReplyLost(Exception):
    """The call left, and no reply came back: it may be applied, or be applied later."""


class _TlsConnection(Connection):
    """Over TLS as a context says. redis-py's own takes files, and whatever authority the system
    trusts besides the one that it is given.
    """

    def __init__(self, *, tls: ssl.SSLContext, **settings: Any) -> None:
        super().__init__(**settings)
        self._tls = tls

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "ssl": self._tls}


class RedisEngine:
    """The connections to one Redis and the keyspace of one deployment in it.

    Used on one event loop. It connects at the first call, and anew after any failure.
    """

    def __init__(
        self,
        url: str,
        namespace: str,
        *,
        tls: ssl.SSLContext | None = None,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """`url` is redis:// or unix://; ValueError if it, or the namespace, is not one.

        It may hold a password: it appears in no message. With `tls` it is redis://.
        """
        self.keys = Keyspace(namespace)
        self._reply_timeout_s = reply_timeout_s
        self._pool = ConnectionPool.from_url(
            url,
            **({} if tls is None else {"connection_class": _TlsConnection, "tls": tls}),
            max_connections=CONNECTIONS_MAX,
            retry=None,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            # One deadline for all of a call (`_exchange`): theirs would take a task a send.
            socket_timeout=None,
            # No pushed messages, which only a reader of its own could take.
            protocol=2,
            driver_info=None,
            redis_connect_func=self._meet,
        )
        self._free = asyncio.Semaphore(CONNECTIONS_MAX)
        self._closed = False
        self._run_id = b""
        self.restarts = 0
        """How often another start of the server was found at the end of a new connection."""

    @property
    def calls_under_way(self) -> int:
        """How many connections are in use."""
        _, in_use = self._pool.get_connection_count()
        return int(in_use[0])

    async def run(
        self, script: Script, keys: Sequence[bytes], args: Sequence[Arg]
    ) -> Outcome[list[Any]]:
        """Run a step; what it answered behind 'applied'. Never raises for a failure of Redis."""
        try:
            reply = await self._evaluate(script, keys, args)
        except _NotSent as failure:
            return NotApplied(Refusal.UNREACHABLE, str(failure))
        except _ReplyLost as failure:
            return Unknown(str(failure))
        if isinstance(reply, RedisError):
            return NotApplied(_refusal(reply, script.name), _code(reply))
        return outcome_of(reply)

    async def read(self, script: Script, keys: Sequence[bytes], args: Sequence[Arg]) -> Any:
        """Run a read; its answer. Raises QimError(UNAVAILABLE)."""
        try:
            reply = await self._evaluate(script, keys, args)
        except (_NotSent, _ReplyLost) as failure:
            raise _unreadable(str(failure)) from failure
        if isinstance(reply, RedisError):
            raise _read_failure(reply, script.name)
        return reply

    async def fetch(self, commands: Sequence[Command]) -> list[Any]:
        """The replies of reading commands, in one round trip. Raises QimError(UNAVAILABLE)."""
        if not commands:
            return []
        try:
            replies = await self._exchange(commands, self.restarts)
        except (_NotSent, _ReplyLost) as failure:
            raise _unreadable(str(failure)) from failure
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, RedisError):
                raise _read_failure(reply, str(command[0]))
        return replies

    async def close(self) -> None:
        """Close the connections; calls under way lose their replies."""
        self._closed = True
        await self._pool.aclose()

    async def _evaluate(self, script: Script, keys: Sequence[bytes], args: Sequence[Arg]) -> Any:
        """The script's reply, or Redis' error as a value. Raises _NotSent, _ReplyLost."""
        made = self.restarts
        [reply] = await self._exchange([("EVALSHA", script.sha, len(keys), *keys, *args)], made)
        if isinstance(reply, NoScriptError):
            # A new server, or one that was told to forget: it has certainly not run.
            [reply] = await self._exchange([("EVAL", script.source, len(keys), *keys, *args)], made)
        return reply

    async def _exchange(self, commands: Sequence[Command], made: int) -> list[Any]:
        """All commands out, all replies in. An error that the server answered is a value.

        `made` is what `restarts` was when the call was made: it may build on what a later start of
        the server has lost, and does not go to one.
        """
        async with self._connection() as connection:
            if self.restarts != made:
                raise _NotSent("Redis was started anew since")
            packed = connection.pack_commands(commands)
            try:
                async with asyncio.timeout(self._reply_timeout_s):
                    await connection.send_packed_command(packed, check_health=False)
                    return [await _reply(connection) for _ in commands]
            except (RedisError, OSError) as error:
                raise _ReplyLost(f"no reply from Redis ({type(error).__name__})") from error

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AbstractConnection]:
        """A connection that nobody else uses and no reply is due on. Raises _NotSent."""
        if self._closed:
            raise _NotSent("the store is closed")
        try:
            async with asyncio.timeout(CONNECTION_WAIT_S):
                await self._free.acquire()
        except TimeoutError as error:
            raise _NotSent("all connections to Redis are busy") from error
        try:
            connection = await self._connect()
            try:
                yield connection
            finally:
                await self._pool.release(connection)
        finally:
            self._free.release()

    async def _connect(self) -> AbstractConnection:
        """A connection of the pool, connected and with nothing to read. Raises _NotSent."""
        try:
            async with asyncio.timeout(CONNECTION_WAIT_S):
                connection: AbstractConnection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        except (RedisError, OSError) as error:
            raise _NotSent(f"Redis can't be reached ({type(error).__name__})") from error
        return connection

    async def _meet(self, connection: AbstractConnection) -> None:
        """Begin a new connection: ask which start of the server is at its end, before any call goes
        there. Raises what redis-py's own begin raises.
        """
        await connection.on_connect()
        await connection.send_command("INFO", "server")
        found = _RUN_ID.search(await connection.read_response())
        if found is None:
            # One of redis-py's own, so that it gives the connection up.
            raise RedisConnectionError("Redis does not say which start of it this is")
        run_id = found[1]
        if self._run_id and run_id != self._run_id:
            self.restarts += 1
        self._run_id = run_id


def outcome_of(answer: Sequence[Any]) -> Outcome[list[Any]]:
    """What a step's answer means (`scripts`)."""
    status, *values = answer
    if status == b"applied":
        return Applied(values)
    [why] = values
    return NotApplied(Refusal(status.decode()), why.decode())


async def _reply(connection: AbstractConnection) -> Any:
    """The next reply. What the server refuses is a value: the connection is as good as before."""
    try:
        return await connection.read_response()
    except (ResponseError, BusyLoadingError, AuthenticationError) as error:
        return error


def _code(error: RedisError) -> str:
    """The first word of the server's error, which redis-py takes off those that it has a class for.

    The rest stays out of messages: it can hold a key's name.
    """
    return error.status_code or str(error).split(" ", 1)[0]


def _refusal(error: RedisError, name: str) -> Refusal:
    """Why a step was refused before it began. Raises ScriptFailed if that is not what happened."""
    code = _code(error)
    if code in _NO_SPACE:
        return Refusal.NO_SPACE
    if code in _NOT_NOW:
        return Refusal.UNREACHABLE
    raise ScriptFailed(f"{name}: {error}") from error


def _read_failure(error: RedisError, name: str) -> QimError:
    _refusal(error, name)
    return _unreadable(f"Redis refuses it ({_code(error)})")


def _unreadable(why: str) -> QimError:
    return unavailable(f"the store can't be read now: {why}")
