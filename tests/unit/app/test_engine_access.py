"""How an engine is entered, by settings: what belongs together, and what is never shown."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from tests.support.certificates import Authority, Files

from qimd.app.engine_access import Access
from qimd.app.main import main
from qimd.app.run_settings import ENGINES, RunSettings
from qimd.app.setting_kinds import SettingRefused
from qimd.app.settings import load
from qimd.telemetry.redaction import redact

NEEDED = {"QIM_SECRETS": "secrets.json", "QIM_DISPATCH_RECOVERY_WINDOW_MS": "86400000"}
PASSWORD = "open-sesame"


def loaded(**environment: str) -> RunSettings:
    return load(RunSettings, {}, NEEDED | environment)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Authority().write(tmp_path / "tls", "qim")


@pytest.fixture
def password(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\n")
    return path


@pytest.mark.parametrize("engine", ENGINES)
def test_without_settings_an_engine_is_entered_in_clear_by_nobody(engine: str) -> None:
    access = Access.of(loaded(), engine)
    assert (access.tls, access.pem, access.user, access.password) == (None, None, "", "")


@pytest.mark.parametrize(
    ("environment", "flag"),
    [
        ({"QIM_ETCD_CERTIFICATE": "a.pem"}, "--etcd-private-key"),
        ({"QIM_SCYLLA_PRIVATE_KEY": "a.pem"}, "--scylla-certificate"),
        (
            {"QIM_KAFKA_CERTIFICATE": "a.pem", "QIM_KAFKA_PRIVATE_KEY": "a.pem"},
            "--kafka-certificate-authority",
        ),
        ({"QIM_SCYLLA_USER": "qim"}, "--scylla-password-file"),
        ({"QIM_REDIS_USER": "qim"}, "--redis-password-file"),
        ({"QIM_REDIS_USER": "", "QIM_REDIS_PASSWORD_FILE": "a"}, "--redis-user"),
        ({"QIM_KAFKA_PASSWORD_FILE": "a"}, "--kafka-user"),
        ({"QIM_KAFKA_SASL_MECHANISM": "GSSAPI"}, "--kafka-sasl-mechanism"),
    ],
)
def test_what_belongs_together_is_set_together(environment: dict[str, str], flag: str) -> None:
    with pytest.raises(SettingRefused) as refused:
        loaded(**environment)
    assert refused.value.field.partition(" ")[0] == flag


def test_a_password_goes_to_kafka_in_clear_by_no_mechanism_that_shows_it() -> None:
    user = {"QIM_KAFKA_USER": "qim", "QIM_KAFKA_PASSWORD_FILE": "a"}
    assert loaded(**user).kafka_sasl_mechanism == "SCRAM-SHA-512"
    with pytest.raises(SettingRefused, match="PLAIN shows the password"):
        loaded(**user, QIM_KAFKA_SASL_MECHANISM="PLAIN")
    over_tls = {"QIM_KAFKA_CERTIFICATE_AUTHORITY": "a.pem", "QIM_KAFKA_SASL_MECHANISM": "PLAIN"}
    assert loaded(**user, **over_tls).kafka_sasl_mechanism == "PLAIN"


@pytest.mark.parametrize(
    "given",
    [
        {"QIM_REDIS": "redis.example:6379", "QIM_REDIS_PASSWORD_FILE": "a"},
        {
            "QIM_SCYLLA_HOSTS": "scylla.example",
            "QIM_SCYLLA_USER": "qim",
            "QIM_SCYLLA_PASSWORD_FILE": "a",
        },
    ],
)
def test_a_password_in_clear_stays_on_this_machine(given: dict[str, str]) -> None:
    with pytest.raises(SettingRefused, match="would show on the network"):
        loaded(**given)
    here = {
        name: text.replace("redis.example", "localhost").replace("scylla.example", "127.0.0.1")
        for name, text in given.items()
    }
    loaded(**here)


@pytest.mark.parametrize("place", ["u:sekrit@host:6379", "re\u2100dis:6379", "a/b:1", "host:0"])
def test_an_address_is_host_and_port_and_nothing_else(place: str) -> None:
    """What else stands there may be a password, and settings are shown."""
    with pytest.raises(SettingRefused) as refused:
        loaded(QIM_REDIS=place)
    assert "sekrit" not in str(refused.value)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("part", ["certificate_authority", "certificate", "private_key"])
@pytest.mark.parametrize("content", [None, "", "no PEM"], ids=["absent", "empty", "unfit"])
def test_a_file_that_can_not_be_used_is_refused_by_its_setting(
    engine: str, part: str, content: str | None, files: Files, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.pem"
    if content is not None:
        bad.write_text(content)
    paths = {
        "certificate_authority": files.authority,
        "certificate": files.certificate,
        "private_key": files.key,
        part: bad,
    }
    settings = loaded(**{f"QIM_{engine}_{name}".upper(): str(path) for name, path in paths.items()})
    with pytest.raises(SettingRefused) as refused:
        Access.of(settings, engine)
    assert refused.value.field == f"--{engine}-{part}".replace("_", "-")
    assert "bad.pem" in refused.value.message


def test_a_key_of_another_certificate_is_refused(files: Files, tmp_path: Path) -> None:
    other = Authority().write(tmp_path / "other", "qim")
    settings = loaded(
        QIM_ETCD_CERTIFICATE_AUTHORITY=str(files.authority),
        QIM_ETCD_CERTIFICATE=str(files.certificate),
        QIM_ETCD_PRIVATE_KEY=str(other.key),
    )
    with pytest.raises(SettingRefused, match="KEY_VALUES_MISMATCH"):
        Access.of(settings, "etcd")


def test_a_key_that_needs_a_password_is_refused_and_nobody_is_asked(
    files: Files, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.pem"
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"a word"),
        )
    )
    settings = loaded(
        QIM_REDIS_CERTIFICATE_AUTHORITY=str(files.authority),
        QIM_REDIS_CERTIFICATE=str(files.certificate),
        QIM_REDIS_PRIVATE_KEY=str(locked),
    )
    with pytest.raises(SettingRefused, match="--redis-private-key"):
        Access.of(settings, "redis")


def test_an_empty_password_is_none(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(SettingRefused, match=r"--redis-password-file: .* is empty"):
        Access.of(loaded(QIM_REDIS_PASSWORD_FILE=str(empty)), "redis")


def test_a_password_is_read_from_its_file_and_shown_nowhere(
    password: Path,
    files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    secrets = tmp_path / "secrets.json"
    assert main(["secrets", str(secrets)]) == 0
    given = {"QIM_SECRETS": str(secrets), "QIM_DISPATCH_RECOVERY_WINDOW_MS": "1000"}
    for engine in ("KAFKA", "REDIS", "SCYLLA"):
        given[f"QIM_{engine}_USER"] = "qim"
        given[f"QIM_{engine}_PASSWORD_FILE"] = str(password)
        given[f"QIM_{engine}_CERTIFICATE_AUTHORITY"] = str(files.authority)
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    assert main(["config", "check"]) == 0
    assert main(["config", "show", "--origin"]) == 0
    shown = capsys.readouterr()
    assert f"QIM_REDIS_PASSWORD_FILE={password}" in shown.out
    access = Access.of(load(RunSettings, {}, given), "kafka")
    assert (access.user, access.password) == ("qim", PASSWORD)
    logged = redact("access", access)
    assert PASSWORD not in f"{shown.out}{shown.err}{access!r}{logged}"


def test_config_check_reads_what_the_engines_want(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secrets = tmp_path / "secrets.json"
    assert main(["secrets", str(secrets)]) == 0
    arguments = ["--secrets", str(secrets), "--dispatch-recovery-window-ms", "1000"]
    absent = ["--redis-password-file", str(tmp_path / "absent")]
    assert main(["config", "check", *arguments, *absent]) == 2
    assert "--redis-password-file" in capsys.readouterr().err
