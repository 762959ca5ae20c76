"""The engines as a deployment has them: entered over TLS, by users with passwords, by settings."""

import asyncio
import socket
import ssl
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests import engines
from tests.contract.builders import value
from tests.contract.guarded import (
    PASSWORD,
    USER,
    GuardedCassandra,
    GuardedKafka,
    guarded_etcd,
    guarded_redis,
)
from tests.engines.process import HOST
from tests.support.certificates import Authority, Files

from qimd.app.profiles import make_topic, open_backends
from qimd.app.run_settings import RunSettings
from qimd.app.runtime import AsyncioRuntime
from qimd.app.setting_kinds import SettingRefused
from qimd.app.settings import load
from qimd.ports.data import Backends
from qimd.ports.log import ProduceRecord
from qimd.ports.store import ShardKind
from qimd.telemetry.metrics import Metrics

pytestmark = pytest.mark.skipif(
    not all(map(engines.address, ("redis", "etcd", "kafka"))),
    reason="the engines do not run here (make engines)",
)

NONCE = b"n" * 16
ADDRESSES = {"redis": "QIM_REDIS", "kafka": "QIM_REDPANDA_BROKERS", "etcd": "QIM_ETCD"}
"""The setting that says where an engine is."""


@dataclass(frozen=True)
class Doors:
    """The guarded engines, and what is needed to enter them."""

    addresses: Mapping[str, str]
    """TLS ones, by engine; `sasl` is Kafka's for passwords."""
    theirs: Files
    """The engines' own."""
    ours: Files
    strangers: Files
    """Of another authority."""
    password: Path
    guess: Path
    folder: Path

    def settings(self, **changes: str | None) -> RunSettings:
        """Settings that enter all of them; a change of None takes one away."""
        proofs = {
            f"QIM_{engine}_{name}": str(path)
            for engine in ("KAFKA", "REDIS", "ETCD")
            for name, path in (
                ("CERTIFICATE_AUTHORITY", self.ours.authority),
                ("CERTIFICATE", self.ours.certificate),
                ("PRIVATE_KEY", self.ours.key),
            )
        }
        given = {
            "QIM_SECRETS": "unread.json",
            "QIM_DISPATCH_RECOVERY_WINDOW_MS": "3600000",
            "QIM_DISPATCH_TOPIC": f"qim.dispatch.{uuid.uuid4().hex}",
            "QIM_DEPLOYMENT": f"t-{uuid.uuid4().hex}",
            "QIM_MAILBOX_SHARDS": "2",
            "QIM_SINGLE_NODE_LOG": "true",
            "QIM_REDPANDA_BROKERS": self.addresses["kafka"],
            "QIM_REDIS": self.addresses["redis"],
            "QIM_ETCD": self.addresses["etcd"],
            "QIM_REDIS_USER": USER,
            "QIM_REDIS_PASSWORD_FILE": str(self.password),
            **proofs,
            **changes,
        }
        return load(RunSettings, {}, {name: text for name, text in given.items() if text})


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority()
    theirs = authority.write(folder / "theirs", "engine")
    password, guess = folder / "password", folder / "guess"
    password.write_text(f"{PASSWORD}\n")
    guess.write_text("close-sesame\n")
    redis, redis_door = guarded_redis(folder / "redis", theirs)
    etcd, etcd_door = guarded_etcd(folder / "etcd", theirs)
    kafka = GuardedKafka(folder / "kafka", theirs)
    with ExitStack() as stack:
        for server in (kafka, redis, etcd):
            stack.enter_context(server)
        kafka.add_user()
        yield Doors(
            addresses={
                "kafka": kafka.listeners["SSL"],
                "sasl": kafka.listeners["SASL_SSL"],
                "redis": redis_door,
                "etcd": etcd_door,
            },
            theirs=theirs,
            ours=authority.write(folder / "ours", "qim"),
            strangers=Authority().write(folder / "strangers", "qim"),
            password=password,
            guess=guess,
            folder=folder,
        )


async def once_round(settings: RunSettings) -> None:
    """Write to each engine and read it back."""
    assert await make_topic(settings, replicas=1)
    assert not await make_topic(settings, replicas=1)
    with pytest.raises(SettingRefused) as refused:
        await make_topic(replace(settings, mailbox_shards=2 * settings.mailbox_shards), replicas=1)
    assert str(refused.value).count("--dispatch-topic") == 1
    assert "partitions: the topic has" in refused.value.message
    metrics = Metrics()
    runtime = AsyncioRuntime(metrics)
    async with open_backends(settings, runtime, metrics) as backends:
        await _once_round(backends)
    await runtime.cancel_all()


