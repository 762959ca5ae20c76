"""What a writer decides, at the limits and one past them."""

from collections.abc import Mapping, Sequence

import pytest

from qimd.contract.events import draft_digest
from qimd.core.errors import ErrorCode, QimError
from qimd.core.ids import ConversationId, DeviceId, EventId, TenantId, UserId
from qimd.core.outcome import Applied, NotApplied, Refusal, Unknown
from qimd.core.parameters import (
    BODY_BYTES_MAX,
    CONVERSATION_MEMBERS_MAX,
    ID_BYTES_MAX,
    MEMBERSHIP_CHANGE_USERS_MAX,
    REACTION_BYTES_MAX,
)
from qimd.core.records import Accepted, ConversationKey, Draft, EventKind, Interval
from qimd.ports.services import Commit
from qimd.ports.store import ConversationState, PriorResult
from qimd.writer.logic import (
    Place,
    Plan,
    addition,
    answer_prior,
    check_users,
    draft_problem,
    plan,
    removal,
    same_creation,
    settled,
)


def test_what_nothing_was_heard_of_is_asked_again() -> None:
    assert settled(Unknown(), 0) is None
    assert settled(Unknown(), 3) is None


@pytest.mark.parametrize("refusal", [Refusal.NO_SPACE, Refusal.UNREACHABLE])
def test_a_refusal_of_this_try_proves_nothing_of_an_open_one(refusal: Refusal) -> None:
    refused = NotApplied(refusal)
    assert settled(refused, 0) is refused
    assert settled(refused, 1) is None


@pytest.mark.parametrize(
    "refusal",
    [refusal for refusal in Refusal if refusal not in {Refusal.NO_SPACE, Refusal.UNREACHABLE}],
)
def test_a_refusal_for_what_is_stored_is_certain_after_an_open_try(refusal: Refusal) -> None:
    refused = NotApplied(refusal)
    assert settled(refused, 1) is refused


def test_an_applied_step_is_certain() -> None:
    applied = Applied(7)
    assert settled(applied, 1) is applied


KEY = ConversationKey(TenantId("acme"), ConversationId("room"))
ANN, BOB = UserId("ann"), UserId("bob")
HEAD = 10


def message(body: bytes = b"hello", client_msg_id: str = "m", target: int = 0) -> Draft:
    return Draft(client_msg_id, EventKind.MESSAGE, body, target)


def reaction(text: bytes = b"+1", target: int = 1, client_msg_id: str = "r") -> Draft:
    return Draft(client_msg_id, EventKind.REACTION, text, target)


def planned(
    *sends: tuple[UserId, Sequence[Draft]],
    members: Mapping[UserId, int] | None = None,
    earlier: Mapping[UserId, Sequence[Interval]] | None = None,
) -> Plan:
    commands = [Commit(KEY, sender, DeviceId("d"), drafts) for sender, drafts in sends]
    return plan(commands, members or {ANN: 1, BOB: 1}, earlier or {}, HEAD, draft_digest)


def state(members: int) -> ConversationState:
    return ConversationState(KEY, 1, HEAD, HEAD, HEAD, members, 0, 0)


@pytest.mark.parametrize(
    "draft",
    [
        message(b""),
        message(b"x" * BODY_BYTES_MAX),
        message(client_msg_id="x" * ID_BYTES_MAX),
        message(client_msg_id="a/b:c"),
        reaction(b"x"),
        reaction(b"x" * REACTION_BYTES_MAX),
        reaction(target=HEAD),
    ],
)
def test_what_stands_at_a_limit_is_valid(draft: Draft) -> None:
    assert draft_problem(draft, HEAD) is None


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        (message(b"x" * (BODY_BYTES_MAX + 1)), "message.body"),
        (message(client_msg_id=""), "client_msg_id"),
        (message(client_msg_id="x" * (ID_BYTES_MAX + 1)), "client_msg_id"),
        (message(client_msg_id="nul\x00"), "client_msg_id"),
        (message(target=1), "content"),
        (reaction(b""), "reaction.reaction"),
        (reaction(b"x" * (REACTION_BYTES_MAX + 1)), "reaction.reaction"),
        (reaction(b"\xff"), "reaction.reaction"),
        (reaction(target=0), "reaction.target_seq"),
        (reaction(target=HEAD + 1), "reaction.target_seq"),
        (Draft("m", EventKind.MEMBERSHIP, b""), "content"),
        (Draft("m", 9, b""), "content"),
    ],
)
def test_one_past_a_limit_is_invalid_and_named(draft: Draft, field: str) -> None:
    problem = draft_problem(draft, HEAD)
    assert problem is not None
    assert (problem.code, problem.field) == (ErrorCode.INVALID_ARGUMENT, field)


