"""The position files: whole or not at all, and never guessed."""

import os
from pathlib import Path

import pytest

from qimd.client.model import Head, Position
from qimd.client.positions import FilePositions
from qimd.core.errors import ErrorCode, QimError

POSITION = Position((1 << 63) - 1, {"c/ö:1": Head(7), "left": Head(3, member=False)})


async def test_a_position_comes_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "position.json"
    await FilePositions(path).save(POSITION)
    assert await FilePositions(path).load() == POSITION


async def test_no_file_is_no_position(tmp_path: Path) -> None:
    assert await FilePositions(tmp_path / "none").load() is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"format": 2}',
        '{"format": 1, "heads": 3}',
        '{"format": 1, "heads": {}, "applied_seq": 1e999}',
        '{"format": 1, "heads": {}, "applied_seq": "-1"}',
        '{"format": 1, "heads": {}, "applied_seq": "9223372036854775808"}',
        '{"format": 1, "heads": {"c": [true, true]}, "applied_seq": "1"}',
        '{"format": 1, "heads": {"c": [1, 1]}, "applied_seq": "1"}',
        "[" * 100_000,
        "\ud800",
    ],
)
async def test_a_broken_file_is_an_error_and_not_a_new_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "position.json"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(QimError) as caught:
        await FilePositions(path).load()
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert str(path) in caught.value.message


async def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "position.json"
    store = FilePositions(path)
    await store.save(POSITION)

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        await store.save(Position(1))
    monkeypatch.undo()
    assert await store.load() == POSITION
    assert os.listdir(tmp_path) == ["position.json"]
