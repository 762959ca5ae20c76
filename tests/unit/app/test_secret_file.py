"""The secrets of a deployment: made once, private, and never quoted."""

import json
from pathlib import Path

import pytest

from qimd.app import secret_file
from qimd.app.setting_kinds import SettingRefused


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "secrets.json"
    secret_file.make(path)
    return path


def test_it_is_made_for_its_owner_alone_and_read_back(made: Path) -> None:
    assert made.stat().st_mode & 0o777 == 0o600
    secrets = secret_file.read(made)
    document = json.loads(made.read_text())
    assert secrets.admin_token == document["admin_token"]
    assert secrets.peer_token != secrets.admin_token
    assert len(secrets.cursor_keys[secrets.cursor_key_id]) == 32


def test_its_repr_shows_nothing(made: Path) -> None:
    secrets = secret_file.read(made)
    assert secrets.admin_token not in repr(secrets)
    assert secrets.peer_token not in repr(secrets)


def test_one_that_is_there_is_never_replaced(made: Path) -> None:
    before = made.read_bytes()
    with pytest.raises(SettingRefused, match="void every token"):
        secret_file.make(made)
    assert made.read_bytes() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_one_that_others_may_read_is_refused(made: Path, mode: int) -> None:
    made.chmod(mode)
    with pytest.raises(SettingRefused, match="chmod 600"):
        secret_file.read(made)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("format",), 2),
        (("peer_token",), None),
        (("admin_token",), "short"),
        (("cursor_keys", "current"), "2"),
        (("cursor_keys", "keys", "1"), "AAAA"),
        (("cursor_keys", "keys", "1"), "not base64!"),
        (("cursor_keys",), []),
    ],
    ids=str,
)
def test_one_that_is_broken_is_refused_without_quoting_it(
    made: Path, place: tuple[str, ...], value: object
) -> None:
    document = json.loads(made.read_text())
    held = [document["admin_token"], document["cursor_keys"]["keys"]["1"]]
    *outer, last = place
    inside = document
    for name in outer:
        inside = inside[name]
    inside[last] = value
    made.write_text(json.dumps(document))
    with pytest.raises(SettingRefused, match="does not parse") as refused:
        secret_file.read(made)
    assert not any(secret in str(refused.value) for secret in held)


def test_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingRefused, match="can't be read"):
        secret_file.read(tmp_path / "none")
