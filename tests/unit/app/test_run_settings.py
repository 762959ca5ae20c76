"""What `qimd run` is told: the names of the run contract, what is required, what is refused."""

import argparse
from pathlib import Path

import pytest

from qimd.app.main import main
from qimd.app.profiles import needed_engine
from qimd.app.run_settings import RunSettings
from qimd.app.setting_kinds import SettingRefused
from qimd.app.settings import add_flags, load, shown

NEEDED = {"QIM_SECRETS": "secrets.json", "QIM_DISPATCH_RECOVERY_WINDOW_MS": "86400000"}
SCYLLA = {
    "QIM_STORE_BACKEND": "scylla",
    "QIM_SCYLLA_HOSTS": "10.0.0.1, 10.0.0.2",
    "QIM_SCYLLA_KEYSPACE": "qim",
    "QIM_SCYLLA_DC": "dc1",
    "QIM_SCYLLA_RF": "3",
}
SHADOW = {"QIM_MAILBOX_SHADOW_BACKEND": "scylla"}


def loaded(*arguments: str, **environment: str) -> RunSettings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser, RunSettings)
    return load(RunSettings, vars(parser.parse_args(arguments)), environment)


def test_the_defaults_are_those_of_the_run_contract() -> None:
    settings = loaded(**NEEDED)
    assert settings.redpanda_brokers == ("127.0.0.1:19092",)
    assert settings.dispatch_topic == "qim.dispatch"
    assert settings.session_dispatch_client_group == "qim-session-static-assign"
    assert settings.session_dispatch_operation_timeout_ms == 10_000
    assert settings.store_backend == "redis"
    assert settings.mailbox_shards == 8
    assert settings.recovery_window_ms == 86_400_000


def test_nothing_asks_for_a_transactional_id() -> None:
    settings = loaded(**NEEDED, QIM_FANOUT_TRANSACTIONAL_ID="")
    assert not any("transaction" in name for name in settings.__dataclass_fields__)


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_required_is_asked_for_by_flag_and_variable(name: str) -> None:
    given = {key: value for key, value in NEEDED.items() if key != name}
    with pytest.raises(SettingRefused, match=f"is required, or {name}"):
        loaded(**given)


@pytest.mark.parametrize("value", ["0", "-1", "", "1h"])
def test_the_recovery_window_is_a_positive_number(value: str) -> None:
    with pytest.raises(SettingRefused, match="--dispatch-recovery-window-ms"):
        loaded(**NEEDED | {"QIM_DISPATCH_RECOVERY_WINDOW_MS": value})


def test_scylla_is_taken_whole() -> None:
    settings = loaded(**NEEDED, **SCYLLA)
    assert settings.scylla_hosts == ("10.0.0.1", "10.0.0.2")
    assert (settings.scylla_dc, settings.scylla_rf) == ("dc1", 3)