async def _once_round(backends: Backends) -> None:
    assert value(await backends.epochs.raise_epoch(ShardKind.WRITER, 0, NONCE, 1)) > 0
    value(await backends.lease.acquire(ShardKind.WRITER, 0, "a", 15))
    value(await backends.lease.renew(ShardKind.WRITER, 0, "a", 15))
    assert (await backends.lease.view(ShardKind.WRITER, 0)).holder == "a"
    producer = await backends.log.open_producer()
    value((await producer.produce([ProduceRecord(0, b"a")]))[0])
    reader = await backends.log.open_reader(0, 0)
    assert [record.value for record in await reader.fetch(10, 5)] == [b"a"]
    for dependency in backends.dependencies:
        await dependency.ping()


async def test_every_engine_is_entered_by_certificates(doors: Doors) -> None:
    await once_round(doors.settings())


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
async def test_kafka_is_entered_by_a_password_over_tls(doors: Doors, mechanism: str) -> None:
    await once_round(
        doors.settings(**by_password(doors, doors.password), QIM_KAFKA_SASL_MECHANISM=mechanism)
    )


def by_password(doors: Doors, file: Path) -> dict[str, str | None]:
    return {
        "QIM_REDPANDA_BROKERS": doors.addresses["sasl"],
        "QIM_KAFKA_CERTIFICATE": None,
        "QIM_KAFKA_PRIVATE_KEY": None,
        "QIM_KAFKA_USER": USER,
        "QIM_KAFKA_PASSWORD_FILE": str(file),
    }


EACH = pytest.mark.parametrize("name", ["redis", "kafka", "etcd"])


@EACH
async def test_an_engine_of_another_authority_is_refused_by_that_setting(
    doors: Doors, name: str
) -> None:
    setting = f"QIM_{name.upper()}_CERTIFICATE_AUTHORITY"
    told = await refusal(doors, name, {setting: str(doors.strangers.authority)})
    assert told.startswith(f"--{name}-certificate-authority")
    assert "shows a certificate that is not taken" in told


@EACH
async def test_an_engine_that_speaks_tls_is_not_entered_in_clear(doors: Doors, name: str) -> None:
    parts = ("CERTIFICATE_AUTHORITY", "CERTIFICATE", "PRIVATE_KEY")
    told = await refusal(doors, name, {f"QIM_{name.upper()}_{part}": None for part in parts})
    assert told.startswith(f"--{name}-certificate-authority")
    assert "speaks TLS" in told


@EACH
async def test_an_engine_refuses_a_certificate_of_another_authority(
    doors: Doors, name: str
) -> None:
    strange = {"CERTIFICATE": doors.strangers.certificate, "PRIVATE_KEY": doors.strangers.key}
    changes = {f"QIM_{name.upper()}_{part}": str(path) for part, path in strange.items()}
    told = await refusal(doors, name, changes)
    assert told.startswith(f"--{name}-certificate:")


@EACH
async def test_an_engine_that_speaks_no_tls_is_not_entered_otherwise(
    doors: Doors, name: str
) -> None:
    told = await refusal(doors, name, {ADDRESSES[name]: engines.address(name)})
    assert told.startswith(f"--{name}-certificate-authority")
    assert "speaks no TLS" in told


@EACH
async def test_an_engine_whose_certificate_has_another_name_is_refused(
    doors: Doors, name: str
) -> None:
    """The authority signed it, and not for the name that is dialled."""
    await is_refused_by_another_name(doors, name, doors.addresses[name], {})


@pytest.fixture(scope="module")
def older(doors: Doors) -> Iterator[Mapping[str, str]]:
    """Redis and Kafka that speak no more than TLS 1.2, by setting. etcd can't be held to it."""
    redis, redis_door = guarded_redis(
        doors.folder / "older-redis", doors.theirs, "--tls-protocols", "TLSv1.2"
    )
    kafka = GuardedKafka(
        doors.folder / "older-kafka", doors.theirs, {"ssl.enabled.protocols": "TLSv1.2"}
    )
    with redis, kafka:
        yield {"QIM_REDIS": redis_door, "QIM_REDPANDA_BROKERS": kafka.listeners["SSL"]}


