"""The engine's file on the disk: whose it is, and what is refused in its place."""

import stat
from pathlib import Path

import pytest
from tests.support.runtime import ManualRuntime

from qimd.adapters.sqlite import OpenRefused, SqliteBackends, open_sqlite


async def test_a_new_file_and_its_wal_are_for_their_owner_alone(
    path: Path, store: SqliteBackends
) -> None:
    """Also in a folder that others may enter: the file holds message bodies."""
    made = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert {path.name, f"{path.name}-wal"} <= made.keys()
    assert set(made.values()) == {0o600}


async def test_a_folder_in_the_place_of_the_file_is_refused(
    tmp_path: Path, runtime: ManualRuntime
) -> None:
    with pytest.raises(OpenRefused, match=tmp_path.name):
        await open_sqlite(tmp_path, runtime)
