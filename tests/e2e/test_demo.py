"""The demonstration: exact after two kills, and it would notice if it were not."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from qimd.app.demo_verdict import Expected, Found, Verdict, compare, table
from qimd.telemetry.metrics import ZEROS


def demo(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "qimd.app.demo", *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_a_generated_chat_comes_out_exact_over_two_kills(tmp_path: Path) -> None:
    done = demo("--members", "12", "--messages", "150", "--data", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    numbers = json.loads(done.stdout)
    assert numbers["exact"] is True
    assert numbers["events_acknowledged"] == 150
    assert numbers["kills"] == 2
    assert numbers["reconnects"] > 0
    assert numbers["watchers"] == 3
    assert numbers["triples_expected"] == numbers["triples_found"] == (12 + 3) * 151
    assert numbers["zeros"] == dict.fromkeys(ZEROS, 0.0)
    again = demo("--members", "2", "--messages", "5", "--kills", "0", "--data", str(tmp_path))
    assert again.returncode == 0, "the folder serves a second run"
    assert again.stdout.splitlines()[-1] == "exact"


def test_a_recorded_chat_comes_out_exact(tmp_path: Path) -> None:
    texts = [
        "hello",
        "",
        "\x00\x1b[31m",
        "\ufeffbom \ufffd",
        "a\u2028b\x85",
        "日本 🇸🇪",
        "x" * 5_000,
    ]
    rows = [
        {"n": n, "kind": "message", "user": f"user-{n % 4}", "text": texts[n % len(texts)]}
        for n in range(1, 41)
    ]
    rows.insert(20, {"n": 20, "kind": "rename", "user": "user-1", "text": "", "to": "user-9"})
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    done = demo("--chat", str(path), "--kills", "1")
    assert done.returncode == 0, done.stderr + done.stdout
    lines = done.stdout.splitlines()
    assert lines[-1] == "exact"
    assert any(line.split() == ["events", "acknowledged", "40"] for line in lines)
    assert any(line.split() == ["mailbox", "triples", "expected", "287"] for line in lines)


def test_a_chat_that_is_not_there_is_told_and_nothing_is_claimed() -> None:
    done = demo("--chat", "no-such-file.jsonl")
    assert done.returncode == 2
    assert "no-such-file.jsonl" in done.stderr
    assert "exact" not in done.stdout


# --- it would notice --------------------------------------------------------------------------

EXPECTED = [Expected(bytes([n]) * 16, n, "u", b"body %d" % n) for n in range(1, 6)]
FOUND = [Found(e.event_id, e.seq, e.sender, e.body, e.seq * 256) for e in EXPECTED]


def verdict_of(found: Sequence[Found]) -> Verdict:
    verdict = Verdict()
    compare(EXPECTED, found, verdict)
    return verdict


def test_what_was_sent_is_exact() -> None:
    verdict = verdict_of(FOUND)
    assert (verdict.triples_expected, verdict.triples_found) == (5, 5)
    assert verdict.faults() == []


Spoil = Callable[[list[Found]], list[Found]]


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        pytest.param(lambda found: found[:2] + found[3:], "triples missing: 1", id="missing"),
        pytest.param(lambda found: [*found, found[-1]], "triples doubled: 1", id="doubled"),
        pytest.param(lambda found: [*found[:3], found[4], found[3]], "out of order: 1", id="swap"),
        pytest.param(
            lambda found: [*found[:4], replace(found[4], event_id=bytes(16))],
            "triples unexpected: 1",
            id="unexpected",
        ),
        pytest.param(
            lambda found: [*found[:4], replace(found[4], body=b"body 6")],
            "other content: 1",
            id="content",
        ),
        pytest.param(
            lambda found: [*found[:4], replace(found[4], mailbox_seq=4 * 256)],
            "out of order: 1",
            id="mailbox-seq",
        ),
    ],
)
def test_a_spoiled_mailbox_is_not_exact(spoil: Spoil, fault: str) -> None:
    assert fault in verdict_of(spoil(list(FOUND))).faults()


@pytest.mark.parametrize("name", [*ZEROS])
def test_a_counter_that_is_not_zero_is_not_exact(name: str) -> None:
    verdict = verdict_of(FOUND)
    verdict.add_zeros(dict.fromkeys(ZEROS, 0.0) | {name: 1.0})
    verdict.add_zeros(dict.fromkeys(ZEROS, 0.0))
    assert verdict.faults() == [f"{name.replace('_', ' ')}: 1"], "a kill must not hide it"


@pytest.mark.parametrize("name", Verdict.WRONG)
def test_every_count_of_faults_shows_in_the_verdict_and_in_the_table(name: str) -> None:
    verdict = verdict_of(FOUND)
    setattr(verdict, name, 7)
    assert verdict.faults() == [f"{name.replace('_', ' ')}: 7"]
    assert any(line.endswith("  7") for line in table(verdict).splitlines())
