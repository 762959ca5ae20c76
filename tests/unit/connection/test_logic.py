"""The state machine is total, and frames are cut where they must be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim.gateway.v1.gateway_pb2 import ClientFrame
from qimd.connection.logic import (
    ACTS,
    UNKNOWN_KIND,
    Act,
    Phase,
    agreed_version,
    backlog_bucket,
    cut_history,
    cut_pushes,
    history_end,
    history_limit,
    judge_request_id,
    refusal_of,
)
from qimd.core.errors import ErrorCode, QimError
from qimd.core.parameters import PAGE_BYTES_MAX, PAGE_ENTRY_OVERHEAD_BYTES, PUSH_FRAME_EVENTS_MAX

KINDS = [*ClientFrame.DESCRIPTOR.oneofs_by_name["frame"].fields, None]


@pytest.mark.parametrize("phase", list(Phase))
def test_every_kind_of_the_contract_has_an_act_in_every_phase(phase: Phase) -> None:
    for kind in KINDS:
        assert (phase, kind.name if kind else UNKNOWN_KIND) in ACTS
    assert len(ACTS) == len(KINDS) * len(Phase)


def test_before_auth_nothing_but_auth_is_taken() -> None:
    taken = {kind for (phase, kind), act in ACTS.items()
             if phase is Phase.OPEN and refusal_of(act) is None}  # fmt: skip
    assert taken == {"auth"}


def test_refusals_are_typed() -> None:
    codes = {act: error.code for act in Act if (error := refusal_of(act)) is not None}
    assert codes == {
        Act.REFUSE_BEFORE_AUTH: ErrorCode.UNAUTHENTICATED,
        Act.REFUSE_SECOND_AUTH: ErrorCode.INVALID_ARGUMENT,
        Act.REFUSE_KIND: ErrorCode.UNIMPLEMENTED,
    }


def test_a_request_id_is_judged_against_those_under_way() -> None:
    assert judge_request_id(3, {4: None}) is None
    for bad in (0, 4):
        error = judge_request_id(bad, {4: None})
        assert error is not None
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "request_id")


def test_a_newer_client_is_spoken_to_in_our_version_and_none_is_refused() -> None:
    assert (agreed_version(1), agreed_version(99)) == (1, 1)
    with pytest.raises(QimError) as caught:
        agreed_version(0)
    assert caught.value.field == "auth.protocol_version"


def test_backlog_buckets_have_the_edges_of_the_limits() -> None:
    edges = [0, 1, 100, 101, 1_000, 1_001, 10_000, 10_001]
    assert [backlog_bucket(events) for events in edges] == [
        "0", "1-100", "1-100", "101-1000", "101-1000", "1001-10000", "1001-10000", "10001+",
    ]  # fmt: skip


@given(st.lists(st.sampled_from([1, 900, 70_000, 400_000]), max_size=250))
def test_pushes_keep_order_and_limits_and_lose_nothing(sizes: list[int]) -> None:
    events = [index.to_bytes(4, "big") + bytes(size) for index, size in enumerate(sizes)]
    frames = list(cut_pushes(events))
    assert [event for frame in frames for event in frame] == events
    for frame in frames:
        assert 1 <= len(frame) <= PUSH_FRAME_EVENTS_MAX
        size = sum(len(event) + PAGE_ENTRY_OVERHEAD_BYTES for event in frame)
        assert size <= PAGE_BYTES_MAX or len(frame) == 1


def test_a_history_page_is_the_newest_events_that_fit() -> None:
    events = [bytes([index]) * 300_000 for index in range(5)]
    assert cut_history(events, 5) == events[2:]
    assert cut_history(events, 2) == events[3:]
    assert cut_history([bytes(2 * PAGE_BYTES_MAX)], 5) == [bytes(2 * PAGE_BYTES_MAX)]
    assert cut_history([], 5) == []


@pytest.mark.parametrize(
    ("asked", "head", "end"), [(0, 7, 8), (8, 7, 8), (9, 7, 8), (2**64 - 1, 7, 8), (3, 7, 3)]
)
def test_a_history_page_ends_at_what_was_asked_for_or_at_the_head(
    asked: int, head: int, end: int
) -> None:
    assert history_end(asked, head) == end


def test_a_history_limit_is_taken_at_its_bound_and_refused_one_past() -> None:
    assert (history_limit(0), history_limit(500)) == (100, 500)
    with pytest.raises(QimError) as caught:
        history_limit(501)
    assert caught.value.field == "limit"
