"""What a hop's messages must satisfy beyond their schema: `checks` holds the rule, and the walk.

Both ends are this software's own, so that these see a defect of a peer, or a peer that is newer.
"""

from typing import Final

from qim.hop.v1 import hop_service_pb2 as hop_pb2
from qimd.contract.problems import Problem, check, increasing, kind_problem, without_arm
from qimd.contract.violation import Reason

UNANSWERED_CALLS: Final = frozenset({"presence", "touched", "cancel"})
"""Calls that have no answer, hence carry call_id 0 and no deadline."""

UNPROMPTED_ANSWERS: Final = frozenset({"hint", "draining"})
"""What answers no call, hence carries call_id 0. An error may: the stream's own."""

_FOR_A_DEVICE: Final = frozenset({"commit", "open_device", "pull_mailbox", "acknowledge"})
_FOR_A_USER: Final = _FOR_A_DEVICE | {"read_mailbox", "report", "pull_session_list", "mark_read"}
_FOR_A_TENANT: Final = _FOR_A_USER | {"presence", "touched"}
"""Calls by whom they name. All others are for nobody, or say in their arm for whom."""


@check(hop_pb2.HopRequest)
def _hop_request(request: hop_pb2.HopRequest) -> Problem | None:
    return None if request.calls else without_arm(request, "calls")


@check(hop_pb2.HopReply)
def _hop_reply(reply: hop_pb2.HopReply) -> Problem | None:
    return None if reply.answers else without_arm(reply, "answers")


@check(hop_pb2.HopCall)
def _hop_call(call: hop_pb2.HopCall) -> Problem | None:
    kind = call.WhichOneof("call")
    if kind is None:
        return without_arm(call, "call")
    if kind in UNANSWERED_CALLS:
        if call.call_id:
            return Problem(Reason.DOMAIN, "call_id")
    elif call.call_id == 0:
        return Problem(Reason.ZERO, "call_id")
    elif call.deadline_ms == 0:
        return Problem(Reason.ZERO, "deadline_ms")
    for kinds, field in (
        (_FOR_A_TENANT, "tenant_id"),
        (_FOR_A_USER, "user_id"),
        (_FOR_A_DEVICE, "device_id"),
    ):
        if kind in kinds and not getattr(call, field):
            return Problem(Reason.MISSING, field)
    return None


@check(hop_pb2.HopAnswer)
def _hop_answer(answer: hop_pb2.HopAnswer) -> Problem | None:
    kind = answer.WhichOneof("answer")
    if kind is None:
        return without_arm(answer, "answer")
    if kind in UNPROMPTED_ANSWERS:
        return Problem(Reason.DOMAIN, "call_id") if answer.call_id else None
    if answer.call_id == 0 and kind != "error":
        return Problem(Reason.ZERO, "call_id")
    return None


@check(hop_pb2.Commit)
def _commit(commit: hop_pb2.Commit) -> Problem | None:
    if not commit.conversation_id:
        return Problem(Reason.MISSING, "conversation_id")
    return None if commit.drafts else Problem(Reason.MISSING, "drafts")


@check(hop_pb2.Draft)
def _draft(draft: hop_pb2.Draft) -> Problem | None:
    return (
        kind_problem(draft.kind)
        if draft.client_msg_id
        else Problem(Reason.MISSING, "client_msg_id")
    )


@check(hop_pb2.CommitResult)
def _commit_result(result: hop_pb2.CommitResult) -> Problem | None:
    return None if result.WhichOneof("outcome") else without_arm(result, "outcome")


@check(hop_pb2.Page)
def _hop_page(page: hop_pb2.Page) -> Problem | None:
    # For all events at once: their bytes were checked when they were made.
    seqs = [event.mailbox_seq for event in page.events]
    if seqs and seqs[0] == 0:
        return Problem(Reason.ZERO, "events[0].mailbox_seq")
    return None if increasing(seqs) else Problem(Reason.DOMAIN, "events")


@check(hop_pb2.Presence)
def _presence(presence: hop_pb2.Presence) -> Problem | None:
    if presence.online_user_ids or presence.offline_user_ids:
        return None
    return without_arm(presence, "online_user_ids")


@check(hop_pb2.Touched)
def _touched(touched: hop_pb2.Touched) -> Problem | None:
    if not touched.conversation_id:
        return Problem(Reason.MISSING, "conversation_id")
    return None if touched.user_ids else Problem(Reason.MISSING, "user_ids")


@check(hop_pb2.Cancel)
def _cancel(cancel: hop_pb2.Cancel) -> Problem | None:
    return None if cancel.call_id else Problem(Reason.ZERO, "call_id")


@check(hop_pb2.Hint)
def _hint(hint: hop_pb2.Hint) -> Problem | None:
    for field in ("tenant_id", "user_ids", "delivered"):
        if not getattr(hint, field):
            return Problem(Reason.MISSING, field)
    if any(traced.index >= len(hint.delivered) for traced in hint.traced):
        return Problem(Reason.DOMAIN, "traced")
    return None
