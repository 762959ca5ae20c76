"""The kept corpus as a test: what was mended stays so, on machines without the fuzzer as well."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fuzz.targets import TARGETS, Broken

from qimd.contract import codec
from qimd.contract import cursor as cursors

CORPUS = Path(__file__).resolve().parent / "corpus"


def inputs(target: str) -> list[bytes]:
    found = [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]
    assert found, f"the corpus of {target} is empty"
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_the_code_keeps_its_word_on_every_kept_input(target: str) -> None:
    for data in inputs(target):
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_the_code_keeps_its_word_on_what_was_cut_short(target: str) -> None:
    for data in inputs(target):
        for end in {0, 1, len(data) // 2, max(0, len(data) - 1)}:
            TARGETS[target](data[:end])


@pytest.mark.parametrize("target", ["dispatch", "frame", "cursor"])
def test_a_codec_that_accepts_a_second_spelling_would_be_noticed(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "_keeps", lambda message, data: True)
    assert any(_breaks(TARGETS[target], data) for data in inputs(target))


def test_a_forged_cursor_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors.hmac, "compare_digest", lambda *_: True)
    assert any(_breaks(TARGETS["cursor"], data) for data in inputs("cursor"))


def _breaks(target: Callable[[bytes], None], data: bytes) -> bool:
    try:
        target(data)
    except Broken:
        return True
    return False
