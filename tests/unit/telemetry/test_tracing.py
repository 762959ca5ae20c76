"""Trace context."""

import pytest

from qimd.core.ids import ConversationId, TenantId
from qimd.core.records import ConversationKey
from qimd.telemetry.tracing import (
    COMMIT,
    NO_SPANS,
    context_of,
    new_trace_parent,
    recorded,
    trace_id_of,
)

VALID = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def counting(size: int) -> bytes:
    return bytes(range(1, size + 1))


def test_a_new_trace_parent_is_valid_and_gives_its_trace_id_back() -> None:
    made = new_trace_parent(counting, 0.5)
    assert trace_id_of(made) == bytes(range(1, 17)).hex()


def test_the_trace_id_of_a_valid_parent() -> None:
    assert trace_id_of(VALID) == "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "junk",
        VALID.upper(),
        VALID + "\n",
        VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        VALID.replace("00f067aa0ba902b7", "0" * 16),
        VALID.replace("00-4b", "01-4b"),
    ],
)
def test_what_is_not_a_trace_parent_has_no_trace_id(text: str) -> None:
    assert trace_id_of(text) == ""


@pytest.mark.parametrize(
    ("share", "low_half", "sampled"),
    [
        (0.0, 0, False),
        (1.0, (1 << 64) - 1, True),
        (0.25, (1 << 62) - 1, True),
        (0.25, 1 << 62, False),
    ],
)
def test_the_trace_id_decides_whether_a_send_is_sampled(
    share: float, low_half: int, sampled: bool
) -> None:
    made = new_trace_parent(lambda size: b"\x01" * (size - 8) + low_half.to_bytes(8), share)
    context = context_of(made.replace("-" + "0" * 16 + "-", "-" + "1" * 16 + "-"))
    assert context is not None
    assert context.sampled is sampled


@pytest.mark.parametrize(
    ("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("03", True)]
)
def test_only_the_first_bit_of_the_flags_counts(flags: str, sampled: bool) -> None:
    context = context_of(VALID[:-2] + flags)
    assert context is not None
    assert context.sampled is sampled


@pytest.mark.parametrize("text", ["", "junk", VALID[:-2] + "00", VALID[:-2] + "0e", "junk-01"])
def test_what_is_not_recorded_is_carried_no_further(text: str) -> None:
    assert recorded(text) == ""
    assert recorded(VALID) == VALID


def test_without_spans_a_trace_is_not_sampled_and_nothing_told_is_read() -> None:
    made = context_of(NO_SPANS.new_trace(counting))
    assert made is not None
    assert not made.sampled
    untouched = iter([1])
    NO_SPANS.stage(COMMIT, 0.0, untouched, writer_shard=1)  # type: ignore[arg-type]
    NO_SPANS.served("PULL_MAILBOX", TenantId("t"), 0.0, "")
    NO_SPANS.sent(VALID, ConversationKey(TenantId("t"), ConversationId("c")), 1, 0.0, "")
    assert next(untouched) == 1
