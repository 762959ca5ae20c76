"""What a writer decides: which drafts may be committed, which are the same, who joins or leaves.

Pure: the service reads the store, asks here, and issues what comes back as one step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from qimd.core.errors import ErrorCode, QimError, invalid
from qimd.core.ids import DeviceId, UserId, id_problem
from qimd.core.outcome import Applied, NotApplied, Outcome, Refusal, Unknown
from qimd.core.parameters import (
    BODY_BYTES_MAX,
    CONVERSATION_MEMBERS_MAX,
    MEMBERSHIP_CHANGE_USERS_MAX,
    REACTION_BYTES_MAX,
    SEND_EVENTS_MAX,
)
from qimd.core.records import Accepted, Draft, EventKind, Interval
from qimd.ports.services import Commit
from qimd.ports.store import ConversationState, IdempotencyKey, PriorResult

NOT_A_MEMBER: Final = 0
"""The added_seq of somebody who is not a member: real ones begin at 1."""

T = TypeVar("T")

# --- a step's outcome --------------------------------------------------------------------------


def settled(outcome: Outcome[T], open_tries: int) -> Applied[T] | NotApplied | None:
    """The step's outcome if it is certain; None if the same step has to be issued again.

    `open_tries` counts the earlier tries of the step that nothing was heard of. After one of them
    a refusal for want of room or of a connection proves nothing: the earlier try may have been
    applied, or may land yet.
    """
    match outcome:
        case NotApplied(refusal=Refusal.NO_SPACE | Refusal.UNREACHABLE) if open_tries:
            return None
        case Applied() | NotApplied():
            return outcome
        case Unknown():
            return None


# --- a SEND ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where a draft stands: the `draft`-th of the step's `command`-th SEND."""

    command: int
    draft: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A draft that may be committed. `places` are all that it answers: the first, then repeats."""

    draft: Draft
    key: IdempotencyKey
    digest: bytes
    sender_device: DeviceId
    trace_parent: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of the drafts of some SENDs."""

    candidates: tuple[Candidate, ...]
    refused: Mapping[Place, QimError]


def check_count(drafts: Sequence[Draft]) -> None:
    """Raise QimError(INVALID_ARGUMENT) unless a SEND holds 1 to 100 events."""
    if not 1 <= len(drafts) <= SEND_EVENTS_MAX:
        raise invalid(f"a SEND holds 1 to {SEND_EVENTS_MAX} events, not {len(drafts)}", "events")


def not_member() -> QimError:
    """The same answer for a stranger and for no conversation: it must not tell which exist."""
    return QimError(ErrorCode.NOT_MEMBER, "the sender is not a member of such a conversation")


def draft_problem(draft: Draft, head_version: int) -> QimError | None:
    """INVALID_ARGUMENT naming the field of the draft that is outside its limits; else None.

    Each draft has a result of its own, which says which of them is meant.
    Whether the sender may see a reaction's target is for `sees_target`.
    """
    problem = id_problem(draft.client_msg_id)
    if problem:
        return invalid(f"client_msg_id {problem}", "client_msg_id")
    match draft.kind:
        case EventKind.MESSAGE:
            return _message_problem(draft)
        case EventKind.REACTION:
            return _reaction_problem(draft, head_version)
        case _:
            return invalid(f"an event of kind {draft.kind} can't be sent", "content")


def _message_problem(draft: Draft) -> QimError | None:
    if len(draft.body) > BODY_BYTES_MAX:
        return invalid(
            f"the body has {len(draft.body)} bytes; at most {BODY_BYTES_MAX} are allowed",
            "message.body",
        )
    if draft.target_seq:
        return invalid("a message has no target", "content")
    return None


def _reaction_problem(draft: Draft, head_version: int) -> QimError | None:
    if not 1 <= len(draft.body) <= REACTION_BYTES_MAX:
        return invalid(
            f"the reaction has {len(draft.body)} bytes; 1 to {REACTION_BYTES_MAX} are allowed",
            "reaction.reaction",
        )
    if not _is_text(draft.body):
        return invalid("the reaction is not UTF-8", "reaction.reaction")
    if not 1 <= draft.target_seq <= head_version:
        return _no_target(draft)
    return None


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _no_target(draft: Draft) -> QimError:
    # The same words for an event that does not exist and for one that the sender can't see.
    return invalid(
        f"target_seq {draft.target_seq} is no event that the sender can see",
        "reaction.target_seq",
    )


def looks_back(draft: Draft, added_seq: int) -> bool:
    """Whether a reaction's target lies before the sender's present membership: only then do the
    earlier memberships have to be read.
    """
    return draft.kind == EventKind.REACTION and 1 <= draft.target_seq < added_seq


