"""The data folder: its lock, its credentials, its fixed facts."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from qimd.app.credentials import (
    FILE_NAME,
    CredentialsBroken,
    generate,
    load_or_create,
    store,
    with_addresses,
)
from qimd.app.deployment import note_database, settle_facts
from qimd.app.dev_settings import DevSettings
from qimd.app.folder import DATABASE_NAME, KeptFiles, prepare_folder, write_private
from qimd.app.lock import LOCK_NAME, FolderInUse, FolderLock
from qimd.app.setting_kinds import SettingRefused


def test_a_second_lock_names_the_holder(tmp_path: Path) -> None:
    held = FolderLock.take(tmp_path)
    held.describe("127.0.0.1:7400")
    with pytest.raises(FolderInUse) as refused:
        FolderLock.take(tmp_path)
    text = refused.value.message
    assert f"process {os.getpid()}, since 20" in text
    assert "127.0.0.1:7400" in text
    assert "--data" in text
    held.release()
    FolderLock.take(tmp_path).release()


def test_a_holder_that_has_not_said_its_name_yet_is_refused_all_the_same(tmp_path: Path) -> None:
    held = FolderLock.take(tmp_path)
    (tmp_path / "lock").write_text("{broken")
    with pytest.raises(FolderInUse, match="just starting"):
        FolderLock.take(tmp_path)
    held.release()


def test_a_killed_process_does_not_hold_the_lock(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from qimd.app.lock import FolderLock\n"
        "lock = FolderLock.take(pathlib.Path(sys.argv[1])); print('held', flush=True)\n"
        "sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(FolderInUse, match=f"process {child.pid}"):
            FolderLock.take(tmp_path)
        child.kill()
        child.wait()
    FolderLock.take(tmp_path).release()


def test_credentials_are_made_once_and_only_their_owner_may_read_them(tmp_path: Path) -> None:
    made = load_or_create(tmp_path)
    assert load_or_create(tmp_path) == made
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600
    assert len(made.public_key) == 32
    assert made != generate()


def test_a_new_address_keeps_the_keys(tmp_path: Path) -> None:
    made = load_or_create(tmp_path)
    store(tmp_path, with_addresses(made, "127.0.0.1:1", "127.0.0.1:2"))
    again = load_or_create(tmp_path)
    assert (again.address, again.metrics_address) == ("127.0.0.1:1", "127.0.0.1:2")
    assert with_addresses(again, "", "") == made


def test_credentials_never_show_their_keys_in_a_repr() -> None:
    made = generate()
    text = repr(made)
    assert made.admin_token not in text
    assert repr(made.private_key) not in text


@pytest.mark.parametrize(
    "break_it", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 99}', b"\xff\xfe\x00"]
)
def test_broken_credentials_are_refused_and_never_replaced(tmp_path: Path, break_it: bytes) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(break_it)
    with pytest.raises(CredentialsBroken, match=FILE_NAME):
        load_or_create(tmp_path)
    assert path.read_bytes() == break_it


def test_credentials_that_are_missing_beside_data_are_never_made_anew(tmp_path: Path) -> None:
    (tmp_path / DATABASE_NAME).touch()
    with pytest.raises(SettingRefused, match=f"{FILE_NAME} is missing"):
        load_or_create(tmp_path)
    assert not (tmp_path / FILE_NAME).exists()


def test_a_short_key_is_refused_without_being_quoted(tmp_path: Path) -> None:
    load_or_create(tmp_path)
    path = tmp_path / FILE_NAME
    document = json.loads(path.read_text())
    document["private_key"] = "c2hvcnQ="
    path.write_text(json.dumps(document))
    with pytest.raises(CredentialsBroken) as refused:
        load_or_create(tmp_path)
    assert "c2hvcnQ" not in str(refused.value)


def test_the_shard_counts_of_a_folder_are_for_good(tmp_path: Path) -> None:
    settle_facts(tmp_path, DevSettings(mailbox_shards=4))
    settle_facts(tmp_path, DevSettings(mailbox_shards=4))
    with pytest.raises(SettingRefused, match=r"--mailbox-shards: 2 is refused.*made with 4"):
        settle_facts(tmp_path, DevSettings(mailbox_shards=2))
    with pytest.raises(SettingRefused, match="--writer-shards"):
        settle_facts(tmp_path, DevSettings(mailbox_shards=4, writer_shards=8))


def test_shard_counts_that_are_missing_beside_data_are_never_taken_from_the_flags(
    tmp_path: Path,
) -> None:
    (tmp_path / DATABASE_NAME).touch()
    with pytest.raises(SettingRefused, match=r"deployment\.json is missing"):
        settle_facts(tmp_path, DevSettings(writer_shards=8))
    assert not (tmp_path / "deployment.json").exists()


def test_shard_counts_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "deployment.json").write_bytes(b"\xff")
    with pytest.raises(SettingRefused, match="does not parse"):
        settle_facts(tmp_path, DevSettings())


def test_what_stands_where_a_file_of_the_folder_belongs_is_refused_by_flag(tmp_path: Path) -> None:
    for name in (FILE_NAME, "deployment.json", LOCK_NAME):
        (tmp_path / name).mkdir()
    for refused in (
        lambda: load_or_create(tmp_path),
        lambda: settle_facts(tmp_path, DevSettings()),
        lambda: FolderLock.take(tmp_path),
    ):
        with pytest.raises(SettingRefused, match=r"--data: .*directory"):
            refused()


def test_a_file_that_cannot_be_written_is_refused_by_the_flag_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SettingRefused, match=r"--ready-file: .*can't be written"):
        write_private(tmp_path / "absent" / "ready", "", "--ready-file")


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    settle_facts(tmp_path, DevSettings())
    path = tmp_path / "deployment.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(SettingRefused, match="format 2"):
        settle_facts(tmp_path, DevSettings())
    path.write_text("{")
    with pytest.raises(SettingRefused, match="does not parse"):
        settle_facts(tmp_path, DevSettings())


def test_a_folder_that_cannot_be_made_is_refused_by_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingRefused, match="--data"):
        prepare_folder(tmp_path / "file" / "below")


def test_a_new_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_a_kept_file_that_was_removed_or_replaced_is_noticed(tmp_path: Path) -> None:
    kept, other = tmp_path / "kept", tmp_path / "other"
    kept.write_text("as it was")
    files = KeptFiles([kept])
    kept.write_text("written to, and the same file")
    assert files.lost() is None
    other.write_text("a copy")
    other.replace(kept)
    assert files.lost() == kept
    kept.unlink()
    assert files.lost() == kept


def test_a_folder_that_has_lost_its_database_is_no_empty_server(tmp_path: Path) -> None:
    settle_facts(tmp_path, DevSettings())
    # A start that was cut short before there was one.
    settle_facts(tmp_path, DevSettings())
    (tmp_path / DATABASE_NAME).touch()
    note_database(tmp_path)
    settle_facts(tmp_path, DevSettings())
    (tmp_path / DATABASE_NAME).unlink()
    with pytest.raises(SettingRefused, match="Restore it, with the -wal file beside it"):
        settle_facts(tmp_path, DevSettings())
