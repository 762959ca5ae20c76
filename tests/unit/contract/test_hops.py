"""Hops on the wire: what is joined from bytes is what the codec would write, and the checks see
what no process of this software sends.
"""

from functools import partial

import pytest
from google.protobuf.message import Message

from qim.common.v1 import error_pb2
from qim.conversation.v1 import event_pb2
from qim.hop.v1 import hop_service_pb2 as hop
from qim.hop.v1.hop_service_pb2 import HopAnswer, HopCall, HopReply, HopRequest
from qimd.contract.codec import decode, encode
from qimd.contract.events import encode_delivered
from qimd.contract.hops import (
    delivered_seq,
    hint_answer,
    hint_events,
    page_answer,
    reply_frame,
    request_frame,
)
from qimd.contract.violation import ContractViolation, Reason
from qimd.core.ids import TenantId, UserId
from qimd.core.records import DeliveredEvent
from qimd.core.seq import MailboxSeq

ANN = {"tenant_id": "acme", "user_id": "ann"}
PHONE = {**ANN, "device_id": "phone"}
DRAFT = hop.Draft(client_msg_id="m1", kind=event_pb2.EVENT_KIND_MESSAGE, body=b"hi")
COMMIT = hop.Commit(conversation_id="c", drafts=[DRAFT])
ERROR = error_pb2.Error(code=error_pb2.ERROR_CODE_UNAVAILABLE)


def call(**fields: object) -> HopCall:
    return HopCall(**{"call_id": 1, "deadline_ms": 5, **fields})


# --- joined from bytes ------------------------------------------------------------------------


@pytest.mark.parametrize("token", [b"", b"token"])
@pytest.mark.parametrize("seqs", [(), (1,), (1, 300, 1 << 60)])
def test_a_page_is_joined_as_the_codec_writes_it(seqs: tuple[int, ...], token: bytes) -> None:
    events = [DeliveredEvent(MailboxSeq(seq), b"event of %d" % seq) for seq in seqs]
    page = hop.Page(
        events=[hop.PageEvent(mailbox_seq=each.seq, event=each.encoded) for each in events],
        covered_through_seq=7,
        cursor_token=token,
        more=True,
    )
    assert page_answer(300, events, 7, token, True) == encode(HopAnswer(call_id=300, page=page))


def test_a_page_that_answers_nothing_is_refused() -> None:
    with pytest.raises(ContractViolation) as refused:
        page_answer(0, [], 7, b"", False)
    assert (refused.value.reason, refused.value.field) == (Reason.ZERO, "call_id")


def test_a_hint_is_joined_as_the_codec_writes_it() -> None:
    told = [encode_delivered(seq, b"event") for seq in (1, 2)]
    joined = hint_answer(
        TenantId("acme"), [UserId("ann"), UserId("😀")], hint_events(told, ["", "00-trace"])
    )
    hint = hop.Hint(
        tenant_id="acme",
        user_ids=["ann", "😀"],
        delivered=told,
        traced=[hop.TracedEvent(index=1, trace_parent="00-trace")],
    )
    assert joined == encode(HopAnswer(hint=hint))


def test_frames_are_joined_as_the_codec_writes_them() -> None:
    calls = [call(**PHONE, commit=COMMIT), HopCall(cancel=hop.Cancel(call_id=1))]
    assert request_frame(map(encode, calls)) == encode(HopRequest(calls=calls))
    answers = [HopAnswer(call_id=1, error=ERROR), HopAnswer(draining=hop.Draining())]
    assert reply_frame(map(encode, answers)).data == encode(HopReply(answers=answers))


def test_the_seq_of_a_delivered_event_is_read_without_its_event() -> None:
    assert delivered_seq(encode_delivered(1 << 60, b"\xff no event")) == 1 << 60
    with pytest.raises(ContractViolation):
        delivered_seq(b"\xff")


# --- checks -----------------------------------------------------------------------------------


def test_what_processes_send_is_right() -> None:
    for message in (
        call(**PHONE, commit=COMMIT),
        call(**PHONE, open_device=hop.OpenDevice()),
        call(**ANN, read_mailbox=hop.ReadMailbox()),
        call(rebase_shard={}),
        HopCall(tenant_id="acme", presence=hop.Presence(online_user_ids=["ann"])),
        HopCall(tenant_id="acme", touched=hop.Touched(conversation_id="c", user_ids=["ann"])),
        HopCall(cancel=hop.Cancel(call_id=9)),
        HopAnswer(error=ERROR),
        HopAnswer(call_id=1, error=ERROR),
        HopAnswer(call_id=1, page=hop.Page()),
    ):
        assert decode(type(message), encode(message)) == message


