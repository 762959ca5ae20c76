"""The suite as a product: fixtures, vectors, the line protocol, and the judge."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from compat import fixtures, judge, vectors
from compat.cases import DISPATCH, FRAMES
from compat.messages import TOP, descriptors

from qim.cursor.v1.mailbox_cursor_pb2 import MailboxCursorToken

RELEASE = fixtures.releases()[-1]


@pytest.fixture(scope="module")
def all_fixtures() -> list[fixtures.Fixture]:
    return fixtures.load(RELEASE)


def cases_of(found: list[fixtures.Fixture], message: str, kind: str) -> set[str]:
    return {case.case for case in found if case.message == message and case.kind == kind}


def test_every_message_has_fixtures_of_every_kind(all_fixtures: list[fixtures.Fixture]) -> None:
    for message, descriptor in descriptors().items():
        golden = cases_of(all_fixtures, message, "golden")
        assert {"minimal", "full", "unknown_fields"} <= golden, message
        for oneof in descriptor.oneofs:
            assert {f"{oneof.name}_{field.name}" for field in oneof.fields} <= golden, message
        broken = {"deep", "varint_endless"} | ({"truncated"} if descriptor.fields else set())
        assert broken <= cases_of(all_fixtures, message, "reject"), message


def test_a_dispatch_has_the_cases_that_matter(all_fixtures: list[fixtures.Fixture]) -> None:
    assert {"recipients_1", "recipients_200", "recipients_512", "unknown_enum_kind"} <= cases_of(
        all_fixtures, DISPATCH, "golden"
    )
    assert {
        "epoch_missing", "epoch_zero", "epoch_as_text", "doubled", "concatenated", "unknown_first",
        "recipients_0", "reader_too_old", "epoch_long_varint", "lanes_swapped",
    } <= cases_of(all_fixtures, DISPATCH, "reject")  # fmt: skip
    for frame in FRAMES:
        assert {"empty", "doubled", "concatenated", "nothing_in_it"} <= cases_of(
            all_fixtures, frame, "reject"
        )


def test_the_vectors_are_what_the_code_computes_and_the_schema_states() -> None:
    for name, data in vectors.files().items():
        assert (vectors.folder(RELEASE) / name).read_bytes() == data, name
    rows = json.loads((vectors.folder(RELEASE) / "cursors.json").read_text(encoding="utf-8"))
    for row in rows:
        token = MailboxCursorToken.FromString(bytes.fromhex(row["token"]))
        assert token.signature == vectors.independent_signature(token.cursor)


def test_all_three_implementations_agree_on_what_is_stored_and_streamed(
    all_fixtures: list[fixtures.Fixture],
) -> None:
    """COD-01 among them: an unknown enum number is kept and emitted again by each.

    The gate `python -m compat` runs all messages; here those that carry the promise.
    """
    chosen = [fixture for fixture in all_fixtures if fixture.message in (DISPATCH, *FRAMES)]
    reports = judge.run_own(chosen)
    assert [report.name for report in reports] == ["upb", "buf-go", "protobuf-es"]
    known = judge.known_differences()
    found = [
        difference
        for report in reports
        for difference in report.differences
        if (difference.implementation, difference.message, difference.case) not in known
    ]
    assert found == []
    for report in reports:
        assert set(report.cases) == {DISPATCH, *FRAMES}


LYING = """
import sys
for line in sys.stdin:
    parts = line.split()
    if parts[0] == "hello":
        print("hello qim-compat/1 strict liar", flush=True)
    else:
        print(parts[0], "ok", parts[3], flush=True)
"""


def compat(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "compat", *arguments], cwd=TOP, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_an_implementation_that_accepts_everything_is_found_out() -> None:
    done = compat("run", "--json", "--", sys.executable, "-c", LYING)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    results = {row["message"]: row["results"]["liar"] for row in report["messages"]}
    assert results[DISPATCH] == "differs"
    assert any(row["case"] == "epoch_missing" for row in report["differences"])


def test_the_runner_drives_the_projects_own_implementation_as_any_other() -> None:
    done = compat("run", "--json", "--", sys.executable, "-m", "compat.drivers.upb")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    assert {row["results"]["upb"] for row in report["messages"]} == {"equal"}


@pytest.mark.parametrize(
    "program",
    [
        "print('hello')",
        "pass",
        "print('hello qim-compat/1 wire x'); import sys; sys.stdin.readline()",
    ],
)
def test_what_does_not_speak_the_protocol_is_told_so(program: str) -> None:
    done = compat("run", "--", sys.executable, "-c", program)
    assert done.returncode == 2
    assert done.stderr.startswith("compat: ")


def test_a_known_difference_needs_an_argument(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    path.write_text('[{"implementation": "x", "message": "m", "case": "c"}]', encoding="utf-8")
    with pytest.raises(ValueError, match="without an argument"):
        judge.known_differences(path)
