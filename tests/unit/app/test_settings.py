"""Settings: flags over environment over defaults, and refusals that name the flag."""

import argparse
import dataclasses
from pathlib import Path

import pytest

from qimd.app.dev_settings import DevSettings
from qimd.app.setting_kinds import SettingRefused, flag_of, variable_of
from qimd.app.settings import add_flags, load


def loaded(*arguments: str, **environment: str) -> DevSettings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser, DevSettings)
    return load(DevSettings, vars(parser.parse_args(arguments)), environment)


def test_the_defaults_stand_up_to_the_checks() -> None:
    assert loaded() == DevSettings()


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    assert loaded(QIM_GRPC_PORT="1234").grpc_port == 1234
    assert loaded("--grpc-port", "4321", QIM_GRPC_PORT="1234").grpc_port == 4321
    assert loaded("--ephemeral").ephemeral
    assert loaded(QIM_EPHEMERAL="yes").ephemeral
    assert not loaded(QIM_EPHEMERAL="0").ephemeral
    assert loaded("--data", "/x/y").data == Path("/x/y")
    recovery = loaded(QIM_DISPATCH_RECOVERY_WINDOW_MS="1000").dispatch_recovery_window_ms
    assert recovery == 1000


def test_each_setting_has_a_flag_a_variable_and_a_meaning() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, DevSettings)
    text = " ".join(parser.format_help().split())
    for field in dataclasses.fields(DevSettings):
        assert flag_of(field.name) in text
        assert variable_of(field.name) in text
        assert " ".join(field.metadata["help"].split()) in text


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("--grpc-port", "70000"), "--grpc-port"),
        (("--grpc-port", "-1"), "--grpc-port"),
        (("--metrics-port", "http"), "--metrics-port"),
        (("--mailbox-shards", "3"), "--mailbox-shards"),
        (("--mailbox-shards", "0"), "--mailbox-shards"),
        (("--writer-shards", "-2"), "--writer-shards"),
        (("--dispatch-chunk-recipients", "0"), "--dispatch-chunk-recipients"),
        (("--dispatch-chunk-recipients", "8000"), "--dispatch-chunk-recipients"),
        (("--host", "0.0.0.0"), "--host"),
        (("--host", "::"), "--host"),
        (("--host", "chat.example"), "--host"),
        (("--tls-certificate", "/no/such/file.pem"), "--tls-private-key"),
        (("--log-level", "loud"), "--log-level"),
        (("--log-format", "xml"), "--log-format"),
        (("--shard-lease-ttl-s", "12"), "--shard-lease-ttl-s"),
        (("--shard-lease-ttl-s", "25"), "--writer-failover-wait-s"),
        (("--writer-self-fence-deadline-s", "15"), "--shard-lease-ttl-s"),
        (("--lease-renew-interval-s", "12"), "--writer-self-fence-deadline-s"),
        (("--lease-renew-retry-s", "0"), "--lease-renew-retry-s"),
        (("--log-retention-ms", "1000"), "--log-retention-ms"),
        (("--drain-grace-s", "-1"), "--drain-grace-s"),
        (("--shard-lease-ttl-s", "nan"), "--shard-lease-ttl-s"),
        (("--writer-failover-wait-s", "inf"), "--writer-failover-wait-s"),
        (("--replay-safety-window-ms", "5000000000"), "--replay-safety-audit"),
        (("--replay-safety-audit", "found safe in REVIEW-7"), "--replay-safety-audit"),
        (
            ("--replay-safety-window-ms", "1000", "--replay-safety-audit", "REVIEW-7"),
            "--replay-safety-window-ms",
        ),
    ],
)
def test_a_setting_out_of_range_is_refused_by_the_name_of_its_flag(
    arguments: tuple[str, ...], flag: str
) -> None:
    with pytest.raises(SettingRefused) as refused:
        loaded(*arguments)
    assert refused.value.field.startswith(flag)
    assert flag in str(refused.value)


def test_a_refusal_from_the_environment_names_the_variable_too() -> None:
    with pytest.raises(SettingRefused, match=r"--grpc-port \(from QIM_GRPC_PORT\)"):
        loaded(QIM_GRPC_PORT="seven")


def test_beyond_loopback_a_certificate_and_its_key_are_enough(tmp_path: Path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    certificate.write_text("c")
    key.write_text("k")
    settings = loaded(
        "--host", "0.0.0.0", "--tls-certificate", str(certificate), "--tls-private-key", str(key)
    )
    assert settings.tls == (certificate, key)


@pytest.mark.parametrize(
    ("flag", "reason"), [("--grpc-port", "a whole number"), ("--drain-grace-s", "of seconds")]
)
def test_a_text_that_is_no_number_is_refused_in_words_of_the_setting(
    flag: str, reason: str
) -> None:
    with pytest.raises(SettingRefused, match=reason) as refused:
        loaded(flag, "soon")
    assert "literal" not in str(refused.value)
    assert "convert" not in str(refused.value)