def test_what_no_process_sends_is_refused_both_ways() -> None:
    wrong: tuple[tuple[Message, Reason, str], ...] = (
        (HopRequest(), Reason.MISSING, "calls"),
        (HopReply(), Reason.MISSING, "answers"),
        (HopCall(call_id=1, deadline_ms=1), Reason.MISSING, "call"),
        (call(**PHONE, commit=COMMIT, call_id=0), Reason.ZERO, "call_id"),
        (call(**PHONE, commit=COMMIT, deadline_ms=0), Reason.ZERO, "deadline_ms"),
        (call(user_id="ann", device_id="phone", commit=COMMIT), Reason.MISSING, "tenant_id"),
        (call(tenant_id="acme", report={"kind": 1}), Reason.MISSING, "user_id"),
        (call(**ANN, open_device={}), Reason.MISSING, "device_id"),
        (call(tenant_id="acme", presence={"online_user_ids": ["a"]}), Reason.DOMAIN, "call_id"),
        (call(cancel={"call_id": 2}), Reason.DOMAIN, "call_id"),
        (HopCall(presence={"online_user_ids": ["a"]}), Reason.MISSING, "tenant_id"),
        (HopAnswer(call_id=1), Reason.MISSING, "answer"),
        (HopAnswer(page={}), Reason.ZERO, "call_id"),
        (HopAnswer(call_id=1, draining={}), Reason.DOMAIN, "call_id"),
        (hop.Commit(drafts=[DRAFT]), Reason.MISSING, "conversation_id"),
        (hop.Commit(conversation_id="c"), Reason.MISSING, "drafts"),
        (hop.Draft(kind=event_pb2.EVENT_KIND_MESSAGE), Reason.MISSING, "client_msg_id"),
        (hop.Draft(client_msg_id="m"), Reason.MISSING, "kind"),
        (hop.CommitResult(), Reason.MISSING, "outcome"),
        (hop.Page(events=[hop.PageEvent()]), Reason.ZERO, "events[0].mailbox_seq"),
        (hop.Page(events=[{"mailbox_seq": 2}, {"mailbox_seq": 2}]), Reason.DOMAIN, "events"),
        (hop.Presence(), Reason.MISSING, "online_user_ids"),
        (hop.Touched(user_ids=["a"]), Reason.MISSING, "conversation_id"),
        (hop.Touched(conversation_id="c"), Reason.MISSING, "user_ids"),
        (hop.Cancel(), Reason.ZERO, "call_id"),
        (hop.Hint(user_ids=["a"], delivered=[b"e"]), Reason.MISSING, "tenant_id"),
        (hop.Hint(tenant_id="t", delivered=[b"e"]), Reason.MISSING, "user_ids"),
        (hop.Hint(tenant_id="t", user_ids=["a"]), Reason.MISSING, "delivered"),
        (
            hop.Hint(
                tenant_id="t",
                user_ids=["a"],
                delivered=[b"e"],
                traced=[hop.TracedEvent(index=1)],
            ),
            Reason.DOMAIN,
            "traced",
        ),
    )
    for message, reason, field in wrong:
        for refuses in (
            partial(encode, message),
            partial(decode, type(message), message.SerializeToString()),
        ):
            with pytest.raises(ContractViolation) as refused:
                refuses()
            assert (refused.value.reason, refused.value.field) == (reason, field)


def test_a_problem_inside_a_frame_is_named_by_its_path() -> None:
    frame = HopRequest(calls=[call(**PHONE, commit=COMMIT), call(**ANN, report={})])
    with pytest.raises(ContractViolation) as refused:
        encode(frame)
    assert refused.value.field == "calls[1].report.kind"


def test_arms_of_a_newer_peer_are_carried() -> None:
    unknown = b"\xfa\x3e\x02hi"
    for message_type, known in (
        (HopCall, b"\x08\x01"),
        (HopAnswer, b"\x08\x01"),
        (hop.CommitResult, b""),
        (HopRequest, b""),
        (hop.Presence, b""),
    ):
        assert encode(decode(message_type, known + unknown)) == known + unknown
