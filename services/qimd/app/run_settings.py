"""What `qimd run` is told: the production profiles, `standard` and `scylla`.

Names, defaults and what is required follow the projection's run contract (its table of QIM_*
settings); what it does not name is ours.
"""

# ruff: noqa: RUF009 - `setting` is `dataclasses.field` with our metadata.

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qimd.app.roles import ALL
from qimd.app.setting_kinds import (
    SettingRefused,
    boolean,
    choice,
    flag_of,
    setting,
    share,
    variable_of,
    whole,
)
from qimd.app.settings import ProcessSettings, check_certificates, check_replay_safety
from qimd.core.address import address, host_of, is_loopback

ROLES: Final = (*sorted(ALL), "all")
STORE_BACKENDS: Final = ("redis", "scylla")
ENGINES: Final = ("kafka", "redis", "etcd", "scylla")
"""Each has the settings that `engine_access` reads: `<engine>_certificate_authority` and so on."""

ENGINES_OF_PLAIN_PASSWORDS: Final = frozenset({"redis", "scylla"})
"""They are told the password itself."""

SASL_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
MAILBOX_SHARDS_DEFAULT: Final = 8
PORT_MAX: Final = 65_535
EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - refused, not bound
"""To listen on; nobody can be called there."""


def hosts(text: str) -> tuple[str, ...]:
    """Read `host[,host…]`."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise ValueError("must be host[,host…]")
    return found


def addresses(text: str) -> tuple[str, ...]:
    """Read `host:port[,host:port…]`."""
    return tuple(address(part.strip()) for part in text.split(","))


def word(text: str) -> str:
    """Read a text that is not empty."""
    if not text:
        raise ValueError("must not be empty")
    return text


def _authority(engine: str) -> Path | None:
    text = f"PEM file: who signs the certificates of {engine}; TLS is spoken with it if it is set"
    return setting(None, Path, text)


def _certificate(engine: str) -> Path | None:
    return setting(
        None, Path, f"PEM file: the chain with which this process proves itself to {engine}"
    )


def _private_key(engine: str) -> Path | None:
    return setting(None, Path, f"PEM file: the key of that certificate for {engine}")


def _user(engine: str) -> str | None:
    return setting(None, word, f"user at {engine}")


def _password_file(engine: str) -> Path | None:
    return setting(None, Path, f"file with the user's password at {engine}, and nothing else")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings(ProcessSettings):
    """One process of a deployment on Kafka, Redis, etcd and, with `scylla`, ScyllaDB."""

    role: str = setting("all", choice(*ROLES), f"one of {', '.join(ROLES)}")
    secrets: Path | None = setting(
        None, Path, "file that `qimd secrets` made; the same one for every process; required"
    )
    hop_port: int = setting(
        7402, whole, "port for the deployment's other processes; 0 takes a free one", least=0
    )
    hop_address: str | None = setting(
        None, address, "host:port of it as they dial it; host and hop port unless set"
    )
    peer_certificate_authority: Path | None = setting(
        None, Path, "PEM file: who signs the certificates of the deployment's processes"
    )
    peer_names: tuple[str, ...] | None = setting(
        None, hosts, "names in the certificates of processes that may call this one"
    )
    mailbox_shards: int = setting(
        MAILBOX_SHARDS_DEFAULT,
        whole,
        "partitions of the dispatch topic, exactly: a power of two, fixed for its life",
        least=1,
    )
    writer_shards: int = setting(
        MAILBOX_SHARDS_DEFAULT, whole, "shards of conversations: a power of two, fixed", least=1
    )
    redpanda_brokers: tuple[str, ...] = setting(
        ("127.0.0.1:19092",), addresses, "brokers of the dispatch log, Kafka or Redpanda"
    )
    kafka_certificate_authority: Path | None = _authority("Kafka")
    kafka_certificate: Path | None = _certificate("Kafka")
    kafka_private_key: Path | None = _private_key("Kafka")
    kafka_sasl_mechanism: str = setting(
        SASL_MECHANISMS[0], choice(*SASL_MECHANISMS), f"one of {', '.join(SASL_MECHANISMS)}"
    )
    kafka_user: str | None = _user("Kafka")
    kafka_password_file: Path | None = _password_file("Kafka")
    dispatch_topic: str = setting("qim.dispatch", str, "the dispatch log's topic")
    session_dispatch_partition_count: int | None = setting(
        None, whole, "partitions that the projection expects; --mailbox-shards unless set", least=1
    )
    session_dispatch_client_group: str = setting(
        "qim-session-static-assign", str, "client identity at the broker; never a position"
    )
    session_dispatch_operation_timeout_ms: int = setting(
        10_000, whole, "how long the broker may take to be ready", least=1
    )
    dispatch_recovery_window_ms: int | None = setting(
        None, whole, "how far back a replay must be able to begin; required", least=1
    )
    single_node_log: bool = setting(
        False, boolean, "accept a log of one broker, where one disk is all that a record has"
    )
    store_backend: str = setting(
        "redis", choice(*STORE_BACKENDS), "where messages and mailboxes live"
    )
    mailbox_backend: str | None = setting(
        None, choice(*STORE_BACKENDS), "where mailboxes live; --store-backend unless set"
    )
    mailbox_shadow_backend: str | None = setting(
        None, choice(*STORE_BACKENDS), "a second store for mailboxes that follows and is compared"
    )
    mailbox_shadow_share: float = setting(
        0.01, share, "how many of the reads are compared with it: 0 to 1 (all)"
    )
    redis: str = setting("127.0.0.1:6379", address, "host:port of the Redis, standalone")
    redis_certificate_authority: Path | None = _authority("Redis")
    redis_certificate: Path | None = _certificate("Redis")
    redis_private_key: Path | None = _private_key("Redis")
    redis_user: str | None = _user("Redis")
    redis_password_file: Path | None = _password_file("Redis")
    accept_loss_of_acknowledged_writes: bool = setting(
        False,
        boolean,
        "start on a Redis without appendfsync always: a dead disk takes back acknowledged messages",
    )
    scylla_hosts: tuple[str, ...] | None = setting(
        None, hosts, "names or addresses of ScyllaDB nodes; required with scylla"
    )
    scylla_port: int = setting(9042, whole, "their port", least=1)
    scylla_keyspace: str | None = setting(None, str, "its keyspace; required with scylla")
    scylla_dc: str | None = setting(None, str, "its local datacenter; required with scylla")
    scylla_rf: int | None = setting(
        None, whole, "its replication factor; required with scylla", least=1
    )
    scylla_certificate_authority: Path | None = _authority("ScyllaDB")
    scylla_certificate: Path | None = _certificate("ScyllaDB")
    scylla_private_key: Path | None = _private_key("ScyllaDB")
    scylla_user: str | None = _user("ScyllaDB")
    scylla_password_file: Path | None = _password_file("ScyllaDB")
    etcd: str = setting(
        "127.0.0.1:2379", address, "host:port of etcd; the host may be a name for all its members"
    )
    etcd_certificate_authority: Path | None = _authority("etcd")
    etcd_certificate: Path | None = _certificate("etcd")
    etcd_private_key: Path | None = _private_key("etcd")
    deployment: str = setting(
        "qim",
        str,
        "prefix of every key in Redis and etcd: one deployment, one prefix, and one dispatch topic",
    )

    @property
    def roles(self) -> frozenset[str]:
        """What `role` names."""
        return ALL if self.role == "all" else frozenset({self.role})

    @property
    def mailboxes_on(self) -> str:
        """The engine that mailboxes are served from."""
        return self.mailbox_backend or self.store_backend

    @property
    def backends(self) -> frozenset[str]:
        """The engines that some store lives on."""
        named = (self.store_backend, self.mailboxes_on, self.mailbox_shadow_backend)
        return frozenset(name for name in named if name is not None)

    @property
    def secrets_file(self) -> Path:
        """`secrets`, which `check` saw to be there."""
        if self.secrets is None:
            raise SettingRefused("--secrets", "is required")
        return self.secrets

    @property
    def recovery_window_ms(self) -> int:
        """`dispatch_recovery_window_ms`, which `check` saw to be there."""
        if self.dispatch_recovery_window_ms is None:
            raise SettingRefused("--dispatch-recovery-window-ms", "is required")
        return self.dispatch_recovery_window_ms

    def check(self) -> None:
        """See ProcessSettings."""
        # Named, since `slots=True` makes another class than the one that `super()` would see.
        ProcessSettings.check(self)
        self._require("secrets", "make one with `qimd secrets FILE`")
        self._require("dispatch_recovery_window_ms", "the longest outage to recover from, in ms")
        check_replay_safety(self, self.recovery_window_ms)
        if self.tls is not None:
            self._require("peer_certificate_authority", "processes prove themselves to one another")
            self._require("peer_names", "which certificates are processes of this deployment")
        for engine in ENGINES:
            self._check_access(engine)
        clear = self.kafka_certificate_authority is None
        if clear and self.kafka_user is not None and self.kafka_sasl_mechanism == "PLAIN":
            raise SettingRefused(
                "--kafka-sasl-mechanism",
                "PLAIN shows the password to the network: set --kafka-certificate-authority, or "
                "take a SCRAM mechanism",
            )
        if self.mailbox_shadow_backend == self.mailboxes_on:
            raise SettingRefused(
                "--mailbox-shadow-backend", f"{self.mailboxes_on} serves the mailboxes itself"
            )
        if "scylla" in self.backends:
            for name in ("scylla_hosts", "scylla_keyspace", "scylla_dc", "scylla_rf"):
                self._require(name, "the scylla backend needs it; there is no fall-back")
        expected = self.session_dispatch_partition_count
        if expected is not None and expected != self.mailbox_shards:
            raise SettingRefused(
                "--session-dispatch-partition-count",
                f"{expected} is not --mailbox-shards ({self.mailbox_shards}): mailboxes and "
                "projection read the same topic",
            )
        if self.hop_address is None and self.host in EVERY_ADDRESS:
            raise SettingRefused(
                "--hop-address",
                f"is required with --host {self.host}: other processes can't dial that",
            )
        if self.hop_port > PORT_MAX:
            raise SettingRefused("--hop-port", f"a port is at most {PORT_MAX}")
        for name in ("dispatch_topic", "deployment", "session_dispatch_client_group"):
            if not getattr(self, name):
                raise SettingRefused(flag_of(name), "must not be empty")

    def _check_access(self, engine: str) -> None:
        """What says how an engine is entered belongs together."""
        check_certificates(self, engine)
        if getattr(self, f"{engine}_user", None) is not None:
            self._require(f"{engine}_password_file", "a user has a password")
        elif engine != "redis" and getattr(self, f"{engine}_password_file", None) is not None:
            # Redis has a user for whoever names none.
            self._require(f"{engine}_user", "whose password it is")
        if engine in ENGINES_OF_PLAIN_PASSWORDS and getattr(self, f"{engine}_password_file"):
            places = (host_of(self.redis),) if engine == "redis" else self.scylla_hosts or ()
            if not all(map(is_loopback, places)):
                self._require(
                    f"{engine}_certificate_authority", "the password would show on the network"
                )

    def _require(self, name: str, reason: str) -> None:
        if getattr(self, name) is None:
            raise SettingRefused(flag_of(name), f"is required, or {variable_of(name)}: {reason}")
