"""Connections to a cluster's brokers, and what a failed one means.

aiokafka's connection does the framing, the versions and the matching of replies; a reply to a
request that nobody waits for any more is dropped, so a cancelled call leaves its connection usable.
A broker answers a connection's requests in order, hence a fetch that waits holds up whatever is
behind it: each reader and each producer has connections of its own.
"""

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, for_code
from aiokafka.protocol.api import Request

from qimd.core.errors import QimError, unavailable

REQUEST_TIMEOUT_S: Final = 5.0
"""A broker that has not answered by then is taken for gone: short enough that a produce which meets
one settles within the writer's self-fence deadline."""

_CLOSE_WITHIN_S: Final = 1.0

# At DEBUG it writes out every request, also those that carry a password.
logging.getLogger("aiokafka.conn").setLevel(logging.INFO)


@dataclass(frozen=True, slots=True)
class Node:
    """Where a broker listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """How to reach a cluster: some of its brokers, any of which tells the others."""

    bootstrap: Sequence[Node]
    client_id: str = "qim"
    request_timeout_s: float = REQUEST_TIMEOUT_S
    tls: ssl.SSLContext | None = None
    username: str = ""
    """Empty: the brokers ask for none."""
    password: str = field(default="", repr=False)
    sasl_mechanism: str = "SCRAM-SHA-512"
    """Or SCRAM-SHA-256, or PLAIN."""

    @classmethod
    def at(cls, addresses: str) -> "Cluster":
        """From `host:port[,host:port…]`. Raises ValueError."""
        pairs = [address.strip().rpartition(":") for address in addresses.split(",")]
        return cls(tuple(Node(host.strip("[]"), int(port)) for host, _, port in pairs))

    def connecting(self) -> Mapping[str, Any]:
        """What aiokafka's connection wants to know, besides whom it is to."""
        protocol = "PLAINTEXT" if self.tls is None else "SSL"
        return {
            "client_id": self.client_id,
            "request_timeout_ms": round(self.request_timeout_s * 1000),
            "security_protocol": f"SASL_{protocol}" if self.username else protocol,
            "ssl_context": self.tls,
            "sasl_mechanism": self.sasl_mechanism if self.username else None,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
        }


class Brokers:
    """One owner's connections, opened at their first use.

    They belong to a `family`, through which whoever opened all of them can close what is left.
    """

    def __init__(self, cluster: Cluster, family: "set[Brokers]") -> None:
        self.cluster = cluster
        self._family = family
        self._connections: dict[Node, AIOKafkaConnection] = {}
        self._any = list(cluster.bootstrap)
        self._connecting = asyncio.Lock()

    def sibling(self) -> "Brokers":
        """Connections of their own for another owner."""
        return Brokers(self.cluster, self._family)

    async def ask(self, node: Node, request: Request[Any]) -> Any:
        """The reply of one broker. Raises QimError(UNAVAILABLE)."""
        try:
            connection = await self._connection(node)
            return await connection.send(request)
        except TimeoutError:
            # It may answer much later; nothing else should wait behind that.
            self._drop(node)
            raise unavailable("a Kafka broker does not answer") from None
        except (IncompatibleBrokerVersion, NotImplementedError) as error:
            raise unavailable(f"the Kafka broker is too old: {error}") from None
        except (KafkaError, OSError) as error:
            self._drop(node)
            raise unavailable(f"a Kafka broker can't be reached: {error}") from None

    async def ask_any(self, request: Request[Any]) -> Any:
        """The reply of the first broker of the bootstrap list that gives one.

        One that does not is asked last from then on. Raises QimError(UNAVAILABLE).
        """
        failure = unavailable("no Kafka broker is configured")
        for node in tuple(self._any):
            try:
                return await self.ask(node, request)
            except QimError as error:
                failure = error
                self._any.remove(node)
                self._any.append(node)
        raise failure

    async def close(self) -> None:
        """Close the connections. They open again at the next use."""
        self._family.discard(self)
        closed = [connection.close() for connection in self._connections.values()]
        self._connections.clear()
        if closed:
            # A broker that is frozen takes nothing any more, not even what is left to send.
            await asyncio.wait(closed, timeout=_CLOSE_WITHIN_S)

    def _drop(self, node: Node) -> None:
        connection = self._connections.pop(node, None)
        if connection is not None:
            connection.close()

    async def _connection(self, node: Node) -> AIOKafkaConnection:
        async with self._connecting:
            connection = self._connections.get(node)
            self._family.add(self)
            if connection is None or not connection.connected():
                connection = self._connections[node] = await create_conn(
                    node.host, node.port, **self.cluster.connecting()
                )
            return connection


def refused(code: int, what: str) -> QimError:
    """The error for an error code that is no fault of the log: it may pass."""
    return unavailable(f"Kafka, {what}: {for_code(code).message} ({code})")
