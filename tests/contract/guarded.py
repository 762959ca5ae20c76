"""Engines with guarded doors: TLS both ways, and users with passwords.

Each keeps a door in clear for the tests' own look at whether it answers.
"""

import ssl
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster
from tests.engines.cassandra import Cassandra
from tests.engines.debian import JAVA
from tests.engines.etcd import Etcd
from tests.engines.kafka import JARS, Kafka
from tests.engines.process import HOST, free_port
from tests.engines.redis import Redis
from tests.support.certificates import Files

USER: Final = "qim"
PASSWORD: Final = "open-sesame"


def guarded_redis(folder: Path, files: Files, *more: str) -> tuple[Redis, str]:
    """A Redis, and where it speaks TLS; `more` are flags of its own."""
    port = free_port()
    flags = (
        *("--tls-port", str(port), "--tls-ca-cert-file", str(files.authority)),
        *("--tls-cert-file", str(files.certificate), "--tls-key-file", str(files.key)),
        *("--user", USER, "on", f">{PASSWORD}", "~*", "+@all"),
        *more,
    )
    return Redis(folder, *flags), f"{HOST}:{port}"


def guarded_etcd(folder: Path, files: Files) -> tuple[Etcd, str]:
    """An etcd, and where it speaks TLS."""

    class Guarded(Etcd):
        def command(self) -> Sequence[str]:
            both = f"http://{self.address},https://{door}"
            clients = (f"--{verb}-client-urls={both}" for verb in ("listen", "advertise"))
            return (*super().command(), *clients)

    door = f"{HOST}:{free_port()}"
    flags = (
        *(f"--cert-file={files.certificate}", f"--key-file={files.key}"),
        *(f"--trusted-ca-file={files.authority}", "--client-cert-auth"),
    )
    return Guarded(folder, *flags), door


class GuardedKafka(Kafka):
    """A broker with a listener that wants certificates, and one that wants passwords over TLS."""

    def __init__(self, folder: Path, files: Files, more: Mapping[str, str] | None = None) -> None:
        module = "org.apache.kafka.common.security"
        sasl = "listener.name.sasl_ssl"
        settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(files.both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(files.authority),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            f"{sasl}.plain.sasl.jaas.config": (
                f'{module}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            ),
            f"{sasl}.scram-sha-512.sasl.jaas.config": (
                f"{module}.scram.ScramLoginModule required;"
            ),
            **(more or {}),
        }
        super().__init__(folder, settings)
        self.listeners |= {name: f"{HOST}:{free_port()}" for name in ("SSL", "SASL_SSL")}

    def add_user(self) -> None:
        """Give the user its password for SCRAM, as an operator does."""
        command = (
            *(JAVA.path(), "-cp", JARS.classpath, "kafka.admin.ConfigCommand"),
            *("--bootstrap-server", self.address, "--alter", "--entity-type", "users"),
            *("--entity-name", USER, "--add-config", f"SCRAM-SHA-512=[password={PASSWORD}]"),
        )
        subprocess.run(command, check=True, capture_output=True)


class GuardedCassandra(Cassandra):
    """One that has no door in clear at all."""

    USER: Final = "cassandra"
    PASSWORD: Final = "cassandra"

    def __init__(self, folder: Path, files: Files) -> None:
        encryption = {
            "enabled": True,
            "optional": False,
            "require_client_auth": True,
            "ssl_context_factory": {
                "class_name": "org.apache.cassandra.security.PEMBasedSslContextFactory"
            },
            "keystore": str(files.both),
            "truststore": str(files.authority),
        }
        super().__init__(
            folder,
            client_encryption_options=encryption,
            authenticator={"class_name": "PasswordAuthenticator"},
        )
        self._files = files

    def command(self) -> Sequence[str]:
        *options, main = super().command()
        return (*options, "-Dcassandra.superuser_setup_delay_ms=0", main)

    def client(self, **how: Any) -> Cluster:
        context = ssl.create_default_context(cafile=self._files.authority)
        context.load_cert_chain(self._files.certificate, self._files.key)
        user = PlainTextAuthProvider(self.USER, self.PASSWORD)
        return super().client(ssl_context=context, auth_provider=user, **how)
