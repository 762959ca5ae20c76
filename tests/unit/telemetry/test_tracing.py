"""Trace context."""

import pytest

from qimd.telemetry.tracing import new_trace_parent, trace_id_of

VALID = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_new_trace_parent_is_valid_and_gives_its_trace_id_back() -> None:
    made = new_trace_parent(lambda size: bytes(range(1, size + 1)))
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
