"""Kafka without ZooKeeper: one node that is broker and controller, or several of them."""

import asyncio
import base64
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from tests.engines.debian import JAVA, MAVEN, Tool
from tests.engines.jars import Jars
from tests.engines.process import HOST, Server, accepts, free_port

JARS: Final = Jars("kafka")
_ANSWER_WITHIN_MS: Final = 2_000


def new_cluster_id() -> str:
    """16 random bytes as Kafka writes them. It takes a leading dash for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


class Kafka(Server):
    """One node. `settings`, by Kafka's names, overrule those of the suites."""

    name: ClassVar[str] = "kafka"
    tools: ClassVar[Sequence[Tool]] = (JAVA, MAVEN)

    @classmethod
    def install(cls) -> None:
        super().install()
        JARS.ensure()

    def __init__(
        self, folder: Path, settings: Mapping[str, str] | None = None, *, node: int = 1
    ) -> None:
        super().__init__(folder)
        self.node = node
        self.listeners = {"PLAINTEXT": self.address, "CONTROLLER": f"{HOST}:{free_port()}"}
        """Security protocol → where it listens. More of them before the first start."""
        self._cluster_id = new_cluster_id()
        self._voters = self.voter
        self._settings = dict(settings or {})

    @property
    def voter(self) -> str:
        """Its place in the quorum of controllers."""
        return f"{self.node}@{self.listeners['CONTROLLER']}"

    def join(self, cluster_id: str, voters: Sequence[str]) -> None:
        """Make it a node of a cluster. Before its first start."""
        self._cluster_id = cluster_id
        self._voters = ",".join(voters)

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def prepare(self) -> None:
        listeners = [f"{name}://{address}" for name, address in self.listeners.items()]
        protocols = {name: name for name in self.listeners} | {"CONTROLLER": "PLAINTEXT"}
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(self.node),
            "controller.quorum.voters": self._voters,
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(
                each for each in listeners if not each.startswith("CONTROLLER")
            ),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
            "log.dirs": str(self._data),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            # A test makes a topic and leaves it: small, and gone soon after it is deleted.
            "log.index.size.max.bytes": "65536",
            "log.segment.delete.delay.ms": "1000",
            "num.network.threads": "2",
            "num.io.threads": "2",
            **self._settings,
        }
        lines = (f"{name}={value}\n" for name, value in settings.items())
        self._properties.write_text("".join(lines))
        # What Kafka's tool for formatting leaves in a new folder, without a JVM of its own for it.
        self._data.mkdir()
        (self._data / "meta.properties").write_text(
            f"version=1\ncluster.id={self._cluster_id}\nnode.id={self.node}\n"
        )

    def command(self) -> Sequence[str]:
        return (
            *(JAVA.path(), "-Xmx512m", "-XX:+UseSerialGC", "-cp", JARS.classpath),
            f"-XX:ErrorFile={self.folder}/crash.log",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "kafka.Kafka",
            str(self._properties),
        )

    def answers(self) -> bool:
        return accepts(self.port) and asyncio.run(self._answers())

    async def _answers(self) -> bool:
        client = AIOKafkaAdminClient(
            bootstrap_servers=self.address, request_timeout_ms=_ANSWER_WITHIN_MS
        )
        try:
            await client.start()
            cluster = await client.describe_cluster()
        except KafkaError:
            return False
        finally:
            await client.close()
        # A broker listens before the controller has let it serve.
        return any(broker["node_id"] == self.node for broker in cluster["brokers"])


def cluster(folder: Path, settings: Mapping[str, str] | None = None, nodes: int = 3) -> list[Kafka]:
    """The nodes of a cluster, none of them started yet: start all before waiting for one."""
    members = [Kafka(folder / str(n), settings, node=n) for n in range(1, nodes + 1)]
    cluster_id = new_cluster_id()
    for member in members:
        member.join(cluster_id, [each.voter for each in members])
    return members
