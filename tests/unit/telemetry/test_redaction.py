"""Redaction: what a log record may never show."""

import io
import json
import logging
from dataclasses import dataclass, field

import pytest

from qimd.core.errors import ErrorCode, QimError
from qimd.core.outcome import Refusal
from qimd.telemetry.logs import configure, logger
from qimd.telemetry.redaction import (
    ITEMS_MAX,
    REDACTED,
    TEXT_CHARACTERS_MAX,
    exception_shown,
    is_sensitive,
    redact,
    redact_text,
)

JWT = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "name",
    [
        "token", "access_token", "refresh_tokens", "cursor_token", "cursor", "secret",
        "client_secret", "key", "private_key", "cursor_keys", "signature", "authorization",
        "Authorization", "body",
        "message_body", "bodies", "x-api-key", "accessToken", "password", "jwt",
    ],
)  # fmt: skip
def test_a_field_named_like_a_credential_or_a_body_loses_its_value(name: str) -> None:
    assert is_sensitive(name)
    for value in ("s3cret", b"s3cret", ["s3cret"], {"inner": "s3cret"}, 12345):
        assert redact(name, value) == REDACTED


@pytest.mark.parametrize(
    "name",
    [
        "key_id", "token_id", "tenant_id", "conversation_id", "device_id", "event_id",
        "mailbox_seq", "shard_epoch", "keys_count", "credentials_path", "monkey", "tokenizer",
        "keyboard",
    ],
)  # fmt: skip
def test_identifiers_stay_searchable(name: str) -> None:
    assert not is_sensitive(name)
    assert redact(name, "k1") == "k1"


def test_ids_are_shown_as_hex_and_other_bytes_by_their_size_alone() -> None:
    assert redact("event_id", b"\x01" * 16) == "01" * 16
    assert redact("content_digest", b"\xff" * 16) == "ff" * 16
    assert redact("value", b"hello, world") == "<12 bytes>"
    assert redact("value", memoryview(b"hello")) == "<5 bytes>"
    assert redact("event_id", b"m" * 64) == "<64 bytes>"


def test_credentials_inside_a_text_are_cut_out() -> None:
    assert JWT not in redact_text(f"refused {JWT} of alice")
    assert redact_text("Authorization: Bearer abc.def") == f"Authorization: {REDACTED}"
    assert redact_text("plain text stays") == "plain text stays"


def test_nested_values_are_redacted_by_their_own_names() -> None:
    shown = redact("request", {"headers": {"authorization": "x", "host": "h"}, "ids": [b"\1\2"]})
    assert shown == {"headers": {"authorization": REDACTED, "host": "h"}, "ids": ["0102"]}


def test_a_record_shows_only_the_fields_that_its_author_lets_repr_show() -> None:
    @dataclass
    class Draft:
        client_msg_id: str
        content: bytes = field(repr=False)

    assert redact("draft", Draft("m1", b"hello")) == {"client_msg_id": "m1"}


def test_an_object_that_nobody_vouched_for_shows_its_type_alone() -> None:
    class Request:
        def __repr__(self) -> str:
            return "Request(token='s3cret')"

    assert redact("request", Request()) == "<Request>"
    assert redact("refusal", Refusal.UNREACHABLE) == "UNREACHABLE"


def test_long_texts_and_collections_are_cut_visibly() -> None:
    assert "3000 characters in all" in redact_text("x" * 3000)
    assert len(redact_text("x" * 100_000)) < TEXT_CHARACTERS_MAX + 50
    shown = redact("users", [f"u{n}" for n in range(1000)])
    assert isinstance(shown, list)
    assert len(shown) == ITEMS_MAX + 1
    assert shown[-1] == "… 1000 in all"


def test_an_exception_shows_where_it_happened_and_no_request_data() -> None:
    def fail(body: str) -> None:
        raise ValueError(f"bad body {body}")

    with pytest.raises(ValueError, match="hunter2") as caught:
        fail("hunter2")
    shown = exception_shown(caught.value)
    assert "hunter2" not in json.dumps(shown)
    assert shown["type"] == "builtins.ValueError"
    assert any("fail" in str(frame) for frame in shown["frames"])  # type: ignore[union-attr]


def test_our_own_errors_and_the_systems_keep_their_message() -> None:
    error = QimError(ErrorCode.NOT_OWNER, "this node does not own the shard")
    assert "does not own the shard" in str(redact("error", error))
    assert redact("error", OSError(28, "No space left on device")) == (
        "OSError: [Errno 28] No space left on device"
    )


@pytest.fixture
def stream() -> object:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    target = io.StringIO()
    configure(level="debug", console=False, stream=target)
    yield target
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("qimd").setLevel(logging.NOTSET)


def test_a_record_is_one_json_line_with_the_identifiers_as_fields(stream: io.StringIO) -> None:
    logger("writer").info("committed", tenant_id="t", event_id=b"\1" * 16, mailbox_shard=3)
    record = json.loads(stream.getvalue())
    assert record.pop("time")
    assert record == {
        "event": "committed",
        "level": "info",
        "logger": "qimd.writer",
        "tenant_id": "t",
        "event_id": "01" * 16,
        "mailbox_shard": 3,
    }


def test_no_secret_leaves_by_any_way_into_a_record(stream: io.StringIO) -> None:
    log = logger("gateway")
    log.info("auth", access_token=JWT, cursor=b"s3cret", note=f"Bearer {JWT}")
    log.warning("refused", headers={"authorization": "Bearer s3cret"}, body="s3cret")
    try:
        raise KeyError("s3cret")
    except KeyError as error:
        log.error("failed", exc_info=error, error=error)
        log.error("failed", exc_info=True)
    logging.getLogger("grpc").error("metadata: authorization=%s", f"Bearer {JWT}")
    text = stream.getvalue()
    assert len(text.splitlines()) == 5
    assert "s3cret" not in text
    assert "eyJ" not in text


def test_a_body_with_line_breaks_cannot_forge_a_second_record(stream: io.StringIO) -> None:
    logger("writer").info("named", conversation_id='x\n{"event": "forged"}\r\x1b[2J')
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


def test_a_record_below_the_level_is_not_written(stream: io.StringIO) -> None:
    logging.getLogger("qimd").setLevel(logging.WARNING)
    logger("writer").info("quiet")
    logger("writer").warning("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


def test_the_console_form_is_redacted_too(stream: io.StringIO) -> None:
    configure(level="info", console=True, stream=stream)
    logger("gateway").error("auth", token="s3cret", exc_info=ValueError("s3cret"))
    assert "auth" in stream.getvalue()
    assert "s3cret" not in stream.getvalue()