def sees_target(draft: Draft, earlier: Sequence[Interval]) -> bool:
    """Whether the sender's memberships, which are read for a draft that looks back, show it."""
    return any(interval.sees(draft.target_seq) for interval in earlier)


def plan(
    commands: Sequence[Commit],
    members: Mapping[UserId, int],
    earlier: Mapping[UserId, Sequence[Interval]],
    head_version: int,
    digest_of: Callable[[Draft], bytes],
) -> Plan:
    """Judge the drafts of SENDs, all of them by members, in order.

    `members` gives each sender's added_seq; `earlier` the memberships of those who look back. A
    client_msg_id that comes twice is committed once: the later one is a repeat of the first, or
    IDEMPOTENCY_CONFLICT if it says something else.
    """
    first: dict[IdempotencyKey, Candidate] = {}
    refused: dict[Place, QimError] = {}
    for number, command in enumerate(commands):
        for index, draft in enumerate(command.drafts):
            place = Place(number, index)
            problem = draft_problem(draft, head_version)
            if problem is None and looks_back(draft, members[command.sender]):
                seen = sees_target(draft, earlier.get(command.sender, ()))
                problem = None if seen else _no_target(draft)
            if problem is not None:
                refused[place] = problem
                continue
            key = IdempotencyKey(command.sender, draft.client_msg_id)
            digest = digest_of(draft)
            known = first.get(key)
            if known is not None and known.digest != digest:
                refused[place] = conflict()
                continue
            if known is not None:
                first[key] = replace(known, places=(*known.places, place))
                continue
            first[key] = Candidate(
                draft, key, digest, command.sender_device, command.trace_parent, (place,)
            )
    return Plan(tuple(first.values()), refused)


def conflict() -> QimError:
    """The same client_msg_id with other content."""
    return QimError(
        ErrorCode.IDEMPOTENCY_CONFLICT,
        "this client_msg_id was sent before with other content",
        field="client_msg_id",
    )


def answer_prior(digest: bytes, prior: PriorResult) -> Accepted | QimError:
    """What a draft gets whose client_msg_id was committed before: its first result, or conflict."""
    if prior.content_digest != digest:
        return conflict()
    return Accepted(prior.event_id, prior.conversation_seq, prior.created_at_ms, duplicate=True)


# --- membership --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """Users to add and to remove, in increasing byte order. Empty: nothing to write."""

    added: tuple[UserId, ...] = ()
    removed: tuple[UserId, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def check_users(users: Sequence[str], field: str, *, least: int = 1) -> tuple[UserId, ...]:
    """The users of a membership call. Raises QimError(INVALID_ARGUMENT) for too many or too few,
    for one that comes twice, and for one that is no id.
    """
    if not least <= len(users) <= MEMBERSHIP_CHANGE_USERS_MAX:
        raise invalid(
            f"{field} holds {len(users)} users; {least} to {MEMBERSHIP_CHANGE_USERS_MAX} "
            f"are allowed",
            field,
        )
    seen: set[str] = set()
    for index, user in enumerate(users):
        problem = id_problem(user)
        if problem:
            raise invalid(f"{field}[{index}] {problem}", f"{field}[{index}]")
        if user in seen:
            raise invalid(f"{field}[{index}] is there twice", f"{field}[{index}]")
        seen.add(user)
    return tuple(UserId(user) for user in users)


def addition(
    state: ConversationState, users: Sequence[UserId], members: Mapping[UserId, int], field: str
) -> MembershipChange:
    """Those of the users that are not members yet. Raises QimError(INVALID_ARGUMENT) if the
    conversation would grow beyond its limit.
    """
    # Code points order as their UTF-8 bytes do, so this is the order of the contract.
    added = tuple(sorted(user for user in users if user not in members))
    if state.member_count + len(added) > CONVERSATION_MEMBERS_MAX:
        raise invalid(
            f"the conversation would have {state.member_count + len(added)} members; "
            f"at most {CONVERSATION_MEMBERS_MAX} are allowed",
            field,
        )
    return MembershipChange(added=added)


def removal(users: Sequence[UserId], members: Mapping[UserId, int]) -> MembershipChange:
    """Those of the users that are members."""
    return MembershipChange(removed=tuple(sorted(user for user in users if user in members)))


def same_creation(users: Sequence[UserId], first_members: Sequence[UserId]) -> bool:
    """Whether a conversation that exists is the one that a repeated creation asks for.

    Judged by the members that its first event made, not by those of today: the call stays
    idempotent however the membership changed since. One that names nobody asks for no more than
    that the conversation exists.
    """
    return not users or set(users) == set(first_members)
