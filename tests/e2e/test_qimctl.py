"""qimctl against a running server: every command, for people and for programs."""

import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.support.dev import DevServer

from qimd.core.ids import ConversationId, TenantId, event_id
from qimd.ctl.exits import MISSING, OK, REFUSED
from qimd.ctl.main import run

Rows = list[dict[str, Any]]
Ctl = Callable[..., Rows]

PROGRAM = [sys.executable, "-c", "from qimd.ctl.main import main; main()"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    with DevServer(tmp_path_factory.mktemp("qimctl") / "data") as running:
        yield running


@pytest.fixture
def ctl(server: DevServer, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """A command's rows; it must succeed."""

    def call(*arguments: str) -> Rows:
        code = run(["--data", str(server.data), *arguments, "-o", "jsonl"])
        shown = capsys.readouterr()
        assert code == OK, shown.err
        return [json.loads(line) for line in shown.out.splitlines()]

    return call


def environment(server: DevServer) -> dict[str, str]:
    return {"QIM_DATA": str(server.data), "PATH": "/usr/bin:/bin"}


def eventually(look: Callable[[], Rows], holds: Callable[[Rows], bool]) -> Rows:
    """What a command shows once it holds: SEND_ACK says durable, not yet delivered."""
    deadline_s = time.monotonic() + 20
    while not holds(rows := look()):
        assert time.monotonic() < deadline_s, rows
    return rows


def process(server: DevServer, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [*PROGRAM, *arguments],
        env=environment(server),
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_members_come_and_go(ctl: Ctl) -> None:
    (made,) = ctl("conversation", "create", "team", "--member", "ann", "--member", "bob")
    assert (made["tenant"], made["member_count"], made["head_version"]) == ("dev", 2, 1)
    (grown,) = ctl("members", "add", "team", "cid", "ann")
    assert (grown["member_count"], grown["membership_version"]) == (3, 2)
    (shrunk,) = ctl("members", "remove", "team", "bob")
    assert shrunk["member_count"] == 2
    assert ctl("members", "list", "team") == [
        {"user": "ann", "added_seq": 1},
        {"user": "cid", "added_seq": 2},
    ]
    (again,) = ctl("conversation", "get", "team")
    assert (again["head_version"], again["member_count"]) == (3, 2)


def test_a_message_is_sent_pulled_and_read(ctl: Ctl) -> None:
    ctl("conversation", "create", "talk", "--member", "ann", "--member", "bob")
    (sent,) = ctl("send", "talk", "hello", "--user", "ann", "--msg-id", "m1")
    (twice,) = ctl("send", "talk", "hello", "--user", "ann", "--msg-id", "m1")
    assert (sent["conversation_seq"], sent["duplicate"], twice["duplicate"]) == (2, False, True)
    assert sent["event_id"] == twice["event_id"]
    assert sent["event_id"] == event_id(TenantId("dev"), ConversationId("talk"), 2).hex()

    def talk(rows: Rows) -> Rows:
        return [row for row in rows if row["conversation"] == "talk"]

    def pulled() -> Rows:
        return talk(ctl("pull", "--user", "bob"))

    join, message = eventually(pulled, lambda rows: len(rows) == 2)
    assert (join["kind"], join["added"]) == ("membership", ["ann", "bob"])
    assert (message["sender"], message["content"]) == ("ann", "hello")
    assert message["event_id"] == sent["event_id"]
    assert isinstance(message["mailbox_seq"], str)
    ctl("send", "talk", "👍", "--react-to", "2", "--user", "bob")
    history = ctl("history", "talk", "--user", "bob", "--limit", "2")
    assert [(row["kind"], row["content"]) for row in history] == [
        ("message", "hello"),
        ("reaction", "👍"),
    ]
    (mark,) = ctl("mark-read", "talk", "2", "--user", "bob")
    assert (mark["read_through_seq"], mark["unread"]) == (2, 0)

    def listed() -> Rows:
        return talk(ctl("sessions", "--user", "bob"))

    (session,) = eventually(listed, lambda rows: rows != [] and rows[0]["last_seq"] == 3)
    assert (session["unread"], session["read_through_seq"]) == (0, 2)


def test_a_pull_that_acknowledges_shows_the_rest_next_time(ctl: Ctl) -> None:
    ctl("conversation", "create", "acks", "--member", "eve")
    ctl("send", "acks", "one", "--user", "eve")

    def pulled() -> Rows:
        return ctl("pull", "--user", "eve")

    eventually(pulled, lambda rows: [row["content"] for row in rows] == ["+eve", "one"])
    assert [row["content"] for row in ctl("pull", "--user", "eve", "--ack")] == ["+eve", "one"]
    assert pulled() == []
    ctl("send", "acks", "two", "--user", "eve")
    eventually(pulled, lambda rows: [row["content"] for row in rows] == ["two"])


def test_tail_shows_what_comes(server: DevServer, ctl: Ctl) -> None:
    ctl("conversation", "create", "live", "--member", "tim")
    tail = subprocess.Popen(
        [*PROGRAM, "tail", "--user", "tim", "--limit", "2", "-o", "jsonl", "--device", "screen"],
        env=environment(server),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert tail.stderr is not None
        assert "following" in tail.stderr.readline()
        for body in ("first", "second"):
            ctl("send", "live", body, "--user", "tim")
        out, _ = tail.communicate(timeout=30)
    finally:
        tail.kill()
        tail.wait()
    assert [json.loads(line)["content"] for line in out.splitlines()] == ["first", "second"]


@pytest.mark.parametrize("name", ["a/b:c", "🛶", "שלום", "x=1"])
def test_ids_with_any_separator_come_back_byte_exact(ctl: Ctl, name: str) -> None:
    """COD-03: '/' and emoji round-trip byte-exact through the CLI."""
    ctl("conversation", "create", name, "--member", name)
    (sent,) = ctl("send", name, name, "--user", name)
    assert sent["conversation"] == name
    rows = eventually(lambda: ctl("pull", "--user", name), lambda rows: len(rows) == 2)
    assert [(row["conversation"], row["content"]) for row in rows] == [
        (name, f"+{name}"),
        (name, name),
    ]


def test_a_control_character_in_an_id_is_refused_by_name(
    server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """COD-03: INVALID_ARGUMENT naming the field."""
    arguments = ["--data", str(server.data), "conversation", "create", "x\ty", "--member", "u"]
    assert run(arguments) == REFUSED
    shown = capsys.readouterr().err
    assert "INVALID_ARGUMENT" in shown
    assert "conversation_id" in shown


def test_bodies_are_bytes_from_standard_input(server: DevServer, ctl: Ctl) -> None:
    ctl("conversation", "create", "bytes", "--member", "ben")
    body = bytes(range(256))
    done = subprocess.run(
        [*PROGRAM, "send", "bytes", "--user", "ben"],
        env=environment(server),
        input=body,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert b"event id" in done.stdout
    (row,) = ctl("history", "bytes", "--user", "ben", "--limit", "1")
    assert base64.b64decode(row["content_base64"]) == body
    shown = process(server, "history", "bytes", "--user", "ben").stdout
    assert b"\x1b" not in shown, "what others wrote can't drive the terminal"
    assert b"\\x1b" in shown


def test_an_event_is_followed_through_every_stage(ctl: Ctl) -> None:
    ctl("conversation", "create", "trace", "--member", "ann", "--member", "bob")
    (sent,) = ctl("send", "trace", "hello", "--user", "ann")
    steps = eventually(
        lambda: ctl("trace", sent["event_id"]),
        lambda rows: {row["verdict"] for row in rows} == {"done"},
    )
    assert {"commit", "dispatch", "mailbox", "session"} == {step["stage"] for step in steps}
    commit = next(step for step in steps if step["stage"] == "commit")
    assert commit["at_ms"] > 0
    assert commit["fencing_epoch"] > 0
    assert commit["recipients"] is None, "who receives it is decided behind the commit"
    dispatched = [step for step in steps if step["stage"] == "dispatch"]
    assert sum(step["recipients"] for step in dispatched) == 2
    assert all(isinstance(step["offset"], int) for step in dispatched)


def test_an_event_that_is_not_there_is_refused(
    server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--data", str(server.data), "trace", "00" * 16]) == REFUSED
    shown = capsys.readouterr()
    assert "NOT_FOUND" in shown.err
    assert "what to do:" in shown.err
    assert shown.out == ""


def test_shards_and_quarantine_are_shown(ctl: Ctl) -> None:
    rows = ctl("shards")
    assert [(row["kind"], row["shard"]) for row in rows] == [
        ("mailbox", 0),
        ("mailbox", 1),
        ("session", 0),
        ("session", 1),
    ]
    assert {row["state"] for row in rows} == {"owned", "ready"}
    assert ctl("quarantine", "list") == []


def test_a_tenant_is_made_with_its_key(ctl: Ctl) -> None:
    key = base64.b64encode(bytes(range(32))).decode()
    (made,) = ctl("tenant", "create", "acme", "--key", f"k=1={key}")
    assert (made["tenant"], made["keys"]) == ("acme", ["k=1"])
    (again,) = ctl("tenant", "get", "acme")
    assert again == made


def test_a_chat_is_replayed_in_its_order(ctl: Ctl, tmp_path: Path) -> None:
    chat = tmp_path / "chat.jsonl"
    spoken = [("a", "one"), ("b", "two"), ("b", "three"), ("a", ""), ("c", "five")]
    chat.write_text(
        "".join(
            json.dumps({"n": n, "kind": "message", "user": user, "text": text}) + "\n"
            for n, (user, text) in enumerate(spoken, 1)
        )
    )
    (done,) = ctl("replay", str(chat), "--conversation", "played", "--streams", "2")
    assert isinstance(done["ack_p99_ms"], float), "a number is a number to a program"
    assert (done["sent"], done["members"], done["in_order"]) == (5, 3, True)
    rows = ctl("history", "played", "--user", "c")
    assert [(row["sender"], row["content"]) for row in rows if row["kind"] == "message"] == spoken
    (again,) = ctl("replay", str(chat), "--conversation", "played")
    assert again["duplicates"] == 5


def test_a_token_serves_without_the_credentials_file(
    server: DevServer, ctl: Ctl, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ctl("conversation", "create", "tokens", "--member", "tom")
    (made,) = ctl("token", "--user", "tom")
    elsewhere = ["--data", str(tmp_path / "nothing"), "--address", server.grpc]
    arguments = ["history", "tokens", "--token", made["token"], "-o", "jsonl"]
    assert run([*elsewhere, *arguments]) == OK
    assert json.loads(capsys.readouterr().out)["added"] == ["tom"]
    assert run([*elsewhere, "shards"]) == MISSING
    assert run([*elsewhere, "shards", "--admin-token", "wrong"]) == REFUSED
    shown = capsys.readouterr().err
    assert "UNAUTHENTICATED" in shown
    assert made["token"] not in shown


def test_a_refusal_says_what_to_do(server: DevServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--data", str(server.data), "send", "nowhere", "x", "--user", "u"]) == REFUSED
    shown = capsys.readouterr()
    assert "NOT_MEMBER" in shown.err
    assert "Have the user added" in shown.err
    assert shown.out == ""


def test_data_goes_to_standard_output_alone(server: DevServer) -> None:
    done = process(server, "shards", "-o", "json")
    assert done.returncode == OK
    assert done.stderr == b""
    assert len(json.loads(done.stdout)) == 4