def test_a_target_before_the_membership_needs_an_earlier_one_that_saw_it() -> None:
    sends = (ANN, [reaction(target=4, client_msg_id="r")])
    assert not planned(sends, members={ANN: 4}).refused
    assert planned(sends, members={ANN: 5}).refused
    assert planned(sends, members={ANN: 5}, earlier={ANN: [Interval(1, 3)]}).refused
    assert not planned(sends, members={ANN: 5}, earlier={ANN: [Interval(1, 4)]}).refused


def test_an_unseen_target_and_none_are_told_alike() -> None:
    unseen = planned((ANN, [reaction(target=4)]), members={ANN: 5}).refused[Place(0, 0)]
    none = planned((ANN, [reaction(target=99)])).refused[Place(0, 0)]
    assert unseen.message.replace("4", "99") == none.message
    assert unseen.field == none.field


def test_candidates_keep_the_order_of_calls_and_drafts() -> None:
    result = planned(
        (ANN, [message(client_msg_id="1"), message(client_msg_id="2")]),
        (BOB, [message(client_msg_id="1")]),
    )
    assert [(c.key.sender, c.key.client_msg_id) for c in result.candidates] == [
        (ANN, "1"),
        (ANN, "2"),
        (BOB, "1"),
    ]


def test_a_repeat_shares_the_first_ones_place_in_the_step() -> None:
    result = planned((ANN, [message(), message()]), (ANN, [message()]))
    (candidate,) = result.candidates
    assert candidate.places == (Place(0, 0), Place(0, 1), Place(1, 0))


def test_a_repeat_with_another_content_is_a_conflict_and_the_first_stands() -> None:
    result = planned((ANN, [message(b"one"), message(b"two"), reaction(b"one", client_msg_id="m")]))
    assert [candidate.draft.body for candidate in result.candidates] == [b"one"]
    assert [error.code for error in result.refused.values()] == [ErrorCode.IDEMPOTENCY_CONFLICT] * 2


def test_a_prior_result_answers_the_same_content_and_refuses_another() -> None:
    prior = PriorResult(EventId(b"e" * 16), 7, 123, draft_digest(message(b"one")))
    assert answer_prior(draft_digest(message(b"one")), prior) == Accepted(
        prior.event_id, 7, 123, True
    )
    refused = answer_prior(draft_digest(message(b"two")), prior)
    assert isinstance(refused, QimError)
    assert refused.code is ErrorCode.IDEMPOTENCY_CONFLICT


def test_a_membership_call_takes_1_to_1000_distinct_ids() -> None:
    assert len(check_users([f"u{i}" for i in range(MEMBERSHIP_CHANGE_USERS_MAX)], "f")) == 1000
    assert check_users([], "f", least=0) == ()
    for users, field in (
        ([], "f"),
        ([f"u{i}" for i in range(MEMBERSHIP_CHANGE_USERS_MAX + 1)], "f"),
        (["a", "b", "a"], "f[2]"),
        (["a", ""], "f[1]"),
        (["x" * (ID_BYTES_MAX + 1)], "f[0]"),
    ):
        with pytest.raises(QimError) as refused:
            check_users(users, "f")
        assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID_ARGUMENT, field)


def test_only_effective_changes_remain_in_the_order_of_their_bytes() -> None:
    users = [UserId(user) for user in ("ü", "z", "😀", "\uffff", "a")]
    change = addition(state(3), users, {UserId("z"): 1}, "user_ids")
    assert change.added == tuple(sorted((u for u in users if u != "z"), key=str.encode))
    assert removal(users, {UserId("z"): 1}).removed == (UserId("z"),)
    assert not removal(users, {})


def test_a_conversation_holds_100000_members_and_no_more() -> None:
    users = [UserId("u1"), UserId("u2")]
    assert addition(state(CONVERSATION_MEMBERS_MAX - 2), users, {}, "user_ids")
    with pytest.raises(QimError) as refused:
        addition(state(CONVERSATION_MEMBERS_MAX - 1), users, {}, "user_ids")
    assert refused.value.field == "user_ids"
    known = {UserId("u1"): 1}
    assert addition(state(CONVERSATION_MEMBERS_MAX - 1), users, known, "user_ids").added == ("u2",)


def test_a_creation_is_the_same_by_the_members_that_it_named() -> None:
    assert same_creation([ANN, BOB], [BOB, ANN])
    assert same_creation([], [ANN])
    assert not same_creation([ANN], [ANN, BOB])
