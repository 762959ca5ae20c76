"""Rich statuses, held against the libraries that define them; JSON views."""

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc import aio
from grpc_status import rpc_status
from tests.unit.contract import samples

from qim.dispatch.v1.group_dispatch_pb2 import GroupDispatch
from qimd.contract import codec
from qimd.contract.grpc_status import DETAILS_KEY, MESSAGE_CHARS_MAX, from_rpc_error, to_rpc_status
from qimd.contract.json import from_json, to_json
from qimd.contract.rpc_details import RpcDetails, parse_details
from qimd.contract.violation import ContractViolation
from qimd.core.errors import ERRORS, ErrorCode, QimError


def rpc_error(status):
    return aio.AioRpcError(
        status.code, aio.Metadata(), aio.Metadata(*status.trailing_metadata), status.details
    )


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_passes_through_a_status(code):
    status = to_rpc_status(QimError(code, "what", field="where", retry_after_ms=1500))
    assert status.code.name == ERRORS[code].grpc_status
    error = from_rpc_error(rpc_error(status))
    assert (error.code, error.message, error.field, error.retry_after_ms) == (
        code,
        "what",
        "where",
        1500,
    )


def test_the_details_are_those_of_google_rpc():
    status = to_rpc_status(QimError(ErrorCode.RATE_LIMITED, "what", retry_after_ms=1500))
    info = error_details_pb2.ErrorInfo(
        reason="RATE_LIMITED", domain="qim", metadata={"retry_after_ms": "1500"}
    )
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1500)
    expected = status_pb2.Status(code=8, message="what")
    expected.details.add().Pack(info)
    expected.details.add().Pack(retry)
    assert status_pb2.Status.FromString(dict(status.trailing_metadata)[DETAILS_KEY]) == expected
    assert dict(status.trailing_metadata)[DETAILS_KEY] == expected.SerializeToString()
    assert rpc_status.to_status(expected).code is status.code
    assert parse_details(expected.SerializeToString()) == RpcDetails(
        8, "what", "RATE_LIMITED", "qim", {"retry_after_ms": "1500"}, 1500
    )


@pytest.mark.parametrize("data", [b"", b"\xff", status_pb2.Status(code=3).SerializeToString()])
def test_other_details_are_passed_over(data):
    assert parse_details(data) is None
    error = aio.AioRpcError(
        grpc.StatusCode.NOT_FOUND, aio.Metadata(), aio.Metadata((DETAILS_KEY, data)), "none"
    )
    assert from_rpc_error(error).code is ErrorCode.NOT_FOUND


def test_a_foreign_domain_or_a_newer_reason_falls_back_on_the_status():
    foreign = RpcDetails(14, "x", "NOT_FOUND", "example.org").encode()
    newer = RpcDetails(14, "later", "A_NEWER_CODE", "qim").encode()
    for data in (foreign, newer):
        error = aio.AioRpcError(
            grpc.StatusCode.UNAVAILABLE, aio.Metadata(), aio.Metadata((DETAILS_KEY, data)), "x"
        )
        assert from_rpc_error(error).code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, ErrorCode.UNAVAILABLE),
        (grpc.StatusCode.CANCELLED, ErrorCode.UNAVAILABLE),
        (grpc.StatusCode.UNAVAILABLE, ErrorCode.UNAVAILABLE),
        (grpc.StatusCode.UNIMPLEMENTED, ErrorCode.UNIMPLEMENTED),
        (grpc.StatusCode.UNKNOWN, ErrorCode.INTERNAL),
    ],
)
def test_a_status_of_grpcs_own_has_a_code(status, code):
    assert from_rpc_error(aio.AioRpcError(status, None, None, "")).code is code


def test_a_long_text_does_not_burst_the_trailers():
    status = to_rpc_status(QimError(ErrorCode.INTERNAL, "x" * 10_000, field="y" * 10_000))
    assert len(status.details) == MESSAGE_CHARS_MAX
    assert len(dict(status.trailing_metadata)[DETAILS_KEY]) < 4096


# --- JSON ---------------------------------------------------------------------------------------


def test_a_json_view_reads_back():
    message = samples.dispatch()
    text = to_json(message)
    assert '"conversationSeq": "3"' in text
    assert from_json(GroupDispatch, text) == message


def test_of_an_unknown_enum_name_only_that_field_is_lost():
    """COD-01: only the enum degrades to UNSPECIFIED; never the loss of the other fields."""
    text = to_json(samples.dispatch()).replace("EVENT_KIND_MESSAGE", "EVENT_KIND_OF_NEXT_RELEASE")
    read = from_json(GroupDispatch, text.replace("{", '{"addedLater": {"a": [1]},', 1))
    assert read.kind == 0
    read.kind = samples.dispatch().kind
    assert read == samples.dispatch()


def test_what_json_lost_does_not_reach_the_wire():
    text = to_json(samples.dispatch()).replace("EVENT_KIND_MESSAGE", "EVENT_KIND_OF_NEXT_RELEASE")
    with pytest.raises(ContractViolation):
        codec.encode(from_json(GroupDispatch, text))


def test_an_unknown_enum_number_is_kept_in_json():
    message = samples.dispatch(kind=9)
    assert from_json(GroupDispatch, to_json(message)).kind == 9


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"fencing_epoch": "x"}', '{"kind": {}}', "[" * 100_000]
)
def test_what_is_no_json_of_the_message_is_refused(text):
    with pytest.raises(ContractViolation) as refused:
        from_json(GroupDispatch, text)
    assert refused.value.__cause__ is None