async def test_engines_of_tls_1_2_are_entered_by_certificates(
    doors: Doors, older: Mapping[str, str]
) -> None:
    for address in older.values():
        assert await asyncio.to_thread(version_spoken, doors, address) == "TLSv1.2"
    await once_round(doors.settings(**older))


@pytest.mark.parametrize("name", ["redis", "kafka"])
async def test_an_engine_of_tls_1_2_whose_certificate_has_another_name_is_refused(
    doors: Doors, older: Mapping[str, str], name: str
) -> None:
    await is_refused_by_another_name(doors, name, older[ADDRESSES[name]], older)


async def is_refused_by_another_name(
    doors: Doors, name: str, address: str, changes: Mapping[str, str]
) -> None:
    """Dial an engine by a name that its certificate does not have."""
    named = address.replace(HOST, "localhost")
    told = await refusal(doors, name, {**changes, ADDRESSES[name]: named})
    assert told.startswith(f"--{name}-certificate-authority: {named} shows a certificate")
    assert "not valid for 'localhost'" in told


def version_spoken(doors: Doors, address: str) -> str | None:
    """What a handshake with it agrees on."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=doors.ours.authority)
    context.load_cert_chain(doors.ours.certificate, doors.ours.key)
    with (
        socket.create_connection((host, int(port)), 60) as plain,
        context.wrap_socket(plain, server_hostname=host) as wrapped,
    ):
        return wrapped.version()


async def test_a_wrong_password_of_redis_is_refused_and_never_told(doors: Doors) -> None:
    told = await refusal(doors, "redis", {"QIM_REDIS_PASSWORD_FILE": str(doors.guess)})
    assert told.startswith("--redis")


async def test_a_wrong_password_of_kafka_is_refused_and_never_told(doors: Doors) -> None:
    told = await refusal(doors, "kafka", by_password(doors, doors.guess))
    assert "uthentication" in told


async def refusal(doors: Doors, name: str, changes: Mapping[str, str | None]) -> str:
    """What a start is refused for, well before anybody gives up waiting for it."""
    settings = doors.settings(**changes)
    if name == "etcd":
        # The log comes first.
        await make_topic(settings, replicas=1)
    metrics = Metrics()
    runtime = AsyncioRuntime(metrics)
    with pytest.raises(SettingRefused) as refused:
        async with asyncio.timeout(60), open_backends(settings, runtime, metrics):
            pass
    assert "sesame" not in str(refused.value)
    return refused.value.message


@pytest.mark.skipif(
    engines.address("cassandra") is None, reason="Cassandra does not run here (make engines)"
)
async def test_scylla_is_entered_by_its_settings_alone(doors: Doors) -> None:
    theirs = Authority()
    guarded = GuardedCassandra(doors.folder / "cassandra", theirs.write(doors.folder / "c", "node"))
    ours = theirs.write(doors.folder / "d", "qim")
    with guarded:
        door = {
            "QIM_STORE_BACKEND": "scylla",
            "QIM_SCYLLA_HOSTS": HOST,
            "QIM_SCYLLA_PORT": str(guarded.port),
            "QIM_SCYLLA_KEYSPACE": "qim",
            "QIM_SCYLLA_DC": "datacenter1",
            "QIM_SCYLLA_RF": "1",
        }
        keys = {
            "QIM_SCYLLA_CERTIFICATE_AUTHORITY": str(ours.authority),
            "QIM_SCYLLA_CERTIFICATE": str(ours.certificate),
            "QIM_SCYLLA_PRIVATE_KEY": str(ours.key),
            "QIM_SCYLLA_USER": guarded.USER,
            "QIM_SCYLLA_PASSWORD_FILE": str(text_file(doors.folder / "word", guarded.PASSWORD)),
        }
        await once_round(doors.settings(**door, **keys))
        strange = keys | {"QIM_SCYLLA_CERTIFICATE_AUTHORITY": str(doors.strangers.authority)}
        for changed, flag in (
            ({}, "--scylla-certificate-authority"),
            (strange, "--scylla-certificate-authority"),
            (keys | {"QIM_SCYLLA_PASSWORD_FILE": str(doors.guess)}, "--scylla-hosts"),
        ):
            told = await refusal(doors, "scylla", door | changed)
            assert told.startswith(f"{flag}:")


def text_file(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
