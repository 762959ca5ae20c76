"""deploy/compose.yaml can't rot: its settings are read as `qimd` reads them, from what its own
preparation makes.
"""

import argparse
import importlib.util
import re
import stat
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from cryptography import x509
from tests import engines as suites
from tests.engines.redis import Redis

from qimd.app.engine_access import Access
from qimd.app.main import main
from qimd.app.run_settings import ENGINES, RunSettings
from qimd.app.setting_kinds import variable_of
from qimd.app.settings import add_flags, load

DEPLOY = Path(__file__).parents[3] / "deploy"
SERVICES: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
FOR_SUITES: dict[str, Any] = yaml.safe_load((DEPLOY / "engines.yaml").read_text())["services"]
ROLES = {
    name: service for name, service in SERVICES.items() if service.get("command", [""])[0] == "run"
}


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    """What makes the keys."""
    spec = importlib.util.spec_from_file_location("prepare", DEPLOY / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def keys(prepare: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `prepare` leaves in its volume."""
    folder = tmp_path_factory.mktemp("keys")
    prepare.main(folder)
    before = (folder / "qim" / "secrets.json").read_bytes()
    prepare.main(folder)
    assert (folder / "qim" / "secrets.json").read_bytes() == before
    return folder


def environment(service: dict[str, Any], keys: Path) -> dict[str, str]:
    """A service's variables, with the defaults of those that the operator may give."""
    return {
        name: re.sub(r"\$\{\w+:-(\w*)\}", r"\1", text).replace("/keys/", f"{keys}/")
        for name, text in service["environment"].items()
    }


def settings(name: str, keys: Path, **changes: str) -> RunSettings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser, RunSettings)
    flags = vars(parser.parse_args(SERVICES[name]["command"][1:]))
    return load(RunSettings, flags, environment(SERVICES[name], keys) | changes)


def names_in(certificate: Path) -> set[str]:
    read = x509.load_pem_x509_certificate(certificate.read_bytes())
    found = read.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    names = found.value.get_values_for_type(x509.DNSName)
    return {*names, *map(str, found.value.get_values_for_type(x509.IPAddress))}


def test_every_role_is_there_and_clients_have_two_doors() -> None:
    served = [service["command"][2] for service in ROLES.values()]
    assert sorted(served) == ["connection", "connection", "mailbox", "session", "writer"]


@pytest.mark.parametrize("backend", ["redis", "scylla"])
@pytest.mark.parametrize("name", ROLES)
def test_each_service_starts_with_settings_that_are_good(
    name: str, backend: str, keys: Path
) -> None:
    made = settings(name, keys, QIM_STORE_BACKEND=backend)
    assert made.store_backend == backend
    for engine in ENGINES:
        access = Access.of(made, engine)
        assert access.tls is not None
        assert access.pem is not None
        assert access.pem.key
    dialled = (made.hop_address or "").partition(":")[0]
    assert dialled == name
    assert dialled in names_in(keys / "qim" / "certificate.pem")
    assert set(made.peer_names or ()) <= names_in(keys / "qim" / "certificate.pem")


@pytest.mark.parametrize("name", [*ROLES, "topic"])
def test_no_variable_of_a_service_is_one_that_nobody_reads(name: str) -> None:
    known = {variable_of(field) for field in RunSettings.__dataclass_fields__}
    assert set(SERVICES[name]["environment"]) <= known


@pytest.mark.parametrize("name", ROLES)
def test_config_check_takes_each_service(
    name: str, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, text in environment(SERVICES[name], keys).items():
        monkeypatch.setenv(variable, text)
    assert main(["config", "check", *SERVICES[name]["command"][1:]]) == 0


def test_engines_are_dialled_by_names_that_their_certificates_carry(keys: Path) -> None:
    made = settings("writer", keys)
    addresses = {"kafka": made.redpanda_brokers[0], "redis": made.redis, "etcd": made.etcd}
    hosts = {engine: address.rpartition(":")[0] for engine, address in addresses.items()}
    hosts["scylla"] = (made.scylla_hosts or ("",))[0]
    for engine, host in hosts.items():
        assert host in SERVICES
        assert host in names_in(keys / engine / "certificate.pem")
    # Its driver asks for the certificate by the address that the name stands for.
    at = SERVICES["scylla"]["networks"]["default"]["ipv4_address"]
    assert at in names_in(keys / "scylla" / "certificate.pem")


def test_a_preparation_that_was_cut_short_is_completed(
    prepare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_path: Path, _mode: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as short:
        short.setattr(Path, "chmod", dies)
        with pytest.raises(KeyboardInterrupt):
            prepare.main(tmp_path)
    prepare.main(tmp_path)
    test_nobody_else_may_read_what_is_prepared(tmp_path)


def test_nobody_else_may_read_what_is_prepared(keys: Path) -> None:
    for path in keys.rglob("*"):
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path


def test_the_suites_find_the_engines_that_are_there_for_them() -> None:
    """deploy/engines.yaml: each where its own head says that the suites should look."""
    text = (DEPLOY / "engines.yaml").read_text()
    told = dict(re.findall(r"QIM_TEST_(\w+)=127\.0\.0\.1:(\d+)", text))
    assert set(told) == {name.upper() for name in suites.ENGINES}
    places = {name: place for name, place in told.items() if name != "CASSANDRA"}
    places["SCYLLA"] = told["CASSANDRA"]
    for name, port in places.items():
        [published] = FOR_SUITES[name.lower()]["ports"]
        assert published.startswith(f"127.0.0.1:{port}:"), "on loopback alone"
    kafka = FOR_SUITES["kafka"]["environment"]
    assert kafka["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://127.0.0.1:{told['KAFKA']}"
    flags = FOR_SUITES["scylla"]["command"]
    assert flags[flags.index("--native-transport-port") + 1] == told["CASSANDRA"]
    assert flags[flags.index("--enable-tablets") + 1] == "false"


def test_redis_keeps_its_word_for_the_suites_as_for_the_services(tmp_path: Path) -> None:
    own = Redis(tmp_path)
    own.prepare()
    ours = [str(part) for part in own.command()]
    for service in (FOR_SUITES["redis"], SERVICES["redis"]):
        flags = service["command"]
        for name in ("--appendonly", "--appendfsync", "--maxmemory-policy", "--save"):
            assert flags[flags.index(name) + 1] == ours[ours.index(name) + 1], name


def test_every_image_is_pinned() -> None:
    images = {service["image"] for service in (*SERVICES.values(), *FOR_SUITES.values())}
    assert all(re.search(r":(local|\d+\.\d+[\w.-]*)$", image) for image in images), images
