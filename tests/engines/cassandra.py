"""One Cassandra, which stands for ScyllaDB as well: both speak CQL and conditional writes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from cassandra import DriverException
from cassandra.cluster import Cluster, NoHostAvailable
from tests.engines.debian import JAVA, MAVEN, Tool
from tests.engines.jars import Jars
from tests.engines.process import HOST, Server, accepts, free_port

JARS: Final = Jars("cassandra")
_ANSWER_WITHIN_S: Final = 3.0

# Cassandra's own list for Java 17.
_EXPORTS: Final = (
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.rmi/sun.rmi.transport.tcp",
    "java.sql/java.sql",
)
_OPENS: Final = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
)
_LOGBACK: Final = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{ISO8601} %-5level %logger{36} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""


class Cassandra(Server):
    """One node. `settings` overrule those of the suites, by their names in cassandra.yaml."""

    name: ClassVar[str] = "cassandra"
    tools: ClassVar[Sequence[Tool]] = (JAVA, MAVEN)

    @classmethod
    def install(cls) -> None:
        super().install()
        JARS.ensure()

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder)
        self._storage_port = free_port()
        self._ssl_storage_port = free_port()
        self._settings = settings

    @property
    def _yaml(self) -> Path:
        return self.folder / "cassandra.yaml"

    def prepare(self) -> None:
        seeds = {"seeds": f"{HOST}:{self._storage_port}"}
        seed_provider = {
            "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
            "parameters": [seeds],
        }
        settings = {
            "cluster_name": "qim tests",
            "num_tokens": 1,
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "seed_provider": [seed_provider],
            "listen_address": HOST,
            "rpc_address": HOST,
            "native_transport_port": self.port,
            "storage_port": self._storage_port,
            "ssl_storage_port": self._ssl_storage_port,
            "endpoint_snitch": "SimpleSnitch",
            # An acknowledged write is on the disk, as a test that kills the server expects.
            "commitlog_sync": "batch",
            "disk_failure_policy": "stop",
            "commit_failure_policy": "stop",
            # Suites empty tables between tests: no snapshot of what they held.
            "auto_snapshot": False,
            # Beside other suites a write may wait for seconds: its outcome shall still be told.
            **{
                f"{kind}_timeout": "30s"
                for kind in (
                    "request",
                    "read_request",
                    "range_request",
                    "write_request",
                    "cas_contention",
                )
            },
            **{
                f"{kind}_directory": str(self.folder / kind)
                for kind in ("commitlog", "saved_caches", "hints", "cdc_raw")
            },
            "data_file_directories": [str(self.folder / "data")],
            **self._settings,
        }
        # YAML contains JSON.
        self._yaml.write_text(json.dumps(settings, indent=2))
        (self.folder / "logback.xml").write_text(_LOGBACK)

    def command(self) -> Sequence[str]:
        (jamm,) = JARS.folder.glob("jamm-*.jar")
        return (
            *(JAVA.path(), "-Xmx1g", "-XX:+UseSerialGC", "-cp", JARS.classpath),
            f"-XX:ErrorFile={self.folder}/crash.log",
            f"-javaagent:{jamm}",
            *(f"--add-exports={package}=ALL-UNNAMED" for package in _EXPORTS),
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS),
            f"-Dcassandra.config=file://{self._yaml}",
            f"-Dcassandra.storagedir={self.folder}",
            f"-Dlogback.configurationFile={self.folder}/logback.xml",
            "-Dcassandra-foreground=yes",
            # It is alone: there is nobody to wait for.
            "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            "-Dcassandra.ring_delay_ms=100",
            "org.apache.cassandra.service.CassandraDaemon",
        )

    def client(self, **how: Any) -> Cluster:
        """The driver, not connected yet; `how` are settings of its own."""
        return Cluster([HOST], port=self.port, **how)

    def answers(self) -> bool:
        if not accepts(self.port):
            return False
        client = self.client(connect_timeout=_ANSWER_WITHIN_S)
        try:
            rows = client.connect().execute(
                "SELECT release_version FROM system.local", timeout=_ANSWER_WITHIN_S
            )
            return rows.one() is not None
        except (DriverException, NoHostAvailable):
            return False
        finally:
            client.shutdown()
