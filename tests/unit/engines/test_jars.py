"""No jar runs that is not the one whose checksum is in the repository."""

import hashlib
from pathlib import Path

import pytest
from tests.engines.cassandra import JARS as CASSANDRA
from tests.engines.jars import Jars, differences, digests, parse, render
from tests.engines.kafka import JARS as KAFKA


def test_a_listing_says_what_it_was_made_from() -> None:
    found = {"b.jar": "22", "a.jar": "11"}
    assert render(found) == "11  a.jar\n22  b.jar\n"
    assert parse(render(found)) == found


def test_what_is_in_a_folder_is_told_by_content(tmp_path: Path) -> None:
    (tmp_path / "a.jar").write_bytes(b"content")
    (tmp_path / "notes.txt").write_bytes(b"no jar")
    assert digests(tmp_path) == {"a.jar": hashlib.sha256(b"content").hexdigest()}


def test_every_difference_from_the_list_is_named() -> None:
    wanted = {"same.jar": "1", "changed.jar": "2", "gone.jar": "3"}
    found = {"same.jar": "1", "changed.jar": "!", "new.jar": "4"}
    assert differences(found, wanted) == [
        "gone.jar is missing",
        "new.jar is not in the list",
        "changed.jar has another checksum",
    ]
    assert differences(wanted, wanted) == []


@pytest.mark.parametrize("jars", [KAFKA, CASSANDRA], ids=lambda jars: jars.name)
def test_a_list_pins_every_jar_by_a_whole_checksum(jars: Jars) -> None:
    listed = parse(jars.listing.read_text())
    assert len(listed) > 30
    assert all(name.endswith(".jar") for name in listed)
    assert all(len(bytes.fromhex(digest)) == 32 for digest in listed.values())
    assert jars.listing.read_text() == render(listed)
