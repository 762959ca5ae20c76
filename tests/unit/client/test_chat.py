"""Recorded and generated chats, and their replay in order."""

import json
from pathlib import Path

import pytest
from tests.unit.client.gateway import ClientFrame, Gateway, Peer, client_of

from qimd.client import ErrorCode, QimError
from qimd.client.chat import Line, generated_chat, read_chat, speakers, turns
from qimd.client.replay import Speakers, Statistics, replay_turns
from qimd.core.parameters import BODY_BYTES_MAX, SEND_EVENTS_MAX


def row(n: int, user: str = "u", text: str = "", kind: str = "message") -> str:
    return json.dumps({"n": n, "kind": kind, "user": user, "text": text}) + "\n"


def write(path: Path, *rows: str) -> Path:
    path.write_text("".join(rows), encoding="utf-8", newline="")
    return path


def test_a_file_gives_its_messages_and_actions(tmp_path: Path) -> None:
    path = write(
        tmp_path / "chat.jsonl",
        row(1, "a", "hello"),
        row(2, "a", kind="rename"),
        row(3, "b", "waves", kind="action"),
        row(4, "a", ""),
    )
    assert read_chat(path) == [Line(1, "a", b"hello"), Line(3, "b", b"waves"), Line(4, "a", b"")]


def test_line_ends_within_a_text_end_no_row(tmp_path: Path) -> None:
    text = "a\u2028b\x85c\x0bd"
    line = json.dumps({"n": 1, "kind": "message", "user": "u", "text": text}, ensure_ascii=False)
    (only,) = read_chat(write(tmp_path / "chat.jsonl", line + "\n"))
    assert only.body == text.encode()


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([row(1), "{"], "line 2"),
        ([row(1), "[]\n"], "line 2"),
        ([row(2), row(1)], "line 2"),
        (['{"n": 1, "kind": "message", "user": 3, "text": ""}\n'], "line 1"),
        ([row(1), '{"n": true, "kind": "message", "user": "u", "text": ""}\n'], "line 2"),
        ([row(1), '{"n": 2, "kind": [], "user": "u", "text": ""}\n'], "line 2"),
        ([row(1), "[" * 100_000], "line 2: it is not JSON"),
        ([row(0)], "line 1: n is outside"),
        ([row(1), row(1 << 60)], "line 2: n is outside"),
        ([row(1), row(2, "")], "line 2: its user is empty"),
        ([row(1), row(2, "\ud800")], "line 2: its user holds a lone surrogate"),
        ([row(1, text="x" * (BODY_BYTES_MAX + 1))], "line 1"),
        ([], "no message"),
    ],
)
def test_a_fault_of_a_file_is_named_by_its_line(
    tmp_path: Path, rows: list[str], named: str
) -> None:
    with pytest.raises(QimError, match=named) as caught:
        read_chat(write(tmp_path / "chat.jsonl", *rows))
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


def test_a_row_that_is_not_utf_8_is_named_and_none_is_guessed(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    for broken in (b'{"n": 2, "user": "\xff"}', row(2).encode("utf-16")):
        path.write_bytes(row(1).encode() + broken)
        with pytest.raises(QimError, match="line 2: it is not UTF-8") as caught:
            read_chat(path)
        assert caught.value.code is ErrorCode.INVALID_ARGUMENT


def test_turns_keep_order_and_limits() -> None:
    lines = [Line(n, "a" if n < 250 else "b", b"x") for n in range(300)]
    cut = list(turns(lines))
    assert [line for turn in cut for line in turn] == lines
    assert [len(turn) for turn in cut] == [100, 100, 50, 50]
    assert all(len({line.user for line in turn}) == 1 for turn in cut)
    large = [Line(n, "a", bytes(BODY_BYTES_MAX)) for n in range(100)]
    assert max(len(turn) for turn in turns(large)) <= 16 < SEND_EVENTS_MAX


def test_a_generated_chat_is_the_same_for_the_same_seed() -> None:
    members = [f"m{n}" for n in range(20)]
    chat = generated_chat(members, 500, seed=1)
    assert chat == generated_chat(members, 500, seed=1)
    assert chat != generated_chat(members, 500, seed=2)
    assert [line.n for line in chat] == list(range(1, 501))
    assert set(speakers(chat)) == set(members)
    bodies = {line.body for line in generated_chat(members, 3_000, seed=1)}
    assert b"" in bodies
    assert any(b"\x00" in body for body in bodies)
    assert max(map(len, bodies)) == BODY_BYTES_MAX


async def test_a_replay_sends_in_order_with_a_bounded_number_of_streams(gateway: Gateway) -> None:
    lines = generated_chat([f"m{n}" for n in range(12)], 100, seed=3)
    statistics = Statistics()
    most = 0
    async with Speakers(lambda user: client_of(gateway), 4) as pool:
        async for turn in replay_turns(lines, pool, "c", "chat"):
            most = max(most, gateway.live)
            statistics.add(turn)
    sent = [event for frame in gateway.seen("send") for event in frame.send.events]
    assert [event.message.body for event in sent] == [line.body for line in lines]
    assert [event.client_msg_id for event in sent] == [f"chat:{line.n}" for line in lines]
    assert (statistics.sent, statistics.duplicates, statistics.in_order) == (100, 0, True)
    # A closed one may still be on its way out when the next one is in.
    assert most <= 5
    assert statistics.ack_ms(0.99) >= statistics.ack_ms(0.5) > 0


async def test_a_replay_that_is_repeated_sends_nothing_twice(gateway: Gateway) -> None:
    lines = generated_chat(["a", "b"], 20, seed=3)
    counts = []
    for _ in range(2):
        statistics = Statistics()
        async with Speakers(lambda user: client_of(gateway), 2) as pool:
            async for turn in replay_turns(lines, pool, "c", "chat"):
                statistics.add(turn)
        counts.append((statistics.sent, statistics.duplicates))
    assert counts == [(20, 0), (20, 20)]
    assert len(gateway.committed) == 20


async def test_what_runs_beside_a_send_may_cost_its_answer(gateway: Gateway) -> None:
    """The demonstration's kill: the line is durable once, under the same client_msg_id."""
    lines = [Line(n, "a" if n % 2 else "b", b"%d" % n) for n in range(1, 7)]

    async def commit_and_drop(peer: Peer, frame: ClientFrame) -> bool:
        if len(gateway.seen("send")) != 3:
            return False
        gateway.commit(frame)
        peer.drop()
        return True

    began: list[int] = []

    async def beside(turn: object) -> None:
        began.append(len(gateway.seen("send")))

    gateway.answers["send"] = commit_and_drop
    statistics = Statistics()
    pool = Speakers(lambda user: client_of(gateway), 2)
    async with pool:
        async for turn in replay_turns(lines, pool, "c", "chat", beside):
            statistics.add(turn)
    assert (statistics.sent, statistics.duplicates, statistics.in_order) == (6, 1, True)
    assert len(began) == 6
    assert pool.reconnects == 1


async def test_a_line_that_is_refused_stops_the_replay(gateway: Gateway) -> None:
    async def refuse(peer: Peer, frame: ClientFrame) -> bool:
        peer.error(frame.request_id, ErrorCode.NOT_MEMBER)
        return True

    gateway.answers["send"] = refuse
    async with Speakers(lambda user: client_of(gateway), 2) as pool:
        with pytest.raises(QimError) as caught:
            async for _ in replay_turns([Line(1, "a", b"")], pool, "c", "chat"):
                pass
    assert caught.value.code is ErrorCode.NOT_MEMBER