@pytest.mark.parametrize("name", [name for name in SCYLLA if name != "QIM_STORE_BACKEND"])
def test_scylla_without_one_of_its_settings_is_refused_and_never_falls_back(name: str) -> None:
    given = {key: value for key, value in SCYLLA.items() if key != name}
    with pytest.raises(SettingRefused, match=f"{name}.*no fall-back"):
        loaded(**NEEDED, **given)


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("--role", "broker"), "--role"),
        (("--store-backend", "sqlite"), "--store-backend"),
        (("--redpanda-brokers", "broker"), "--redpanda-brokers"),
        (("--redpanda-brokers", "broker:0"), "--redpanda-brokers"),
        (("--redpanda-brokers", "a:1,,b:2"), "--redpanda-brokers"),
        (("--etcd", ""), "--etcd"),
        (("--redis", "localhost"), "--redis"),
        (("--scylla-hosts", "a,,b"), "--scylla-hosts"),
        (("--mailbox-shards", "6"), "--mailbox-shards"),
        (("--session-dispatch-partition-count", "4"), "--session-dispatch-partition-count"),
        (("--dispatch-topic", ""), "--dispatch-topic"),
        (("--deployment", ""), "--deployment"),
        (("--scylla-rf", "0"), "--scylla-rf"),
        (("--shard-lease-ttl-s", "30"), "--writer-failover-wait-s"),
    ],
)
def test_what_can_not_be_started_with_is_refused_by_its_flag(
    arguments: tuple[str, ...], flag: str
) -> None:
    with pytest.raises(SettingRefused) as refused:
        loaded(*arguments, **NEEDED)
    assert refused.value.field.startswith(flag)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_process_that_listens_everywhere_says_where_others_dial_it(
    host: str, tmp_path: Path
) -> None:
    pem = tmp_path / "a.pem"
    pem.write_text("")
    files = {
        "QIM_TLS_CERTIFICATE": str(pem),
        "QIM_TLS_PRIVATE_KEY": str(pem),
        "QIM_PEER_CERTIFICATE_AUTHORITY": str(pem),
        "QIM_PEER_NAMES": "qim",
    }
    with pytest.raises(SettingRefused, match="--hop-address: is required"):
        loaded("--host", host, **NEEDED, **files)
    told = loaded("--host", host, "--hop-address", "writer-1:7402", **NEEDED, **files)
    assert told.hop_address == "writer-1:7402"


def test_show_says_where_each_value_comes_from() -> None:
    flags = {"role": "writer"}
    lines = shown(RunSettings, flags, NEEDED, with_origin=True)
    assert "QIM_ROLE=writer  # --role" in lines
    assert "QIM_SECRETS=secrets.json  # QIM_SECRETS" in lines
    assert "QIM_DISPATCH_TOPIC=qim.dispatch  # default" in lines
    assert "QIM_ROLE=writer" in shown(RunSettings, flags, NEEDED, with_origin=False)


def test_config_check_reads_the_secrets_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "secrets.json"
    arguments = ["--secrets", str(made), "--dispatch-recovery-window-ms", "1000"]
    assert main(["config", "check", *arguments]) == 2
    assert "can't be read" in capsys.readouterr().err
    assert main(["secrets", str(made)]) == 0
    assert main(["config", "check", *arguments]) == 0
    assert main(["config", "show", *arguments]) == 0


def test_a_shadow_is_another_engine_than_the_one_it_follows() -> None:
    settings = loaded(**NEEDED, **SCYLLA | {"QIM_STORE_BACKEND": "redis"}, **SHADOW)
    assert settings.mailboxes_on == "redis"
    assert settings.backends == {"redis", "scylla"}
    with pytest.raises(SettingRefused, match="scylla serves the mailboxes itself"):
        loaded(**NEEDED, **SCYLLA, **SHADOW)


def test_after_the_cut_over_mailboxes_may_live_apart_from_messages() -> None:
    apart = SCYLLA | {"QIM_STORE_BACKEND": "redis", "QIM_MAILBOX_BACKEND": "scylla"}
    settings = loaded(**NEEDED, **apart)
    assert (settings.store_backend, settings.mailboxes_on) == ("redis", "scylla")


def test_a_shadow_on_scylla_asks_for_its_settings() -> None:
    with pytest.raises(SettingRefused, match="--scylla-hosts"):
        loaded(**NEEDED, **SHADOW)


@pytest.mark.parametrize("value", ["-0.1", "1.1", "nan", "all"])
def test_the_share_that_is_compared_is_a_share(value: str) -> None:
    with pytest.raises(SettingRefused, match="--mailbox-shadow-share"):
        loaded(**NEEDED, QIM_MAILBOX_SHADOW_SHARE=value)


@pytest.mark.parametrize(
    ("role", "needed"),
    [("all", "scylla"), ("writer", "scylla"), ("mailbox", "redis"), ("session", "redis")],
)
def test_one_engine_is_what_a_process_serves_nothing_without(role: str, needed: str) -> None:
    settings = loaded(**NEEDED, **SCYLLA, QIM_MAILBOX_BACKEND="redis", QIM_ROLE=role)
    assert needed_engine(settings) == needed
