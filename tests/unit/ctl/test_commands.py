"""The command line without a server: help, exit codes, where options come from."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from qimd.core.errors import ERRORS, ErrorCode, QimError
from qimd.ctl.exits import MISSING, REFUSED, TRY_AGAIN, USAGE, exit_code
from qimd.ctl.main import cli, run

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no data folder of the machine that runs the tests."""
    for name in [name for name in os.environ if name.startswith("QIM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def write_credentials(folder: Path, **changes: object) -> None:
    folder.mkdir(exist_ok=True)
    document = {
        "format": 1,
        "address": "127.0.0.1:1",
        "metrics_address": "127.0.0.1:2",
        "tenant": "dev",
        "key_id": "dev-1",
        "private_key": base64.b64encode(KEY.private_bytes_raw()).decode(),
        "admin_token": "the admin token",
    }
    (folder / "dev-credentials.json").write_text(json.dumps(document | changes))


def test_help_imports_nothing_heavy() -> None:
    """`qimctl --help` is instant: neither gRPC nor rich nor PyJWT is imported for it."""
    code = (
        "import sys\nfrom qimd.ctl.main import run\nassert run(['--help']) == 0\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    heavy = {"grpc", "google.protobuf", "rich", "jwt", "asyncio", "hashlib", "qimd.client"}
    assert loaded & heavy == set()


def test_every_command_has_help_and_a_format(capsys: pytest.CaptureFixture[str]) -> None:
    def leaves(command: object, path: list[str]) -> list[list[str]]:
        below = getattr(command, "commands", None)
        if below is None:
            return [path]
        return [leaf for name in below for leaf in leaves(below[name], [*path, name])]

    every = leaves(cli, [])
    assert ["conversation", "create"] in every
    for path in every:
        assert run([*path, "--help"]) == 0
        shown = capsys.readouterr().out
        # A script for a shell, and another program's answer.
        if path not in (["completion"], ["config"]):
            assert "--output [table|json|jsonl]" in shown, path


def test_config_is_answered_by_the_server_s_own_command(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--secrets", "no such file", "--dispatch-recovery-window-ms", "1000"]
    assert run(["config", "show", "--origin", *arguments]) == 0
    assert "QIM_DISPATCH_RECOVERY_WINDOW_MS=1000  # --dispatch" in capfd.readouterr().out
    assert run(["config", "check", *arguments]) == 2
    assert "--secrets" in capfd.readouterr().err


def test_explain_knows_every_code(capsys: pytest.CaptureFixture[str]) -> None:
    for code, entry in ERRORS.items():
        assert run(["explain", code.name, "-o", "json"]) == 0
        row = json.loads(capsys.readouterr().out)
        assert row["what_to_do"] == entry.what_to_do
        assert row["retryable"] is entry.retryable


def test_explain_takes_a_number_and_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ("5", "not-member", "ERROR_CODE_NOT_MEMBER"):
        assert run(["explain", given, "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["code"] == "NOT_MEMBER"


def test_explain_suggests_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "RATELIMITED"]) == USAGE
    shown = capsys.readouterr()
    assert "RATE_LIMITED" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_QIMCTL_COMPLETE" in capsys.readouterr().out


def test_the_help_of_completion_has_a_line_for_each_shell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["completion", "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert 'bash  eval "$(qimctl completion bash)"' in lines
    assert "fish  qimctl completion fish | source" in lines


def test_a_token_and_another_users_name_are_not_guessed_between(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_credentials(tmp_path / "qim-data")
    monkeypatch.setenv("QIM_TOKEN", "a token of alice")
    assert run(["pull", "--user", "bob"]) == USAGE
    shown = capsys.readouterr()
    assert "QIM_TOKEN" in shown.err
    assert "a token of alice" not in shown.err


def test_the_shell_completes_commands() -> None:
    environment = os.environ | {
        "_QIMCTL_COMPLETE": "bash_complete",
        "COMP_WORDS": "qimctl mem",
        "COMP_CWORD": "1",
    }
    program = Path(sys.executable).with_name("qimctl")
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["plain,members"]


def test_a_command_without_a_server_says_where_to_get_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["shards"]) == MISSING
    shown = capsys.readouterr()
    assert "qim-data/dev-credentials.json" in shown.err
    assert "qimd dev" in shown.err
    assert shown.out == ""


def test_a_server_that_is_not_there_is_worth_another_try(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_credentials(tmp_path / "qim-data")
    assert run(["shards", "--timeout", "0.5"]) == TRY_AGAIN
    assert run(["send", "c", "hello", "--user", "u", "--timeout", "0.5"]) == TRY_AGAIN
    shown = capsys.readouterr()
    assert shown.err.count("error: UNAVAILABLE") == 2
    assert "what to do:" in shown.err
    assert shown.out == ""


def test_a_wrong_command_line_is_told_from_a_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["send"]) == USAGE
    assert run(["trace", "zz"]) == USAGE
    assert run(["tenant", "create", "t", "--key", "nonsense"]) == USAGE
    assert run(["shards", "--address", "http://127.0.0.1:7400", "--admin-token", "t"]) == USAGE
    assert run(["pull", "--address", "127.0.0.1", "--token", "t"]) == USAGE
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("code", list(ErrorCode))
def test_what_may_succeed_later_has_an_exit_code_of_its_own(code: ErrorCode) -> None:
    unknown = {ErrorCode.UNAVAILABLE, ErrorCode.NOT_OWNER, ErrorCode.STALE_EPOCH}
    assert exit_code(QimError(code, "")) == (TRY_AGAIN if code in unknown else REFUSED)


def test_a_token_is_signed_with_the_tenants_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_credentials(tmp_path / "elsewhere", tenant="acme", key_id="k7")
    assert run(["--data", "elsewhere", "token", "--user", "alice", "--device", "phone"]) == 0
    token = capsys.readouterr().out.strip()
    claims = jwt.decode(token, KEY.public_key(), algorithms=["EdDSA"])
    assert jwt.get_unverified_header(token)["kid"] == "k7"
    assert (claims["sub"], claims["tenant"], claims["device"]) == ("alice", "acme", "phone")
    assert claims["exp"] - claims["iat"] == 3600
    assert claims["jti"]


def test_a_user_that_is_no_id_gets_no_token(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_credentials(tmp_path / "qim-data")
    assert run(["token", "--user", "a\nb"]) == REFUSED
    assert "INVALID_ARGUMENT" in capsys.readouterr().err


def test_a_broken_credentials_file_is_named_and_not_quoted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_credentials(tmp_path / "qim-data", private_key="c2VjcmV0 not base64")
    assert run(["token", "--user", "a"]) == MISSING
    shown = capsys.readouterr().err
    assert "dev-credentials.json" in shown
    assert "c2VjcmV0" not in shown


def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The address that fails is the one that was tried."""
    write_credentials(tmp_path / "qim-data", address="127.0.0.1:11")

    def tried(*arguments: str) -> str:
        assert run([*arguments, "--timeout", "0.5"]) == TRY_AGAIN
        return capsys.readouterr().err

    assert "127.0.0.1:11:" in tried("shards")
    monkeypatch.setenv("QIM_ADDRESS", "127.0.0.1:12")
    assert "127.0.0.1:12:" in tried("shards")
    assert "127.0.0.1:13:" in tried("shards", "--address", "127.0.0.1:13")
    assert "127.0.0.1:14:" in tried("--address", "127.0.0.1:14", "shards")


def test_secrets_never_show_in_the_options_repr(tmp_path: Path) -> None:
    from qimd.ctl.options import Options

    write_credentials(tmp_path / "qim-data")
    options = Options(token="a secret", admin_token="another secret")
    options.credentials()
    assert "secret" not in repr(options)
    assert "the admin token" not in repr(options)


def test_a_token_is_signed_with_a_tenants_own_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "acme.pem"
    path.write_bytes(
        KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
    key = ("--key", str(path), "--key-id", "one")
    assert run(["token", "--tenant", "acme", "--user", "anna", *key]) == 0
    token = capsys.readouterr().out.strip()
    claims = jwt.decode(token, KEY.public_key(), algorithms=["EdDSA"])
    assert (claims["tenant"], claims["sub"]) == ("acme", "anna")
    assert jwt.get_unverified_header(token)["kid"] == "one"


def test_what_is_no_key_is_refused_and_not_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "secret.json"
    path.write_text('{"admin_token": "very secret"}')
    key = ("--key", str(path), "--key-id", "one")
    assert run(["token", "--tenant", "acme", "--user", "anna", *key]) == MISSING
    told = capsys.readouterr().err
    assert "openssl genpkey" in told
    assert "very secret" not in told
    assert run(["token", "--tenant", "acme", "--user", "anna", *key[:2]]) == USAGE
